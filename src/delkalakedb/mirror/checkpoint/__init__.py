"""Checkpoints and other side files of a published log, and log retention."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.mirror.checkpoint.checkpoint import *
    from delkalakedb.mirror.checkpoint.log_retention import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "checkpoint": (
                "Checkpoint due_checkpoint read_last_checkpoint unharmed "
                "version_checksum write_checkpoint write_last_checkpoint"
            ),
            "log_retention": "clean_log make_checkpoint",
        },
    )
