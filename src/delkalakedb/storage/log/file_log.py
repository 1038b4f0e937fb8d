"""The reference reader: a table as its `_delta_log` describes it."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

from delkalakedb.errors import (
    CodecError,
    DeltaError,
    ProtocolError,
    VersionNotFoundError,
)
from delkalakedb.model.actions import (
    FILELESS,
    Action,
    Add,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    decode_commit,
    dv_id,
    known,
)
from delkalakedb.model.log import Replay, State, TxnLogReader
from delkalakedb.model.new_actions import in_commit_timestamp_of
from delkalakedb.model.paths import commit_path
from delkalakedb.model.rules.features import STAMPED
from delkalakedb.model.schema.properties import TableProperties, parse_properties
from delkalakedb.storage.base import ObjectNotFoundError, Store
from delkalakedb.storage.log.checkpoint import read_checkpoint
from delkalakedb.storage.log.segment import LogFiles, Segment, list_log

_FILE_LINES = (b'{"add":', b'{"remove":', b'{"cdc":')


class FileTxnLogReader(TxnLogReader):
    """A reader that replays the log for each call, so that no answer is stale."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def latest_version(self) -> int:
        """Return the newest version."""
        return self._segment(None).version

    def versions(self) -> Sequence[int]:
        """Return the versions that have a commit, even if they can't be rebuilt."""
        return sorted(list_log(self._store).commits)

    def version_at(self, timestamp_ms: int) -> int:
        """Return the newest version whose timestamp isn't after `timestamp_ms`."""
        log = list_log(self._store)
        stamped = self._stamped(log)
        found = bisect_right(stamped, timestamp_ms, key=self._stamp_of(log))
        if found:
            return stamped[found - 1]
        timed = range(log.oldest, stamped.start)
        found = bisect_right(timed, timestamp_ms, key=log.times_ms().__getitem__)
        if found:
            return timed[found - 1]
        raise VersionNotFoundError(
            f"{log.url}: no version is as old as {timestamp_ms} ms; "
            f"the oldest is {log.oldest}"
        )

    def state(self, version: int | None = None) -> State:
        """Return the protocol and metadata at a version, by default the latest."""
        log = list_log(self._store)
        segment = log.segment(version)
        protocol, metadata = self._head(segment)
        properties = _in_commit_timestamps(protocol, metadata)
        time_of = self._stamp_of(log) if properties else log.times_ms().__getitem__
        return State(segment.version, time_of(segment.version), protocol, metadata)

    def adds(self, version: int | None = None) -> Iterator[Add]:
        """Yield the live files at a version, in no particular order."""
        tail, kept = self._files(version, "add")
        return chain(tail.adds.values(), kept)

    def removes(self, version: int | None = None) -> Iterator[Remove]:
        """Yield the tombstones at a version, in no particular order."""
        tail, kept = self._files(version, "remove")
        return chain(tail.removes.values(), kept)

    def txns(self, version: int | None = None) -> dict[str, Txn]:
        """Return the newest `txn` of each application at a version."""
        return self._fileless(self._segment(version)).txns

    def domains(self, version: int | None = None) -> dict[str, DomainMetadata]:
        """Return the live domains at a version."""
        return self._fileless(self._segment(version)).domains

    def replay(self, segment: Segment, commits: Iterable[bytes]) -> Replay:
        """Return a segment's state without the files that only its checkpoint has.

        Args:
            segment: the segment.
            commits: the bytes of the segment's commits.
        """
        replay = self.start(segment)
        for (version, path), data in zip(segment.commits, commits, strict=True):
            replay.apply(version, self.decode(path, data))
        self._both(replay, segment)
        return replay

    def start(self, segment: Segment) -> Replay:
        """Return the state at a segment's checkpoint without files.

        Without a checkpoint the state is empty.
        """
        replay = Replay()
        kept = read_checkpoint(self._store, segment.checkpoint, FILELESS)
        replay.load_checkpoint(segment.base, kept)
        return replay

    def commit(self, version: int) -> tuple[Action, ...]:
        """Return the actions of one commit."""
        path = commit_path(version)
        try:
            return self.decode(path, self._store.get(path))
        except ObjectNotFoundError as error:
            raise VersionNotFoundError(
                f"{self._store.url}: no commit of version {version}"
            ) from error

    def _segment(self, version: int | None) -> Segment:
        return list_log(self._store).segment(version)

    def _files(self, version: int | None, kind: str) -> tuple[Replay, Iterator[Any]]:
        """Return the state of a segment's commits, and actions of its checkpoint.

        The actions are of `kind`, which is `add` or `remove`, on files that no commit
        after the checkpoint adds or removes.
        """
        segment = self._segment(version)
        tail = Replay(version=segment.base)
        for number, path in segment.commits:
            tail.apply(number, self.decode(path, self._store.get(path)))
        found = read_checkpoint(self._store, segment.checkpoint, {kind})
        files = (action for action in found if isinstance(action, Add | Remove))
        changed = tail.adds.keys() | tail.removes.keys()
        return tail, (f for f in files if (f.path, dv_id(f)) not in changed)

    def _fileless(self, segment: Segment) -> Replay:
        replay = self.start(segment)
        for version, path in segment.commits:
            data = _without_files(self._store.get(path))
            replay.apply(version, self.decode(path, data))
        return replay

    def _head(self, segment: Segment) -> tuple[Protocol, Metadata]:
        return self._both(self._fileless(segment), segment)

    def _both(self, replay: Replay, segment: Segment) -> tuple[Protocol, Metadata]:
        if replay.protocol is None or replay.metadata is None:
            absent = "metaData" if replay.protocol else "protocol"
            raise DeltaError(
                f"{self._store.url}: version {segment.version} has no {absent}"
            )
        return replay.protocol, replay.metadata

    def decode(self, path: str, data: bytes) -> tuple[Action, ...]:
        """Return the actions of a commit; raise `CodecError` that names its file."""
        try:
            return tuple(decode_commit(data))
        except CodecError as error:
            raise CodecError(f"{self._store.url}: {path}: {error}") from error

    def _stamped(self, log: LogFiles) -> range:
        """Return the versions with in-commit timestamps, by the newest metadata."""
        properties = _in_commit_timestamps(*self._head(log.segment()))
        if properties is None:
            return range(log.latest + 1, log.latest + 1)
        first = properties.in_commit_timestamp_enablement_version or 0
        return range(max(first, log.oldest), log.latest + 1)

    def _stamp_of(self, log: LogFiles) -> Callable[[int], int]:
        """Return a function that returns the in-commit timestamp of a version."""

        def stamp_of(version: int) -> int:
            if version not in log.commits:
                # Only the checkpoint is left, which doesn't have the timestamp.
                return log.times_ms()[version]
            for stamp in map(in_commit_timestamp_of, self.commit(version)):
                if stamp is not None:
                    return stamp
            raise ProtocolError(
                f"{log.url}: version {version} has no in-commit timestamp"
            )

        return stamp_of


def _without_files(data: bytes) -> bytes:
    lines = data.split(b"\n")
    return b"\n".join(line for line in lines if not line.startswith(_FILE_LINES))


def _in_commit_timestamps(
    protocol: Protocol, metadata: Metadata
) -> TableProperties | None:
    """Return the table's properties if they enable in-commit timestamps, else None."""
    if STAMPED.isdisjoint(known(protocol.writer_features) or ()):
        return None
    properties = parse_properties(metadata)
    return properties if properties.enable_in_commit_timestamps else None
