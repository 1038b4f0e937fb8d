"""One pool of connections per process and database.

A connection is checked before use, opened when none is idle, and never shared with a
forked child: the child forgets its parent's connections without closing them. Where it
couldn't connect safely beside these, the idle ones are closed before a fork, and after
a fork while others were in use the child is refused.

A database may need connections of two drivers. Their pools share one bound: a pool that
needs a connection while all are taken or idle closes an idle one of the other pool.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

from delkalakedb.catalog.forks import at_fork
from delkalakedb.errors import CatalogBusyError, CatalogUnavailableError

__all__ = ["NoFreeSlotError", "Pool"]

C = TypeVar("C")
# seconds between two attempts to connect to a server that has no free slot
_FULL_PAUSE_S = 0.1
# Connections of a parent process: closing them here would end them there.
_inherited: list[object] = []
# What was in use in the parent when this process was forked, and can't be used here.
_torn: set[str] = set()


class NoFreeSlotError(Exception):
    """The server has no free slot for a connection; its cause is the driver's error."""


class _Slots:
    """The connections that the pools of one database have between them."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.reset()

    def reset(self) -> None:
        """Forget every connection."""
        self.pid = os.getpid()
        # not handed out
        self.free = self.size
        # the pool and the connection, the last used one last
        self.idle: list[tuple[Pool[Any], Any]] = []
        self.changed = threading.Condition()

    def pop_idle(self, pool: "Pool[C]") -> C | None:
        """Take the pool's last used idle connection."""
        for place in reversed(range(len(self.idle))):
            if self.idle[place][0] is pool:
                found: C = self.idle.pop(place)[1]
                return found
        return None

    def close_surplus(self, size: int) -> None:
        """Close the longest idle connection, if there are more than `size`."""
        with self.changed:
            taken = self.size - self.free
            surplus = taken + len(self.idle) > size and self.idle
            idle = self.idle.pop(0) if surplus else None
        if idle is not None:
            pool, connection = idle
            pool._close(connection)


class Pool(Generic[C]):
    """At most `size` connections, handed out last in, first out.

    One that isn't `forkable` has nothing open while the process forks, or its child
    can't use it. `connect` raises `NoFreeSlotError` where waiting may help.

    Args:
        beside: a pool of the same database, whose bound and timeout count for both.
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
        beside: "Pool[Any] | None" = None,
    ) -> None:
        self._connect = connect
        self._close = close
        self._healthy = healthy
        self._slots: _Slots = _Slots(size) if beside is None else beside._slots
        self._timeout_s = timeout_s
        self._name = name
        self._closed = False
        if not forkable:
            _unforkable.add(self)

    @contextmanager
    def connection(self) -> Iterator[C]:
        """A healthy connection; one that comes back broken is dropped."""
        if self._slots.pid != os.getpid():
            _inherited.append(self._slots.idle)
            self._slots.reset()
        if self._name in _torn:
            raise CatalogBusyError(
                f"{self._name}: this process was forked while its parent was at work "
                "on the catalog, and can't use it; fork before or after, or start "
                'processes by "spawn"'
            )
        connection = self._take()
        pid = self._slots.pid
        try:
            yield connection
        finally:
            if pid == os.getpid():
                self._give_back(connection)
            else:
                _inherited.append(connection)

    def close(self) -> None:
        """Close what is idle now and the rest as it comes back."""
        if self._slots.pid != os.getpid():
            return
        with self._slots.changed:
            self._closed = True
            idle = list(iter(lambda: self._slots.pop_idle(self), None))
        for connection in idle:
            self._close(connection)

    def before_fork(self) -> None:
        """Close what is idle, and let nobody connect until `after_fork`."""
        self._slots.changed.acquire()
        if self._slots.pid == os.getpid():
            while (idle := self._slots.pop_idle(self)) is not None:
                self._close(idle)

    def after_fork(self, *, child: bool) -> None:
        """Go on as before, or as a child."""
        if child:
            if self._slots.free < self._slots.size:
                _torn.add(self._name)
            self._slots.reset()
        else:
            self._slots.changed.release()

    def _take(self) -> C:
        deadline = time.monotonic() + self._timeout_s
        with self._slots.changed:
            self._check_open()
            while not self._slots.free:
                if not self._slots.changed.wait(deadline - time.monotonic()):
                    raise CatalogBusyError(
                        f"{self._name}: all {self._slots.size} connections were in use "
                        f"for {self._timeout_s:g} s; raise pool_size or close readers"
                    )
                self._check_open()
            self._slots.free -= 1
            idle = self._slots.pop_idle(self)
        try:
            self._slots.close_surplus(self._slots.size)
            while True:
                while idle is not None and not self._healthy(idle):
                    self._close(idle)
                    idle = self._pop_idle()
                if idle is not None:
                    return idle
                try:
                    return self._connect()
                except NoFreeSlotError as full:
                    if time.monotonic() > deadline:
                        raise full.__cause__ or full from None
                # An idle one of the other driver holds a slot of the server, too.
                self._slots.close_surplus(0)
                time.sleep(_FULL_PAUSE_S)
                idle = self._pop_idle()
        except BaseException:
            self._release()
            raise

    def _pop_idle(self) -> C | None:
        with self._slots.changed:
            return self._slots.pop_idle(self)

    def _give_back(self, connection: C) -> None:
        keep = self._healthy(connection)
        with self._slots.changed:
            keep = keep and not self._closed
            if keep:
                self._slots.idle.append((self, connection))
                self._slots.free += 1
                self._slots.changed.notify()
        if not keep:
            self._close(connection)
            self._release()

    def _release(self) -> None:
        with self._slots.changed:
            self._slots.free += 1
            self._slots.changed.notify()

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


at_fork(
    before=_before_fork,
    after_in_parent=partial(_after_fork, child=False),
    after_in_child=partial(_after_fork, child=True),
)
