"""How the files of a log are read: here, or by others on our behalf."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor

from delkalakedb.model.replay import FileKey
from delkalakedb.storage.base import ObjectMeta, Store
from delkalakedb.storage.columns import Part, read_files

__all__ = ["Reading", "batches"]

# What one thread reads in one go, and how many do.
_READ_FILES, _READ_BYTES = 64, 4_000_000
_THREADS = 8


class Reading:
    """Reads in this process: from a remote store several files at a time."""

    def commits(self, store: Store, files: Iterable[ObjectMeta]) -> Iterator[bytes]:
        """The bytes of commits, in order."""
        if store.url.startswith("file:"):
            yield from (store.get(meta.path) for meta in files)
            return
        with ThreadPoolExecutor(_THREADS, "log") as pool:
            for bodies in _read_ahead(store, files, pool):
                yield from bodies

    def files(
        self, store: Store, paths: Sequence[str], kinds: Set[str], without: Set[FileKey]
    ) -> Iterator[Part]:
        """The file actions of a checkpoint, as `read_files` gives them."""
        return _next_ahead(read_files(store, paths, kinds, without))


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


def _read_ahead(
    store: Store, files: Iterable[ObjectMeta], pool: ThreadPoolExecutor
) -> Iterator[list[bytes]]:
    waiting: deque[Future[list[bytes]]] = deque()
    for batch in batches(files):
        waiting.append(pool.submit(_read, store, batch))
        if len(waiting) > _THREADS:
            yield waiting.popleft().result()
    for future in waiting:
        yield future.result()


def _read(store: Store, batch: Sequence[ObjectMeta]) -> list[bytes]:
    return [store.get(meta.path) for meta in batch]
