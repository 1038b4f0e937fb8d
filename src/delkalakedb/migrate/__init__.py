"""Tables brought into a catalog from a `_delta_log`, and taken out of it again."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.migrate.copier import *
    from delkalakedb.migrate.departure import *
    from delkalakedb.migrate.follower import *
    from delkalakedb.migrate.importer import *
    from delkalakedb.migrate.trees import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "copier": "Copied copy_catalog",
            "departure": "Detached Dropped detach drop_table list_objects",
            "follower": "Synced cut_over follow sync",
            "importer": "ImportProgress Imported import_table",
            "trees": ("Outcome Place find_places import_place name_of preview"),
        },
    )

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
