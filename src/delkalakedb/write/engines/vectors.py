"""Changes of a few rows, without rewriting the files that hold the rows.

The engine finds the rows that an operation may change, and gives only these rows to
delta-rs, in a workspace. Then it marks the rows as deleted in the deletion vectors of
their files. So delta-rs evaluates every expression, checks every constraint and writes
the change data, and the new rows are in small files of their own.

The rows that are found are a superset of the rows that change. An unchanged row among
them may be moved to a new file together with the changed ones.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delkalakedb.catalog import Snapshot
from delkalakedb.clock import now_ms
from delkalakedb.errors import StorageError
from delkalakedb.model.actions import (
    Action,
    Add,
    CommitInfo,
    DeletionVector,
    Metadata,
    Remove,
    known,
)
from delkalakedb.model.new_actions import removed
from delkalakedb.model.paths import files_inside
from delkalakedb.model.predicate.predicate import Anything, Predicate
from delkalakedb.model.rules.features import DELETION_VECTORS, Use
from delkalakedb.model.rules.protocol import supported_features, unread_features
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.model.stats.stats import parse_stats
from delkalakedb.model.vectors import encode_vector, inlined_vector, vector_file
from delkalakedb.write.engines.deltars import (
    DeltaRs,
    Guest,
    arrow_schema,
    candidates,
    explained,
)
from delkalakedb.write.engines.row_filters import columns_of, row_filter, widened
from delkalakedb.write.engines.row_reader import (
    ArrowReader,
    DataFile,
    arrow_reader,
    data_file,
)
from delkalakedb.write.operation import Operation, Staging, Target

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from delkalakedb.settings import VectorSettings

# The number of a row in its file, and the number of the file among those found.
_ROW, _FILE = "__dk_row", "__dk_file"
_METRICS_REMOVED = ("num_removed_files", "num_target_files_removed")
_METRICS_ADDED = ("num_added_files", "num_target_files_added")
_stats = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class Search:
    """The rows that an operation may change.

    Args:
        where: a predicate that holds for all of them.
        keys: values by column; each of the rows has one of the values.
        deletes: SQL, if the operation deletes exactly the rows that match it.
        inserts: whether the operation inserts a row for a source row without a match.
    """

    where: Predicate
    keys: Mapping[str, pa.Array] = field(default_factory=dict)
    deletes: str | None = None
    inserts: bool = False


def allows_vectors(snapshot: Snapshot) -> bool:
    """Return whether deletion vectors may be written to a table."""
    enabled = parse_properties(snapshot.metadata).enable_deletion_vectors
    return enabled and DELETION_VECTORS in supported_features(snapshot.protocol)


def takes_vectors(snapshot: Snapshot) -> bool:
    """Return whether deletion vectors may be written to a table, and Arrow reads it.

    delta-rs would have to find mapped columns by names that this engine doesn't write.
    """
    protocol, metadata = snapshot.protocol, snapshot.metadata
    properties = parse_properties(metadata)
    return (
        allows_vectors(snapshot)
        and properties.column_mapping_mode == "none"
        and not unread_features(protocol, metadata, Use.ARROW)
        and not snapshot.table.location.startswith("memory:")
    )


@dataclass(frozen=True)
class FoundRows:
    """Rows of one file that an operation deletes, by their numbers in the file.

    Args:
        add: the file.
        physical: the number of its rows, deleted ones among them.
        rows: the numbers of live rows.
        old: the numbers of rows that are deleted already.
    """

    add: Add
    physical: int
    rows: "BitMap64"
    old: "BitMap64 | None"

    @property
    def live(self) -> int:
        """The number of rows that aren't deleted yet."""
        # A foreign vector may have rows that the file doesn't have.
        gone = self.old.range_cardinality(0, self.physical) if self.old else 0
        return self.physical - gone


def worth_marking(found: Sequence[FoundRows], settings: "VectorSettings") -> bool:
    """Return whether to mark rows that were found, instead of rewriting their files."""
    if settings.mode != "auto":
        return settings.mode == "always"
    live = sum(one.live for one in found)
    return sum(len(one.rows) for one in found) <= live * settings.max_share


