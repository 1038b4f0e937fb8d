"""Which columns have their bounds indexed, and the index rows of a commit's files.

The choice is a fact of the catalog, made when the metadata changes: a writer with
other settings still writes rows for the columns that were chosen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from delkalakedb.catalog.backend import Insert, Row, Run, Write
from delkalakedb.model.actions import Add, Metadata, known
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.schema import Column, parse_schema
from delkalakedb.model.stats import (
    Stats,
    column_bounds,
    index_entry,
    partition_bounds,
)
from delkalakedb.model.values import Kind, kind_of

__all__ = [
    "StatColumn",
    "active_columns",
    "load_columns",
    "revise",
    "stat_writes",
    "unit_of",
]

# A column id carries its table in the bits above these.
_COLUMNS_PER_TABLE = 1 << 16
TABLES = {Kind.NUMBER: "dl_number_stats", Kind.TEXT: "dl_text_stats"}
_COLUMNS = ("file_id", "column_id", "class", "lo", "hi", "has_null")


@dataclass(frozen=True, slots=True)
class StatColumn:
    """A column whose bounds are indexed for files added from `since` on."""

    column_id: int
    physical: tuple[str, ...]
    unit: str
    since: int
    until: int | None = None
    classes: frozenset[int] = field(default=frozenset())

    @property
    def kind(self) -> Kind:
        """The table of statistics that holds the column's rows."""
        return Kind.TEXT if self.unit == Kind.TEXT else Kind.NUMBER


def unit_of(column: Column) -> str | None:
    """What a column's stored bounds count; they compare only within one unit."""
    if column.type == "date" or column.type.startswith("timestamp"):
        return column.type
    kind = kind_of(column.type)
    return None if kind is None else kind.value


def load_columns(rows: Sequence[Row]) -> tuple[StatColumn, ...]:
    """The columns in the rows of `load_stat_columns`."""
    found: dict[int, StatColumn] = {}
    for column_id, name, unit, since, until, cls in rows:
        column = found.get(column_id) or StatColumn(
            column_id, tuple(msgspec.json.decode(name)), unit, since, until
        )
        if cls is not None:
            column = replace(column, classes=column.classes | {cls})
        found[column_id] = column
    return tuple(found.values())


def active_columns(
    columns: Sequence[StatColumn], metadata: Metadata
) -> list[tuple[StatColumn, Column, bool]]:
    """The columns that new files get rows for, each with whether it is a partition."""
    partitions = set(metadata.partition_columns)
    by_name = {
        (c.physical, unit_of(c)): c
        for c in parse_schema(metadata.schema_string).leaves()
    }
    return [
        (column, leaf, leaf.path[0] in partitions)
        for column in columns
        if column.until is None
        and (leaf := by_name.get((column.physical, column.unit))) is not None
    ]


def revise(
    columns: Sequence[StatColumn],
    metadata: Metadata,
    *,
    table_id: int,
    version: int,
    next_column: int,
    limit: int,
) -> tuple[tuple[StatColumn, ...], list[Write], int]:
    """The columns after a metadata change, how to store them, and the next id.

    A column stays indexed as long as it is in the schema. A new one has rows from
    this version on; for files from before, the planner looks at the statistics.
    """
    kept = {c.column_id for c, _, _ in active_columns(columns, metadata)}
    have = {(c.physical, c.unit) for c in columns if c.column_id in kept}
    writes: list[Write] = []
    result = []
    for column in columns:
        if column.until is None and column.column_id not in kept:
            column = replace(column, until=version)
            params = {"column_id": column.column_id, "version": version}
            writes.append(Run("retire_stat_column", params))
        result.append(column)
    for leaf in _chosen(metadata, limit):
        unit = unit_of(leaf)
        if unit is None or (leaf.physical, unit) in have:
            continue
        column_id = table_id * _COLUMNS_PER_TABLE + next_column
        next_column += 1
        result.append(StatColumn(column_id, leaf.physical, unit, version))
    writes.append(_insert(table_id, [c for c in result if c not in columns]))
    return tuple(result), writes, next_column


def stat_writes(
    columns: Sequence[StatColumn],
    metadata: Metadata,
    files: Sequence[tuple[int, Add, Stats | None]],
) -> Iterator[Write]:
    """The index rows of a commit's files, and the width classes they bring."""
    rows: dict[Kind, list[Row]] = {kind: [] for kind in Kind}
    for column, leaf, partition in active_columns(columns, metadata):
        seen = set()
        name = leaf.physical[0]
        out = rows[column.kind]
        for file_id, add, stats in files:
            bounds = (
                partition_bounds(leaf, add.partition_values.get(name))
                if partition
                else column_bounds(leaf, column.kind, stats)
            )
            lo, hi, cls = index_entry(bounds, column.kind)
            out.append((file_id, column.column_id, cls, lo, hi, bounds.has_null))
            seen.add(cls)
        for cls in sorted(seen - column.classes):
            yield Run("insert_class", {"column_id": column.column_id, "class": cls})
    for kind, table in TABLES.items():
        if rows[kind]:
            yield Insert(table, _COLUMNS, rows[kind])


def _chosen(metadata: Metadata, limit: int) -> Iterator[Column]:
    schema = parse_schema(metadata.schema_string)
    partitions = set(metadata.partition_columns)
    yield from (c for c in schema.leaves() if c.path[0] in partitions)
    properties = parse_properties(known(metadata.configuration) or {})
    candidates = [c for c in schema.leaves() if c.path[0] not in partitions]
    if properties.data_skipping_stats_columns:
        named = map(schema.column, properties.data_skipping_stats_columns)
        candidates = [c for c in named if c is not None]
    elif properties.data_skipping_num_indexed_cols >= 0:
        candidates = candidates[: properties.data_skipping_num_indexed_cols]
    yield from [c for c in candidates if unit_of(c) is not None][:limit]


def _insert(table_id: int, columns: Sequence[StatColumn]) -> Insert:
    names = ("column_id", "table_id", "name", "unit", "since_version")
    rows = [
        (
            column.column_id,
            table_id,
            msgspec.json.encode(column.physical).decode(),
            column.unit,
            column.since,
        )
        for column in columns
        if column.until is None
    ]
    return Insert("dl_stat_columns", names, rows)
