"""Logging, silent unless the application configures it, and one warning that isn't."""

import logging

from delkalakedb.telemetry.events import (
    ATTRIBUTE_PREFIX,
    EventValue,
    JsonFormatter,
    log_commit,
    log_event,
)
from delkalakedb.telemetry.unpublished import (
    PublishWarning,
    tell_unpublished,
    telling,
)

__all__ = [
    "ATTRIBUTE_PREFIX",
    "EventValue",
    "JsonFormatter",
    "PublishWarning",
    "log_commit",
    "log_event",
    "tell_unpublished",
    "telling",
]

logging.getLogger("delkalakedb").addHandler(logging.NullHandler())
