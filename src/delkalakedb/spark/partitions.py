"""Where new files go, by their partition values.

While Spark writes, a partition value is a text of plain ASCII that is neither null nor
empty: Spark makes folders of them, and those of a null, of an empty string and of
letters that the JVM's locale lacks couldn't be told apart again.
"""

from base64 import urlsafe_b64decode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as sf

from delkalakedb.errors import CodecError
from delkalakedb.model.actions import Metadata
from delkalakedb.model.partition import (
    PartitionValue,
    format_partition_value,
    parse_partition_value,
)
from delkalakedb.model.paths import Values, file_path
from delkalakedb.model.schema import parse_schema
from delkalakedb.spark.schemas import quoted

__all__ = ["Places", "places_of"]

_BYTES = ("string", "binary")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Places:
    """The partition columns by name, physical name and type; a folder above all."""

    columns: tuple[tuple[str, str, str], ...]
    below: str = ""

    @property
    def text_names(self) -> list[str]:
        """What the columns of texts are called."""
        return [f"__dk_partition_{i}" for i in range(len(self.columns))]

    def texts(self) -> Iterator[Column]:
        """The columns of texts."""
        for alias, (name, _, kind) in zip(self.text_names, self.columns, strict=True):
            tagged = sf.concat(sf.lit("v"), _text(sf.col(quoted(name)), kind))
            yield sf.coalesce(tagged, sf.lit("n")).alias(alias)

    def place(self, name: str, texts: Sequence[str]) -> tuple[str, Values]:
        """The path of a file with these texts, and its partition values."""
        values = {
            physical: _value(text, kind)
            for (_, physical, kind), text in zip(self.columns, texts, strict=True)
        }
        path = file_path(name, values)
        return f"{self.below}/{path}" if self.below else path, values


def places_of(metadata: Metadata, below: str = "") -> Places:
    """The places of a table's files."""
    schema = parse_schema(metadata.schema_string)
    found = (schema.column((name,)) for name in metadata.partition_columns)
    columns = ((c.path[0], c.physical[0], c.type) for c in found if c)
    return Places(tuple(columns), below)


def _text(value: Column, kind: str) -> Column:
    if kind == "timestamp":
        return sf.unix_micros(value).cast("string")
    if kind in _BYTES:
        # Spark breaks it into lines.
        return sf.translate(sf.base64(value.cast("binary")), "+/=\r\n", "-_")
    return value.cast("string")


def _value(text: str, kind: str) -> str | None:
    """A partition value as the log has it; an empty one is null there."""
    if text == "n":
        return None
    return format_partition_value(_parsed(text[1:], kind), kind) or None


def _parsed(text: str, kind: str) -> PartitionValue | None:
    if kind in _BYTES:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return data if kind == "binary" else _decoded(data)
    if kind == "timestamp":
        return _EPOCH + timedelta(microseconds=int(text))
    return parse_partition_value(text, kind)


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise CodecError("a partition value isn't UTF-8") from error
