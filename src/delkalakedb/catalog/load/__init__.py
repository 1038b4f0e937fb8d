"""Bulk loads: whole logs, adopted commits, and copies of other catalogs."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.catalog.load.adoption import *
    from delkalakedb.catalog.load.copies import *
    from delkalakedb.catalog.load.log_rows import *
    from delkalakedb.catalog.load.staged_table import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "adoption": "Entry adopt_entry hold_mirror indexed",
            "copies": ("PARTS count_rows find_difference inserts read_rows renumbered"),
            "log_rows": (
                "adds_of base_writes batch_writes history_writes named state_rows"
            ),
            "staged_table": (
                "MOVED MOVING StagedTable find_table_at "
                "forget_table forgetting locked locked_mirror set_hold"
            ),
        },
    )
