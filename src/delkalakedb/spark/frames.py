"""The rows of a table's files as a DataFrame.

Spark's own Parquet reader reads them from a list that SQL planned. Partition values
come from the folders' names where those say what the log says, else from the log, by
each row's file. Files with deletion vectors, and those that Spark can't reach, are
read by pyarrow on the executors.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, reduce
from types import MappingProxyType
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from delkalakedb.catalog import Snapshot
from delkalakedb.errors import DeltaError, ProtocolError
from delkalakedb.model.actions import known
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.schema import Field, parse_schema
from delkalakedb.spark.arrow_files import (
    FEATURES,
    FILE_COLUMNS,
    ArrowReader,
    arrow_reader,
    data_files,
)
from delkalakedb.spark.attaching import Partition, attach, literals
from delkalakedb.spark.layout import (
    is_hidden,
    is_verbatim,
    schemes_of,
    told_by_folders,
    uris_of,
)
from delkalakedb.spark.lists import LISTS, write_list
from delkalakedb.spark.schemas import physical_type, quoted, spark_schema
from delkalakedb.spark.session import can_reach, spark_url
from delkalakedb.storage import canonical_location

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["FILE_COLUMN", "LIST_COLUMNS", "frame"]

FILE_COLUMN = "__dk_file"
# The columns of a snapshot's files that a frame is made of.
LIST_COLUMNS = (*FILE_COLUMNS, "modification_time_ms")
# The most scans that one frame is made of, of files with the same partition values.
_SCANS = 32
_TASKS = 16
_TASK_BYTES = 64 * 1024 * 1024
# Reader features that ask nothing of who reads files, or that Spark's reader knows.
_FEATURES = FEATURES | {"variantType"}
# Files that Spark didn't write have no dates of the old calendar.
_OPTIONS = {
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "mergeSchema": "false",
}


def frame(
    spark: "SparkSession",
    snapshot: Snapshot,
    files: pa.Table,
    *,
    tagged: bool = False,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> "DataFrame":
    """The rows of some files, in the table's schema.

    Args:
        spark: the session.
        snapshot: the version that the files are of.
        files: its files, with `LIST_COLUMNS` at least.
        tagged: whether `FILE_COLUMN` says each row's file, as the log names it.
        columns: only these of the table's columns.
        storage_options: of the table's store, for what Spark itself can't reach.
    """
    wanted = None if columns is None else list(columns)
    frames = _Frames(spark, snapshot, tagged, wanted, storage_options)
    parts = list(frames.parts(files))
    if not parts:
        return spark.createDataFrame([], frames.schema)
    return reduce(lambda left, right: left.unionAll(right), parts)


class _Frames:
    """The frames of one table at one version."""

    def __init__(
        self,
        spark: "SparkSession",
        snapshot: Snapshot,
        tagged: bool,
        columns: list[str] | None,
        storage_options: Mapping[str, str] | None,
    ) -> None:
        _check_features(snapshot)
        self._spark = spark
        self._snapshot = snapshot
        self._tagged = tagged
        self._columns = spark_schema(snapshot.metadata, columns)
        self._storage_options = storage_options
        self._root = spark_url(canonical_location(snapshot.table.location))

    @property
    def schema(self) -> StructType:
        """What the frames look like."""
        tag = [StructField(FILE_COLUMN, StringType())] if self._tagged else []
        return StructType([*self._columns.fields, *tag])

    def parts(self, files: pa.Table) -> Iterator["DataFrame"]:
        """Frames for the files that Spark reads itself, and one for the others."""
        odd = self._odd(files)
        if (native := files.filter(pc.invert(odd))).num_rows:
            yield from self._native(native)
        if (rest := files.filter(odd)).num_rows:
            yield self._arrow(rest)

    def _odd(self, files: pa.Table) -> pa.ChunkedArray:
        """Which files Spark's reader can't read, or not right."""
        mode = parse_properties(self._snapshot.metadata).column_mapping_mode
        if mode == "id" or not can_reach(self._spark, self._root):
            return pa.chunked_array([pa.repeat(True, files.num_rows)])
        paths = files["path"]
        odd = pc.or_(pc.is_valid(files["deletion_vector"]), is_hidden(paths))
        for scheme in schemes_of(paths):
            if not can_reach(self._spark, scheme):
                odd = pc.or_(odd, pc.starts_with(paths, scheme))
        return odd

    @cached_property
    def _partitions(self) -> list[Field]:
        """The columns that partition the table, those that aren't wanted too."""
        schema = parse_schema(self._snapshot.metadata.schema_string)
        fields = {f.name: f for f in schema.fields}
        return [fields[name] for name in self._snapshot.metadata.partition_columns]

    @cached_property
    def _wanted(self) -> list[Partition]:
        kinds = {f.name: f.dataType for f in self._columns}
        return [
            Partition(f, kinds[f.name]) for f in self._partitions if f.name in kinds
        ]

    def _native(self, files: pa.Table) -> Iterator["DataFrame"]:
        if not self._wanted:
            yield self._scanned(files)
            return
        told = told_by_folders(self._root, self._partitions, files)
        if (some := files.filter(told)).num_rows:
            yield self._scanned(some, told=True)
        if (rest := files.filter(pc.invert(told))).num_rows:
            yield from self._from_log(rest)

    def _from_log(self, files: pa.Table) -> Iterator["DataFrame"]:
        texts = files["partition_values"]
        distinct = texts.unique().to_pylist()
        if len(distinct) > _SCANS:
            yield self._scanned(files, looked_up=self._wanted)
            return
        for text in distinct:
            alike = files.filter(pc.equal(texts, text))
            yield self._scanned(alike, values=literals(self._wanted, text))

    def _scanned(
        self,
        files: pa.Table,
        *,
        told: bool = False,
        values: Mapping[str, "Column"] = MappingProxyType({}),
        looked_up: Sequence[Partition] = (),
    ) -> "DataFrame":
        """Rows; their partition values are told by folders, given or looked up."""
        uris = uris_of(self._root, files["path"])
        rows = self._scan(uris, files, told)
        plain = bool(pc.all(is_verbatim(files["path"])).as_py())
        if looked_up or (self._tagged and not plain):
            found = attach(self._spark, rows, uris, files, looked_up)
            rows, tag, values = found.rows, found.path, {**values, **found.partitions}
        else:
            name = rows.metadataColumn("_metadata")["file_path"]
            tag = sf.substr(name, sf.lit(len(self._root) + 2))
        columns = [
            values[f.name].alias(f.name, metadata=f.metadata)
            if f.name in values
            else self._stored(f)
            for f in self._columns
        ]
        return rows.select(*columns, *[tag.alias(FILE_COLUMN)] * self._tagged)

    def _scan(self, uris: pa.ChunkedArray, files: pa.Table, told: bool) -> "DataFrame":
        """The columns that are in the files, by the names that they have there."""
        values = set() if told else {f.name for f in self._partitions}
        stored = [f for f in self._columns if f.name not in values]
        schema = StructType([self._physical(f) for f in stored])
        place = write_list(self._spark, uris, files, self._storage_options)
        reader = self._spark.read.schema(schema).options(**_OPTIONS)
        # Otherwise a list without partitions has no rows at all.
        reader = reader.option("recursiveFileLookup", str(not told).lower())
        return _reachable(lambda: reader.parquet(place), place)

    def _arrow(self, files: pa.Table) -> "DataFrame":
        target = to_arrow_schema(self.schema, timezone="UTC")
        reader = arrow_reader(self._snapshot, target, self._storage_options)
        reader = replace(reader, file_column=FILE_COLUMN if self._tagged else None)
        listed = self._spark.createDataFrame(files.select(FILE_COLUMNS))
        bytes_ = pc.sum(files["size_bytes"]).as_py()
        tasks = min(files.num_rows, max(_TASKS, bytes_ // _TASK_BYTES))
        return listed.repartition(tasks).mapInArrow(_reading(reader), self.schema)

    def _physical(self, column: StructField) -> StructField:
        return physical_type(self._snapshot.metadata, column)

    def _stored(self, column: StructField) -> "Column":
        stored = self._physical(column)
        found = sf.col(quoted(stored.name))
        if stored.dataType != column.dataType:
            found = found.cast(column.dataType)
        return found.alias(column.name, metadata=column.metadata)


def _reading(
    reader: ArrowReader,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What an executor does to read the files whose rows it is given."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield from reader.read(data_files(pa.Table.from_batches([batch])))

    return read


def _reachable(load: Callable[[], "DataFrame"], place: str) -> "DataFrame":
    try:
        rows = load()
        rows.schema  # noqa: B018  a Connect server looks no earlier
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        raise DeltaError(
            f"Spark can't read the list of files in {place}; set {LISTS} to a folder "
            "that this process and the Connect server both reach"
        ) from error
    return rows


def _check_features(snapshot: Snapshot) -> None:
    protocol, name = snapshot.protocol, snapshot.table.name
    odd = sorted({*(known(protocol.reader_features) or ())} - _FEATURES)
    if odd or protocol.min_reader_version > 3:
        needs = ", ".join(odd) or f"reader version {protocol.min_reader_version}"
        raise ProtocolError(f"{name}: Spark can't read a table that needs {needs} here")
