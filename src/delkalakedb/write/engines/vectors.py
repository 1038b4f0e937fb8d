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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from uuid import uuid4

import msgspec
import pyarrow as pa

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
from delkalakedb.model.predicate.predicate import Anything, Or, Predicate
from delkalakedb.model.rules.features import DELETION_VECTORS, Use
from delkalakedb.model.rules.protocol import supported_features, unread_features
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.model.stats.stats import parse_stats
from delkalakedb.model.vectors import InlineBounds, stored_vectors
from delkalakedb.write.engines.deltars import (
    IN_PRIVATE,
    DeltaRs,
    arrow_schema,
    candidates,
    explained,
)
from delkalakedb.write.engines.row_copy import RowCopy, numbered, numbers_left
from delkalakedb.write.engines.row_filters import row_test, widened
from delkalakedb.write.engines.row_reader import data_file
from delkalakedb.write.files import private_folder
from delkalakedb.write.operation import Operation, Staging, Target

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from delkalakedb.settings import VectorSettings

# files read at a time; four take twice the memory of two
_THREADS = 2
_METRICS_REMOVED = ("num_removed_files", "num_target_files_removed")
_METRICS_ADDED = ("num_added_files", "num_target_files_added")
_T = TypeVar("_T")
_I = TypeVar("_I")
_R = TypeVar("_R")
# a file, and the number of its rows, deleted ones among them
_Counted = tuple[Add, int]
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
        inserts: whether the operation inserts a row for a source row without a match.
    """

    where: Predicate
    keys: Mapping[str, pa.Array] = field(default_factory=dict)
    others: Predicate | None = None
    sql: str | None = None
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
        number: the number of the file among those searched.
    """

    add: Add
    physical: int
    rows: "BitMap64"
    old: "BitMap64 | None"
    number: int = 0

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


class _Found(NamedTuple):
    """Rows that an operation may change, and their copy, if they have been copied."""

    rows: Sequence[FoundRows]
    copy: RowCopy | None


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
        with private_folder(target.files.ensure_work()) as folder:
            with explained(operation.title(target), target.files.work, target.location):
                found = self._find(target, operation, folder)
            if found is not None:
                return self._change(target, operation, found, folder)
        return self.engine.stage(target, operation)

    def _copied(self, snapshot: Snapshot) -> Metadata:
        """Return metadata with the columns of the found rows that delta-rs changes."""
        return snapshot.metadata

    def _change(
        self,
        target: Target,
        operation: Operation[_T],
        found: "_Found",
        folder: Path,
    ) -> Staging[_T]:
        """Have delta-rs change a copy of the found rows; mark those that it rewrote."""
        copy = found.copy or _copy_of(target, target.base.metadata, found.rows, folder)
        guests = copy.guests((one.number, one.add) for one in found.rows)
        staging = self.engine.stage_on(guests, target, operation)
        gone = {
            action.path
            for actions in staging.commits
            for action in actions
            if isinstance(action, Remove)
        }
        changed = [one for one in found.rows if one.add.path in gone]
        # If a row that was found and stays is deleted meanwhile, a merge has to insert
        # the row of the source that matched it.
        rows_only = not self.search.inserts or len(changed) == len(found.rows)
        return replace(self._marked(staging, changed), rows_only=rows_only)

    def _find(
        self, target: Target, operation: Operation[_T], folder: Path
    ) -> "_Found | None":
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
        found = self._superset(target, files, most, folder)
        if found is None and sql is not None:
            # What delta-rs refuses here, it refuses again as a part of the operation.
            with suppress(DeltaError):
                found = self._exact(target, operation, files, most, sql, folder)
        if found is None and settings.mode == "always":
            found = self._superset(target, files, None, folder)
        if found is None or not worth_marking(found.rows, settings):
            return None
        return found

    def _superset(
        self,
        target: Target,
        files: Sequence[_Counted],
        most: int | None,
        folder: Path,
    ) -> "_Found | None":
        """Return the rows that the search finds; None if they are more than `most`."""
        search = self.search.rows(_names(target.base))
        if most is not None and search.is_vague:
            return None
        copy = RowCopy(target, self._copied(target.base), folder, most)
        rows = _searched(target, search, files, copy)
        return None if rows is None else _Found(rows, copy)

    def _exact(
        self,
        target: Target,
        operation: Operation[_T],
        files: Sequence[_Counted],
        most: int,
        sql: str,
        folder: Path,
    ) -> "_Found | None":
        """Return the rows that delta-rs finds; None if they are more than `most`.

        delta-rs deletes all others from a copy of the condition's columns. Each copy is
        of twice as many files as the one before, so that little is copied in vain.
        """
        engine = DeltaRs[Any](
            lambda raw: raw.delete(
                predicate=f"({sql}\n) IS NOT TRUE",
                post_commithook_properties=IN_PRIVATE,
            )
        )
        metadata = numbered(target.base, sql)
        search = self.search.rows(_names(target.base))
        found, total, first, size = list[FoundRows](), 0, 0, 1
        while first < len(files):
            some = files[first : first + size]
            first, size = first + size, size * 2
            copy = RowCopy(target, metadata, folder)
            rows = _searched(target, search, some, copy) or []
            guests = copy.guests((one.number, one.add) for one in rows)
            with engine.ran(guests, target, operation, metadata) as ran:
                rows = _only(rows, numbers_left(ran))
            total += sum(len(one.rows) for one in rows)
            if total > most:
                return None
            numbered_rows = enumerate(rows, len(found))
            found += [replace(one, number=number) for number, one in numbered_rows]
        return _Found(found, None)

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
        if not added:
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


