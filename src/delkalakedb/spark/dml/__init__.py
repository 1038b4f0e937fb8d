"""Update, delete, merge and optimize with Spark; clones, and Parquet folders."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.spark.dml.clauses import *
    from delkalakedb.spark.dml.clone import *
    from delkalakedb.spark.dml.conversion import *
    from delkalakedb.spark.dml.merge import *
    from delkalakedb.spark.dml.optimize import *
    from delkalakedb.spark.dml.rewrite import *
    from delkalakedb.spark.dml.row_marks import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "clauses": "Clause Clauses When",
            "clone": "Clone",
            "conversion": "Conversion",
            "merge": "Merge MergePlan source_range",
            "optimize": "check_z_order optimization purge purge_metrics",
            "rewrite": "Targeted delete deletion update",
        },
    )
