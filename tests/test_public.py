"""The package's face: what is exported, and that all of it is described."""

import importlib
import importlib.metadata
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import click
import pytest

import delkalakedb as dk
from delkalakedb.cli.commands.root import cli

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(dk.__path__, f"{dk.__name__}.")
    if not module.name.endswith("__main__")
)

# Names that users import and type. Names are added here, and never removed.
PUBLIC_NAMES = """
    CacheInfo Catalog Commit Copied DeltaTable Detached File ImportProgress Imported
    JsonFormatter PublishWarning QueryBuilder Snapshot Synced Table Transaction
    cache_info close connect copy_catalog cut_over detach follow import_table
    register sync transaction unregister verify write_deltalake
"""
COMMANDS = """
    append audit backup checkpoint completion convert copy create describe detach
    diff doctor drop export files head history import init mirror mirror/adopt
    mirror/fence mirror/republish mirror/retry mirror/run mirror/status optimize
    query rename restore restore-catalog retention schema set shell stats sync
    tables unset upgrade vacuum verify
"""


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


def test_public_names_stay() -> None:
    gone = set(PUBLIC_NAMES.split()) - set(dk.__all__)

    assert gone == set()


def _commands(group: click.Group, prefix: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        yield f"{prefix}{name}"
        if isinstance(command, click.Group):
            yield from _commands(command, f"{prefix}{name}/")


def test_commands_and_entry_points_stay() -> None:
    entries = {
        f"{entry.group} {entry.name}"
        for entry in importlib.metadata.distribution("delkalakedb").entry_points
    }

    assert set(COMMANDS.split()) <= set(_commands(cli))
    assert entries >= {
        "console_scripts deltasql",
        "delkalakedb.backends duckdb",
        "delkalakedb.backends postgres",
        "delkalakedb.backends sqlite",
        "delkalakedb.writers pyspark",
    }


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
