"""The mirror: ratified commits on their way to `_delta_log`."""

from delkalakedb.mirror.publish import publish

__all__ = ["publish"]
