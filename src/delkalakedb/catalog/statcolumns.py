"""Which columns have their bounds indexed, and the index rows of a commit's files.

The choice is a fact of the table's head, made when the metadata changes: a writer with
other settings still writes rows for the columns that were chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from delkalakedb.catalog.backend import Insert, listed
from delkalakedb.model.actions import Metadata, known
from delkalakedb.model.schema import Column, parse_schema
from delkalakedb.model.values import TIMES, Kind, kind_of

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.model.indexing import Entries
    from delkalakedb.model.stats import Stats

__all__ = [
    "COLUMNS_PER_TABLE",
    "TABLES",
    "StatColumn",
    "index_files",
    "parse_columns",
    "revise",
    "unit_of",
]

TABLES = {Kind.NUMBER: "dl_number_stats", Kind.TEXT: "dl_text_stats"}
# A column id carries its table in the bits above these.
COLUMNS_PER_TABLE = 1 << 16


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
    """The columns with the width classes that the files bring, and the index rows."""
    from delkalakedb.model.indexing import FileStats, index_entries, partition_entries

    leaves = {(c.physical, unit_of(c)): c for c in _leaves(metadata)}
    partitions = set(metadata.partition_columns)
    files = FileStats(stats)
    found: dict[Kind, list[tuple[int, Entries]]] = {kind: [] for kind in Kind}
    result = []
    for column in columns:
        leaf = leaves.get((column.physical, column.unit))
        if column.until is None and leaf is not None:
            if leaf.path[0] in partitions:
                entries = partition_entries(leaf, partition_values)
            else:
                entries = index_entries(leaf, files)
            found[column.kind].append((column.column_id, entries))
            column = _with_classes(column, set(listed(entries[2])))
        result.append(column)
    inserts = [
        Insert(TABLES[kind], _rows(version, file_ids, some))
        for kind, some in found.items()
        if some
    ]
    return tuple(result), inserts


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


def _leaves(metadata: Metadata) -> tuple[Column, ...]:
    return parse_schema(metadata.schema_string).leaves()


def _chosen(metadata: Metadata, limit: int) -> Iterator[Column]:
    from delkalakedb.model.properties import parse_properties

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
