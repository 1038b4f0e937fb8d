"""The deltalake face: the same calls, on tables of a catalog."""

from typing import TYPE_CHECKING

from delkalakedb.table import compat as compat
from delkalakedb.table.table import DeltaTable

if TYPE_CHECKING:
    from delkalakedb.table.write import write_deltalake

__all__ = ["DeltaTable", "write_deltalake"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # Loaded on first use: to open a table needs none of what writing imports.
        if name != "write_deltalake":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from delkalakedb.table.write import write_deltalake

        return write_deltalake
