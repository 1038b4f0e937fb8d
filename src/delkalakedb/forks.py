"""Forks: what a forked child must not use, and what it must reset."""

import os
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable


def at_fork(**hooks: Callable[[], object]) -> None:
    """Register `os.register_at_fork` hooks; do nothing on Windows, which can't fork."""
    if register := getattr(os, "register_at_fork", None):
        register(**hooks)


class Library:
    """A library with threads of its own, which a forked child doesn't have.

    Args:
        name: the library's name.
        is_usable: tries the library in a forked child; returns whether it has threads.
        error: the error to raise if the library can't be used.
    """

    def __init__(
        self, name: str, is_usable: Callable[[], bool], error: type[Exception]
    ) -> None:
        self._name = name
        self._is_usable = is_usable
        self._error = error
        # None in a child that hasn't tried the library yet.
        self._usable: bool | None = True
        at_fork(after_in_child=self._doubt)

    def check(self, what: str) -> None:
        """Raise an error about `what` if the library would hang or panic here."""
        if self._usable is None:
            self._usable = self._is_usable()
        if not self._usable:
            raise self._error(
                f"{what}: this process was forked from one that has used {self._name}, "
                "whose threads a fork leaves behind; start processes by "
                'multiprocessing\'s "spawn" or "forkserver", or fork before tables are '
                "read and written"
            )

    def _doubt(self) -> None:
        if self._usable:
            self._usable = None


def count_threads() -> int | None:
    """Return the number of this process's threads; None if the system can't tell."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return None


class Forkable(ABC):
    """An object that a forked child resets.

    A lock that another thread of the parent held would stay locked in the child.
    """

    def __init__(self) -> None:
        self._reset()
        _forkables.add(self)

    @abstractmethod
    def _reset(self) -> None:
        """Make the state, locks included, that a new object has."""


_forkables: weakref.WeakSet[Forkable] = weakref.WeakSet()


def _reset_all() -> None:
    for forkable in _forkables:
        forkable._reset()


at_fork(after_in_child=_reset_all)
