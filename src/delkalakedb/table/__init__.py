"""The deltalake face: the same calls, on tables of a catalog."""

from delkalakedb.table import compat as compat
from delkalakedb.table.table import DeltaTable, write_deltalake

__all__ = ["DeltaTable", "write_deltalake"]
