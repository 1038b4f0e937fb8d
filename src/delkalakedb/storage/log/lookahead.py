"""Readers of a log's files that fetch the next ones while one is processed."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from itertools import chain

import pyarrow as pa

from delkalakedb.model.log import FileKey
from delkalakedb.storage.base import ObjectMeta, Readable, Store
from delkalakedb.storage.log.checkpoint import Part, read_files

# files, and bytes, that one task of Spark or one query reads
_READ_FILES, _READ_BYTES = 64, 4_000_000
# concurrent requests; 2,000 requests of 50 ms each take 3 s instead of 100 s
_REQUESTS = 32
# objects, and bytes, that are requested or wait to be used
_AHEAD, _AHEAD_BYTES = 2 * _REQUESTS, 64_000_000


class Reading:
    """A reader in this process, which reads several files of a remote store at once."""

    def commits(self, store: Store, files: Iterable[ObjectMeta]) -> Iterator[bytes]:
        """Yield the bytes of commits, in order."""
        if store.url.startswith("file:"):
            yield from (store.get(meta.path) for meta in files)
            return
        with closing(read_ahead(store, files)) as found:
            for future in found:
                yield future.result()

    def files(
        self,
        store: Readable,
        paths: Sequence[str],
        kinds: Set[str],
        without: Set[FileKey],
    ) -> Iterator[Part]:
        """Yield the file actions of a checkpoint, as `read_files` does."""
        return _next_ahead(read_files(store, paths, kinds, without))


def read_ahead(
    store: Store, files: Iterable[ObjectMeta]
) -> Generator[Future[bytes], None, None]:
    """Read objects with concurrent requests; yield their bytes as futures, in order.

    The objects that are read but not used yet are bounded in number and in size, so
    that a slow consumer of large objects doesn't fill the memory. Close the generator
    to stop early.
    """
    waiting: deque[tuple[Future[bytes], int]] = deque()
    held_bytes = 0
    pool = ThreadPoolExecutor(_REQUESTS, "log")
    try:
        for meta in files:
            while waiting and (
                len(waiting) >= _AHEAD or held_bytes + meta.size_bytes > _AHEAD_BYTES
            ):
                future, size_bytes = waiting.popleft()
                yield future
                held_bytes -= size_bytes
            waiting.append((pool.submit(store.get, meta.path), meta.size_bytes))
            held_bytes += meta.size_bytes
        while waiting:
            yield waiting.popleft()[0]
    finally:
        pool.shutdown(cancel_futures=True)


class _Kept:
    """A store whose objects are requested once, and kept while they are small."""

    def __init__(
        self, store: Store, found: dict[str, Future[bytes]], kept_bytes: int
    ) -> None:
        self.url = store.url
        self._store = store
        self._found = found
        # of the objects that `found` doesn't have, such as sidecars
        self._kept: dict[str, bytes] = {}
        self._kept_bytes = kept_bytes

    def get(self, path: str) -> bytes:
        """Return the object's bytes."""
        if path in self._found:
            return self._found[path].result()
        if path in self._kept:
            return self._kept[path]
        data = self._store.get(path)
        if self._kept_bytes + len(data) <= _AHEAD_BYTES:
            self._kept[path] = data
            self._kept_bytes += len(data)
        return data

    def open(self, path: str) -> pa.NativeFile:
        """Open the object for reading."""
        return pa.BufferReader(self.get(path))


def read_groups(
    store: Store, groups: Sequence[Sequence[ObjectMeta]]
) -> Generator[Readable, None, None]:
    """Yield a reader for each group of objects, which requests each of them once.

    The objects of later groups are requested meanwhile. A group that is too large to be
    kept in memory gets the store itself. Close the generator to stop early.
    """
    sizes = [sum(meta.size_bytes for meta in group) for group in groups]
    sized = [*zip(groups, sizes, strict=True)]
    small = (group for group, size_bytes in sized if size_bytes <= _AHEAD_BYTES)
    with closing(read_ahead(store, chain.from_iterable(small))) as found:
        for group, size_bytes in sized:
            if size_bytes <= _AHEAD_BYTES:
                ours = {meta.path: next(found) for meta in group}
                yield _Kept(store, ours, size_bytes)
            else:
                yield store


def batches(files: Iterable[ObjectMeta]) -> Iterator[list[ObjectMeta]]:
    """Yield the files in batches for one task or query each."""
    batch: list[ObjectMeta] = []
    size_bytes = 0
    for meta in files:
        batch.append(meta)
        size_bytes += meta.size_bytes
        if len(batch) >= _READ_FILES or size_bytes >= _READ_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _next_ahead(parts: Iterator[Part]) -> Iterator[Part]:
    """Yield the parts; while the consumer has one, a thread reads the next."""
    with ThreadPoolExecutor(1, "log") as reader:
        coming = reader.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = reader.submit(next, parts, None)
            yield part
