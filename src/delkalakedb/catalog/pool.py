"""One pool of connections per process and database.

A connection is checked before use, opened when none is idle, and never shared with a
forked child: the child forgets its parent's connections without closing them. Where it
couldn't connect safely beside these, the idle ones are closed before a fork, and after
a fork while others were in use the child is refused.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from delkalakedb.errors import CatalogBusyError, CatalogUnavailableError

__all__ = ["Pool"]

C = TypeVar("C")
# Connections of a parent process: closing them here would end them there.
_inherited: list[object] = []
# What was in use in the parent when this process was forked, and can't be used here.
_torn: set[str] = set()


class Pool(Generic[C]):
    """At most `size` connections, handed out last in, first out.

    One that isn't `forkable` has nothing open while the process forks, or its child
    can't use it.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        *,
        close: Callable[[C], object],
        healthy: Callable[[C], bool],
        size: int,
        timeout_s: float,
        name: str,
        forkable: bool = True,
    ) -> None:
        self._connect = connect
        self._close = close
        self._healthy = healthy
        self._size = size
        self._timeout_s = timeout_s
        self._name = name
        self._closed = False
        self._reset()
        if not forkable:
            _unforkable.add(self)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._idle: list[C] = []
        self._free = self._size
        self._changed = threading.Condition()

    @contextmanager
    def connection(self) -> Iterator[C]:
        """A healthy connection; one that comes back broken is dropped."""
        if self._pid != os.getpid():
            _inherited.append(self._idle)
            self._reset()
        if self._name in _torn:
            raise CatalogBusyError(
                f"{self._name}: this process was forked while its parent was at work "
                "on the catalog, and can't use it; fork before or after, or start "
                'processes by "spawn"'
            )
        connection = self._take()
        pid = self._pid
        try:
            yield connection
        finally:
            if pid == os.getpid():
                self._give_back(connection)
            else:
                _inherited.append(connection)

    def close(self) -> None:
        """Close what is idle now and the rest as it comes back."""
        if self._pid != os.getpid():
            return
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            self._close(connection)

    def before_fork(self) -> None:
        """Close what is idle, and let nobody connect until `after_fork`."""
        self._changed.acquire()
        if self._pid == os.getpid():
            while self._idle:
                self._close(self._idle.pop())

    def after_fork(self, *, child: bool) -> None:
        """Go on as before, or as a child."""
        if child:
            if self._free < self._size:
                _torn.add(self._name)
            self._reset()
        else:
            self._changed.release()

    def _take(self) -> C:
        deadline = time.monotonic() + self._timeout_s
        with self._changed:
            self._check_open()
            while not self._free:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise CatalogBusyError(
                        f"{self._name}: all {self._size} connections were in use for "
                        f"{self._timeout_s:g} s; raise pool_size or close readers"
                    )
                self._check_open()
            self._free -= 1
            idle = self._idle.pop() if self._idle else None
        try:
            while idle is not None and not self._healthy(idle):
                self._close(idle)
                with self._changed:
                    idle = self._idle.pop() if self._idle else None
            return self._connect() if idle is None else idle
        except BaseException:
            self._release()
            raise

    def _give_back(self, connection: C) -> None:
        keep = self._healthy(connection)
        with self._changed:
            keep = keep and not self._closed
            if keep:
                self._idle.append(connection)
        if not keep:
            self._close(connection)
        self._release()

    def _release(self) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify()

    def _check_open(self) -> None:
        if self._closed:
            raise CatalogUnavailableError(f"{self._name}: the catalog was closed")


_unforkable: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()
_forking: list[Pool[Any]] = []


def _before_fork() -> None:
    for pool in list(_unforkable):
        _forking.append(pool)
        pool.before_fork()


def _after_fork(*, child: bool) -> None:
    while _forking:
        _forking.pop().after_fork(child=child)


os.register_at_fork(
    before=_before_fork,
    after_in_parent=partial(_after_fork, child=False),
    after_in_child=partial(_after_fork, child=True),
)
