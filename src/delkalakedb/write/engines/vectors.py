"""Changes of a few rows, without rewriting the files that hold the rows.

The engine finds the rows that an operation may change, and gives only these rows to
delta-rs, in a workspace. Then it marks the rows as deleted in the deletion vectors of
their files. So delta-rs evaluates every expression, checks every constraint and writes
the change data, and the new rows are in small files of their own.

The rows that are found are a superset of the rows that change. An unchanged row among
them may be moved to a new file together with the changed ones.
"""

import json
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import and_
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delkalakedb.catalog import Snapshot
from delkalakedb.clock import now_ms
from delkalakedb.errors import DeltaError, StorageError
from delkalakedb.model.actions import (
    Action,
    Add,
    CommitInfo,
    DeletionVector,
    Metadata,
    Remove,
    known,
)
from delkalakedb.model.new_actions import recounted, removed, with_counts
from delkalakedb.model.paths import files_inside
from delkalakedb.model.predicate.predicate import Anything, Nothing, Or, Predicate
from delkalakedb.model.rules.features import DELETION_VECTORS, Use
from delkalakedb.model.rules.protocol import supported_features, unread_features
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.model.stats.stats import parse_stats
from delkalakedb.model.vectors import InlineBounds, stored_vectors
from delkalakedb.write.engines.deltars import (
    IN_PRIVATE,
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
# files read at a time; four take twice the memory of two
_THREADS = 2
_METRICS_REMOVED = ("num_removed_files", "num_target_files_removed")
_METRICS_ADDED = ("num_added_files", "num_target_files_added")
_T = TypeVar("_T")
_I = TypeVar("_I")
_R = TypeVar("_R")
_Batches = Iterable[pa.RecordBatch]
_stats = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class Search:
    """The rows that an operation may change.

    Args:
        where: a predicate that holds for all of them, except for those of `others`.
        keys: values by column; each of the rows, except for those of `others`, has one
            of the values.
        others: a predicate that holds for more of the rows.
        sql: the condition of exactly the rows that change, as delta-rs takes it.
        deletes: whether the operation only deletes the rows.
        inserts: whether the operation inserts a row for a source row without a match.
    """

    where: Predicate
    keys: Mapping[str, pa.Array] = field(default_factory=dict)
    others: Predicate | None = None
    sql: str | None = None
    deletes: bool = False
    inserts: bool = False

    @property
    def files(self) -> Predicate:
        """A predicate that holds for all of the rows."""
        if self.others is None:
            return self.where
        parts = (self.where, self.others)
        vague = any(isinstance(part, Anything) for part in parts)
        return Anything() if vague else Or(parts)

    def rows(self, present: frozenset[str]) -> "Search":
        """Return the search by the columns `present`, as `row_filter` takes it."""
        others = self.others and widened(self.others, present)
        return replace(self, where=widened(self.where, present), others=others)

    @property
    def is_vague(self) -> bool:
        """Whether every row is among those found."""
        vague = isinstance(self.where, Anything) and not self.keys
        return vague or isinstance(self.others, Anything)


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


def worth_marking(found: Iterable[FoundRows], settings: "VectorSettings") -> bool:
    """Return whether to mark rows of files as deleted, rather than rewrite the files.

    Vectors spare the bytes of the rows that stay, so a file of which all rows change
    doesn't matter. Nor does the number of files: either way the log gets a remove and
    an add for each of them.
    """
    if settings.mode != "auto":
        return settings.mode == "always"
    some = [one for one in found if 0 < len(one.rows) < one.live]
    moved_bytes = sum(one.add.size * len(one.rows) / one.live for one in some)
    return moved_bytes <= settings.max_share * sum(one.add.size for one in some)


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
    bounds = InlineBounds(settings.inline_bytes, settings.inline_commit_bytes)
    vectors, file = stored_vectors(rows, bounds, uuid4())
    return Marking(whole, some, vectors, file)


@dataclass(frozen=True)
class Vectors(Generic[_T]):
    """The engine that writes deletion vectors if an operation changes few rows.

    Args:
        engine: changes the rows that are found, or all files if the rows are many.
        search: the rows that the operation may change.
        settings: when vectors are written, and where.
    """

    engine: DeltaRs[_T]
    search: Search
    settings: "VectorSettings"

    def stage(self, target: Target, operation: Operation[_T]) -> Staging[_T]:
        """Find the rows, have delta-rs change them, and mark them as deleted."""
        with explained(operation.title(target), target.files.work, target.location):
            found = self._find(target, operation)
        if found is None:
            return self.engine.stage(target, operation)
        snapshot, sql = target.base, self.search.sql
        if self.search.deletes and sql is not None and found:
            metadata = _narrowed(snapshot, sql)
            guests = self._guests_of(target, found, metadata)
            with self.engine.ran(guests, target, operation, metadata) as ran:
                found = _without_leftovers(found, ran.commits, ran.folder)
                result, commits = ran.result, ran.commits
            if not parse_properties(snapshot.metadata).enable_change_data_feed:
                kept = [[a for a in c if isinstance(a, CommitInfo)] for c in commits]
                staging = Staging(target, operation, result, kept)
                return self._marked(staging, found)
        guests = self._guests_of(target, found, snapshot.metadata)
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

    def _find(self, target: Target, operation: Operation[_T]) -> list[FoundRows] | None:
        """Return the rows, or None if it is better to rewrite their files."""
        settings, sql = self.settings, self.search.sql
        adds = candidates(target.base, operation.files)
        counts = [_num_records(add) for add in adds]
        if settings.mode == "never" or None in counts:
            return None
        files = [(add, count or 0) for add, count in zip(adds, counts, strict=True)]
        most = sum(count for _, count in files)
        if settings.mode == "auto":
            most = int(most * settings.max_share)
        found = self._superset(target, files, most)
        if found is None and sql is not None:
            # What delta-rs refuses here, it refuses again as a part of the operation.
            with suppress(DeltaError):
                found = self._exact(target, operation, files, most, sql)
        if found is None and settings.mode == "always":
            found = self._superset(target, files, None)
        return found if worth_marking(found or (), settings) else None

    def _superset(
        self, target: Target, files: Iterable[tuple[Add, int]], most: int | None
    ) -> list[FoundRows] | None:
        """Return the rows that the search finds; None if they are more than `most`."""
        search = self.search.rows(_names(target.base))
        if most is not None and search.is_vague:
            return None
        reader = self._searcher(target, search)

        def rows_of(file: tuple[Add, int]) -> FoundRows:
            add, physical = file
            rows = _rows_of(reader, data_file(add))
            return FoundRows(add, physical, rows, reader.deleted(data_file(add)))

        found, total = list[FoundRows](), 0
        with closing(_at_once(rows_of, files)) as searched:
            for one in searched:
                total += len(one.rows)
                if most is not None and total > most:
                    return None
                found += [one] if one.rows else []
        return found

    def _exact(
        self,
        target: Target,
        operation: Operation[_T],
        files: Sequence[tuple[Add, int]],
        most: int,
        sql: str,
    ) -> list[FoundRows] | None:
        """Return the rows that delta-rs finds; None if they are more than `most`.

        delta-rs deletes all others from a copy of the condition's columns. Each copy is
        of twice as many files as the one before, so that little is copied in vain.
        """
        metadata = _narrowed(target.base, sql)
        engine = DeltaRs[Any](
            lambda raw: raw.delete(
                predicate=f"({sql}\n) IS NOT TRUE",
                post_commithook_properties=IN_PRIVATE,
            )
        )
        partitions = frozenset(metadata.partition_columns)
        search = self.search.rows(_names(target.base) - partitions)
        reader = self._searcher(target, search)
        found, total, first, size = list[FoundRows](), 0, 0, 1
        while first < len(files):
            some = files[first : first + size]
            first, size = first + size, size * 2
            adds = [add for add, _ in some]

            def read(own: ArrowReader, at: int, adds: list[Add] = adds) -> _Batches:
                filtered = replace(own, condition=reader.condition)
                return filtered.read([data_file(adds[at])])

            guests = self._guests(target, adds, metadata, read)
            with engine.ran(guests, target, operation, metadata) as ran:
                gone, rows = _rows_left(ran.commits, ran.folder, len(some))
                for at, add in enumerate(adds):
                    if add.path not in gone:
                        rows[at] = _rows_in(ran.folder / _guest_name(at))
            for (add, physical), these in zip(some, rows, strict=True):
                total += len(these)
                old = reader.deleted(data_file(add)) if these else None
                found += [FoundRows(add, physical, these, old)] if these else []
            if total > most:
                return None
        return found

    def _searcher(self, target: Target, search: Search) -> ArrowReader:
        """Return a reader of the numbers of the rows that match the search."""
        schema = arrow_schema(_schema_of(target.base))
        where, others = search.where, search.others
        parts = [] if isinstance(where, Anything) else [row_filter(where)]
        parts += [
            pc.field(name).isin(values.cast(schema.field(name).type, safe=False))
            for name, values in search.keys.items()
        ]
        condition = reduce(and_, parts) if parts else None
        if others is not None and condition is not None:
            vague = isinstance(others, Anything)
            condition = None if vague else condition | row_filter(others)
        predicates = (where, others or Nothing())
        named = {c.path[0] for one in predicates for c in columns_of(one)}
        named |= {*search.keys}
        fields = [f for f in schema if f.name in named]
        wanted = pa.schema([*fields, pa.field(_ROW, pa.int64())])
        reader = arrow_reader(target.base, wanted, target.storage_options)
        return replace(reader, row_column=_ROW, condition=condition)

    def _guests_of(
        self, target: Target, found: Sequence[FoundRows], metadata: Metadata
    ) -> Callable[[Path], list[Guest]]:
        """Return a function that writes the rows, in the columns of `metadata`."""

        def read(reader: ArrowReader, at: int) -> _Batches:
            return reader.take(data_file(found[at].add), found[at].rows)

        return self._guests(target, [one.add for one in found], metadata, read)

    def _guests(
        self,
        target: Target,
        adds: Sequence[Add],
        metadata: Metadata,
        read: Callable[[ArrowReader, int], _Batches],
    ) -> Callable[[Path], list[Guest]]:
        """Return a function that writes rows of files, in the columns of `metadata`.

        `read` reads the rows of the file at an index of `adds`.
        """
        partitions = set(metadata.partition_columns)
        fields = parse_schema(metadata.schema_string).fields
        names = {one.name for one in fields if one.name not in partitions}
        schema = arrow_schema(_schema_of(target.base))
        narrow = [pa.field(_ROW, pa.int64())] if _ROW in names else []
        own = pa.schema([*(f for f in schema if f.name in names), *narrow])
        reader = replace(
            arrow_reader(target.base, own, target.storage_options), row_column=_ROW
        )

        def write_one(folder: Path, number: int, add: Add) -> Guest:
            path = folder / _guest_name(number)
            mark = number if narrow else None
            _write_rows(path, own, read(reader, number), mark)
            seen = Add(
                path=path.name,
                partition_values=add.partition_values,
                size=path.stat().st_size,
                modification_time=add.modification_time,
                data_change=True,
            )
            return Guest(add, seen)

        def write(folder: Path) -> list[Guest]:
            numbered = enumerate(adds)
            return list(_at_once(lambda one: write_one(folder, *one), numbered))

        return write

    def _marked(self, staging: Staging[_T], found: Sequence[FoundRows]) -> Staging[_T]:
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
        if self.search.deletes and not added:
            counts["num_copied_rows"] = 0
        marked = {"num_deletion_vectors_added": len(marks.some)}
        changed: list[Action] = [
            with_counts(action, counts, marked)
            for action in actions
            if not isinstance(action, Remove)
        ]
        changed += marks.actions()
        result: Any = staging.result
        if isinstance(result, str):
            result = json.dumps(recounted(json.loads(result), counts) | marked)
        return replace(
            staging,
            result=result,
            commits=[changed],
            new_paths=[*staging.new_paths, *marks.file],
            rows_only=True,
        )


def _at_once(function: Callable[[_I], _R], items: Iterable[_I]) -> Generator[_R]:
    """Yield the results for items in their order; a few are computed at a time."""
    with ThreadPoolExecutor(_THREADS) as pool:
        yield from pool.map(function, items)


def _schema_of(snapshot: Snapshot) -> str:
    return snapshot.metadata.schema_string


def _num_records(add: Add) -> int | None:
    stats = parse_stats(known(add.stats))
    return None if stats is None else stats.num_records


def _names(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(f.name for f in parse_schema(_schema_of(snapshot)).fields)


def _rows_of(reader: ArrowReader, file: DataFile) -> "BitMap64":
    from pyroaring import BitMap64

    rows = BitMap64()
    for batch in reader.read([file]):
        _note(rows, batch[_ROW])
    return rows


def _note(rows: "BitMap64", numbers: pa.Array) -> None:
    """Add row numbers to a bitmap."""
    if len(numbers):
        rows.update(numbers.to_pylist())


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


def _guest_name(number: int) -> str:
    return f"rows-{number}.parquet"


def _write_rows(
    path: Path, schema: pa.Schema, batches: _Batches, mark: int | None
) -> None:
    if mark is not None:
        schema = schema.append(pa.field(_FILE, pa.int64()))
    # Read once, and then deleted.
    with pq.ParquetWriter(
        path, schema, compression="none", use_dictionary=False
    ) as writer:
        for batch in batches:
            columns = batch.columns
            if mark is not None:
                columns = [*columns, pa.repeat(mark, batch.num_rows)]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def _rows_in(path: Path) -> "BitMap64":
    """Return the numbers of the rows in a file of a workspace."""
    from pyroaring import BitMap64

    rows = BitMap64()
    with pq.ParquetFile(path) as parquet:
        for batch in parquet.iter_batches(columns=[_ROW]):
            _note(rows, batch[_ROW])
    return rows


def _rows_left(
    commits: Iterable[Iterable[Action]], folder: Path, count: int
) -> "tuple[set[str], list[BitMap64]]":
    """Return the files that delta-rs has removed, and the rows of each that it kept."""
    from pyroaring import BitMap64

    gone, left = set[str](), [BitMap64() for _ in range(count)]
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
    return gone, left


def _without_leftovers(
    found: Sequence[FoundRows], commits: Iterable[Iterable[Action]], folder: Path
) -> list[FoundRows]:
    """Return the rows that delta-rs has deleted."""
    gone, left = _rows_left(commits, folder, len(found))
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
