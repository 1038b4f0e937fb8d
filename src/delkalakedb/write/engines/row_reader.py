"""Read the rows of a table's files with pyarrow.

An `ArrowReader` and its `DataFile`s hold all that a Python process of Spark needs:
paths, partition values, deletion vectors and the options of the object store. The
process opens no catalog.
"""

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.catalog.read import LoggedCommit
from delkalakedb.errors import CodecError, ProtocolError
from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    DeletionVector,
    Remove,
    decode_struct,
    encode_struct,
    known,
)
from delkalakedb.model.changes import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    ChangedFile,
    changed_files,
)
from delkalakedb.model.paths import Inside
from delkalakedb.model.rules.features import Use
from delkalakedb.model.rules.protocol import unread_features
from delkalakedb.model.schema.partition import parse_partition_value
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.schema.schema import Column, Field, parse_schema
from delkalakedb.model.stats.footer import columns_with_nan
from delkalakedb.model.vectors import (
    deleted_rows,
    framed_range,
    inline_vector,
    kept_rows,
    unframed,
    vector_path,
)
from delkalakedb.storage import canonical_location, resolve_readable
from delkalakedb.write.engines.deltars import open_input
from delkalakedb.write.engines.row_filters import RowTest

if TYPE_CHECKING:
    from pyroaring import BitMap64

