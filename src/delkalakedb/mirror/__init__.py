"""The mirror: ratified commits on their way to `_delta_log`."""

from delkalakedb.mirror.fence import fence_uri as fence
from delkalakedb.mirror.foreign import adopt_uri as adopt
from delkalakedb.mirror.publish import publish
from delkalakedb.mirror.reconcile import LagAlert, Reconciler, run
from delkalakedb.mirror.republish import Republished
from delkalakedb.mirror.republish import republish_uri as republish
from delkalakedb.mirror.status import MirrorStatus, status

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
