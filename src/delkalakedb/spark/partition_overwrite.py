"""Overwrites that replace only the partitions that get rows, as in Delta Spark."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog import Snapshot
from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import Add, Metadata
from delkalakedb.model.partition import format_partition_value, parse_partition_value
from delkalakedb.model.predicate import (
    And,
    Anything,
    IsNull,
    Op,
    Or,
    Predicate,
    compare,
)
from delkalakedb.model.schema import Column, parse_schema
from delkalakedb.spark.target import Files

__all__ = ["SETTING", "Partitions", "is_dynamic", "partitions_of"]

SETTING = "spark.sql.sources.partitionOverwriteMode"
_MODES = ("static", "dynamic")
# partitions; of more than these all files are looked at
_FEW = 500
_Key = tuple[str | None, ...]


def is_dynamic(option: str | None, setting: str | None) -> bool:
    """Return whether an overwrite is dynamic; the write's option beats the session."""
    mode = option if option is not None else setting or "static"
    if mode.lower() not in _MODES:
        raise DeltaError(
            f"partitionOverwriteMode must be 'static' or 'dynamic', not {mode!r}"
        )
    return mode.lower() == "dynamic"


@dataclass(frozen=True)
class Partitions:
    """Some partitions of a table, each a text for every partition column."""

    columns: tuple[Column, ...]
    keys: frozenset[_Key]

    @property
    def predicate(self) -> Predicate:
        """Holds for every row in these partitions, and maybe for others."""
        if len(self.keys) > _FEW:
            return Anything()
        return Or(tuple(And(tuple(self._parts(key))) for key in self.keys))

    def files(self, snapshot: Snapshot) -> Files:
        """Return the files that a version has in these partitions."""
        found = snapshot.files(self.predicate).read_all()
        texts = found["partition_values"]
        wanted = [
            text
            for text in texts.unique().to_pylist()
            if _key(self.columns, msgspec.json.decode(text)) in self.keys
        ]
        return Files(found.filter(pc.is_in(texts, pa.array(wanted, pa.string()))))

    def _parts(self, key: _Key) -> Iterable[Predicate]:
        for column, text in zip(self.columns, key, strict=True):
            value = parse_partition_value(text, column.type)
            yield (IsNull(column) if value is None else compare(column, Op.EQ, value))


def partitions_of(metadata: Metadata, adds: Iterable[Add]) -> Partitions:
    """Return the partitions that files are in."""
    schema = parse_schema(metadata.schema_string)
    found = (schema.column((name,)) for name in metadata.partition_columns)
    columns = tuple(column for column in found if column is not None)
    keys = frozenset(_key(columns, add.partition_values) for add in adds)
    return Partitions(columns, keys)


def _key(columns: Iterable[Column], values: Mapping[str, str | None]) -> _Key:
    """Return the values in one spelling: writers differ in that of a time."""
    return tuple(
        format_partition_value(
            parse_partition_value(values.get(column.physical[0]), column.type),
            column.type,
        )
        for column in columns
    )
