"""One backend, and so one pool, per process and database.

The first catalog that is opened on a database decides the settings of its pool, and
how much of its tables is kept in memory. A database in memory lives as long as the
process.
"""

import atexit
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from delkalakedb.catalog.backend import Backend, load_backend
from delkalakedb.catalog.forks import at_fork
from delkalakedb.catalog.migrations import latest_schema_version

if TYPE_CHECKING:
    from delkalakedb.config import Settings
    from delkalakedb.uri import Uri

__all__ = ["acquire_backend", "release_backend", "using_backend"]

_lock = threading.Lock()
_backends: dict[tuple[object, ...], Backend] = {}
_users: dict[Backend, int] = {}


def _unlock() -> None:
    # In a forked child: one that another thread held would stay locked.
    global _lock
    _lock = threading.Lock()


at_fork(after_in_child=_unlock)


def acquire_backend(uri: "Uri", settings: "Settings") -> Backend:
    """The process's backend for a database; `release_backend` ends its use."""
    kind = load_backend(uri.engine)
    # A file has none, and one backend whatever the settings say.
    password = settings.sql.password if uri.host else None
    key = (uri.engine, *kind.identity(uri), password)
    with _lock:
        backend = _backends.get(key)
        if backend is None:
            backend = _backends[key] = kind(uri, settings)
            backend.key, backend.cache = key, settings.cache
            backend.schema_version = latest_schema_version(uri.engine)
        _users[backend] = _users.get(backend, 0) + 1
        if backend.is_gone():
            backend.start_anew()
    return backend


def release_backend(backend: Backend) -> None:
    """Close a backend that nobody uses any more."""
    with _lock:
        _users[backend] -= 1
        if _users[backend] or backend.ephemeral:
            return
        del _users[backend]
        for key in [key for key, held in _backends.items() if held is backend]:
            del _backends[key]
    backend.close()


@contextmanager
def using_backend(uri: "Uri", settings: "Settings") -> Iterator[Backend]:
    """The process's backend for a database, whether it holds a catalog or not."""
    backend = acquire_backend(uri, settings)
    try:
        yield backend
    finally:
        release_backend(backend)


@atexit.register
def _close_all() -> None:
    with _lock:
        backends = list(_users)
        _backends.clear()
    for backend in backends:
        backend.close()
