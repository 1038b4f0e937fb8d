"""The reference reader: a table as its `_delta_log` describes it."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from itertools import chain

from delkalakedb.errors import (
    CodecError,
    DeltaError,
    ProtocolError,
    VersionNotFoundError,
)
from delkalakedb.model.actions import (
    Action,
    Add,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    dv_id,
    known,
)
from delkalakedb.model.codec import decode_commit
from delkalakedb.model.properties import TableProperties, parse_properties
from delkalakedb.model.replay import Replay
from delkalakedb.model.txnlog import State, TxnLogReader
from delkalakedb.storage.base import ObjectNotFoundError, Store
from delkalakedb.storage.checkpoint import read_checkpoint
from delkalakedb.storage.segment import LogFiles, Segment, commit_path, list_log

__all__ = ["FileTxnLogReader"]

_FILELESS = frozenset({"protocol", "metaData", "txn", "domainMetadata"})
_FILE_LINES = (b'{"add":', b'{"remove":', b'{"cdc":')
_ICT_FEATURES = {"inCommitTimestamp", "inCommitTimestamp-preview"}


class FileTxnLogReader(TxnLogReader):
    """Replays the log in a store, anew for each call: no answer is stale."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def latest_version(self) -> int:
        """The newest version."""
        return self._segment(None).version

    def versions(self) -> Sequence[int]:
        """The versions whose commits are there, rebuildable or not."""
        return sorted(list_log(self._store).commits)

    def version_at(self, timestamp_ms: int) -> int:
        """The newest version whose timestamp isn't after `timestamp_ms`."""
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
        """Protocol and metadata at a version, the latest by default."""
        log = list_log(self._store)
        segment = log.segment(version)
        protocol, metadata = self._head(segment)
        properties = _in_commit_timestamps(protocol, metadata)
        time_of = self._stamp_of(log) if properties else log.times_ms().__getitem__
        return State(segment.version, time_of(segment.version), protocol, metadata)

    def adds(self, version: int | None = None) -> Iterator[Add]:
        """The live files at a version, in no particular order."""
        segment = self._segment(version)
        tail = self._tail(segment)
        kept = self._checkpointed(segment, tail, {"add"})
        return chain(tail.adds.values(), (a for a in kept if isinstance(a, Add)))

    def removes(self, version: int | None = None) -> Iterator[Remove]:
        """The tombstones at a version, in no particular order."""
        segment = self._segment(version)
        tail = self._tail(segment)
        kept = self._checkpointed(segment, tail, {"remove"})
        return chain(tail.removes.values(), (r for r in kept if isinstance(r, Remove)))

    def txns(self, version: int | None = None) -> dict[str, Txn]:
        """The newest `txn` of each application at a version."""
        return self._fileless(self._segment(version)).txns

    def domains(self, version: int | None = None) -> dict[str, DomainMetadata]:
        """The live domains at a version."""
        return self._fileless(self._segment(version)).domains

    def replay(self, segment: Segment, commits: Iterable[bytes]) -> Replay:
        """A segment's state but for those files that only its checkpoint has.

        `commits` are the segment's, read.
        """
        replay = self.start(segment)
        for (version, path), data in zip(segment.commits, commits, strict=True):
            replay.apply(version, self.decode(path, data))
        self._both(replay, segment)
        return replay

    def start(self, segment: Segment) -> Replay:
        """The state at a segment's checkpoint but for its files; empty without one."""
        replay = Replay()
        kept = read_checkpoint(self._store, segment.checkpoint, _FILELESS)
        replay.load_checkpoint(segment.base, kept)
        return replay

    def commit(self, version: int) -> tuple[Action, ...]:
        """The actions of one commit."""
        path = commit_path(version)
        try:
            return self.decode(path, self._store.get(path))
        except ObjectNotFoundError as error:
            raise VersionNotFoundError(
                f"{self._store.url}: no commit of version {version}"
            ) from error

    def _segment(self, version: int | None) -> Segment:
        return list_log(self._store).segment(version)

    def _tail(self, segment: Segment) -> Replay:
        """What the commits after the checkpoint say, files and all."""
        replay = Replay(version=segment.base)
        for version, path in segment.commits:
            replay.apply(version, self.decode(path, self._store.get(path)))
        return replay

    def _checkpointed(
        self, segment: Segment, tail: Replay, kinds: Set[str]
    ) -> Iterator[Action]:
        """The checkpoint's file actions that the commits after it say nothing of."""
        for action in read_checkpoint(self._store, segment.checkpoint, kinds):
            if isinstance(action, Add | Remove):
                key = (action.path, dv_id(action))
                if key not in tail.adds and key not in tail.removes:
                    yield action

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
        """The actions of a commit's file; an error names the file."""
        try:
            return tuple(decode_commit(data))
        except CodecError as error:
            raise CodecError(f"{self._store.url}: {path}: {error}") from error

    def _stamped(self, log: LogFiles) -> range:
        """The versions that have in-commit timestamps, by the latest one's metadata."""
        properties = _in_commit_timestamps(*self._head(log.segment()))
        if properties is None:
            return range(log.latest + 1, log.latest + 1)
        first = properties.in_commit_timestamp_enablement_version or 0
        return range(max(first, log.oldest), log.latest + 1)

    def _stamp_of(self, log: LogFiles) -> Callable[[int], int]:
        """How a version's in-commit timestamp is found."""

        def stamp_of(version: int) -> int:
            if version not in log.commits:
                # Only its checkpoint is left, which doesn't keep the timestamp.
                return log.times_ms()[version]
            for action in self.commit(version):
                if isinstance(action, CommitInfo):
                    stamp = action.fields.get("inCommitTimestamp")
                    if isinstance(stamp, int):
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
    """The table's properties, if it has in-commit timestamps."""
    if _ICT_FEATURES.isdisjoint(known(protocol.writer_features) or ()):
        return None
    properties = parse_properties(metadata)
    return properties if properties.enable_in_commit_timestamps else None
