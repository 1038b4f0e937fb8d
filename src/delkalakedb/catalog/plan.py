"""Planning: the files that may hold a row that matches, by index.

The predicate's *drivers* each name ranges of which every matching file touches one.
The driver with the fewest candidates is looked up in the index; what it finds is then
checked against the whole predicate with the file's own statistics.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa

from delkalakedb.catalog.backend import Backend, Row, Session
from delkalakedb.catalog.bounds import find_bounds, overlapping, widen
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.reader import load_files
from delkalakedb.catalog.retention import check_kept, check_known, while_kept
from delkalakedb.catalog.rows import FILES_SCHEMA, to_batch
from delkalakedb.catalog.statcolumns import TABLES, StatColumn, unit_of
from delkalakedb.model.predicate import Predicate
from delkalakedb.model.prune import (
    Driver,
    HasNull,
    Range,
    drivers,
    matcher,
    needs_statistics,
)
from delkalakedb.model.stats import ALL_NULL, class_reach
from delkalakedb.model.values import TOP, Kind

__all__ = ["plan"]

# So few are quickest named in the statement itself.
_FEW_FILES = 16
# Ranges of a column that are looked up one by one.
_MOST_SCANS = 2000


def plan(
    backend: Backend, head: Head, predicate: Predicate, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The live files at a head's version that may match; never too few.

    It is an error if the version was gone before all were found. `schema` names columns
    of `FILES_SCHEMA`.
    """
    partitions = head.metadata.partition_columns
    wanted = drivers(predicate, partitions)
    if any(not driver for driver in wanted):
        check_kept(backend, head)
        return
    keep = matcher(predicate, partitions)
    looks = ["partition_values"]
    if needs_statistics(predicate, partitions):
        looks.append("stats")
    names = dict.fromkeys(["file_id", *looks, *schema.names])
    seen = pa.schema([FILES_SCHEMA.field(name) for name in names])
    for batch in _candidates(backend, head, wanted, seen):
        values, *stats = (batch[name].to_pylist() for name in looks)
        texts = stats[0] if stats else repeat(None)
        files = list(zip(values, texts, strict=False))
        # Those of a partition are looked at once, unless statistics count.
        kept = {(v, s): keep(msgspec.json.decode(v), s) for v, s in set(files)}
        mask = [kept[file] for file in files]
        found = batch if all(mask) else batch.filter(pa.array(mask, pa.bool_()))
        yield found.select(schema.names)


