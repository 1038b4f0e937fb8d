"""A table's files read by pyarrow, wherever a Python process of Spark's runs.

What is sent there is all it needs: places, partition values, deletion vectors and the
options of the store. It opens no catalog.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delkalakedb.catalog import Snapshot
from delkalakedb.errors import ProtocolError
from delkalakedb.model.actions import Add, DeletionVector, known
from delkalakedb.model.codec import decode_struct, encode_struct
from delkalakedb.model.features import LOG_ONLY
from delkalakedb.model.partition import parse_partition_value
from delkalakedb.model.paths import Inside
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.schema import Field, parse_schema
from delkalakedb.model.vectors import (
    inline_vector,
    parse_vector,
    unframed,
    vector_path,
)
from delkalakedb.storage import canonical_location
from delkalakedb.table.files import resolve_readable
from delkalakedb.table.inputs import open_input

__all__ = [
    "FEATURES",
    "FILE_COLUMNS",
    "ArrowReader",
    "DataFile",
    "arrow_reader",
    "data_file",
    "data_files",
]

# The columns of a catalog's files that a `DataFile` is made of.
FILE_COLUMNS = ("path", "partition_values", "size_bytes", "deletion_vector")
_ID = "delta.columnMapping.id"
_PARQUET_ID = b"PARQUET:field_id"
# Reader features that are heeded here, or that ask nothing of who reads files.
FEATURES = LOG_ONLY | frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
    }
)
_BATCH_ROWS = 64 * 1024
# A file's frame around its vector: the length before it, the checksum behind it.
_FRAME_BYTES = 8


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a version, as the log names it; partitions and vector as JSON."""

    path: str
    partition_values: str
    size_bytes: int
    deletion_vector: str | None = None


def data_files(files: pa.Table | pa.RecordBatchReader) -> list[DataFile]:
    """The files of a table that has `FILE_COLUMNS`."""
    table = files if isinstance(files, pa.Table) else files.read_all()
    columns = (table[name].to_pylist() for name in FILE_COLUMNS)
    return list(map(DataFile, *columns))


def data_file(add: Add) -> DataFile:
    """The file that an action adds."""
    vector = known(add.deletion_vector)
    values = msgspec.json.encode(add.partition_values).decode()
    dv = None if vector is None else encode_struct(vector).decode()
    return DataFile(add.path, values, add.size, dv)


