"""One pool of connections per process and database.

A connection is checked before use, opened when none is idle, and never shared with a
forked child: the child forgets its parent's connections without closing them.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from delkalakedb.errors import CatalogBusyError, CatalogUnavailableError

__all__ = ["Pool"]

C = TypeVar("C")
# Connections of a parent process: closing them here would end them there.
_inherited: list[object] = []


class Pool(Generic[C]):
    """At most `size` connections, handed out last in, first out."""

    def __init__(
        self,
        connect: Callable[[], C],
        *,
        close: Callable[[C], object],
        healthy: Callable[[C], bool],
        size: int,
        timeout_s: float,
        name: str,
    ) -> None:
        self._connect = connect
        self._close = close
        self._healthy = healthy
        self._size = size
        self._timeout_s = timeout_s
        self._name = name
        self._closed = False
        self._reset()

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
        connection = self._take()
        pid = self._pid
        try:
            yield connection
        finally:
            if pid == os.getpid():
                self._give_back(connection)

    def close(self) -> None:
        """Close what is idle now and the rest as it comes back."""
        if self._pid != os.getpid():
            return
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            self._close(connection)

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
