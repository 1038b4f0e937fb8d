"""Delta logs in a store: their segments, checkpoints and actions."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.storage.log.checkpoint import *
    from delkalakedb.storage.log.file_log import *
    from delkalakedb.storage.log.lookahead import *
    from delkalakedb.storage.log.segment import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "checkpoint": "ADDS Part read_checkpoint read_files read_sidecars",
            "file_log": "FileTxnLogReader",
            "lookahead": "Reading batches read_ahead read_groups",
            "segment": "LogFiles find_checkpoint list_log list_newer",
        },
    )
