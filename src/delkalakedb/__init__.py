"""Delta Lake tables whose truth lives in SQL and whose commits reach `_delta_log`."""

from delkalakedb.catalog import Catalog, Snapshot, connect
from delkalakedb.model.tables import Commit, File, Table
from delkalakedb.table import DeltaTable, write_deltalake
from delkalakedb.telemetry import JsonFormatter

__all__ = [
    "Catalog",
    "Commit",
    "DeltaTable",
    "File",
    "JsonFormatter",
    "Snapshot",
    "Table",
    "connect",
    "write_deltalake",
]