def _candidates(
    backend: Backend, head: Head, wanted: Sequence[Driver], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    indexed = _covering(head)
    lookups = [
        lookup
        for driver in wanted
        if (lookup := _lookup(backend, head, driver, indexed)) is not None
    ]
    if any(not lookup.parts for lookup in lookups):
        # The index covers every file, and none of them has a value.
        check_kept(backend, head)
        return
    if not lookups:
        yield from while_kept(backend, head, load_files(backend, head, schema))
        return
    # Before a connection is taken: what is remembered is loaded by one of its own.
    known = _remembered(lookups, schema.names)
    if known is not None and known.column_names == schema.names:
        check_known(backend, head)
        yield from known.to_batches()
        return
    with backend.reading() as session:
        if known is not None:
            rows = _load_named(session, backend, known["file_id"].to_pylist(), schema)
        else:
            rows = _most_selective(session, lookups).load_files(session, schema)
    # By id, which comes first.
    yield from while_kept(backend, head, [to_batch(sorted(rows), schema)])


def _covering(head: Head) -> dict[tuple[tuple[str, ...], str], StatColumn]:
    """The indexed columns that a snapshot can use, by name and unit."""
    return {
        (c.physical, c.unit): c
        for c in head.stat_columns
        if c.since <= head.version and (c.until is None or c.until > head.version)
    }


@dataclass(slots=True)
class _Lookup:
    """SQL for candidates, composed of the fragments in the `.sql` files."""

    backend: Backend
    head: Head
    parts: list[str] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)
    overlaps: dict[StatColumn, list[tuple[Any, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.params |= {"table_id": self.head.table_id, "version": self.head.version}

    def within(self, statement: str) -> str:
        return statement.replace("{candidates}", "\nUNION ALL\n".join(self.parts))

    def load_files(self, session: Session, schema: pa.Schema) -> list[Row]:
        """The candidates."""
        if self.backend.capabilities.interval_index:
            statement = self.within(self.backend.naming("plan_files", schema))
            return session.query_sql(statement, self.params)
        rows = session.query_sql(self.within("{candidates}"), self.params)
        return _load_named(session, self.backend, [row[0] for row in rows], schema)

    def remember(self) -> list[tuple[StatColumn, pa.Table, pa.Array]] | None:
        """The same in memory: rows of the bounds of columns, if these tell all."""
        if len(self.overlaps) < len(self.parts):
            return None
        found = []
        for column, ranges in self.overlaps.items():
            bounds = find_bounds(self.backend, self.head, column)
            if bounds is None:
                return None
            rows = [overlapping(bounds, lo, hi) for lo, hi in ranges]
            found.append((column, bounds, pa.concat_arrays(rows)))
        return found

    def param(self, value: Any) -> str:
        name = f"p{len(self.params)}"
        self.params[name] = value
        return self.backend.placeholder.format(name)

    def add(self, fragment: str, **pieces: str) -> None:
        statements = self.backend.statements
        text = statements[fragment]
        for name, piece in pieces.items():
            text = text.replace(f"{{{name}}}", piece)
        self.parts.append(text.replace("{alive}", statements["plan_alive"]))
        if self.backend.capabilities.interval_index:
            # Files that died have a btree of their own.
            self.parts.append(text.replace("{alive}", statements["plan_died"]))

    def overlap(self, column: StatColumn, ranges: Sequence[Range]) -> None:
        bounds = [_bounds(r, column.kind) for r in ranges]
        if self.backend.capabilities.interval_index:
            pieces = {"ranges": self._scans(column, bounds)}
        else:
            self.overlaps[column] = bounds
            pieces = {"overlaps": self._conditions(bounds)}
        column_id = self.param(column.column_id)
        table = TABLES[column.kind]
        self.add("plan_overlap", table=table, column=column_id, **pieces)

    def _scans(self, column: StatColumn, bounds: Sequence[tuple[Any, Any]]) -> str:
        classes = sorted(column.classes - {ALL_NULL})
        if len(bounds) * len(classes) > _MOST_SCANS:
            lows, highs = zip(*bounds, strict=True)
            bounds = [(min(lows), max(highs))]
        rows = [
            (number, lo, hi, class_reach(number, hi))
            for lo, hi in bounds
            for number in classes
        ]
        return ", ".join(f"({', '.join(map(self.param, row))})" for row in rows)

    def _conditions(self, bounds: Sequence[tuple[Any, Any]]) -> str:
        return " OR ".join(
            f"(s.hi >= {self.param(lo)} AND s.lo <= {self.param(hi)})"
            for lo, hi in bounds
        )


def _lookup(
    backend: Backend,
    head: Head,
    driver: Driver,
    columns: dict[tuple[tuple[str, ...], str], StatColumn],
) -> _Lookup | None:
    lookup = _Lookup(backend, head)
    ranges: dict[StatColumn, list[Range]] = {}
    for term in driver:
        column = columns.get((term.column.physical, unit_of(term.column) or ""))
        if column is None:
            return None
        if isinstance(term, HasNull):
            lookup.add(
                "plan_nulls",
                table=TABLES[column.kind],
                column=lookup.param(column.column_id),
            )
        else:
            ranges.setdefault(column, []).append(term)
        if column.since > 0:
            lookup.add("plan_uncovered", since=lookup.param(column.since))
    for column, terms in ranges.items():
        if column.classes - {ALL_NULL}:
            lookup.overlap(column, terms)
    return lookup


def _bounds(term: Range, kind: Kind) -> tuple[Any, Any]:
    lowest, highest = ("", TOP) if kind is Kind.TEXT else (-math.inf, math.inf)
    return (
        lowest if term.lo is None else term.lo,
        highest if term.hi is None else term.hi,
    )


def _load_named(
    session: Session, backend: Backend, ids: Sequence[int], schema: pa.Schema
) -> list[Row]:
    """Files by id: a scan that knows them first skips all others."""
    if len(ids) > _FEW_FILES:
        named = backend.statements["plan_ids"]
    else:
        named = ", ".join(map(str, ids)) or "NULL"
    statement = backend.naming("plan_named", schema).replace("{ids}", named)
    return session.query_sql(statement, {"ids": str(ids)})


def _remembered(lookups: Sequence[_Lookup], columns: Sequence[str]) -> pa.Table | None:
    """The fewest candidates that memory gives, by id; their ids, or all the columns."""
    backend, head = lookups[0].backend, lookups[0].head
    if backend.capabilities.interval_index:
        return None
    found = [lookup.remember() for lookup in lookups]
    known = [parts for parts in found if parts is not None]
    if not known:
        return None
    fewest = min(known, key=lambda parts: sum(len(rows) for *_, rows in parts))
    wide = [
        (widen(backend, head, column, bounds, columns), rows)
        for column, bounds, rows in fewest
    ]
    if not all(set(columns) <= set(files.column_names) for files, _ in wide):
        columns = ["file_id"]
    whole = pa.concat_tables([files.select(columns).take(rows) for files, rows in wide])
    places = {file_id: i for i, file_id in enumerate(whole["file_id"].to_pylist())}
    return whole.take(pa.array(map(places.get, sorted(places)), pa.int64()))


def _most_selective(session: Session, lookups: Sequence[_Lookup]) -> _Lookup:
    if len(lookups) == 1:
        return lookups[0]
    counts = []
    for lookup in lookups:
        probe = lookup.within(lookup.backend.statements["plan_probe"])
        counts.append(session.query_sql(probe, lookup.params)[0][0])
    return lookups[counts.index(min(counts))]
