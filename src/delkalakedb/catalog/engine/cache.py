"""What the process keeps in memory of the catalogs it reads.

`Cache` holds the newest state of tables, for a database that no other process can write
to. `FileLists` holds the files of versions, which never change.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from delkalakedb.forks import Forkable
from delkalakedb.telemetry import CACHE

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.settings import CacheSettings

_T = TypeVar("_T")
# chunks of a list; a list that many small commits extended is combined beyond that
_MAX_PIECES = 32


class Cache(Forkable, Generic[_T]):
    """The last `size` values that were used, until the next write."""

    def __init__(self, size: int) -> None:
        self._size = size
        super().__init__()

    def _reset(self) -> None:
        self._values: OrderedDict[Hashable, _T] = OrderedDict()
        self._writes = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, load: Callable[[], _T]) -> _T:
        """Return the value of `key`; call `load` if the value isn't there."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            writes = self._writes
        value = load()
        with self._lock:
            # A value that was loaded while a write ended may be older than the write.
            if writes == self._writes:
                self._values[key] = value
                if len(self._values) > self._size:
                    self._values.popitem(last=False)
        return value

    def find(self, key: Hashable) -> _T | None:
        """Return the value of `key`, or None if it isn't there."""
        with self._lock:
            return self._values.get(key)

    def forget(self, known: Mapping[Hashable, _T] | None = None) -> None:
        """Drop all values but `known`; every write calls this before it returns."""
        with self._lock:
            self._writes += 1
            self._values.clear()
            if self._size:
                self._values.update(known or {})


@dataclass(frozen=True, slots=True)
class CacheInfo:
    """The size of the process's cache of file lists, and its hits and misses.

    Args:
        hits: lists that were found in the cache.
        misses: lists that were loaded from SQL, in whole or in part.
        entries: lists that are in the cache now.
        bytes: bytes that the lists take; a buffer that two lists share counts twice.
        evictions: lists that were dropped to make room for another list.

    Examples:
        >>> info = dk.cache_info()
        >>> info.bytes >= 0, info.entries <= info.misses
        (True, True)
    """

    hits: int
    misses: int
    entries: int
    bytes: int
    evictions: int


@dataclass(frozen=True, slots=True)
class Listed:
    """The key of one version among the versions of all tables and databases.

    The key includes times, because a table or a database that is created again may have
    the numbers of the former one.
    """

    table: Hashable
    version: int
    timestamp_ms: int
    num_files: int
    size_bytes: int


class FileLists(Forkable):
    """The file lists that were used last, each with the columns that were asked for."""

    def _reset(self) -> None:
        self._lists: OrderedDict[Listed, pa.Table] = OrderedDict()
        self._hits = self._misses = self._bytes = self._evictions = 0
        self._lock = threading.Lock()

    def find(self, key: Listed, columns: Set[str]) -> pa.Table | None:
        """Return the list of a version, or None if it isn't there with `columns`."""
        with self._lock:
            found = self._lists.get(key)
            if found is None or not columns <= set(found.column_names):
                self._misses += 1
                CACHE.record(1, outcome="miss")
                return None
            self._hits += 1
            CACHE.record(1, outcome="hit")
            self._lists.move_to_end(key)
            return found

    def columns(self, key: Listed) -> frozenset[str]:
        """Return the columns that the cache has of a version's list."""
        with self._lock:
            found = self._lists.get(key)
        return frozenset() if found is None else frozenset(found.column_names)

    def newest_before(
        self, key: Listed, columns: Set[str]
    ) -> tuple[Listed, pa.Table] | None:
        """Return the list, with `columns`, of the closest earlier version."""
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
        """Keep a list if it fits into `bounds`, and drop the lists used longest ago."""
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
        """Return the size of the cache, and its hits and misses."""
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
    """Return the size of the process's cache of file lists, and its hits and misses.

    Returns:
        The numbers since the process started.

    Examples:
        >>> snapshot = dk.connect("deltasql://sqlite/meta.db").snapshot("sales")
        >>> before = dk.cache_info()
        >>> files = snapshot.files().read_all(), snapshot.files().read_all()
        >>> dk.cache_info().hits > before.hits
        True
    """
    return LISTS.info()