# the columns of `Snapshot.files` that a `DataFile` is made of
FILE_COLUMNS = ("path", "partition_values", "size_bytes", "deletion_vector")
# more columns of files with changed rows
CHANGE_COLUMNS = ("only_rows", "change_type", "commit_version", "commit_ms")
_ID = "delta.columnMapping.id"
_PARQUET_ID = b"PARQUET:field_id"
_BATCH_ROWS = 64 * 1024
# rows; of all columns, because large batches are new pages of memory each time
_TAKEN_FROM_ROWS = 16 * 1024
# bytes; of a column on a disk. Of other stores, all columns of a row group are read at
# once, because each read is a request.
_DISK_BYTES = 1024 * 1024
_CODECS = {"UNCOMPRESSED": "none", "ZSTD": "zstd", "GZIP": "gzip", "BROTLI": "brotli"}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a version; partition values and deletion vectors are JSON.

    `ChangedFile` describes `only_rows` and `change_type`. The commit's version and time
    are given for files with changed rows only.
    """

    path: str
    partition_values: str
    size_bytes: int
    deletion_vector: str | None = None
    only_rows: str | None = None
    change_type: str | None = None
    commit_version: int | None = None
    commit_ms: int | None = None

    def constant(self, column: str) -> str | int | None:
        """Return the value that a column of the feed has in all rows, if there is one.

        Times are in microseconds.
        """
        if column == CHANGE_TYPE:
            return self.change_type
        if column == COMMIT_VERSION:
            return self.commit_version
        if column == COMMIT_TIMESTAMP and self.commit_ms is not None:
            return self.commit_ms * 1000
        return None


def data_files(files: pa.Table | pa.RecordBatch) -> list[DataFile]:
    """Return the files in a list with `FILE_COLUMNS`, and maybe `CHANGE_COLUMNS`."""
    names = files.schema.names
    wanted = [name for name in (*FILE_COLUMNS, *CHANGE_COLUMNS) if name in names]
    return list(map(DataFile, *(files[name].to_pylist() for name in wanted)))


def data_file(add: Add) -> DataFile:
    """Return the file that `add` adds."""
    values = msgspec.json.encode(add.partition_values).decode()
    return DataFile(add.path, values, add.size, _text(known(add.deletion_vector)))


def _text(vector: DeletionVector | None) -> str | None:
    return None if vector is None else encode_struct(vector).decode()


def changed_file(file: ChangedFile, version: int, commit_ms: int) -> DataFile:
    """Return a file with rows that a version changed."""
    return DataFile(
        file.path,
        msgspec.json.encode(file.partition_values).decode(),
        file.size,
        _text(file.deletion_vector),
        _text(file.only_rows),
        file.change_type,
        version,
        commit_ms,
    )


def feed_files(
    catalog: Catalog, name: str, commit: LoggedCommit, commit_ms: int | None = None
) -> list[DataFile]:
    """Return the files with the rows that a commit changed.

    Args:
        catalog: the catalog of the table.
        name: the table's name.
        commit: the commit.
        commit_ms: the commit's time in the feed, by default the version's time.
    """
    head, actions = commit.head, commit.actions
    if not any(isinstance(action, Cdc) for action in actions):
        actions = tuple(_completed(catalog, name, head.version, actions))
    at_ms = head.timestamp_ms if commit_ms is None else commit_ms
    return [changed_file(f, head.version, at_ms) for f in changed_files(actions)]


def _completed(
    catalog: Catalog, name: str, version: int, actions: Sequence[Action]
) -> Iterator[Action]:
    """Yield `actions`, with sizes and partition values for removes without them."""
    bare = [
        action
        for action in actions
        if isinstance(action, Remove)
        and (known(action.size) is None or known(action.partition_values) is None)
    ]
    adds: Mapping[str, Add] = {}
    if bare:
        adds = {add.path: add for add in catalog.log(name).adds(version - 1)}
    for action in actions:
        if isinstance(action, Remove) and (add := adds.get(action.path)):
            action = msgspec.structs.replace(
                action, size=add.size, partition_values=add.partition_values
            )
        yield action


@dataclass(frozen=True)
class ArrowReader:
    """A picklable reader of a table's files as batches of one Arrow schema.

    Args:
        location: the table's location.
        schema_string: the table's schema as Delta's JSON.
        partition_columns: the names of the partition columns.
        target: the schema of the batches; a selection of the table's columns.
        by_id: whether columns in files are found by field id instead of name.
        condition: a filter of the rows.
        file_column: the column of `target` that gets the path of a row's file.
        row_column: the column of `target` that gets a row's number in its file.
        storage_options: the options of the table's object store.
        filesystem: opens the files at the location; by default, delta-rs opens them.
    """

    location: str
    schema_string: str
    partition_columns: Sequence[str]
    target: pa.Schema
    by_id: bool = False
    condition: pc.Expression | None = None
    file_column: str | None = None
    row_column: str | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    filesystem: Any = None

    def read(self, files: Iterable[DataFile]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of `files`."""
        for file in files:
            yield from self._read(file)

    def read_listed(self, lists: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files in `lists`, which have `FILE_COLUMNS`."""
        for listed in lists:
            yield from self.read(data_files(listed))

    def take(self, file: DataFile, rows: "BitMap64") -> Iterator[pa.RecordBatch]:
        """Yield those rows of `file`, deleted or not, that have the numbers `rows`."""
        with self._parquet(file) as parquet:
            for group, first in _row_groups(parquet):
                yield from self._take(file, parquet, group, first, rows)

    def find(self, file: DataFile, test: RowTest) -> Iterator[pa.RecordBatch]:
        """Yield the live rows of `file` that pass `test`.

        Only the columns of the test are read of a row group without such rows.
        `row_column` must be a column of `target`.
        """
        from pyroaring import BitMap64

        assert self.row_column is not None
        early = {*test.columns, self.row_column}
        tested = self._of([f for f in self.target if f.name in early])
        rest = self._of([f for f in self.target if f.name not in early])
        gone = self.deleted(file)
        with self._parquet(file) as parquet:
            columns = tested._columns(file, parquet)
            for group, first in _row_groups(parquet):
                found = []
                for _, batch in tested._batches(parquet, columns, first, [group]):
                    passing = _without(test.passing(batch), self.row_column, gone)
                    found += [passing] if passing.num_rows else []
                if not found:
                    continue
                rows = pa.Table.from_batches(found)
                if rest.target.names:
                    numbers = BitMap64(rows[self.row_column].to_pylist())
                    taken = rest._take(file, parquet, group, first, numbers)
                    others = pa.Table.from_batches(taken, rest.target)
                    for field, column in zip(rest.target, others.columns, strict=True):
                        rows = rows.append_column(field, column)
                yield from rows.select(self.target.names).to_batches()

    def _of(self, fields: Sequence[pa.Field]) -> "ArrowReader":
        """Return the reader of some of the columns."""
        return replace(self, target=pa.schema(fields))

    def _take(
        self,
        file: DataFile,
        parquet: pq.ParquetFile,
        group: int,
        first: int,
        rows: "BitMap64",
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows with the numbers `rows` of a row group.

        `first` is the number of the first row of the row group.
        """
        end = first + parquet.metadata.row_group(group).num_rows
        left = rows.range_cardinality(first, end)
        if not left:
            return
        columns, size = self._columns(file, parquet), _TAKEN_FROM_ROWS
        for at, batch in self._batches(parquet, columns, first, [group], size):
            kept = kept_rows(None, at, batch.num_rows, rows)
            yield _taken(batch, kept)
            left -= len(kept)
            if not left:
                return

    def copy(
        self, file: DataFile, path: Path, measured: Sequence[Column]
    ) -> set[tuple[str, ...]]:
        """Write the live rows of `file`, with its own columns, to a new local file.

        Return the physical paths of those of the columns `measured` that have NaNs.
        """
        gone, with_nan, first = self.deleted(file), set[tuple[str, ...]](), 0
        with self._parquet(file) as parquet:
            fields = [f.with_type(_without_views(f.type)) for f in parquet.schema_arrow]
            schema = pa.schema(fields)
            with pq.ParquetWriter(path, schema, **_layout(parquet)) as writer:
                for group in range(parquet.num_row_groups):
                    live = []
                    for batch in parquet.iter_batches(_BATCH_ROWS, [group]):
                        kept = kept_rows(gone, first, batch.num_rows)
                        live.append(_taken(batch.cast(schema), kept))
                        first += batch.num_rows
                    rows = pa.Table.from_batches(live, schema)
                    with_nan.update(columns_with_nan(rows, measured))
                    if rows.num_rows:
                        writer.write_table(rows, rows.num_rows)
        return with_nan

    def deleted(self, file: DataFile) -> "BitMap64 | None":
        """Return the deleted rows of `file`, or None if it has no deletion vector."""
        return self._bitmap(file, file.deletion_vector)

    def _read(self, file: DataFile) -> Iterator[pa.RecordBatch]:
        with self._parquet(file) as parquet:
            columns = self._columns(file, parquet)
            gone = self.deleted(file)
            only = self._bitmap(file, file.only_rows)
            for at, batch in self._batches(parquet, columns, 0, None):
                rows = batch
                if gone is not None or only is not None:
                    rows = _taken(rows, kept_rows(gone, at, batch.num_rows, only))
                if self.condition is not None:
                    rows = rows.filter(self.condition)
                yield rows

    @contextmanager
    def _parquet(self, file: DataFile) -> Iterator[pq.ParquetFile]:
        with self._open(file.path, file.size_bytes) as opened:
            on_disk = isinstance(opened, pa.OSFile)
            with pq.ParquetFile(
                opened,
                buffer_size=_DISK_BYTES if on_disk else 0,
                pre_buffer=not on_disk,
                coerce_int96_timestamp_unit="us",
            ) as parquet:
                yield parquet

    def _batches(
        self,
        parquet: pq.ParquetFile,
        columns: Sequence["str | pa.Scalar | None"],
        first: int,
        groups: Sequence[int] | None,
        size: int = _BATCH_ROWS,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield the rows of row groups, each batch with the number of its first row.

        `first` is the number of the first row of `groups`; None means all groups.
        """
        names = [column for column in columns if isinstance(column, str)]
        for batch in parquet.iter_batches(size, groups, names):
            yield first, self._shaped(batch, columns, first)
            first += batch.num_rows

    def _columns(
        self, file: DataFile, parquet: pq.ParquetFile
    ) -> "list[str | pa.Scalar | None]":
        return [self._column(wanted, file, parquet) for wanted in self.target]

    def _column(
        self, wanted: pa.Field, file: DataFile, parquet: pq.ParquetFile
    ) -> "str | pa.Scalar | None":
        """Return the name of a column in the file, or its value for all rows.

        Return None for the column with the rows' numbers.
        """
        if wanted.name == self.row_column:
            return None
        if wanted.name == self.file_column:
            return pa.scalar(file.path, wanted.type)
        if (constant := file.constant(wanted.name)) is not None:
            return pa.scalar(constant, wanted.type)
        column = self._fields[wanted.name]
        if wanted.name in self.partition_columns:
            values = msgspec.json.decode(file.partition_values)
            text = values.get(column.physical_name)
            value = parse_partition_value(text, column.type)
            return pa.scalar(value, wanted.type)
        found = self._find(list(parquet.schema_arrow), column)
        return pa.scalar(None, wanted.type) if found is None else str(found.name)

    def _shaped(
        self,
        batch: pa.RecordBatch,
        columns: Sequence["str | pa.Scalar | None"],
        first: int,
    ) -> pa.RecordBatch:
        count, fields = batch.num_rows, self._fields
        arrays = [
            self._fit(batch[column], wanted.type, fields[wanted.name])
            if isinstance(column, str)
            else pc.add(_numbers()[:count], first)
            if column is None
            else pa.repeat(column, count)
            for wanted, column in zip(self.target, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.target)

    def _fit(self, array: pa.Array, target: pa.DataType, column: Field) -> pa.Array:
        """Convert a file's values to the table's type, at every level of nesting."""
        if array.type == target:
            return array
        if pa.types.is_struct(target):
            return self._fit_struct(array, target, column)
        if pa.types.is_map(target):
            key, value = column.children
            parts = [
                self._fit(array.keys, target.key_type, key),
                self._fit(array.items, target.item_type, value),
            ]
            pairs = pa.StructArray.from_arrays(
                parts, fields=[target.key_field, target.item_field]
            )
            return _outer(array, target, pairs)
        if pa.types.is_list(target):
            (element,) = column.children
            inner = self._fit(array.values, target.value_type, element)
            return _outer(array, target, inner)
        # Spark, too, truncates times to microseconds.
        return array.cast(target, safe=not pa.types.is_timestamp(target))

    def _fit_struct(
        self, array: pa.StructArray, target: pa.StructType, column: Field
    ) -> pa.StructArray:
        there = [array.type.field(i) for i in range(array.type.num_fields)]
        children = {child.name: child for child in column.children}
        parts = []
        for wanted in target:
            child = children[wanted.name]
            if (found := self._find(there, child)) is None:
                parts.append(pa.nulls(len(array), wanted.type))
            else:
                values = array.field(there.index(found))
                parts.append(self._fit(values, wanted.type, child))
        return pa.StructArray.from_arrays(
            parts, fields=list(target), mask=array.is_null()
        )

    def _find(self, there: Sequence[pa.Field], column: Field) -> pa.Field | None:
        # Columns in files without ids are found by physical names.
        if self.by_id and _ID in column.metadata and any(map(_parquet_id, there)):
            wanted = str(column.metadata[_ID]).encode()
            return next((f for f in there if _parquet_id(f) == wanted), None)
        return next((f for f in there if f.name == column.physical_name), None)

    @property
    def _fields(self) -> dict[str, Field]:
        fields = {f.name: f for f in parse_schema(self.schema_string).fields}
        return fields | {CHANGE_TYPE: Field(CHANGE_TYPE, "string", nullable=True)}

    def _bitmap(self, file: DataFile, text: str | None) -> "BitMap64 | None":
        if text is None:
            return None
        try:
            vector = decode_struct(text, DeletionVector)
            return read_vector(
                vector, self.location, self.storage_options, self.filesystem
            )
        except CodecError as error:
            raise CodecError(f"{self.location}: {file.path}: {error}") from error

    def _open(self, path: str, size_bytes: int) -> pa.NativeFile:
        where = (self.location, self.storage_options, self.filesystem)
        return _opened(path, *where, size_bytes)


def read_vector(
    vector: DeletionVector,
    location: str,
    storage_options: Mapping[str, str],
    filesystem: Any = None,
) -> "BitMap64":
    """Return the rows that a vector of a table at `location` deletes."""
    if (path := vector_path(vector)) is None:
        return deleted_rows(vector, inline_vector(vector))
    offset, size_bytes = framed_range(vector)
    with _opened(path, location, storage_options, filesystem) as opened:
        opened.seek(offset)
        data = opened.read(size_bytes)
    return deleted_rows(vector, unframed(vector, data))


def _opened(
    path: str,
    location: str,
    storage_options: Mapping[str, str],
    filesystem: Any = None,
    size_bytes: int | None = None,
) -> pa.NativeFile:
    place = resolve_readable(path, location)
    if isinstance(place, Inside):
        if filesystem is not None:
            return filesystem.open_input_file(place.path)
        name = place.path
    else:
        parts = urlsplit(place.url)
        location = f"{parts.scheme}://{parts.netloc}/"
        name = unquote(parts.path.lstrip("/"))
    return open_input(location, name, storage_options, size_bytes)


def arrow_reader(
    snapshot: Snapshot,
    target: pa.Schema,
    storage_options: Mapping[str, str] | None,
    row_column: str | None = None,
) -> ArrowReader:
    """Return the reader of a snapshot's files with the Arrow schema `target`."""
    check_readable(snapshot, Use.ARROW)
    table, metadata = snapshot.table, snapshot.metadata
    if table.location.startswith("memory:"):
        raise ProtocolError(
            f"{table.name}: Spark's processes can't read {table.location}, which is in "
            "this process's memory"
        )
    return ArrowReader(
        canonical_location(table.location),
        metadata.schema_string,
        tuple(metadata.partition_columns),
        target,
        by_id=parse_properties(metadata).column_mapping_mode == "id",
        row_column=row_column,
        storage_options=storage_options or {},
    )


def check_readable(snapshot: Snapshot, use: Use) -> None:
    """Raise `ProtocolError` if the table has a reader feature unsupported for `use`."""
    protocol, name = snapshot.protocol, snapshot.table.name
    odd = unread_features(protocol, snapshot.metadata, use)
    if odd or protocol.min_reader_version > 3:
        needs = ", ".join(odd) or f"reader version {protocol.min_reader_version}"
        how = "Spark" if use is Use.SPARK else "Arrow"
        raise ProtocolError(
            f"{name}: the table can't be read with {how}, because it needs {needs}"
        )


def _without_views(kind: pa.DataType) -> pa.DataType:
    """Return a type without views of strings, of which pyarrow can't take rows."""
    if pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_binary_view(kind):
        return pa.binary()
    if not pa.types.is_nested(kind):
        return kind
    fields = [kind.field(i) for i in range(kind.num_fields)]
    if pa.types.is_map(kind):
        fields = [kind.key_field, kind.item_field]
    plain = [field.with_type(_without_views(field.type)) for field in fields]
    if pa.types.is_struct(kind):
        return pa.struct(plain)
    return pa.map_(*plain) if pa.types.is_map(kind) else pa.list_(*plain)


def _layout(parquet: pq.ParquetFile) -> dict[str, Any]:
    """Return the options of a writer whose file is laid out as another one."""
    footer = parquet.metadata
    columns = [footer.schema.column(i) for i in range(footer.num_columns)]
    codec = "snappy"
    if columns and footer.num_row_groups:
        codec = _CODECS.get(footer.row_group(0).column(0).compression, codec)
    return {
        "compression": codec,
        "store_schema": False,
        "use_deprecated_int96_timestamps": any(
            column.physical_type == "INT96" for column in columns
        ),
    }


def _parquet_id(child: pa.Field) -> bytes | None:
    return (child.metadata or {}).get(_PARQUET_ID)


def _taken(rows: pa.RecordBatch, kept: "array[int]") -> pa.RecordBatch:
    """Return the rows at the indexes `kept`."""
    if len(kept) == rows.num_rows:
        return rows
    buffers = [None, pa.py_buffer(kept)]
    return rows.take(pa.Array.from_buffers(pa.uint64(), len(kept), buffers))


@cache
def _numbers() -> pa.Array:
    """Return the numbers of a batch's rows, from 0 on."""
    # Made by Arrow, because Python's range takes milliseconds, and not on import,
    # because it makes pyarrow import pandas.
    return pc.cumulative_sum(pa.repeat(1, _BATCH_ROWS), start=-1)


def _without(
    rows: pa.RecordBatch, numbers: str, gone: "BitMap64 | None"
) -> pa.RecordBatch:
    """Return the rows whose numbers, in the column `numbers`, aren't in `gone`."""
    if gone is None or not rows.num_rows:
        return rows
    kept = [number not in gone for number in rows[numbers].to_pylist()]
    return rows.filter(pa.array(kept))


def _row_groups(parquet: pq.ParquetFile) -> Iterator[tuple[int, int]]:
    """Yield the number of each row group, and the number of its first row."""
    first = 0
    for group in range(parquet.num_row_groups):
        yield group, first
        first += parquet.metadata.row_group(group).num_rows


def _outer(array: Any, target: pa.DataType, inner: pa.Array) -> pa.Array:
    """Return the list or map `array` with the items `inner`."""
    validity, offsets = array.buffers()[:2]
    return pa.Array.from_buffers(
        target, len(array), [validity, offsets], offset=array.offset, children=[inner]
    )