@dataclass(frozen=True)
class Marking:
    """Deletion vectors for the files that keep rows, and removes of all other files.

    Args:
        whole: the files that keep no row.
        some: the files that keep rows.
        vectors: the new vectors of `some`, with the rows of the old ones.
        file: the file of the vectors that aren't inline, by its path.
    """

    whole: Sequence[FoundRows]
    some: Sequence[FoundRows]
    vectors: Sequence[DeletionVector]
    file: Mapping[str, bytes]

    def actions(self) -> list[Action]:
        """Return the actions that delete the rows."""
        now = now_ms()
        removes = [removed(one.add, now) for one in (*self.whole, *self.some)]
        return [*removes, *map(_with_vector, self.some, self.vectors)]


def marking(found: Sequence[FoundRows], settings: "VectorSettings") -> Marking:
    """Return what deletes the rows in `found`; the caller writes the file."""
    whole = [one for one in found if len(one.rows) == one.live]
    some = [one for one in found if len(one.rows) < one.live]
    rows = [one.rows if one.old is None else one.rows | one.old for one in some]
    vectors, file = _stored(rows, settings)
    return Marking(whole, some, vectors, file)


@dataclass(frozen=True)
class Vectors:
    """The engine that writes deletion vectors if an operation changes few rows.

    Args:
        engine: changes the rows that are found, or all files if the rows are many.
        search: the rows that the operation may change.
        settings: when vectors are written, and where.
    """

    engine: DeltaRs[str]
    search: Search
    settings: "VectorSettings"

    def stage(self, target: Target, operation: Operation[str]) -> Staging[str]:
        """Find the rows, have delta-rs change them, and mark them as deleted."""
        with explained(operation.title(target), target.files.work, target.location):
            found = self._find(target, operation)
        if found is None:
            return self.engine.stage(target, operation)
        snapshot, deletes = target.base, self.search.deletes
        if deletes is not None and found:
            metadata = _narrowed(snapshot, deletes)
            guests = self._guests(target, found, metadata)
            with self.engine.ran(guests, target, operation, metadata) as ran:
                found = _without_leftovers(found, ran.commits, ran.folder)
                result, commits = ran.result, ran.commits
            if not parse_properties(snapshot.metadata).enable_change_data_feed:
                kept = [[a for a in c if isinstance(a, CommitInfo)] for c in commits]
                staging = Staging(target, operation, result, kept)
                return self._marked(staging, found)
        guests = self._guests(target, found, snapshot.metadata)
        staging = self.engine.stage_on(guests, target, operation)
        gone = {
            action.path
            for actions in staging.commits
            for action in actions
            if isinstance(action, Remove)
        }
        changed = [one for one in found if one.add.path in gone]
        # If a row that was found and stays is deleted meanwhile, a merge has to insert
        # the row of the source that matched it.
        rows_only = not self.search.inserts or len(changed) == len(found)
        return replace(self._marked(staging, changed), rows_only=rows_only)

    def _find(
        self, target: Target, operation: Operation[str]
    ) -> list[FoundRows] | None:
        """Return the rows, or None if it is better to rewrite their files."""
        snapshot, mode = target.base, self.settings.mode
        adds = candidates(snapshot, operation.files)
        counts = [_num_records(add) for add in adds]
        if mode == "never" or None in counts:
            return None
        names = frozenset(f.name for f in parse_schema(_schema_of(snapshot)).fields)
        where = widened(self.search.where, names)
        if isinstance(where, Anything) and not self.search.keys and mode == "auto":
            return None
        reader = self._searcher(target, where)
        most = sum(count or 0 for count in counts)
        if mode == "auto":
            most = int(most * self.settings.max_share)
        found, total = list[FoundRows](), 0
        for add, physical in zip(adds, counts, strict=True):
            file = data_file(add)
            rows = _rows_of(reader, file)
            total += len(rows)
            if total > most:
                return None
            if rows:
                one = FoundRows(add, physical or 0, rows, reader.deleted(file))
                found.append(one)
        return found if worth_marking(found, self.settings) else None

    def _searcher(self, target: Target, where: Predicate) -> ArrowReader:
        """Return a reader of the numbers of the rows that match the search."""
        schema = arrow_schema(_schema_of(target.base))
        keys = [
            pc.field(name).isin(values.cast(schema.field(name).type, safe=False))
            for name, values in self.search.keys.items()
        ]
        parts = [] if isinstance(where, Anything) else [row_filter(where)]
        named = {column.path[0] for column in columns_of(where)} | {*self.search.keys}
        fields = [f for f in schema if f.name in named]
        wanted = pa.schema([*fields, pa.field(_ROW, pa.int64())])
        reader = arrow_reader(target.base, wanted, target.storage_options)
        condition = reduce(and_, [*parts, *keys]) if parts or keys else None
        return replace(reader, row_column=_ROW, condition=condition)

    def _guests(
        self, target: Target, found: Sequence[FoundRows], metadata: Metadata
    ) -> Callable[[Path], list[Guest]]:
        """Return a function that writes the rows, in the columns of `metadata`."""
        partitions = set(metadata.partition_columns)
        fields = parse_schema(metadata.schema_string).fields
        names = {one.name for one in fields if one.name not in partitions}
        schema = arrow_schema(_schema_of(target.base))
        narrow = [pa.field(_ROW, pa.int64())] if _ROW in names else []
        own = pa.schema([*(f for f in schema if f.name in names), *narrow])
        reader = replace(
            arrow_reader(target.base, own, target.storage_options), row_column=_ROW
        )

        def write(folder: Path) -> list[Guest]:
            guests = []
            for number, one in enumerate(found):
                name = f"rows-{number}.parquet"
                mark = number if narrow else None
                _write_rows(folder / name, reader, one, mark)
                seen = Add(
                    path=name,
                    partition_values=one.add.partition_values,
                    size=(folder / name).stat().st_size,
                    modification_time=one.add.modification_time,
                    data_change=True,
                )
                guests.append(Guest(one.add, seen))
            return guests

        return write

    def _marked(
        self, staging: Staging[str], found: Sequence[FoundRows]
    ) -> Staging[str]:
        """Return the staging with vectors in place of the removes of files of rows."""
        if not staging.commits:
            return staging
        (actions,) = staging.commits
        marks = marking(found, self.settings)
        try:
            staging.target.files.put(marks.file)
        except (OSError, StorageError):
            staging.discard()
            raise
        added = [a for a in actions if isinstance(a, Add)]
        counts = {
            **dict.fromkeys(_METRICS_REMOVED, len(marks.whole)),
            **dict.fromkeys(_METRICS_ADDED, len(added)),
        }
        if self.search.deletes is not None and not added:
            counts["num_copied_rows"] = 0
        changed: list[Action] = [
            _with_metrics(action, counts, len(marks.some))
            for action in actions
            if not isinstance(action, Remove)
        ]
        changed += marks.actions()
        metrics = _replaced(json.loads(staging.result), counts, len(marks.some))
        return replace(
            staging,
            result=json.dumps(metrics),
            commits=[changed],
            new_paths=[*staging.new_paths, *marks.file],
            rows_only=True,
        )


