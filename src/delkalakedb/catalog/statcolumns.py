"""Which columns have their bounds indexed, and the index rows of a commit's files.

The choice is a fact of the table's head, made when the metadata changes: a writer with
other settings still writes rows for the columns that were chosen.
"""

from collections.abc import Iterator, Sequence

import msgspec

from delkalakedb.catalog.backend import Insert, Row
from delkalakedb.model.actions import Add, Metadata, known
from delkalakedb.model.indexing import index_entries, partition_entries
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.schema import Column, parse_schema
from delkalakedb.model.stats import Stats
from delkalakedb.model.values import Kind, kind_of

__all__ = [
    "TABLES",
    "StatColumn",
    "index_files",
    "parse_columns",
    "revise",
    "unit_of",
]

TABLES = {Kind.NUMBER: "dl_number_stats", Kind.TEXT: "dl_text_stats"}
# A column id carries its table in the bits above these.
_COLUMNS_PER_TABLE = 1 << 16
_COLUMNS = (
    "file_id",
    "column_id",
    "class",
    "lo",
    "hi",
    "has_null",
    "added_version",
)


class StatColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column whose bounds are indexed for files added from `since` on.

    `until` is the version from which they aren't any more; `classes` are the width
    classes that its intervals have fallen into.
    """

    column_id: int
    physical: tuple[str, ...]
    unit: str
    since: int
    until: int | None = None
    classes: frozenset[int] = frozenset()

    @property
    def kind(self) -> Kind:
        """The table of statistics that holds the column's rows."""
        return Kind.TEXT if self.unit == Kind.TEXT else Kind.NUMBER


_decoder = msgspec.json.Decoder(tuple[StatColumn, ...])


def parse_columns(text: str) -> tuple[StatColumn, ...]:
    """The columns as a head row holds them."""
    return _decoder.decode(text)


def unit_of(column: Column) -> str | None:
    """What a column's stored bounds count; they compare only within one unit."""
    if column.type == "date" or column.type.startswith("timestamp"):
        return column.type
    kind = kind_of(column.type)
    return None if kind is None else kind.value


def revise(
    columns: Sequence[StatColumn],
    metadata: Metadata,
    *,
    table_id: int,
    version: int,
    limit: int,
) -> tuple[StatColumn, ...]:
    """The columns after a metadata change.

    A column stays indexed as long as it is in the schema. A new one has rows from
    this version on; for files from before, the planner looks at the statistics.
    """
    leaves = {(c.physical, unit_of(c)) for c in _leaves(metadata)}
    result = [
        column
        if column.until is not None or (column.physical, column.unit) in leaves
        else msgspec.structs.replace(column, until=version)
        for column in columns
    ]
    have = {(c.physical, c.unit) for c in result if c.until is None}
    for leaf in _chosen(metadata, limit):
        unit = unit_of(leaf)
        if unit is not None and (leaf.physical, unit) not in have:
            column_id = table_id * _COLUMNS_PER_TABLE + len(result)
            result.append(StatColumn(column_id, leaf.physical, unit, version))
    return tuple(result)


def index_files(
    columns: Sequence[StatColumn],
    metadata: Metadata,
    version: int,
    file_ids: range,
    adds: Sequence[Add],
    stats: Sequence[Stats | None],
) -> tuple[tuple[StatColumn, ...], list[Insert]]:
    """The columns with the width classes that the files bring, and the index rows."""
    leaves = {(c.physical, unit_of(c)): c for c in _leaves(metadata)}
    partitions = set(metadata.partition_columns)
    rows: dict[Kind, list[Row]] = {kind: [] for kind in Kind}
    result = []
    for column in columns:
        leaf = leaves.get((column.physical, column.unit))
        if column.until is None and leaf is not None:
            if leaf.path[0] in partitions:
                entries = partition_entries(leaf, [a.partition_values for a in adds])
            else:
                entries = index_entries(leaf, stats)
            column_id = column.column_id
            found: list[Row] = [
                (file_id, column_id, number, lo, hi, has_null, version)
                for file_id, (lo, hi, number, has_null) in zip(
                    file_ids, entries, strict=True
                )
            ]
            rows[column.kind] += found
            column = _with_classes(column, {row[2] for row in found})
        result.append(column)
    inserts = [Insert(TABLES[k], _COLUMNS, found) for k, found in rows.items() if found]
    return tuple(result), inserts


def _with_classes(column: StatColumn, classes: set[int]) -> StatColumn:
    if classes <= column.classes:
        return column
    return msgspec.structs.replace(column, classes=column.classes | classes)


def _leaves(metadata: Metadata) -> tuple[Column, ...]:
    return parse_schema(metadata.schema_string).leaves()


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
