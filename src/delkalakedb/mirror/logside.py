"""The log's side of a comparison.

What the commits after a checkpoint say is kept; a checkpoint's files are read anew
whenever somebody asks for them.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import islice

from delkalakedb.model.actions import Action
from delkalakedb.model.replay import Replay
from delkalakedb.storage import FileTxnLogReader, Store
from delkalakedb.storage.checkpoint import read_checkpoint
from delkalakedb.storage.columns import Part
from delkalakedb.storage.reading import Reading
from delkalakedb.storage.segment import LogFiles

__all__ = ["CheckpointSide", "ReplayedSide"]

_TOGETHER = 16_384
_OTHERS = frozenset({"protocol", "metaData", "txn", "domainMetadata", "remove"})


class ReplayedSide:
    """A version as its log replays to it.

    Args:
        store: the store at the table's location.
        log: what is in the log.
        version: the version.
        reading: who reads it.
        replay: what the log replays to but for the files of its checkpoint, if
            somebody has just read it.
    """

    def __init__(
        self,
        store: Store,
        log: LogFiles,
        version: int,
        reading: Reading,
        replay: Replay | None,
    ) -> None:
        self._store = store
        self._segment = log.segment(version)
        self._commits = [log.commits[v] for v, _ in self._segment.commits]
        self._reading = reading
        self._given = replay

    @property
    def base(self) -> int:
        """The version of the checkpoint that it starts from, -1 without one."""
        return self._segment.base

    @cached_property
    def _replay(self) -> Replay:
        if self._given is not None:
            return self._given
        commits = self._reading.commits(self._store, self._commits)
        return FileTxnLogReader(self._store).replay(self._segment, commits)

    def others(self) -> Iterator[Action]:
        """All but live files."""
        replay = self._replay
        assert replay.protocol is not None
        assert replay.metadata is not None
        yield from (replay.protocol, replay.metadata)
        for found in (replay.txns, replay.domains, replay.removes):
            yield from found.values()
        for part in self._checkpointed("remove"):
            yield from part

    def files(self) -> Iterator[Part]:
        """The live files."""
        adds = iter(self._replay.adds.values())
        while some := list(islice(adds, _TOGETHER)):
            yield some
        yield from self._checkpointed("add")

    def _checkpointed(self, kind: str) -> Iterator[Part]:
        """The checkpoint's files that the commits after it say nothing of."""
        said = self._replay.adds.keys() | self._replay.removes.keys()
        paths = self._segment.checkpoint
        return self._reading.files(self._store, paths, {kind}, said)


class CheckpointSide:
    """What a checkpoint itself holds."""

    def __init__(self, store: Store, paths: list[str], reading: Reading) -> None:
        self._store = store
        self._paths = paths
        self._reading = reading

    def others(self) -> Iterator[Action]:
        """All but live files."""
        return read_checkpoint(self._store, self._paths, _OTHERS)

    def files(self) -> Iterator[Part]:
        """The live files."""
        return self._reading.files(self._store, self._paths, {"add"}, frozenset())
