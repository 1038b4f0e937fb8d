"""The index of column bounds: its tables, and which columns it has."""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from delkalakedb.catalog.read.head import StatColumn
from delkalakedb.model.actions import Metadata, known
from delkalakedb.model.schema.schema import Column, parse_schema
from delkalakedb.model.stats.values import TIMES, Kind, kind_of

STAT_TABLES = {Kind.NUMBER: "dl_number_stats", Kind.TEXT: "dl_text_stats"}
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
    leaves = leaves_of(metadata.schema_string)
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


@lru_cache(maxsize=64)
def leaves_of(schema_string: str) -> dict[tuple[tuple[str, ...], str | None], Column]:
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
