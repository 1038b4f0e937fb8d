"""What of a `_delta_log` is to be imported, and how it is read."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import tee

from delkalakedb.catalog.adopt import Entry
from delkalakedb.errors import CodecError, DeltaError
from delkalakedb.model.codec import decode_commit
from delkalakedb.storage import ObjectMeta, Store
from delkalakedb.storage.reading import Reading
from delkalakedb.storage.segment import LogFiles

__all__ = ["Source", "choose_source", "read_entries"]


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
    store: Store, commits: Iterable[tuple[int, ObjectMeta]], reading: Reading
) -> Iterator[Entry]:
    """The commits, in order."""
    commits, listed = tee(commits)
    bodies = reading.commits(store, (meta for _, meta in listed))
    for (version, meta), data in zip(commits, bodies, strict=True):
        yield _entry(store, version, meta, data)


def _entry(store: Store, version: int, meta: ObjectMeta, data: bytes) -> Entry:
    try:
        actions = tuple(decode_commit(data))
    except CodecError as error:
        raise CodecError(f"{store.url}: {meta.path}: {error}") from error
    sha256 = hashlib.sha256(data).hexdigest()
    return Entry(version, actions, meta.last_modified_ms, sha256)
