"""Planning: finding the files that may hold a row that matches a predicate.

Each *driver* of the predicate is a set of ranges, and every matching file overlaps one
of them. The driver with the fewest candidates is looked up in the index of column
bounds. Each candidate is then checked against the whole predicate with the file's own
statistics.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa

from delkalakedb.catalog.engine import Backend, Session
from delkalakedb.catalog.read.action_rows import FILES_SCHEMA
from delkalakedb.catalog.read.head import Head, StatColumn
from delkalakedb.catalog.read.retention import check_kept, while_kept
from delkalakedb.catalog.read.sql_log import load_files
from delkalakedb.catalog.read.stat_index import STAT_TABLES, unit_of
from delkalakedb.model.predicate.matcher import (
    Driver,
    HasNull,
    Range,
    drivers,
    matcher,
    needs_statistics,
)
from delkalakedb.model.predicate.predicate import Predicate
from delkalakedb.model.stats.stats import ALL_NULL, class_reach
from delkalakedb.model.stats.values import TOP, Kind
from delkalakedb.telemetry import PLAN, PLANNED_FILES, measured
from delkalakedb.waits import compute

# files; up to this many, ids in the text of a statement are fastest
_FEW_FILES = 16
# ranges of a column that are looked up one by one
_MOST_SCANS = 2000


def plan(
    backend: Backend, head: Head, predicate: Predicate, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Stream all live files at a head's version that may hold a matching row.

    Raise `VersionNotFoundError` if the version expired before all files were read. The
    columns of `schema` are columns of `FILES_SCHEMA`.
    """
    partitions = head.metadata.partition_columns
    wanted = drivers(predicate, partitions)
    PLANNED_FILES.record(head.num_files, engine=backend.engine, state="considered")
    if any(not driver for driver in wanted):
        check_kept(backend, head)
        return
    keep = matcher(predicate, partitions)
    looks = ["partition_values"]
    if needs_statistics(predicate, partitions):
        looks.append("stats")
    names = dict.fromkeys(["file_id", *looks, *schema.names])
    seen = pa.schema([FILES_SCHEMA.field(name) for name in names])

    def match(batch: pa.RecordBatch) -> pa.RecordBatch:
        values, *stats = (batch[name].to_pylist() for name in looks)
        texts = stats[0] if stats else repeat(None)
        files = list(zip(values, texts, strict=False))
        # Files of one partition are checked once, unless statistics are needed.
        kept = {(v, s): keep(msgspec.json.decode(v), s) for v, s in set(files)}
        mask = [kept[file] for file in files]
        return batch if all(mask) else batch.filter(pa.array(mask, pa.bool_()))

    for batch in _candidates(backend, head, wanted, seen):
        found = compute(batch.num_rows, partial(match, batch))
        PLANNED_FILES.record(len(found), engine=backend.engine, state="kept")
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
        # The index covers every file, and no file has a value in the ranges.
        check_kept(backend, head)
        return
    if not lookups:
        yield from while_kept(backend, head, load_files(backend, head, schema))
        return
    planned = measured(PLAN, engine=backend.engine, table=head.name)
    with planned, backend.reading() as session:
        found = _most_selective(session, lookups).load_files(session, schema)
    yield from while_kept(backend, head, [found])


def _covering(head: Head) -> dict[tuple[tuple[str, ...], str], StatColumn]:
    """Return the indexed columns that cover the head's version, by name and unit."""
    return {
        (c.physical, c.unit): c
        for c in head.stat_columns
        if c.since <= head.version and (c.until is None or c.until > head.version)
    }


@dataclass(slots=True)
class _Lookup:
    """The SQL of one driver's candidates, composed of fragments of the `.sql` files."""

    backend: Backend
    head: Head
    parts: list[str] = field(default_factory=list)
    params: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.params |= {"table_id": self.head.table_id, "version": self.head.version}

    def within(self, statement: str) -> str:
        return statement.replace("{candidates}", "\nUNION ALL\n".join(self.parts))

    def load_files(self, session: Session, schema: pa.Schema) -> pa.RecordBatch:
        """Return the candidates, ordered by the first column of `schema`."""
        if self.backend.capabilities.interval_index:
            statement = self.within(self.backend.naming("plan_files", schema))
            return session.batch_sql(statement, self.params, schema)
        # Ids first, because a scan that knows the ids skips all other files.
        ids = session.values_sql(self.within("{candidates}"), self.params)
        if len(ids) > _FEW_FILES:
            named = self.backend.statements["plan_ids"]
        else:
            named = ", ".join(map(str, ids)) or "NULL"
        statement = self.backend.naming("plan_named", schema).replace("{ids}", named)
        return session.batch_sql(statement, {"ids": str(ids)}, schema)

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
            # Removed files are in another btree.
            self.parts.append(text.replace("{alive}", statements["plan_died"]))

    def overlap(self, column: StatColumn, ranges: Sequence[Range]) -> None:
        bounds = [_bounds(r, column.kind) for r in ranges]
        if self.backend.capabilities.interval_index:
            pieces = {"ranges": self._scans(column, bounds)}
        else:
            pieces = {"overlaps": self._conditions(bounds)}
        column_id = self.param(column.column_id)
        table = STAT_TABLES[column.kind]
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
                table=STAT_TABLES[column.kind],
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


def _most_selective(session: Session, lookups: Sequence[_Lookup]) -> _Lookup:
    if len(lookups) == 1:
        return lookups[0]
    counts = []
    for lookup in lookups:
        probe = lookup.within(lookup.backend.statements["plan_probe"])
        counts += session.values_sql(probe, lookup.params)
    return lookups[counts.index(min(counts))]
