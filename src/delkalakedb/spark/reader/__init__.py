"""Tables as DataFrames, read by Spark's Parquet reader or by Arrow."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.spark.reader.change_feed import *
    from delkalakedb.spark.reader.frame import *
    from delkalakedb.spark.reader.layout import *
    from delkalakedb.spark.reader.marks import *
    from delkalakedb.spark.reader.source import *
    from delkalakedb.spark.reader.table_version import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "change_feed": "check_recorded version_since",
            "frame": "FILE_COLUMN INDEX_COLUMN",
            "marks": "vector_reader",
            "layout": "partitions_in",
            "source": (
                "BatchReader FilesPartition READ_OPTIONS "
                "SourceOptions load_schema "
                "table_reader tasks_of"
            ),
            "table_version": (
                "Condition Files Target column_of is_plain is_utc "
                "kept moment_of others pruning read read_snapshot text_of"
            ),
        },
    )
