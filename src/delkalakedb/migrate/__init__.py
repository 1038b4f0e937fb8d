"""The way in for tables that live in a `_delta_log`, and the way out again."""

from delkalakedb.migrate.copying import Copied, copy_catalog
from delkalakedb.migrate.detaching import Detached, detach
from delkalakedb.migrate.dropping import Dropped, drop_table
from delkalakedb.migrate.following import Synced, cut_over, follow, sync
from delkalakedb.migrate.importing import Imported, ImportProgress, import_table

__all__ = [
    "Copied",
    "Detached",
    "Dropped",
    "ImportProgress",
    "Imported",
    "Synced",
    "copy_catalog",
    "cut_over",
    "detach",
    "drop_table",
    "follow",
    "import_table",
    "sync",
]
