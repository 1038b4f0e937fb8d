"""Delta Lake tables whose truth lives in SQL and whose commits reach `_delta_log`."""

import os
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from delkalakedb import mirror as mirror
    from delkalakedb.catalog import Snapshot
    from delkalakedb.catalog.cache import CacheInfo, cache_info
    from delkalakedb.connection import Catalog, close, connect
    from delkalakedb.migrate import (
        Copied,
        Detached,
        Imported,
        ImportProgress,
        Synced,
        copy_catalog,
        cut_over,
        detach,
        follow,
        import_table,
        sync,
    )
    from delkalakedb.mirror.verify import verify_uri as verify
    from delkalakedb.model.tables import Commit, File, Table
    from delkalakedb.table import DeltaTable, write_deltalake
    from delkalakedb.table.multi import Transaction, transaction
    from delkalakedb.table.query import QueryBuilder
    from delkalakedb.table.registration import register, unregister
    from delkalakedb.telemetry import JsonFormatter, PublishWarning

__all__ = [
    "CacheInfo",
    "Catalog",
    "Commit",
    "Copied",
    "DeltaTable",
    "Detached",
    "File",
    "ImportProgress",
    "Imported",
    "JsonFormatter",
    "PublishWarning",
    "QueryBuilder",
    "Snapshot",
    "Synced",
    "Table",
    "Transaction",
    "cache_info",
    "close",
    "connect",
    "copy_catalog",
    "cut_over",
    "detach",
    "follow",
    "import_table",
    "register",
    "sync",
    "transaction",
    "unregister",
    "verify",
    "write_deltalake",
]

# Loaded on first use: the command's help needs none of what these import.
_HOMES = {
    "CacheInfo": "catalog.cache",
    "Catalog": "connection",
    "Commit": "model.tables",
    "Copied": "migrate",
    "DeltaTable": "table",
    "Detached": "migrate",
    "File": "model.tables",
    "ImportProgress": "migrate",
    "Imported": "migrate",
    "JsonFormatter": "telemetry",
    "PublishWarning": "telemetry",
    "QueryBuilder": "table.query",
    "Snapshot": "catalog",
    "Synced": "migrate",
    "Table": "model.tables",
    "Transaction": "table.multi",
    "cache_info": "catalog.cache",
    "close": "connection",
    "connect": "connection",
    "copy_catalog": "migrate",
    "cut_over": "migrate",
    "detach": "migrate",
    "follow": "migrate",
    "import_table": "migrate",
    "register": "table.registration",
    "sync": "migrate",
    "transaction": "table.multi",
    "unregister": "table.registration",
    "verify": "mirror.verify:verify_uri",
    "write_deltalake": "table.write",
}

if not TYPE_CHECKING:  # a checker would take every name for one of ours

    def __getattr__(name: str) -> object:
        if name == "mirror":
            return import_module(f"{__name__}.mirror")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home, _, attribute = _HOMES[name].partition(":")
        value = getattr(import_module(f"{__name__}.{home}"), attribute or name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if sys.platform == "win32":
    warnings.warn(
        "delkalakedb isn't supported on Windows, where nobody has tested it; use the "
        "Windows Subsystem for Linux",
        RuntimeWarning,
        stacklevel=2,
    )
if os.environ.get("DELKALAKEDB_REGISTER") == "1":
    import_module(f"{__name__}.auto")
