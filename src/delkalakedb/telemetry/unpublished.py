"""Tell the caller of a commit that the commit stands but couldn't be published.

A logger is silent until somebody configures it. So the caller gets a Python warning,
which is shown by default: once for each table in a process, because a store that is
away fails every commit. A program that shows failures in its own way, as the command
line does, takes them by `telling` instead.
"""

import os
import sys
import threading
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from delkalakedb.redaction import redact

__all__ = ["PublishWarning", "tell_unpublished", "telling"]

_Tell = Callable[["PublishWarning"], None]

# Processes, and the tables in each that were told of.
_told: set[tuple[int, Hashable]] = set()
_lock = threading.Lock()
_listeners: list[_Tell] = []
_OURS = frozenset({"delkalakedb", "deltalake"})


class PublishWarning(UserWarning):
    """A commit stands in the catalog, but isn't in the table's `_delta_log` yet.

    Where warnings are errors (`python -W error`) the call that made the commit raises
    it. The commit stands all the same, so it must not be made again.

    Args:
        table: the table's name.
        version: the version that isn't published.
        reason: why, without credentials.
        outlook: what will happen next.
    """

    def __init__(self, table: str, version: int, reason: str, outlook: str) -> None:
        super().__init__(table, version, redact(reason), outlook)
        # Set on the one that is raised: every commit of the call.
        self.committed: tuple[Any, ...] = ()

    @property
    def table(self) -> str:
        """The table's name."""
        return str(self.args[0])

    @property
    def version(self) -> int:
        """The version that isn't published."""
        return int(self.args[1])

    @property
    def reason(self) -> str:
        """Why the version couldn't be published."""
        return str(self.args[2])

    @property
    def outlook(self) -> str:
        """What will happen next."""
        return str(self.args[3])

    def __str__(self) -> str:
        said = f"{self.table}: version {self.version} stands, but isn't published yet"
        return f"{said}: {self.reason.rstrip('.')}. {self.outlook}"


def tell_unpublished(table: Hashable, failure: PublishWarning) -> None:
    """Warn of a commit that isn't published, unless the table was warned of already.

    Args:
        table: what tells the table from all others.
        failure: the warning. It is raised where warnings are errors.
    """
    if _listeners:
        _listeners[-1](failure)
        return
    key = (os.getpid(), table)
    with _lock:
        if key in _told:
            return
        _told.add(key)
    warnings.warn(failure, stacklevel=_stack_level())


@contextmanager
def telling(listener: _Tell) -> Iterator[None]:
    """Call `listener` with each failure of the process in place of warnings."""
    _listeners.append(listener)
    try:
        yield
    finally:
        _listeners.remove(listener)


def _stack_level() -> int:
    """How far up the caller is that is neither ours nor deltalake's."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and _package(frame) in _OURS:
        level, frame = level + 1, frame.f_back
    return level


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
