"""Paths of new files by partition values, and the partitions they replace."""

from base64 import urlsafe_b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, functions as sf
from pyspark.sql.types import StructField, StructType

from delkalakedb.catalog import Snapshot
from delkalakedb.errors import CodecError, DeltaError
from delkalakedb.model.actions import Add, Metadata
from delkalakedb.model.paths import Values, file_path
from delkalakedb.model.predicate.predicate import (
    And,
    Anything,
    IsNull,
    Op,
    Or,
    Predicate,
    compare,
)
from delkalakedb.model.schema.partition import (
    PartitionValue,
    format_partition_value,
    parse_partition_value,
)
from delkalakedb.model.schema.schema import Column as TableColumn, parse_schema
from delkalakedb.model.times import from_micros
from delkalakedb.spark.reader import Files, partitions_in
from delkalakedb.spark.schemas import arrow_schema, quoted
from delkalakedb.write.engines import row_filter

_BYTES = ("string", "binary")


@dataclass(frozen=True)
class Places:
    """The partition columns of a table, and the folder of new files."""

    columns: tuple[TableColumn, ...]
    below: str = ""

    @property
    def text_names(self) -> list[str]:
        """The names of the columns with partition values as text."""
        return [f"__dk_partition_{i}" for i in range(len(self.columns))]

    def texts(self) -> Iterator[Column]:
        """Yield the columns with partition values as text."""
        for alias, column in zip(self.text_names, self.columns, strict=True):
            text = _text(sf.col(quoted(column.path[0])), column.type)
            tagged = sf.concat(sf.lit("v"), text)
            yield sf.coalesce(tagged, sf.lit("n")).alias(alias)

    def place(self, name: str, texts: Sequence[str]) -> tuple[str, Values]:
        """Return the path of a file in the partition `texts`, and its values."""
        values = {
            column.physical[0]: _value(text, column.type)
            for column, text in zip(self.columns, texts, strict=True)
        }
        path = file_path(name, values)
        return f"{self.below}/{path}" if self.below else path, values


def places_of(metadata: Metadata, below: str = "") -> Places:
    """Return the places of a table's files."""
    return Places(_partition_columns(metadata), below)


def _partition_columns(metadata: Metadata) -> tuple[TableColumn, ...]:
    schema = parse_schema(metadata.schema_string)
    found = (schema.column((name,)) for name in metadata.partition_columns)
    return tuple(column for column in found if column is not None)


def _text(value: Column, kind: str) -> Column:
    if kind == "timestamp":
        return sf.unix_micros(value).cast("string")
    if kind in _BYTES:
        # without the line breaks that Spark's base64 adds
        return sf.translate(sf.base64(value.cast("binary")), "+/=\r\n", "-_")
    return value.cast("string")


def _value(text: str, kind: str) -> str | None:
    """Return the partition value of `text` in the log, where an empty value is null."""
    if text == "n":
        return None
    return format_partition_value(_parsed(text[1:], kind), kind) or None


def _parsed(text: str, kind: str) -> PartitionValue | None:
    if kind in _BYTES:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return data if kind == "binary" else _decoded(data)
    if kind == "timestamp":
        return from_micros(int(text))
    return parse_partition_value(text, kind)


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CodecError("a partition value isn't UTF-8") from error


SETTING = "spark.sql.sources.partitionOverwriteMode"
ENABLED = "spark.databricks.delta.dynamicPartitionOverwrite.enabled"
_MODES = ("static", "dynamic")
# partitions; for more of them, all files are listed
_FEW = 500
_TEXT = "__dk_text"
_Key = tuple[str | None, ...]


def is_dynamic(
    option: str | None, setting: str | None, enabled: str | None = None
) -> bool:
    """Return whether an overwrite is dynamic; `option` outranks `setting`.

    As in Delta Spark, the setting `enabled` may forbid dynamic overwrites.
    """
    mode = option if option is not None else setting or "static"
    if mode.lower() not in _MODES:
        raise DeltaError(
            f"partitionOverwriteMode must be 'static' or 'dynamic', not {mode!r}"
        )
    dynamic = mode.lower() == "dynamic"
    if dynamic and (enabled or "true").lower() == "false":
        raise DeltaError(
            "Dynamic partition overwrite mode is specified by session config or write "
            f"options, but it is disabled by {ENABLED}=false"
        )
    return dynamic


def files_where(snapshot: Snapshot, condition: Predicate) -> Files:
    """Return the files in partitions that match `condition`.

    The condition may use partition columns only.
    """
    partitions = partitions_in(snapshot.metadata)
    kinds = [StructField(p.field.name, p.type) for p in partitions]
    found = snapshot.files(condition).read_all()
    texts = pa.chunked_array([found["partition_values"].unique()], pa.string())
    values = [
        partition.values(texts, kind.type)
        for partition, kind in zip(
            partitions, arrow_schema(StructType(kinds)), strict=True
        )
    ]
    names = [f.name for f in kinds]
    distinct = pa.table([*values, texts], [*names, _TEXT])
    wanted = distinct.filter(row_filter(condition))[_TEXT]
    return Files(found.filter(pc.is_in(found["partition_values"], wanted)))


@dataclass(frozen=True)
class Partitions:
    """Some partitions of a table, each with a text for every partition column."""

    columns: tuple[TableColumn, ...]
    keys: frozenset[_Key]

    @property
    def predicate(self) -> Predicate:
        """A predicate that holds for every row in these partitions."""
        if len(self.keys) > _FEW:
            return Anything()
        return Or(tuple(And(tuple(self._parts(key))) for key in self.keys))

    def files(self, snapshot: Snapshot) -> Files:
        """Return the files of `snapshot` in these partitions."""
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
    """Return the partitions of the files `adds`."""
    columns = _partition_columns(metadata)
    keys = frozenset(_key(columns, add.partition_values) for add in adds)
    return Partitions(columns, keys)


def _key(columns: Iterable[TableColumn], values: Mapping[str, str | None]) -> _Key:
    """Return the values in one spelling, because writers spell times differently."""
    return tuple(
        format_partition_value(
            parse_partition_value(values.get(column.physical[0]), column.type),
            column.type,
        )
        for column in columns
    )
