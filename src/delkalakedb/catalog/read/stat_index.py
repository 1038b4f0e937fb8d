"""The index of column bounds: which columns it has, and its rows for new files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import msgspec

from delkalakedb.catalog.engine import Insert, listed
from delkalakedb.catalog.read.head import StatColumn
from delkalakedb.model.actions import Metadata, known
from delkalakedb.model.schema.schema import Column, parse_schema
from delkalakedb.model.stats.values import TIMES, Kind, kind_of

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.model.stats.stats import Entries, Stats

TABLES = {Kind.NUMBER: "dl_number_stats", Kind.TEXT: "dl_text_stats"}
# files; of fewer, the index entries are made sooner one by one
_MANY = 200
# A column id carries its table in the bits above these.
COLUMNS_PER_TABLE = 1 << 16


def unit_of(column: Column) -> str | None:
    """Return the unit of a column's stored bounds; only equal units compare."""
    kind = kind_of(column.type)
    if kind is None or column.type in ("date", *TIMES):
        return None if kind is None else column.type
    return kind.value


def revise(
    columns: Sequence[StatColumn],
    metadata: Metadata,
    *,
    table_id: int,
    version: int,
    limit: int,
) -> tuple[StatColumn, ...]:
    """Return the columns after a metadata change.

    A column stays indexed as long as it is in the schema. A new column is indexed from
    this version on; for older files the planner reads the statistics.
    """
    leaves = _leaves(metadata.schema_string)
    result = [
        column
        if column.until is not None or (column.physical, column.unit) in leaves
        else msgspec.structs.replace(column, until=version)
        for column in columns
    ]
    have = {(c.physical, c.unit) for c in result if c.until is None}
    for leaf in _chosen(metadata, limit):
        unit, full = unit_of(leaf), len(result) == COLUMNS_PER_TABLE
        if unit is not None and (leaf.physical, unit) not in have and not full:
            column_id = table_id * COLUMNS_PER_TABLE + len(result)
            result.append(StatColumn(column_id, leaf.physical, unit, version))
    return tuple(result)


def index_files(
    columns: Sequence[StatColumn],
    metadata: Metadata,
    version: int,
    file_ids: Sequence[int] | pa.Array,
    partition_values: Sequence[Mapping[str, str | None]],
    stats: Sequence[Stats | None],
) -> tuple[tuple[StatColumn, ...], list[Insert]]:
    """Return the columns with the files' width classes, and the index rows."""
    leaves = _leaves(metadata.schema_string)
    entries_of = _entries_of(partition_values, stats, set(metadata.partition_columns))
    found: dict[Kind, list[tuple[int, Entries]]] = {kind: [] for kind in Kind}
    result = []
    for column in columns:
        leaf = leaves.get((column.physical, column.unit))
        if column.until is None and leaf is not None:
            entries = entries_of(leaf)
            found[column.kind].append((column.column_id, entries))
            column = _with_classes(column, set(listed(entries[2])))
        result.append(column)
    inserts = [
        Insert(TABLES[kind], _rows(version, file_ids, some))
        for kind, some in found.items()
        if some
    ]
    return tuple(result), inserts


def _entries_of(
    partition_values: Sequence[Mapping[str, str | None]],
    stats: Sequence[Stats | None],
    partitions: Set[str],
) -> Callable[[Column], Entries]:
    """Return a function that gives the index entries of all files for a column."""
    from delkalakedb.model.stats.stats import data_entry, partition_entry

    if len(stats) >= _MANY:
        from delkalakedb.model.stats.index import (
            FileStats,
            index_entries,
            partition_entries,
        )

        files = FileStats(stats)
        return lambda column: (
            partition_entries(column, partition_values)
            if column.path[0] in partitions
            else index_entries(column, files)
        )

    def entries(column: Column) -> Entries:
        each = map(partial(data_entry, column), stats)
        if column.path[0] in partitions:
            each = map(partial(partition_entry, column), partition_values)
        lo, hi, classes, has_null = zip(*each, strict=True)
        return lo, hi, classes, has_null

    return entries


def _rows(
    version: int,
    file_ids: Sequence[int] | pa.Array,
    found: Sequence[tuple[int, Entries]],
) -> dict[str, Sequence[Any] | pa.Array]:
    parts = zip(*(entries for _, entries in found), strict=True)
    lo, hi, classes, has_null = map(_joined, parts)
    size = len(file_ids)
    return {
        "file_id": _joined([file_ids] * len(found)),
        "column_id": [column_id for column_id, _ in found for _ in range(size)],
        "class": classes,
        "lo": lo,
        "hi": hi,
        "has_null": has_null,
        "added_version": [version] * size * len(found),
    }


def _joined(parts: Sequence[Any]) -> Sequence[Any] | pa.Array:
    import pyarrow as pa

    if all(isinstance(part, pa.Array) for part in parts):
        return pa.concat_arrays(parts)
    return [value for part in parts for value in listed(part)]


def _with_classes(column: StatColumn, classes: set[int]) -> StatColumn:
    if classes <= column.classes:
        return column
    return msgspec.structs.replace(column, classes=column.classes | classes)


@lru_cache(maxsize=64)
def _leaves(schema_string: str) -> dict[tuple[tuple[str, ...], str | None], Column]:
    """Return the columns of a schema by physical name and unit."""
    leaves = parse_schema(schema_string).leaves()
    return {(column.physical, unit_of(column)): column for column in leaves}


def _chosen(metadata: Metadata, limit: int) -> Iterator[Column]:
    from delkalakedb.model.schema.properties import parse_properties

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
