"""What a checkpoint says in typed columns: statistics and partition values."""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.model.actions import Metadata
from delkalakedb.model.partition import PartitionValue, parse_partition_value
from delkalakedb.model.schema import Column, parse_schema
from delkalakedb.model.stats import measured_columns
from delkalakedb.model.typed import arrow_type, json_type, parse_texts, typed

__all__ = ["StatsParser", "partition_parser", "partition_type"]

# Small enough for its JSON to stay in the processor's cache.
_SLICE_ROWS = 4_000
_Leaf = Callable[[str], pa.DataType | None]


class StatsParser:
    """Statistics as `stats_parsed` has them: of the columns that the table names.

    `type` is None where no statistics are collected at all.
    """

    def __init__(self, metadata: Metadata) -> None:
        columns = measured_columns(metadata)
        self._written = _stats_type(columns, json_type)
        self.type = _stats_type(columns, arrow_type)

    def parse(self, texts: pa.Array) -> pa.Array:
        """A batch of `stats`; a text that is missing or no JSON gives a null."""
        starts = range(0, len(texts), _SLICE_ROWS)
        return pa.concat_arrays(
            [self._parse(texts.slice(start, _SLICE_ROWS)) for start in starts]
        )

    def _parse(self, texts: pa.Array) -> pa.StructArray:
        values = typed(parse_texts(texts, self._written), self.type)
        return pa.StructArray.from_arrays(
            values.flatten(), fields=list(self.type), mask=pc.is_null(texts)
        )


def partition_type(metadata: Metadata) -> pa.StructType:
    """The type of `partitionValues_parsed`."""
    columns = _partition_columns(metadata)
    # Unlike statistics, partition values may be binary.
    return pa.struct(
        {name: arrow_type(kind) or pa.binary() for name, kind in columns.items()}
    )


def partition_parser(
    metadata: Metadata,
) -> Callable[[Mapping[str, str | None]], dict[str, PartitionValue | None]]:
    """What types the partition values of one file."""
    columns = _partition_columns(metadata)

    def parse(values: Mapping[str, str | None]) -> dict[str, PartitionValue | None]:
        return {
            name: parse_partition_value(values.get(name), kind)
            for name, kind in columns.items()
        }

    return parse


def _partition_columns(metadata: Metadata) -> dict[str, str]:
    fields = {f.name: f for f in parse_schema(metadata.schema_string).fields}
    chosen = [fields[name] for name in metadata.partition_columns]
    return {field.physical_name: field.type for field in chosen}


def _stats_type(columns: Sequence[Column], leaf: _Leaf) -> pa.StructType:
    # As Delta Spark and delta-rs have it, though JSON may have more.
    bounded = [c for c in columns if c.type != "boolean" and leaf(c.type)]
    bounds = _nested([(c.physical, leaf(c.type)) for c in bounded])
    counts = _nested([(c.physical, pa.int64()) for c in columns])
    fields = {
        "numRecords": pa.int64(),
        "minValues": bounds,
        "maxValues": bounds,
        "nullCount": counts,
        "tightBounds": pa.bool_(),
    }
    # Parquet has no empty structs.
    return pa.struct({name: kind for name, kind in fields.items() if kind})


def _nested(
    leaves: Sequence[tuple[tuple[str, ...], pa.DataType]],
) -> pa.StructType | None:
    """Structs within structs, by the leaves' paths; None without any."""
    below: dict[str, list[tuple[tuple[str, ...], pa.DataType]]] = {}
    for (name, *rest), kind in leaves:
        below.setdefault(name, []).append((tuple(rest), kind))
    fields = {
        name: group[0][1] if group[0][0] == () else _nested(group)
        for name, group in below.items()
    }
    return pa.struct(fields) if fields else None
