"""A table in a transaction: a version, and the commits that the transaction staged."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from delkalakedb.catalog.commit import ByKind, advanced, empty_head
from delkalakedb.catalog.engine import Backend, columns_to_batch
from delkalakedb.catalog.read import Head, file_columns
from delkalakedb.catalog.snapshot import Filter, Snapshot
from delkalakedb.model.actions import Add, DomainMetadata, Remove, known
from delkalakedb.model.log import Staged
from delkalakedb.model.predicate.matcher import matcher
from delkalakedb.model.predicate.predicate import Predicate
from delkalakedb.model.records import Commit
from delkalakedb.model.stats.stats import parse_stats


class PendingSnapshot(Snapshot):
    """A snapshot with staged commits on top of it.

    `read_version` is the newest version when the transaction first read the table.
    """

    def __init__(self, backend: Backend, head: Head, read_version: int) -> None:
        super().__init__(backend, head)
        self.read_version = read_version
        self._base = head
        # by path, because a table has at most one live file at a path
        self._added: dict[str, Add] = {}
        self._gone: frozenset[str] = frozenset()
        self._cleared = read_version < 0
        self._ended = 0

    @classmethod
    def over(cls, snapshot: Snapshot) -> "PendingSnapshot":
        """Return a pending snapshot of `snapshot`, without staged commits."""
        return cls(snapshot._backend, snapshot._head, snapshot.version)

    @property
    def identity(self) -> tuple[int, int] | None:
        """The identity of the table; None for a table that the transaction creates."""
        return None if self.read_version < 0 else self._base.identity

    def history(self, *args: Any, **filters: Any) -> list[Commit]:
        """Return the ratified commits up to `read_version`."""
        return self._committed.history(*args, **filters)

    def txn_version(self, app_id: str) -> int | None:
        """Return the version that an application had recorded at `read_version`."""
        return self._committed.txn_version(app_id)

    def domains(self) -> dict[str, DomainMetadata]:
        """Return the metadata domains at `read_version`."""
        return {} if self.read_version < 0 else self._committed.domains()

    def paths(self) -> list[str]:
        """Return the paths of the files, first those that the transaction adds."""
        kept = [] if self._cleared else self._committed.paths()
        return [*self._added, *(path for path in kept if path not in self._gone)]

    @property
    def _committed(self) -> Snapshot:
        return Snapshot(self._backend, self._base)

    def then(self, staged: Staged, now_ms: int) -> "PendingSnapshot":
        """Return a pending snapshot with another staged commit on top."""
        actions = ByKind(staged.actions)
        after = PendingSnapshot(self._backend, self._head, self.read_version)
        after._base = self._base
        after._cleared = self._cleared or staged.remove_all
        after._added = {} if staged.remove_all else dict(self._added)
        removed = {remove.path for remove in actions.of(Remove)}
        after._ended = self._ended + len(removed - self._added.keys())
        for path in removed:
            after._added.pop(path, None)
        after._added |= {add.path: add for add in actions.of(Add)}
        after._gone = self._gone | removed | after._added.keys()
        head = advanced(self._head, actions, now_ms)
        after._head = replace(head, num_files=after._count())
        return after

    def _count(self) -> int:
        kept = 0 if self._cleared else self._base.num_files - self._ended
        return kept + len(self._added)

    def _files(self, where: Filter | None, schema: pa.Schema) -> pa.RecordBatchReader:
        self._backend.check_open()
        predicate = None if where is None else self._predicate(where)
        batches = self._overlaid(predicate, schema)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _overlaid(
        self, predicate: Predicate | None, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        if not self._cleared:
            gone = pa.array(self._gone, pa.string())
            names = schema.names
            for batch in self._committed.files(predicate, columns=["path", *names]):
                there = pc.invert(pc.is_in(batch["path"], value_set=gone))
                yield batch.filter(there).select(names)
        adds = list(self._matching(predicate))
        if adds:
            columns = _columns(adds, self.version)
            yield columns_to_batch([columns[name] for name in schema.names], schema)

    def _matching(self, predicate: Predicate | None) -> Iterator[Add]:
        if predicate is None:
            yield from self._added.values()
            return
        keep = matcher(predicate, self.metadata.partition_columns)
        for add in self._added.values():
            if keep(add.partition_values, known(add.stats)):
                yield add


def new_table(backend: Backend, staged: Staged, now_ms: int) -> PendingSnapshot:
    """Return the pending snapshot of a table that `staged` creates."""
    empty = PendingSnapshot(backend, empty_head(staged, -1, now_ms), -1)
    return empty.then(staged, now_ms)


def _columns(adds: Sequence[Add], version: int) -> dict[str, Sequence[Any]]:
    stats = [parse_stats(known(add.stats)) for add in adds]
    return file_columns(adds) | {
        "num_records": [parsed.num_records if parsed else None for parsed in stats],
        "added_version": [version] * len(adds),
        "file_id": [-1] * len(adds),
    }
