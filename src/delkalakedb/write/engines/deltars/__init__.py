"""The delta-rs engine: unmodified delta-rs in a private workspace."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.write.engines.deltars.new_table import *
    from delkalakedb.write.engines.deltars.process import *
    from delkalakedb.write.engines.deltars.workspace import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "new_table": (
                "NewSchema arrow_schema creation parse_new_schema schema_from_arrow"
            ),
            "process": (
                "IN_PRIVATE check_delta_rs explained open_filesystem open_input"
            ),
            "workspace": (
                "DeltaRs Guest Ran candidates open_private split_properties watched"
            ),
        },
    )
