"""One backend for each catalog of a process, and one pool for each database.

The catalogs of one server's database have one pool if they have the same credentials.
The first catalog that is opened on a database decides the settings of its pool. The
first `Catalog` on a catalog decides how much of its tables is kept in memory. A
database in memory lives as long as the process. Each `Catalog` has a `Share` of the
backend, which ends when it is closed.

A connection is checked before use, opened when none is idle, and never shared with a
forked child: the child forgets its parent's connections without closing them. Where it
couldn't connect safely beside these, the idle ones are closed before a fork, and after
a fork while others were in use the child is refused.

A database may need connections of two drivers. Their pools share one bound: a pool that
needs a connection while all are taken or idle closes an idle one of the other pool.

A call of an event loop waits for a connection by a bell, which the next connection that
comes back rings. A call that waits in its thread takes it directly.
"""

import atexit
import os
import sys
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from delkalakedb.catalog.engine.backend import Backend, load_backend
from delkalakedb.catalog.engine.migrations import latest_schema_version
from delkalakedb.clock import pauses
from delkalakedb.errors import CatalogBusyError, CatalogUnavailableError
from delkalakedb.forks import at_fork
from delkalakedb.telemetry import POOL_WAIT
from delkalakedb.waits import Bell, apart, calls, running, sleep

if TYPE_CHECKING:
    from delkalakedb.settings import Settings, Uri

C = TypeVar("C")
# seconds between two attempts to connect to a server that has no free slot
_FULL_PAUSES_S = 0.05, 0.5
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
        self.pools: list[Pool[Any]] = []
        self.reset()

    def reset(self) -> None:
        """Forget every connection, without closing it."""
        _inherited.extend(pool.idle for pool in self.pools)
        for pool in self.pools:
            pool.idle = deque()
        self.pid = os.getpid()
        # One item for each connection that may be handed out; the only kind of queue in
        # which a finaliser may put an item while the same thread gets one.
        self.free: SimpleQueue[None] = SimpleQueue()
        # of the calls of event loops that wait, in their order
        self._bells: deque[Bell] = deque()
        self.put(self.size)

    def put(self, count: int = 1) -> None:
        """Allow `count` more connections to be handed out."""
        for _ in range(count):
            self.free.put(None)
            if self._bells:
                self._ring()

    def take_in_turn(self, timeout_s: float) -> None:
        """Let the call of an event loop take a connection, or raise `Empty`."""
        if not self._bells:
            with suppress(Empty):
                self.free.get_nowait()
                return
        deadline = time.monotonic() + timeout_s
        bell = Bell()
        # Before `free` is looked at again, because one may be put in between.
        self._bells.append(bell)
        try:
            while True:
                with suppress(Empty):
                    self.free.get_nowait()
                    return
                if not bell.wait(deadline - time.monotonic()):
                    raise Empty
                # Should a thread be faster, this call stays the first in line.
                self._bells.appendleft(bell)
        finally:
            with suppress(ValueError):
                self._bells.remove(bell)
            if not self.free.empty():
                # The bell was rung for a call that takes nothing.
                self._ring()

    def _ring(self) -> None:
        """Ring the bell of the call that waits longest."""
        with suppress(IndexError):
            while not self._bells.popleft().ring():
                pass

    def take_all(self) -> int:
        """Allow no connection to be handed out; return how many weren't."""
        count = 0
        with suppress(Empty):
            while True:
                self.free.get_nowait()
                count += 1
        return count

    def close_surplus(self) -> None:
        """Close idle connections beyond those that may be handed out."""
        while sum(len(pool.idle) for pool in self.pools) > self.free.qsize():
            if not self.close_one():
                return

    def close_one(self) -> bool:
        """Close the longest idle connection of a pool; return False if none is idle."""
        for pool in self.pools:
            with suppress(IndexError):
                pool.close_connection(pool.idle.popleft())
                return True
        return False


