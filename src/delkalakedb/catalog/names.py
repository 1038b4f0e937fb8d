"""What a table may be called, and where it may lie."""

import re

from delkalakedb.errors import DeltaError

__all__ = ["check_name", "check_place"]

_MAX_NAME_BYTES = 255
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f]")
_MAX_LOCATION_BYTES = 2000


def check_name(name: str) -> None:
    """Refuse a name that no URI can have, or that is too long for an index."""
    if not name or _UNPRINTABLE.search(name):
        raise DeltaError(f"{name!r}: no table can have that name")
    _check_size("name", name, _MAX_NAME_BYTES)


def check_place(name: str, location: str) -> None:
    """Refuse a name or a location that can't be kept."""
    check_name(name)
    _check_size("location", location, _MAX_LOCATION_BYTES)


def _check_size(what: str, text: str, limit: int) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > limit:
        raise DeltaError(f"a table's {what} can't be longer than {limit} bytes")