def _stored(
    rows: Sequence["BitMap64"], settings: "VectorSettings"
) -> tuple[list[DeletionVector], dict[str, bytes]]:
    """Return the vectors of rows, and the file of those that aren't inline."""
    left = settings.inline_commit_bytes
    encoded = [(encode_vector(one), len(one)) for one in rows]
    vectors: list[DeletionVector | None] = []
    for data, count in encoded:
        inline = len(data) <= min(settings.inline_bytes, left)
        left -= len(data) if inline else 0
        vectors.append(inlined_vector(data, count) if inline else None)
    outside = [e for e, v in zip(encoded, vectors, strict=True) if v is None]
    identity = uuid4()
    stored, data = vector_file(outside, identity)
    rest = iter(stored)
    file = {f"deletion_vector_{identity}.bin": data} if outside else {}
    return [next(rest) if v is None else v for v in vectors], file


def _schema_of(snapshot: Snapshot) -> str:
    return snapshot.metadata.schema_string


def _num_records(add: Add) -> int | None:
    stats = parse_stats(known(add.stats))
    return None if stats is None else stats.num_records


def _rows_of(reader: ArrowReader, file: DataFile) -> "BitMap64":
    from pyroaring import BitMap64

    rows = BitMap64()
    for batch in reader.read([file]):
        if batch.num_rows:
            rows.update(batch[_ROW].to_pylist())
    return rows