@dataclass(frozen=True)
class VectorDelete(Vectors[_T]):
    """The engine of a delete, which copies the columns of its condition alone."""

    def _copied(self, snapshot: Snapshot) -> Metadata:
        return numbered(snapshot, self.search.sql or "")

    def _change(
        self,
        target: Target,
        operation: Operation[_T],
        found: _Found,
        folder: Path,
    ) -> Staging[_T]:
        """Have delta-rs delete rows of a numbered copy; mark those that are gone."""
        metadata = self._copied(target.base)
        copy = found.copy or _copy_of(target, metadata, found.rows, folder)
        guests = copy.guests((one.number, one.add) for one in found.rows)
        with self.engine.ran(guests, target, operation, metadata) as ran:
            left = numbers_left(ran)
        gone = [replace(one, rows=one.rows - left[one.number]) for one in found.rows]
        gone = [one for one in gone if one.rows]
        if parse_properties(target.base.metadata).enable_change_data_feed:
            # The change data have all columns.
            return super()._change(target, operation, _Found(gone, None), folder)
        infos = [[a for a in c if isinstance(a, CommitInfo)] for c in ran.commits]
        return self._marked(Staging(target, operation, ran.result, infos), gone)


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


def _searched(
    target: Target, search: Search, files: Sequence[_Counted], copy: RowCopy
) -> list[FoundRows] | None:
    """Copy the rows that match a search; return None if the copy takes fewer rows."""
    schema = arrow_schema(_schema_of(target.base))
    test = row_test(search.where, search.keys, search.others, schema)
    reader = copy.reader(test.columns)

    def find(file: tuple[int, _Counted]) -> FoundRows | None:
        number, (add, physical) = file
        rows = copy.write(number, reader.find(data_file(add), test))
        if rows is None:
            return None
        old = reader.deleted(data_file(add)) if rows else None
        return FoundRows(add, physical, rows, old, number)

    found = list[FoundRows]()
    with closing(_at_once(find, enumerate(files))) as searched:
        for one in searched:
            if one is None:
                return None
            found += [one] if one.rows else []
    return found


def _copy_of(
    target: Target, metadata: Metadata, found: Iterable[FoundRows], folder: Path
) -> RowCopy:
    """Return a copy of rows that have been found."""
    copy = RowCopy(target, metadata, folder)
    reader = copy.reader()

    def write(one: FoundRows) -> None:
        copy.write(one.number, reader.take(data_file(one.add), one.rows))

    for _ in _at_once(write, found):
        pass
    return copy


def _only(
    found: Iterable[FoundRows], kept: "Mapping[int, BitMap64]"
) -> list[FoundRows]:
    """Return those of the rows that are in `kept`, by the numbers of the files."""
    rows = [replace(one, rows=one.rows & kept[one.number]) for one in found]
    return [one for one in rows if one.rows]


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
