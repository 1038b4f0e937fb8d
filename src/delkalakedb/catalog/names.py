"""What a table may be called, and where it may lie."""

import re

from delkalakedb.errors import DeltaError, TableNotFoundError

__all__ = ["check_name", "check_place", "no_such_table"]

_MAX_NAME_BYTES = 255
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
# `scheme://` anywhere, and `scheme:/` or `deltasql:` at the beginning
_URI = re.compile(r"://|^\s*(?:[a-z][a-z0-9+.-]*:/|deltasql:)", re.IGNORECASE)
_MAX_LOCATION_BYTES = 2000


def check_name(name: str) -> None:
    """Refuse a name that no URI can have, that looks like a URI, or that is too long.

    A URI isn't shown, because it may hold a password.
    """
    if _URI.search(name):
        raise DeltaError(
            "a table can't have a URI as its name; give the name alone, such as 'sales'"
        )
    if not name or _UNPRINTABLE.search(name):
        raise DeltaError(f"{name!r}: no table can have that name")
    _check_size("name", name, _MAX_NAME_BYTES)


def check_place(name: str, location: str) -> None:
    """Refuse a name or a location that can't be kept."""
    check_name(name)
    _check_size("location", location, _MAX_LOCATION_BYTES)


def no_such_table(name: str) -> TableNotFoundError:
    """Return the error for a table that isn't in the catalog.

    A URI isn't shown, because it may hold a password.
    """
    if _URI.search(name):
        return TableNotFoundError(
            "the catalog has no table with a URI as its name; give the name alone"
        )
    return TableNotFoundError(f"{name}: the catalog has no such table")


def _check_size(what: str, text: str, limit: int) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > limit:
        raise DeltaError(f"a table's {what} can't be longer than {limit} bytes")
