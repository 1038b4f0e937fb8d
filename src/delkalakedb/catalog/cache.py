"""What the process keeps in memory of the catalogs it reads.

`Cache` holds what is latest, for a database that nobody else can write to. `FileLists`
holds the files of versions: these never change, whoever writes.
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from delkalakedb.catalog.forks import at_fork

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.catalog.backend import Backend
    from delkalakedb.catalog.head import Head
    from delkalakedb.settings import CacheSettings

__all__ = [
    "LISTS",
    "Cache",
    "CacheInfo",
    "FileLists",
    "Forkable",
    "Listed",
    "cache_info",
]

_T = TypeVar("_T")
# A list that grew by many small commits is made one piece again beyond these.
_MAX_PIECES = 32


class Forkable(ABC):
    """Empty in a forked child: a lock that another thread held would stay locked."""

    def __init__(self) -> None:
        self._reset()
        _caches.add(self)

    @abstractmethod
    def _reset(self) -> None:
        """Start anew."""


_caches: weakref.WeakSet[Forkable] = weakref.WeakSet()


def _start_anew() -> None:
    for cache in _caches:
        cache._reset()


at_fork(after_in_child=_start_anew)


class Cache(Forkable, Generic[_T]):
    """The newest `size` values, until the next write."""

    def __init__(self, size: int) -> None:
        self._size = size
        super().__init__()

    def _reset(self) -> None:
        self._values: OrderedDict[Hashable, _T] = OrderedDict()
        self._writes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], _T]) -> _T:
        """The value of a key, loaded if need be."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            writes = self._writes
        value = load()
        with self._lock:
            # What a write overtook while it was loaded may be from before it.
            if writes == self._writes:
                self._values[key] = value
                if len(self._values) > self._size:
                    self._values.popitem(last=False)
        return value

    def find(self, key: Hashable) -> _T | None:
        """The value of a key, if it is there."""
        with self._lock:
            return self._values.get(key)

    def forget(self, known: Mapping[Hashable, _T] | None = None) -> None:
        """To be called after each write, before it returns, with what it made."""
        with self._lock:
            self._writes += 1
            self._values.clear()
            if self._size:
                self._values.update(known or {})


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """The file lists that the process keeps in memory, and how often that helped.

    Args:
        hits: lists that were there.
        misses: lists that were asked for in SQL, in full or what changed since another.
        entries: lists that are there now.
        bytes: what they take; a piece that two of them share counts twice.
        evictions: lists that made room for others.
    """

    hits: int
    misses: int
    entries: int
    bytes: int
    evictions: int


@dataclass(frozen=True, slots=True)
class Listed:
    """What tells a version from every other one, of whatever table and database.

    Numbers come back when a table or a database is made anew; its times don't.
    """

    table: Hashable
    version: int
    timestamp_ms: int
    num_files: int
    size_bytes: int

    @classmethod
    def of(cls, backend: Backend, head: Head, *what: Hashable) -> Listed:
        """A head's version, or `what` is kept of it beside its files."""
        return cls(
            (backend.key, head.table_id, head.created_at_ms, head.metadata.id, *what),
            head.version,
            head.timestamp_ms,
            head.num_files,
            head.size_bytes,
        )


class FileLists(Forkable):
    """The lists that were used last, each with the columns that were asked for."""

    def _reset(self) -> None:
        self._lists: OrderedDict[Listed, pa.Table] = OrderedDict()
        self._hits = self._misses = self._bytes = self._evictions = 0
        self._lock = threading.Lock()

    def find(self, key: Listed, columns: Set[str]) -> pa.Table | None:
        """A version's list, if it is there with these columns."""
        with self._lock:
            found = self._lists.get(key)
            if found is None or not columns <= set(found.column_names):
                self._misses += 1
                return None
            self._hits += 1
            self._lists.move_to_end(key)
            return found

    def columns(self, key: Listed) -> frozenset[str]:
        """The columns that are there of a version's list."""
        with self._lock:
            found = self._lists.get(key)
        return frozenset() if found is None else frozenset(found.column_names)

    def newest_before(
        self, key: Listed, columns: Set[str]
    ) -> tuple[Listed, pa.Table] | None:
        """The list of the closest earlier version of the same table."""
        with self._lock:
            earlier = [
                (other, files)
                for other, files in self._lists.items()
                if other.table == key.table
                and other.version < key.version
                and columns <= set(files.column_names)
            ]
        return max(earlier, key=lambda found: found[0].version, default=None)

    def keep(self, key: Listed, files: pa.Table, bounds: CacheSettings) -> None:
        """Keep a list that fits, and of the others what is within the bounds then."""
        if files.schema and files.column(0).num_chunks > _MAX_PIECES:
            files = files.combine_chunks()
        size_bytes = files.get_total_buffer_size()
        if not bounds.snapshots or size_bytes > bounds.max_bytes:
            return
        with self._lock:
            if (former := self._lists.pop(key, None)) is not None:
                self._bytes -= former.get_total_buffer_size()
            self._lists[key] = files
            self._bytes += size_bytes
            while len(self._lists) > bounds.snapshots or self._bytes > bounds.max_bytes:
                _, dropped = self._lists.popitem(last=False)
                self._bytes -= dropped.get_total_buffer_size()
                self._evictions += 1

    def info(self) -> CacheInfo:
        """How much is kept, and how often that helped."""
        with self._lock:
            return CacheInfo(
                self._hits,
                self._misses,
                len(self._lists),
                self._bytes,
                self._evictions,
            )


LISTS = FileLists()


def cache_info() -> CacheInfo:
    """What the process keeps in memory of the files of snapshots."""
    return LISTS.info()
