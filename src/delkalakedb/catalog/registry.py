"""One backend, and so one pool, per process and database.

The first catalog that is opened on a database decides the settings of its pool, and
how much of its tables is kept in memory. A database in memory lives as long as the
process. Each catalog has a `Share` of the backend, which ends when it is closed.
"""

import atexit
import sys
import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from delkalakedb.catalog.backend import Backend, load_backend
from delkalakedb.catalog.forks import at_fork
from delkalakedb.catalog.migrations import latest_schema_version
from delkalakedb.errors import CatalogUnavailableError

if TYPE_CHECKING:
    from delkalakedb.config import Settings
    from delkalakedb.uri import Uri

__all__ = ["Share", "close_all", "using_backend"]

# Sections that the first catalog of a process on a database decides for all of them.
_DECIDED = ("pool", "cache")

_lock = threading.Lock()
_backends: dict[tuple[object, ...], Backend] = {}
_users: dict[Backend, int] = {}


def _unlock() -> None:
    # In a forked child: one that another thread held would stay locked.
    global _lock
    _lock = threading.Lock()


at_fork(after_in_child=_unlock)


class Share:
    """A catalog's share of the process's backend, with all that the backend has.

    Once it is closed everything is refused, whoever else uses the backend.
    """

    def __init__(self, uri: "Uri", settings: "Settings") -> None:
        self._name = str(uri)
        self._closed = False
        self.shared = _acquire(uri, settings)
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
        """Refuse use after the end."""
        if self._closed:
            raise CatalogUnavailableError(
                f"{self._name}: the catalog was closed; connect again"
            )

    def close(self) -> None:
        """End it; the last one out closes the backend's connections."""
        with _lock:
            closed, self._closed = self._closed, True
        if not closed:
            _release(self.shared)


_shares: weakref.WeakSet[Share] = weakref.WeakSet()


@contextmanager
def using_backend(uri: "Uri", settings: "Settings") -> Iterator[Backend]:
    """The process's backend for a database, whether it holds a catalog or not."""
    backend = _acquire(uri, settings)
    try:
        yield backend
    finally:
        _release(backend)


def close_all() -> None:
    """Close every catalog and every connection; those at work when they are done.

    A database in memory stays until the process ends.
    """
    for share in list(_shares):
        share.close()
    with _lock:
        backends = [backend for backend in _users if not backend.ephemeral]
        for key in [key for key, held in _backends.items() if held in backends]:
            del _backends[key]
    for backend in backends:
        backend.close()


def _acquire(uri: "Uri", settings: "Settings") -> Backend:
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
            backend.settings = settings
        _users[backend] = _users.get(backend, 0) + 1
        if backend.is_gone():
            backend.start_anew()
            backend.has_catalog = False
    if backend.settings is not None:
        _warn_ignored(uri, settings, backend.settings)
    return backend


def _release(backend: Backend) -> None:
    """Close a backend that nobody uses any more."""
    with _lock:
        _users[backend] -= 1
        if _users[backend] or backend.ephemeral:
            return
        del _users[backend]
        for key in [key for key, held in _backends.items() if held is backend]:
            del _backends[key]
    backend.close()


def _warn_ignored(uri: "Uri", asked: "Settings", decided: "Settings") -> None:
    ignored = []
    for section in _DECIDED:
        mine, theirs = getattr(asked, section), getattr(decided, section)
        for name in sorted(mine.model_fields_set):
            if (value := getattr(mine, name)) != (used := getattr(theirs, name)):
                ignored.append(f"{section}.{name} = {value} (it is {used})")
    if ignored:
        from delkalakedb.settings import SettingIgnoredWarning

        warnings.warn(
            f"{uri}: this process has the database open already, and its first catalog "
            f"decides for all; without effect: {', '.join(ignored)}. Close the others "
            "before, with dk.close()",
            SettingIgnoredWarning,
            stacklevel=_levels_below_caller(),
        )


def _levels_below_caller() -> int:
    """How far the caller's own code is from whoever asks, for a warning."""
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
