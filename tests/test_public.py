"""The package's face: what is exported, and that all of it is described."""

import importlib
import inspect
import pkgutil
from types import ModuleType

import pytest

import delkalakedb as dk

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(dk.__path__, f"{dk.__name__}.")
    if not module.name.endswith("__main__")
)


def ours(value: object) -> bool:
    return str(getattr(value, "__module__", "")).startswith(f"{dk.__name__}.")


def test_exports_equal_all() -> None:
    exported = {
        name
        for name in dir(dk)
        if not name.startswith("_")
        and not isinstance(value := getattr(dk, name), ModuleType)
        and ours(value)
    }

    assert exported == set(dk.__all__)


def test_all_is_sorted() -> None:
    assert dk.__all__ == sorted(dk.__all__)


@pytest.mark.parametrize("name", dk.__all__)
def test_public_name_and_its_members_have_docstrings(name: str) -> None:
    value = getattr(dk, name)
    members = inspect.getmembers(value) if isinstance(value, type) else []
    described = [(name, value)] + [
        (f"{name}.{member}", item)
        for member, item in members
        if not member.startswith("_")
        and (inspect.isfunction(item) or isinstance(item, property))
        and ours(getattr(item, "fget", item))
    ]

    assert [label for label, item in described if not inspect.getdoc(item)] == []


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dk.nonsense


@pytest.mark.parametrize("name", MODULES)
def test_public_functions_and_classes_of_a_module_have_docstrings(name: str) -> None:
    for public, value in vars(importlib.import_module(name)).items():
        described = inspect.isclass(value) or inspect.isfunction(value)
        if described and not public.startswith("_") and value.__module__ == name:
            assert value.__doc__, f"{name}.{public}"


@pytest.mark.parametrize("name", MODULES)
def test_module_says_what_it_is_for(name: str) -> None:
    assert importlib.import_module(name).__doc__
