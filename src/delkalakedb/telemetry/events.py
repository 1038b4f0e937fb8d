"""Structured events on stdlib loggers.

An event is one log record: a short message for people, and its values as record
attributes named `delta_<value>` for everything else. Texts are redacted before any
handler sees them.
"""

import json
import logging
from datetime import UTC, datetime

from delkalakedb.redaction import redact

__all__ = ["ATTRIBUTE_PREFIX", "EventValue", "JsonFormatter", "log_commit", "log_event"]

ATTRIBUTE_PREFIX = "delta_"

EventValue = str | int | float | bool | None


def log_event(
    logger: logging.Logger, level: int, message: str, **values: EventValue
) -> None:
    """Log `message` with `values` as `delta_...` attributes of the record."""
    if logger.isEnabledFor(level):
        extra = {ATTRIBUTE_PREFIX + n: _redact_value(v) for n, v in values.items()}
        logger.log(level, "%s", redact(message), extra=extra)


def log_commit(
    *,
    table: str,
    version: int,
    operation: str,
    adds: int,
    removes: int,
    bytes_added: int,
    duration_ms: float,
    transaction_id: str,
) -> None:
    """Log a ratified commit on `delkalakedb.commit`."""
    log_event(
        logging.getLogger("delkalakedb.commit"),
        logging.INFO,
        f"{table}: version {version}, {operation}, "
        f"+{adds} -{removes} files in {duration_ms:.0f} ms",
        event="commit",
        table=table,
        version=version,
        operation=operation,
        adds=adds,
        removes=removes,
        bytes_added=bytes_added,
        duration_ms=duration_ms,
        transaction_id=transaction_id,
    )


class JsonFormatter(logging.Formatter):
    """One JSON object per record, an event's values by their plain names."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line of JSON."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name.startswith(ATTRIBUTE_PREFIX):
                line[name.removeprefix(ATTRIBUTE_PREFIX)] = _redact_value(value)
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, default=str)


def _redact_value(value: object) -> object:
    return redact(value) if isinstance(value, str) else value
