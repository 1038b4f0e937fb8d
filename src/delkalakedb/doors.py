"""Doors: a package's names, each imported from its module on first use.

A door costs no start-up time, because importing a package loads none of its modules.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def door(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package that exports names lazily.

    Args:
        package: the package's own `__name__`.
        modules: by a module's name below the package, the names that the package
            exports from this module, with spaces between them. `name:other` exports
            `name` as `other`, and `.` the module itself. No other name may be that of
            a module of the package: once loaded, the module would take its place.
    """
    homes: dict[str, tuple[str, str]] = {}
    for module, texts in modules.items():
        for name, _, exported in (text.partition(":") for text in texts.split()):
            homes[module if name == "." else exported or name] = (module, name)

    def find(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = homes[name]
        home = import_module(f"{package}.{module}")
        value = home if attribute == "." else getattr(home, attribute)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted(homes)

    return find, names
