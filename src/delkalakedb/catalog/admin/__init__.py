"""Administration: backups, audit, sizes, and renaming tables."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.catalog.admin.audit import *
    from delkalakedb.catalog.admin.backup import *
    from delkalakedb.catalog.admin.names import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "audit": "Event by_day load_audit load_events load_growth load_stats",
            "backup": (
                "Restored back_up load_tables load_versions restore_backup "
                "upgrade_catalog"
            ),
            "names": "rename_table",
        },
    )
