"""Delta Lake tables whose truth lives in SQL and whose commits reach `_delta_log`.

The examples of the API reference run in a folder with the SQLite catalog `meta.db`. Its
table `sales` has the columns `id`, `city` and `amount`, two rows in version 0 and a
third one in version 1. `dk` is this package, and `pa` is pyarrow.
"""

import os
import sys
import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from delkalakedb.doors import door as _door

if TYPE_CHECKING:
    from delkalakedb import aio as aio, errors as errors, mirror as mirror
    from delkalakedb.catalog import Snapshot
    from delkalakedb.catalog.engine import CacheInfo, cache_info
    from delkalakedb.connection import Catalog, close, connect
    from delkalakedb.deltalake import (
        DeltaTable,
        QueryBuilder,
        Transaction,
        convert_to_deltalake,
        create_table_with_add_actions,
        register,
        transaction,
        unregister,
        write_deltalake,
    )
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
    from delkalakedb.mirror.verify import verify
    from delkalakedb.model.records import Commit, File, Table
    from delkalakedb.progress import Progress
    from delkalakedb.query import Relation, sql
    from delkalakedb.telemetry import JsonFormatter, PublishWarning
else:
    __getattr__, __dir__ = _door(
        __name__,
        {
            "aio": ".",
            "catalog": "Snapshot",
            "catalog.engine": "CacheInfo cache_info",
            "connection": "Catalog close connect",
            "deltalake": "DeltaTable QueryBuilder Transaction register transaction"
            " convert_to_deltalake create_table_with_add_actions unregister"
            " write_deltalake",
            "errors": ".",
            "migrate": "Copied Detached ImportProgress Imported Synced copy_catalog"
            " cut_over detach follow import_table sync",
            "mirror": ".",
            "mirror.verify": "verify",
            "model.records": "Commit File Table",
            "progress": "Progress",
            "query": "Relation sql",
            "telemetry": "JsonFormatter PublishWarning",
        },
    )

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
    "Progress",
    "PublishWarning",
    "QueryBuilder",
    "Relation",
    "Snapshot",
    "Synced",
    "Table",
    "Transaction",
    "cache_info",
    "close",
    "connect",
    "convert_to_deltalake",
    "copy_catalog",
    "create_table_with_add_actions",
    "cut_over",
    "detach",
    "follow",
    "import_table",
    "register",
    "sql",
    "sync",
    "transaction",
    "unregister",
    "verify",
    "write_deltalake",
]

__version__ = "0.1.0"

if sys.platform == "win32":
    warnings.warn(
        "delkalakedb isn't tested on Windows; use the Windows Subsystem for Linux",
        RuntimeWarning,
        stacklevel=2,
    )
if os.environ.get("DELKALAKEDB_REGISTER") == "1":
    import_module(f"{__name__}.auto")
