"""Logging: silent unless the application configures the `delkalakedb` logger."""

import logging

from delkalakedb.telemetry.events import (
    ATTRIBUTE_PREFIX,
    EventValue,
    JsonFormatter,
    log_commit,
    log_event,
)

__all__ = ["ATTRIBUTE_PREFIX", "EventValue", "JsonFormatter", "log_commit", "log_event"]

logging.getLogger("delkalakedb").addHandler(logging.NullHandler())