@dataclass(frozen=True)
class ArrowReader:
    """Reads files of a table as batches of one Arrow schema; can be sent anywhere.

    Args:
        location: the table's.
        schema_string: the table's schema, as Delta's JSON.
        partition_columns: their names.
        target: what the batches look like; some of the table's columns.
        by_id: whether columns in files are known by their ids, not their names.
        condition: only rows for which it holds.
        file_column: a column of `target` that gets the file's path in the log.
        storage_options: of the table's store.
    """

    location: str
    schema_string: str
    partition_columns: Sequence[str]
    target: pa.Schema
    by_id: bool = False
    condition: pc.Expression | None = None
    file_column: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def read(self, files: Iterable[DataFile]) -> Iterator[pa.RecordBatch]:
        """The rows of some files."""
        for file in files:
            yield from self._read(file)

    def _read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        with (
            self._open(file.path, file.size_bytes) as opened,
            pq.ParquetFile(opened, coerce_int96_timestamp_unit="us") as parquet,
        ):
            columns = [self._column(f, file, parquet) for f in self.target]
            names = [column for column in columns if isinstance(column, str)]
            gone, at = self._gone(file), 0
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=names):
                length = batch.num_rows
                rows = self._shaped(batch, columns)
                if gone is not None:
                    rows = rows.filter(_kept(gone, at, length))
                at += length
                if self.condition is not None:
                    rows = rows.filter(self.condition)
                yield rows

    def _column(
        self, wanted: pa.Field, file: DataFile, parquet: pq.ParquetFile
    ) -> str | pa.Scalar:
        """A column's name in the file, or the value of all of its rows."""
        if wanted.name == self.file_column:
            return pa.scalar(file.path, wanted.type)
        column = self._fields[wanted.name]
        if wanted.name in self.partition_columns:
            values = msgspec.json.decode(file.partition_values)
            text = values.get(column.physical_name)
            value = parse_partition_value(text, column.type)
            return pa.scalar(value, wanted.type)
        found = self._find(list(parquet.schema_arrow), column)
        return pa.scalar(None, wanted.type) if found is None else str(found.name)

    def _shaped(
        self, batch: pa.RecordBatch, columns: Sequence[str | pa.Scalar]
    ) -> pa.RecordBatch:
        arrays = [
            self._fit(batch[column], wanted.type, self._fields[wanted.name])
            if isinstance(column, str)
            else pa.repeat(column, batch.num_rows)
            for wanted, column in zip(self.target, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.target)

    def _fit(self, array: pa.Array, target: pa.DataType, column: Field) -> pa.Array:
        """A file's values in the table's type: nested columns by name or id, too."""
        if array.type == target:
            return array
        if pa.types.is_struct(target):
            return self._fit_struct(array, target, column)
        if pa.types.is_map(target):
            key, value = column.children
            kinds = (target.key_type, target.item_type)
            parts = [
                self._fit(part, kind, child)
                for part, kind, child in zip(
                    (array.keys, array.items), kinds, (key, value), strict=True
                )
            ]
            pairs = pa.StructArray.from_arrays(
                parts, fields=[target.key_field, target.item_field]
            )
            return _outer(array, target, pairs)
        if pa.types.is_list(target):
            (element,) = column.children
            inner = self._fit(array.values, target.value_type, element)
            return _outer(array, target, inner)
        # Times finer than microseconds are cut, as Spark does.
        return array.cast(target, safe=not pa.types.is_timestamp(target))

    def _fit_struct(
        self, array: pa.StructArray, target: pa.StructType, column: Field
    ) -> pa.StructArray:
        there = [array.type.field(i) for i in range(array.type.num_fields)]
        children = {child.name: child for child in column.children}
        parts = []
        for wanted in target:
            found = self._find(there, children[wanted.name])
            parts.append(
                pa.nulls(len(array), wanted.type)
                if found is None
                else self._fit(
                    array.field(there.index(found)),
                    wanted.type,
                    children[wanted.name],
                )
            )
        return pa.StructArray.from_arrays(
            parts, fields=list(target), mask=array.is_null()
        )

    def _find(self, there: Sequence[pa.Field], column: Field) -> pa.Field | None:
        # Files that were written without ids have the physical names.
        if self.by_id and any(map(_parquet_id, there)):
            wanted = str(column.metadata[_ID]).encode()
            return next((f for f in there if _parquet_id(f) == wanted), None)
        return next((f for f in there if f.name == column.physical_name), None)

    @property
    def _fields(self) -> dict[str, Field]:
        return {f.name: f for f in parse_schema(self.schema_string).fields}

    def _gone(self, file: DataFile) -> pa.BooleanArray | None:
        if file.deletion_vector is None:
            return None
        vector = decode_struct(file.deletion_vector, DeletionVector)
        rows = parse_vector(self._vector(vector))
        buffers = [None, pa.py_buffer(rows)]
        return pa.BooleanArray.from_buffers(pa.bool_(), 8 * len(rows), buffers)

    def _vector(self, vector: DeletionVector) -> bytes:
        if (path := vector_path(vector)) is None:
            return inline_vector(vector)
        with self._open(path) as opened:
            opened.seek(known(vector.offset) or 0)
            return unframed(vector, opened.read(vector.size_in_bytes + _FRAME_BYTES))

    def _open(self, path: str, size_bytes: int | None = None) -> pa.NativeFile:
        location, name = self._place(path)
        return open_input(location, name, self.storage_options, size_bytes)

    def _place(self, path: str) -> tuple[str, str]:
        place = resolve_readable(path, self.location)
        if isinstance(place, Inside):
            return self.location, place.path
        parts = urlsplit(place.url)
        return f"{parts.scheme}://{parts.netloc}/", unquote(parts.path.lstrip("/"))


def arrow_reader(
    snapshot: Snapshot, target: pa.Schema, storage_options: Mapping[str, str] | None
) -> ArrowReader:
    """The reader of a snapshot's files, in Spark's Arrow schema of some columns."""
    _check_features(snapshot)
    table, metadata = snapshot.table, snapshot.metadata
    return ArrowReader(
        canonical_location(table.location),
        metadata.schema_string,
        tuple(metadata.partition_columns),
        target,
        by_id=parse_properties(metadata).column_mapping_mode == "id",
        storage_options=storage_options or {},
    )


def _check_features(snapshot: Snapshot) -> None:
    protocol, table = snapshot.protocol, snapshot.table
    odd = sorted({*(known(protocol.reader_features) or ())} - FEATURES)
    if odd or protocol.min_reader_version > 3:
        needs = ", ".join(odd) or f"reader {protocol.min_reader_version}"
        raise ProtocolError(f"{table.name}: its files can't be read as Arrow: {needs}")
    if table.location.startswith("memory:"):
        raise ProtocolError(
            f"{table.name}: Spark's processes can't see {table.location}"
        )


def _parquet_id(child: pa.Field) -> bytes | None:
    return (child.metadata or {}).get(_PARQUET_ID)


def _kept(gone: pa.BooleanArray, at: int, length: int) -> pa.BooleanArray:
    """Which of some rows stay; the bitmap may end before they do."""
    here = gone.slice(at, length)
    kept = pc.invert(here)
    missing = length - len(here)
    return pa.concat_arrays([kept, pa.repeat(True, missing)]) if missing else kept


def _outer(array: Any, target: pa.DataType, inner: pa.Array) -> pa.Array:
    """A list's or map's outer parts around other items."""
    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(
        target, len(array), [validity, offsets], offset=array.offset, children=[inner]
    )
