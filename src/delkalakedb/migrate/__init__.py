"""The way in for tables that live in a `_delta_log`, and the way out again."""

from delkalakedb.migrate.detaching import Detached, detach
from delkalakedb.migrate.importing import Imported, ImportProgress, import_table

__all__ = ["Detached", "ImportProgress", "Imported", "detach", "import_table"]
