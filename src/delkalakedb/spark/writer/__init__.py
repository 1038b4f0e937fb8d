"""DataFrames written as data files, and the data source's sink."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.spark.writer.checks import *
    from delkalakedb.spark.writer.data_files import *
    from delkalakedb.spark.writer.evolution import *
    from delkalakedb.spark.writer.file_options import *
    from delkalakedb.spark.writer.placement import *
    from delkalakedb.spark.writer.row_numbers import *
    from delkalakedb.spark.writer.sink import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "checks": (
                "CURRENT_DEFAULT check_defaults default_columns finished "
                "generated_columns required"
            ),
            "data_files": (
                "CHANGE_TYPE Output Timer commit_info output_metrics write_files"
            ),
            "evolution": (
                "assigned_columns by_name check_fields evolved_metadata "
                "evolved_protocol fitted merges_schemas new_state plain_schema "
                "replaced_metadata updated_fields"
            ),
            "file_options": "FileOptions",
            "placement": "ENABLED SETTING is_dynamic partitions_of",
            "row_numbers": "numbered",
            "sink": "BatchWriter StreamWriter",
        },
    )
