"""The API for PySpark code, with delta-spark's classes and methods."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.spark.face.builders import (
        DeltaMergeBuilder as DeltaMergeBuilder,
        DeltaOptimizeBuilder as DeltaOptimizeBuilder,
        DeltaTableBuilder as DeltaTableBuilder,
    )
    from delkalakedb.spark.face.frame_writer import *
    from delkalakedb.spark.face.generation import *
    from delkalakedb.spark.face.table import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "builders": "DeltaMergeBuilder DeltaOptimizeBuilder DeltaTableBuilder",
            "frame_writer": "Write foreach_batch write write_in",
            "generation": "IdentityGenerator",
            "table": "DeltaTable",
        },
    )