class Pool(Generic[C]):
    """At most `size` connections, handed out last in, first out.

    A connection is given back, and the pool closed, without taking a lock. The garbage
    collector may do either at any moment, because a reader or a transaction may be
    abandoned, and would wait for a lock that the same thread holds.

    A pool that isn't `forkable` closes its idle connections before a fork; if some were
    in use, the child can't use the pool. `connect` raises `NoFreeSlotError` if waiting
    may help.

    Args:
        users: those who use the pool; without users it is closed. By default the pool
            has one user until `close`.
        beside: a pool of the same database, whose bound and users count for both.
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
        users: set[object] | None = None,
        beside: "Pool[Any] | None" = None,
    ) -> None:
        self._connect = connect
        self.close_connection = close
        self._healthy = healthy
        self._timeout_s = timeout_s
        self._name = name
        # the last used one last
        self.idle: deque[C] = deque()
        self._slots: _Slots = _Slots(size) if beside is None else beside._slots
        self._slots.pools.append(self)
        self._users: set[object] = {name} if users is None else users
        if beside is not None:
            self._users = beside._users
        # connections that a fork keeps from being handed out
        self._kept = 0
        if not forkable:
            _unforkable.add(self)

    @contextmanager
    def connection(self) -> Iterator[C]:
        """Yield a healthy connection, and close a connection that comes back broken."""
        if self._slots.pid != os.getpid():
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
        """Close idle connections now, and the others when they are returned."""
        self._users.clear()
        self.close_idle()

    def before_fork(self) -> None:
        """Close idle connections, and block new connections until `after_fork`."""
        self._kept = self._slots.take_all()
        self.close_idle()

    def after_fork(self, *, child: bool) -> None:
        """Allow connections again; in a child, forget the parent's connections."""
        if child:
            if self._kept < self._slots.size:
                _torn.add(self._name)
            self._slots.reset()
        else:
            self._slots.put(self._kept)

    def _take(self) -> C:
        started = time.monotonic()
        deadline = started + self._timeout_s
        self._check_open()
        try:
            if calls and running():
                self._slots.take_in_turn(self._timeout_s)
            else:
                self._slots.free.get(timeout=self._timeout_s)
        except Empty:
            raise CatalogBusyError(
                f"{self._name}: all {self._slots.size} connections were in use "
                f"for {self._timeout_s:g} s; raise pool_size or close readers"
            ) from None
        POOL_WAIT.record(time.monotonic() - started)
        waits = pauses(*_FULL_PAUSES_S, jitter=0.5)
        try:
            while True:
                self._check_open()
                if (idle := self._pop_healthy()) is not None:
                    return idle
                self._slots.close_surplus()
                try:
                    if calls:
                        return apart(self._connect, self.close_connection)
                    return self._connect()
                except NoFreeSlotError as full:
                    if time.monotonic() > deadline:
                        raise full.__cause__ or full from None
                # An idle one of the other driver holds a slot of the server, too.
                self._slots.close_one()
                sleep(next(waits))
        except BaseException:
            self._slots.put()
            raise

    def _pop_healthy(self) -> C | None:
        """Take the last used idle connection that is healthy."""
        with suppress(IndexError):
            while True:
                idle, healthy = self.idle.pop(), False
                try:
                    if healthy := self._healthy(idle):
                        return idle
                finally:
                    # The call may have been cancelled while it asked the server.
                    if not healthy:
                        self.close_connection(idle)
        return None

    def _give_back(self, connection: C) -> None:
        healthy = False
        try:
            if healthy := bool(self._users) and self._healthy(connection):
                self.idle.append(connection)
            if not self._users:
                # The last user left while the connection was being returned.
                self.close_idle()
        finally:
            try:
                if not healthy:
                    self.close_connection(connection)
            finally:
                self._slots.put()

    def close_idle(self) -> None:
        """Close idle connections."""
        if self._slots.pid != os.getpid():
            return
        with suppress(IndexError):
            while True:
                self.close_connection(self.idle.pop())

    def _check_open(self) -> None:
        if not self._users:
            raise CatalogUnavailableError(f"{self._name}: the catalog was closed")


_unforkable: weakref.WeakSet[Pool[Any]] = weakref.WeakSet()
_forking: list[Pool[Any]] = []
# held from before a fork until after it, because two threads may fork
_fork_lock = threading.RLock()


def _before_fork() -> None:
    _fork_lock.acquire()
    for pool in list(_unforkable):
        _forking.append(pool)
        pool.before_fork()


def _after_fork(*, child: bool) -> None:
    while _forking:
        _forking.pop().after_fork(child=child)
    _fork_lock.release()


at_fork(
    before=_before_fork,
    after_in_parent=partial(_after_fork, child=False),
    after_in_child=partial(_after_fork, child=True),
)


_lock = threading.Lock()
_backends: dict[tuple[object, ...], Backend] = {}
_users: dict[Backend, int] = {}
# The backend of each user that ended, until a thread with the lock has counted it.
_left: deque[Backend] = deque()


def _unlock() -> None:
    # In a forked child: one that another thread held would stay locked.
    global _lock
    _lock = threading.Lock()


at_fork(after_in_child=_unlock)