def _narrowed(snapshot: Snapshot, predicate: str) -> Metadata:
    """Return metadata with the columns that `predicate` may name, and rows' numbers."""
    metadata = snapshot.metadata
    # A quote within a quoted name is doubled.
    text = " ".join((predicate, predicate.replace('""', '"'))).lower()
    partitions = set(metadata.partition_columns)
    fields = [
        one
        for one in json.loads(metadata.schema_string)["fields"]
        if one["name"].lower() in text or one["name"] in partitions
    ]
    numbers = [
        {"name": name, "type": "long", "nullable": True, "metadata": {}}
        for name in (_ROW, _FILE)
    ]
    schema = {"type": "struct", "fields": [*fields, *numbers]}
    return msgspec.structs.replace(
        metadata, schema_string=json.dumps(schema), configuration={}
    )


def _write_rows(
    path: Path, reader: ArrowReader, found: FoundRows, mark: int | None
) -> None:
    schema = reader.target
    if mark is not None:
        schema = schema.append(pa.field(_FILE, pa.int64()))
    with pq.ParquetWriter(path, schema) as writer:
        for batch in reader.take(data_file(found.add), found.rows):
            columns = batch.columns
            if mark is not None:
                columns = [*columns, pa.repeat(mark, batch.num_rows)]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def _without_leftovers(
    found: Sequence[FoundRows], commits: Iterable[Iterable[Action]], folder: Path
) -> list[FoundRows]:
    """Return the rows that delta-rs has deleted."""
    gone, left = set[str](), [type(one.rows)() for one in found]
    for action in (action for actions in commits for action in actions):
        if isinstance(action, Remove):
            gone.add(action.path)
        elif isinstance(action, Add):
            (path,) = files_inside(action, str(folder))
            with pq.ParquetFile(folder / path) as parquet:
                for batch in parquet.iter_batches(columns=[_FILE, _ROW]):
                    pairs = zip(*(c.to_pylist() for c in batch.columns), strict=True)
                    for number, row in pairs:
                        left[number].add(row)
    deleted = [
        replace(one, rows=one.rows - rest)
        for one, rest in zip(found, left, strict=True)
        if one.add.path in gone
    ]
    return [one for one in deleted if one.rows]


def _with_vector(found: FoundRows, vector: DeletionVector) -> Add:
    """Return the add of a file whose rows a new vector deletes."""
    # Raw, because a float would round the bounds of a decimal.
    stats = _stats.decode(known(found.add.stats) or "{}")
    # The bounds are those of all rows, deleted ones among them.
    stats["tightBounds"] = msgspec.Raw(b"false")
    return msgspec.structs.replace(
        found.add,
        data_change=True,
        deletion_vector=vector,
        stats=msgspec.json.encode(stats).decode(),
    )


def _with_metrics(action: Action, counts: Mapping[str, int], vectors: int) -> Action:
    if not isinstance(action, CommitInfo):
        return action
    metrics = action.fields.get("operationMetrics")
    if not isinstance(metrics, dict):
        return action
    fields = {**action.fields, "operationMetrics": _replaced(metrics, counts, vectors)}
    return msgspec.structs.replace(action, fields=fields)


def _replaced(
    metrics: Mapping[str, Any], counts: Mapping[str, int], vectors: int
) -> dict[str, Any]:
    """Return delta-rs's metrics with the counts of files that the table gets."""
    known_counts = {name: counts.get(name, value) for name, value in metrics.items()}
    return {**known_counts, "num_deletion_vectors_added": vectors}
