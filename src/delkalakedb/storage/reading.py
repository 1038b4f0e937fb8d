"""How the files of a log are read: here, or by others on our behalf."""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

from delkalakedb.model.replay import FileKey
from delkalakedb.storage.base import ObjectMeta, Store
from delkalakedb.storage.columns import Part, read_files

__all__ = ["Reading", "batches", "read_ahead"]

# What one task of Spark, or one query, reads in one go.
_READ_FILES, _READ_BYTES = 64, 4_000_000
# Requests at a time: 2,000 of 50 ms each take 3 s instead of 100.
_REQUESTS = 32
# Objects that are on their way or wait to be used, and their size together.
_AHEAD, _AHEAD_BYTES = 2 * _REQUESTS, 64_000_000


class Reading:
    """Reads in this process: from a remote store several files at a time."""

    def commits(self, store: Store, files: Iterable[ObjectMeta]) -> Iterator[bytes]:
        """The bytes of commits, in order."""
        if store.url.startswith("file:"):
            yield from (store.get(meta.path) for meta in files)
            return
        with closing(read_ahead(store, files)) as found:
            for future in found:
                yield future.result()

    def files(
        self, store: Store, paths: Sequence[str], kinds: Set[str], without: Set[FileKey]
    ) -> Iterator[Part]:
        """The file actions of a checkpoint, as `read_files` gives them."""
        return _next_ahead(read_files(store, paths, kinds, without))


def read_ahead(
    store: Store, files: Iterable[ObjectMeta]
) -> Generator[Future[bytes], None, None]:
    """Read objects with several requests at a time; yield their bytes in order.

    The objects that are read and not used yet are bounded in number and in size, so
    that a slow consumer of large objects doesn't fill the memory. Close the generator
    to stop early.
    """
    waiting: deque[tuple[Future[bytes], int]] = deque()
    held_bytes = 0
    pool = ThreadPoolExecutor(_REQUESTS, "log")
    try:
        for meta in files:
            while waiting and _is_enough(len(waiting), held_bytes + meta.size_bytes):
                future, size_bytes = waiting.popleft()
                yield future
                held_bytes -= size_bytes
            waiting.append((pool.submit(store.get, meta.path), meta.size_bytes))
            held_bytes += meta.size_bytes
        while waiting:
            yield waiting.popleft()[0]
    finally:
        pool.shutdown(cancel_futures=True)


def _is_enough(objects: int, size_bytes: int) -> bool:
    return objects >= _AHEAD or size_bytes > _AHEAD_BYTES


def batches(files: Iterable[ObjectMeta]) -> Iterator[list[ObjectMeta]]:
    """Files that are read in one go."""
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
    """The parts; while one is at work the next is read."""
    with ThreadPoolExecutor(1, "log") as reader:
        coming = reader.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = reader.submit(next, parts, None)
            yield part
