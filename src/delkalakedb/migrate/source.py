"""What of a `_delta_log` is to be imported, and how it is read."""

import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from delkalakedb.catalog.adopt import Entry
from delkalakedb.errors import CodecError, DeltaError
from delkalakedb.model.codec import decode_commit
from delkalakedb.storage import ObjectMeta, Store
from delkalakedb.storage.segment import LogFiles

__all__ = ["Source", "choose_source", "read_entries"]

# What one thread reads in one go, and how many do.
_READ_FILES, _READ_BYTES = 64, 4_000_000
_THREADS = 8


@dataclass(frozen=True, slots=True)
class Source:
    """A log from its first version to import on.

    `checkpoint` holds the state of that version; without one it is version 0.
    """

    first: int
    checkpoint: tuple[ObjectMeta, ...] = ()

    @property
    def key(self) -> str:
        """Tells the first version and its checkpoint from any other."""
        parts = [(m.path, m.size_bytes, m.last_modified_ms) for m in self.checkpoint]
        digest = hashlib.sha256(repr((self.first, parts)).encode())
        return digest.hexdigest()[:16]


def choose_source(log: LogFiles, *, history: bool) -> Source:
    """Where to start: as far back as the log goes without a gap, or at its newest
    checkpoint."""
    first = log.latest + 1
    while first - 1 in log.commits:
        first -= 1
    if first == 0 and (history or not log.checkpoints):
        return Source(0)
    usable = [version for version in log.checkpoints if version >= first - 1]
    if not usable:
        missing = "is missing" if first else "can't be read"
        raise DeltaError(f"{log.url}: version {max(first - 1, 0)} {missing}")
    base = min(usable) if history else max(usable)
    return Source(base, log.checkpoints[base])


def read_entries(
    store: Store, commits: Iterable[tuple[int, ObjectMeta]]
) -> Iterator[Entry]:
    """The commits, in order; from a remote store the next ones are read meanwhile."""
    if store.url.startswith("file:"):
        for version, meta in commits:
            yield _entry(store, version, meta, store.get(meta.path))
        return
    with ThreadPoolExecutor(_THREADS, "import") as pool:
        for batch, data in _read_ahead(store, commits, pool):
            for (version, meta), body in zip(batch, data, strict=True):
                yield _entry(store, version, meta, body)


_Batch = Sequence[tuple[int, ObjectMeta]]


def _read_ahead(
    store: Store, commits: Iterable[tuple[int, ObjectMeta]], pool: ThreadPoolExecutor
) -> Iterator[tuple[_Batch, list[bytes]]]:
    waiting: deque[tuple[_Batch, Future[list[bytes]]]] = deque()
    for batch in _batches(commits):
        waiting.append((batch, pool.submit(_read, store, batch)))
        if len(waiting) > _THREADS:
            done, future = waiting.popleft()
            yield done, future.result()
    for done, future in waiting:
        yield done, future.result()


def _batches(commits: Iterable[tuple[int, ObjectMeta]]) -> Iterator[_Batch]:
    batch: list[tuple[int, ObjectMeta]] = []
    size_bytes = 0
    for version, meta in commits:
        batch.append((version, meta))
        size_bytes += meta.size_bytes
        if len(batch) >= _READ_FILES or size_bytes >= _READ_BYTES:
            yield batch
            batch, size_bytes = [], 0
    if batch:
        yield batch


def _read(store: Store, batch: _Batch) -> list[bytes]:
    return [store.get(meta.path) for _, meta in batch]


def _entry(store: Store, version: int, meta: ObjectMeta, data: bytes) -> Entry:
    try:
        actions = tuple(decode_commit(data))
    except CodecError as error:
        raise CodecError(f"{store.url}: {meta.path}: {error}") from error
    sha256 = hashlib.sha256(data).hexdigest()
    return Entry(version, actions, meta.last_modified_ms, sha256)