class Share:
    """A catalog's share of the process's backend, with all that the backend has.

    A closed share refuses all use, even while other catalogs use the backend.
    """

    def __init__(self, uri: "Uri", settings: "Settings") -> None:
        self._name = str(uri)
        self._closed = False
        self.shared = _acquire(uri, settings)
        self._held = [self.shared]
        _shares.add(self)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self.check_open()
        return getattr(self.shared, name)

    @property
    def closed(self) -> bool:
        """Whether the catalog was closed."""
        return self._closed

    def check_open(self) -> None:
        """Raise `CatalogUnavailableError` if the catalog was closed."""
        if self._closed:
            raise CatalogUnavailableError(
                f"{self._name}: the catalog was closed; connect again"
            )

    def close(self) -> None:
        """Close the share, and the backend if no other catalog uses it."""
        # One value, which only one of several threads pops.
        with suppress(IndexError):
            backend = self._held.pop()
            self._closed = True
            _release(backend)


_shares: weakref.WeakSet[Share] = weakref.WeakSet()


@contextmanager
def using_backend(uri: "Uri", settings: "Settings") -> Iterator[Backend]:
    """Yield the process's backend for a database, with or without a catalog in it."""
    backend = _acquire(uri, settings)
    try:
        yield backend
    finally:
        _release(backend)


def close_all() -> None:
    """Close every catalog, and every connection once it is idle.

    A database in memory stays until the process ends.
    """
    for share in list(_shares):
        share.close()
    with _lock:
        backends = [backend for backend in _users if not backend.ephemeral]
        for key in [key for key, held in _backends.items() if held in backends]:
            del _backends[key]
    _settle()
    for backend in backends:
        backend.close()


def _acquire(uri: "Uri", settings: "Settings") -> Backend:
    kind = load_backend(uri.engine)
    # A file has none, and one backend whatever the settings say.
    password = settings.sql.password if uri.host else None
    key = (uri.engine, *kind.identity(uri), password)
    try:
        with _lock:
            backend = _backends.get(key)
            if backend is None:
                backend = _backends[key] = kind(uri, settings)
                backend.key, backend.cache = key, settings.cache
                backend.pool_settings = backend.pool_settings or settings.pool
                backend.schema_version = latest_schema_version(uri.engine)
            _users[backend] = _users.get(backend, 0) + 1
            if backend.is_gone():
                backend.start_anew()
                backend.has_catalog = False
    finally:
        _settle()
    _warn_ignored(uri, settings, pool=backend.pool_settings, cache=backend.cache)
    return backend


def _release(backend: Backend) -> None:
    """Note that one user of a backend ended, and close a backend without users.

    This never waits for the lock. The garbage collector may call it at any moment, for
    an abandoned transaction, even in a thread that holds the lock.
    """
    _left.append(backend)
    _settle()


def _settle() -> None:
    """Count the users that ended, unless another holder of the lock will do so.

    Every holder calls this function after it has released the lock.
    """
    while _left and _lock.acquire(blocking=False):
        try:
            unused = list(filter(_count_left, _pop_left()))
        finally:
            _lock.release()
        for backend in unused:
            backend.close()


def _pop_left() -> Iterator[Backend]:
    with suppress(IndexError):
        while True:
            yield _left.popleft()


def _count_left(backend: Backend) -> bool:
    """Return whether the user that ended was the last one of `backend`."""
    _users[backend] -= 1
    if _users[backend] or backend.ephemeral:
        return False
    del _users[backend]
    for key in [key for key, held in _backends.items() if held is backend]:
        del _backends[key]
    return True


def _warn_ignored(uri: "Uri", asked: "Settings", **decided: Any) -> None:
    """Warn of settings that the first catalog on the database has decided."""
    ignored = []
    for section, theirs in decided.items():
        mine = getattr(asked, section)
        for name in sorted(mine.model_fields_set):
            if (value := getattr(mine, name)) != (used := getattr(theirs, name)):
                ignored.append(f"{section}.{name} = {value} (it is {used})")
    if ignored:
        from delkalakedb.settings import SettingIgnoredWarning

        warnings.warn(
            f"{uri}: this process has the database open already, and its first catalog "
            f"decides for all; without effect: {', '.join(ignored)}. Close the other "
            "catalogs first, with dk.close()",
            SettingIgnoredWarning,
            stacklevel=_levels_below_caller(),
        )


def _levels_below_caller() -> int:
    """Return the stack level of the first caller outside this package."""
    package, level = __name__.partition(".")[0], 1
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(package):
        frame, level = frame.f_back, level + 1
    return level


@atexit.register
def _close_for_good() -> None:
    close_all()
    for backend in list(_users):
        backend.close()
