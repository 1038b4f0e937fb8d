"""Engines: each stages the files and actions of one operation."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.write.engines.arrow import *
    from delkalakedb.write.engines.in_place import *
    from delkalakedb.write.engines.purge import *
    from delkalakedb.write.engines.row_filters import *
    from delkalakedb.write.engines.row_reader import *
    from delkalakedb.write.engines.vectors import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "arrow": "ArrowAppend split_small",
            "row_reader": (
                "ArrowReader CHANGE_COLUMNS DataFile FILE_COLUMNS arrow_reader "
                "changed_file check_readable data_file data_files feed_files "
                "read_vector"
            ),
            "in_place": "InPlace Work",
            "purge": "Compaction Purge can_purge check_partitions purgeable",
            "row_filters": "columns_of row_filter",
            "vectors": (
                "FoundRows Marking Search VectorDelete Vectors allows_vectors marking "
                "takes_vectors worth_marking"
            ),
        },
    )
