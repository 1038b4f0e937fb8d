"""Publishing: copy ratified commits to `_delta_log`, in order, under a lease."""

import sys
from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.mirror.publisher.delivery import *
    from delkalakedb.mirror.publisher.publication import *
    from delkalakedb.mirror.publisher.reconciler import *
    from delkalakedb.mirror.publisher.republication import *
    from delkalakedb.mirror.publisher.statuses import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "delivery": "deliver",
            "publication": (
                "Published Stores publish publish_table put_commit stores_with"
            ),
            "reconciler": "LagAlert Reconciler run",
            "republication": "Republished find_loss republish",
            "statuses": "MirrorStatus absence status status_of",
        },
    )


def drain_loaded() -> None:
    """Publish the commits of this process that wait to be published in the background.

    Each of their tables gets one attempt, within a bounded time. A process that hasn't
    loaded `delivery` has committed nothing, and loads nothing here.
    """
    if (delivery := sys.modules.get(f"{__name__}.delivery")) is not None:
        delivery.drain()
