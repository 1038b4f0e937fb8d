"""The warning about commits that couldn't be published.

A logger is silent until an application configures it. So the caller of a commit that
couldn't be published gets a Python warning, which is shown by default: once for each
table and kind of failure in a process, because a store that can't be reached fails
every commit. A program that reports such failures itself, as the command line does,
takes them by `telling`.
"""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

from delkalakedb.settings import redact

_Listener = Callable[["PublishWarning"], None]

# Process ids, each with a subject that the process has warned about.
_warned: set[tuple[int, Hashable]] = set()
_lock = threading.Lock()
_listeners: list[_Listener] = []
_OURS = frozenset({"delkalakedb", "deltalake"})


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
