"""The log's side of a comparison: a replay or a checkpoint, and sums of files."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog.load import adds_of, named
from delkalakedb.catalog.read import ADD_COLUMNS, FILES_SCHEMA, file_columns
from delkalakedb.model.actions import FILELESS, Action, Add
from delkalakedb.model.log import Replay
from delkalakedb.storage import Readable, Store
from delkalakedb.storage.log import (
    FileTxnLogReader,
    LogFiles,
    Part,
    Reading,
    read_checkpoint,
)

# Adds in one part.
_TOGETHER = 16_384
_OTHERS = FILELESS | {"remove"}


class ReplayedSide:
    """A version as the log replays to it.

    Args:
        store: the store at the table's location.
        log: the listed log.
        version: the version.
        reading: what reads the log.
        replay: the replay of the log without the files of its checkpoint, if the caller
            has it.
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
        """The version of the checkpoint that the replay starts from, -1 without one."""
        return self._segment.base

    @cached_property
    def _replay(self) -> Replay:
        if self._given is not None:
            return self._given
        commits = self._reading.commits(self._store, self._commits)
        return FileTxnLogReader(self._store).replay(self._segment, commits)

    def others(self) -> Iterator[Action]:
        """Yield all actions but the live files."""
        replay = self._replay
        assert replay.protocol is not None
        assert replay.metadata is not None
        yield from (replay.protocol, replay.metadata)
        for found in (replay.txns, replay.domains, replay.removes):
            yield from found.values()
        for part in self._checkpointed("remove"):
            yield from part

    def files(self) -> Iterator[Part]:
        """Yield the live files."""
        adds = iter(self._replay.adds.values())
        while some := list(islice(adds, _TOGETHER)):
            yield some
        yield from self._checkpointed("add")

    def _checkpointed(self, kind: str) -> Iterator[Part]:
        """Return the checkpoint's files that no later commit names."""
        said = self._replay.adds.keys() | self._replay.removes.keys()
        paths = self._segment.checkpoint
        return self._reading.files(self._store, paths, {kind}, said)


@dataclass(frozen=True, slots=True)
class CheckpointSide:
    """The content of a checkpoint."""

    store: Readable
    paths: Sequence[str]
    reading: Reading

    def others(self) -> Iterator[Action]:
        """Return all actions but the live files."""
        return read_checkpoint(self.store, self.paths, _OTHERS)

    def files(self) -> Iterator[Part]:
        """Return the live files."""
        return self.reading.files(self.store, self.paths, {"add"}, frozenset())


_UNKEPT = ("data_change", "null_fields", "extra")
_KEPT = tuple(name for name in ADD_COLUMNS if name not in _UNKEPT)
_BETWEEN, _NULL = "\x1f", "\x1e"


def summed_schema(*, checkpointed: bool) -> pa.Schema:
    """Return the columns that count in a sum; a checkpoint doesn't keep all of them."""
    names = _KEPT if checkpointed else (*_KEPT, *_UNKEPT)
    return pa.schema([FILES_SCHEMA.field(name) for name in names])


def sum_rows(batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """Return the number of rows, and the sum of their hashes."""
    count = total = 0
    for batch in batches:
        texts = [column.cast(pa.string()) for column in batch.columns]
        rows = pc.binary_join_element_wise(
            *texts, _BETWEEN, null_handling="replace", null_replacement=_NULL
        )
        count += len(batch)
        # Python salts `hash` in each process, so nobody can construct equal sums.
        total += sum(map(hash, rows.to_pylist()))
    return count, total


def sum_log(parts: Iterable[Part], schema: pa.Schema) -> tuple[int, int]:
    """Return the number of a log's adds, and the sum of their hashes."""
    return sum_rows(
        named(part).select(schema.names)
        if isinstance(part, pa.RecordBatch)
        else _batch([add for add in part if isinstance(add, Add)], schema)
        for part in parts
    )


def as_actions(parts: Iterable[Part]) -> Iterator[Action]:
    """Yield the actions of the parts one by one."""
    for part in parts:
        yield from adds_of(part) if isinstance(part, pa.RecordBatch) else part


def _batch(adds: Sequence[Add], schema: pa.Schema) -> pa.RecordBatch:
    columns = file_columns(adds)
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in schema], schema=schema
    )
