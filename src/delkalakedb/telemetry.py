"""Log events, and the warning about commits that couldn't be published.

An event is one log record: a short message for people, and its values as record
attributes named `delta_<value>`. Texts are redacted before any handler sees them.

A logger is silent until an application configures it. So the caller of a commit that
couldn't be published gets a Python warning, which is shown by default: once for each
table and kind of failure in a process, because a store that can't be reached fails
every commit. A program
that reports such failures itself, as the command line does, takes them by `telling`.
"""

import json
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from delkalakedb.settings import redact

# Silent until an application configures the logger.
logging.getLogger("delkalakedb").addHandler(logging.NullHandler())

_PREFIX = "delta_"
_Listener = Callable[["PublishWarning"], None]

# Process ids, each with a subject that the process has warned about.
_warned: set[tuple[int, Hashable]] = set()
_lock = threading.Lock()
_listeners: list[_Listener] = []
_OURS = frozenset({"delkalakedb", "deltalake"})


def log_event(
    logger: logging.Logger, level: int, message: str, **values: str | float | None
) -> None:
    """Log `message` with `values` as `delta_...` attributes of the record."""
    if logger.isEnabledFor(level):
        extra = {_PREFIX + n: _redact_value(v) for n, v in values.items()}
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
    """A formatter that writes each record as one JSON object.

    An event's values have their names without `delta_`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        for name, value in vars(record).items():
            if name.startswith(_PREFIX):
                line[name.removeprefix(_PREFIX)] = _redact_value(value)
        if record.exc_info:
            line["exception"] = redact(self.formatException(record.exc_info))
        return json.dumps(line, default=str)


def _redact_value(value: object) -> object:
    return redact(value) if isinstance(value, str) else value


class PublishWarning(UserWarning):
    """A version is committed, but isn't in the table's `_delta_log` yet.

    Where warnings are errors (`python -W error`) the call that made the commit raises
    this warning. The version is committed even so: don't repeat the call.

    Args:
        table: the table's name.
        version: the version that isn't published.
        reason: why the version couldn't be published; credentials are masked.
        outlook: what will happen next.
    """

    def __init__(self, table: str, version: int, reason: str, outlook: str) -> None:
        reason = redact(reason)
        super().__init__(table, version, reason, outlook)
        self.table, self.version = table, version
        self.reason, self.outlook = reason, outlook
        # Every commit of the call, if a call raises the warning.
        self.committed: tuple[Any, ...] = ()

    def __str__(self) -> str:
        version = f"{self.table}: version {self.version}"
        said = f"{version} is committed but not published yet"
        return f"{said}: {self.reason.rstrip('.')}. {self.outlook}"


def tell_unpublished(subject: Hashable, failure: PublishWarning) -> None:
    """Warn of a commit that isn't published, once for each `subject` in a process.

    Args:
        subject: a key that identifies the table and the kind of failure.
        failure: the warning. It is raised where warnings are errors.
    """
    if _listeners:
        _listeners[-1](failure)
        return
    key = (os.getpid(), subject)
    with _lock:
        if key in _warned:
            return
        _warned.add(key)
    warnings.warn(failure, stacklevel=_stack_level())


@contextmanager
def telling(listener: _Listener) -> Iterator[None]:
    """Call `listener` with each failure of this process instead of warning."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _stack_level() -> int:
    """Return the level of the first caller outside this package and deltalake."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back:
        package, _, _ = str(frame.f_globals.get("__name__", "")).partition(".")
        if package not in _OURS:
            break
        level, frame = level + 1, frame.f_back
    return level
