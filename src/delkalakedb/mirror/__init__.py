"""The mirror: copies ratified commits to `_delta_log`."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.mirror.fences import *
    from delkalakedb.mirror.foreign import *
    from delkalakedb.mirror.publisher import (
        LagAlert as LagAlert,
        MirrorStatus as MirrorStatus,
        Reconciler as Reconciler,
        Republished as Republished,
        publish as publish,
        republish as republish,
        run as run,
        status as status,
    )
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "fences": "fence unfence",
            "foreign": "adopt decode_entry find_foreign",
            "publisher": (
                "LagAlert MirrorStatus Reconciler Republished publish "
                "republish run status"
            ),
        },
    )

__all__ = [
    "LagAlert",
    "MirrorStatus",
    "Reconciler",
    "Republished",
    "adopt",
    "fence",
    "publish",
    "republish",
    "run",
    "status",
]
