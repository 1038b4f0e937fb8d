"""The rows of data files as a DataFrame.

Spark's Parquet reader reads a list of files that SQL has planned. Partition values come
from folder names if these agree with the log, and otherwise from the log, looked up by
the file of each row. Rows that a deletion vector marks are left out by a join with the
vectors. Files that Spark can't reach are read by pyarrow on the executors.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from functools import cached_property, reduce
from types import MappingProxyType

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
)

from delkalakedb.catalog import Snapshot
from delkalakedb.errors import DeltaError
from delkalakedb.model.changes import CHANGE_TYPE
from delkalakedb.model.rules.features import Use
from delkalakedb.model.rules.protocol import unread_features
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.spark.pyspark_api import about_file, condition_of, from_arrow
from delkalakedb.spark.reader.change_feed import FEED_FIELDS
from delkalakedb.spark.reader.layout import (
    LISTS,
    Partition,
    attach,
    is_hidden,
    is_verbatim,
    listed,
    literals,
    looked_up,
    numbered,
    once_each,
    partitions_in,
    schemes_of,
    told_by_folders,
    uris_of,
)
from delkalakedb.spark.reader.marks import (
    filtered,
    first_number,
    first_numbers,
    row_index,
    vector_reader,
)
from delkalakedb.spark.schemas import arrow_schema, physical_type, quoted, read_schema
from delkalakedb.spark.session import can_reach, is_spark_3, spark_url
from delkalakedb.storage import canonical_location
from delkalakedb.write.engines import (
    CHANGE_COLUMNS,
    FILE_COLUMNS,
    arrow_reader,
    check_readable,
)

FILE_COLUMN = "__dk_file"
INDEX_COLUMN = "__dk_index"
# the columns of `Snapshot.files` that `frame` needs
LIST_COLUMNS = (*FILE_COLUMNS, "modification_time_ms", "num_records")
# lists of rows of a file: only these, and not these
_ONLY, _GONE = "only_rows", "deletion_vector"
_FIRST = "__dk_first"
# scans; with more distinct partition values, one scan is joined with the log
_SCANS = 32
# the columns of a changed file that `_ChangeFrames` attaches to its rows
_SAID = ("change_type", "commit_version", "commit_ms", "partition_values")
_TEXT, _WHOLE = StringType(), LongType()
_TAGS = (StructField(FILE_COLUMN, _TEXT), StructField(INDEX_COLUMN, _WHOLE))
_TASKS = 16
_TASK_BYTES = 64 * 1024 * 1024
# CORRECTED, because other writers use no dates of the Julian calendar
_OPTIONS = {
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
    "mergeSchema": "false",
}


def changes_frame(
    spark: SparkSession,
    snapshot: Snapshot,
    files: pa.Table,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the changed rows in `files`, a table of `ChangeFeed`.

    The rows have the columns of the table and those of the feed.
    """
    frames = _ChangeFrames(spark, snapshot, storage_options)
    parts = list(frames.parts(files))
    if not parts:
        return spark.createDataFrame([], frames.schema)
    return reduce(lambda left, right: left.unionAll(right), parts)


def frame(
    spark: SparkSession,
    snapshot: Snapshot,
    files: pa.Table,
    *,
    tagged: bool = False,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Return the rows of `files` in the table's schema.

    Args:
        spark: the Spark session.
        snapshot: the version that has the files.
        files: a list of files with at least `LIST_COLUMNS`. `only_rows`, a deletion
            vector, selects rows of a file.
        tagged: whether to add `FILE_COLUMN`, the path of each row's file in the log,
            and `INDEX_COLUMN`, the row's index in the file.
        columns: the columns to read; by default all.
        storage_options: the options of the object store, for files that Spark can't
            reach.
    """
    wanted = None if columns is None else list(columns)
    frames = _Frames(spark, snapshot, tagged, wanted, storage_options)
    parts = list(frames.parts(files))
    if not parts:
        return spark.createDataFrame([], frames.schema)
    return reduce(lambda left, right: left.unionAll(right), parts)


class _Frames:
    """The DataFrames of one version."""

    def __init__(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        tagged: bool,
        columns: list[str] | None,
        storage_options: Mapping[str, str] | None,
    ) -> None:
        check_readable(snapshot, Use.SPARK)
        self._spark = spark
        self._snapshot = snapshot
        self._tagged = tagged
        self._columns = read_schema(snapshot.metadata, columns)
        self._storage_options = storage_options
        self._root = spark_url(canonical_location(snapshot.table.location))

    @property
    def schema(self) -> StructType:
        """The schema of the DataFrames."""
        return StructType([*self._columns.fields, *(_TAGS if self._tagged else ())])

    def parts(self, files: pa.Table) -> Iterator[DataFrame]:
        """Yield DataFrames of files that Spark reads, and one of all other files."""
        odd = self._odd(files)
        native = files.filter(pc.invert(odd))
        marked = reduce(pc.or_, (pc.is_valid(native[c]) for c in self._marks(native)))
        # apart, because rows are looked up only in files with vectors
        for some in (native.filter(pc.invert(marked)), native.filter(marked)):
            if some.num_rows:
                yield from self._native(some)
        if (rest := files.filter(odd)).num_rows:
            yield self._arrow(rest)

    def _odd(self, files: pa.Table) -> pa.ChunkedArray:
        """Return which files Spark's Parquet reader can't read correctly."""
        mode = parse_properties(self._snapshot.metadata).column_mapping_mode
        protocol, metadata = self._snapshot.protocol, self._snapshot.metadata
        limited = is_spark_3() and unread_features(protocol, metadata, Use.SPARK_3)
        if mode == "id" or limited or not can_reach(self._spark, self._root):
            return pa.chunked_array([pa.repeat(True, files.num_rows)])
        paths = files["path"]
        odd = is_hidden(paths)
        for scheme in schemes_of(paths):
            if not can_reach(self._spark, scheme):
                odd = pc.or_(odd, pc.starts_with(paths, scheme))
        return odd

    def _marks(self, files: pa.Table) -> list[str]:
        """Return the columns of a list that select rows of files."""
        return [name for name in (_ONLY, _GONE) if name in files.schema.names]

    @cached_property
    def _partitions(self) -> list[Partition]:
        """All partition columns, whether they are read or not."""
        return partitions_in(self._snapshot.metadata)

    @cached_property
    def _wanted(self) -> list[Partition]:
        names = self._columns.names
        return [p for p in self._partitions if p.field.name in names]

    def _native(self, files: pa.Table) -> Iterator[DataFrame]:
        if not self._wanted:
            yield self._scanned(files)
            return
        told = told_by_folders(self._root, self._partitions, files)
        if (some := files.filter(told)).num_rows:
            yield self._scanned(some, told=True)
        if (rest := files.filter(pc.invert(told))).num_rows:
            yield from self._from_log(rest)

    def _from_log(self, files: pa.Table) -> Iterator[DataFrame]:
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
        values: Mapping[str, Column] = MappingProxyType({}),
        looked_up: Sequence[Partition] = (),
    ) -> DataFrame:
        """Return the rows of `files` with their partition values.

        The values come from folder names (`told`), from `values`, or from a join with
        the log (`looked_up`).
        """
        uris = uris_of(self._root, files["path"])
        plain = bool(pc.all(is_verbatim(files["path"])).as_py())
        vectors = [c for c in self._marks(files) if files[c].null_count < len(files)]
        joins = bool(looked_up) or (self._tagged and not plain)
        more: dict[str, Column] = {}
        if joins or vectors:
            numbers = first_numbers(files)
            rows = self._scan(uris, _with(files, "modification_time_ms", numbers), told)
            more[_FIRST] = first_number(rows)
        else:
            rows = self._scan(uris, files, told)
        if self._tagged or vectors:
            more[INDEX_COLUMN] = row_index(rows)
        if self._tagged and not joins:
            path = about_file(rows, "file_path")
            more[FILE_COLUMN] = sf.substr(path, sf.lit(len(self._root) + 2))
        if more:
            rows = rows.select("*", *(c.alias(name) for name, c in more.items()))
        for name in vectors:
            number = sf.col(_FIRST) + sf.col(INDEX_COLUMN)
            reader = vector_reader(self._snapshot, self._storage_options)
            rows = filtered(
                self._spark, rows, number, reader, files, name, keep=name == _ONLY
            )
        tag = sf.col(FILE_COLUMN)
        if joins:
            found = attach(self._spark, rows, _FIRST, numbers, files, looked_up)
            rows, tag, values = found.rows, found.path, {**values, **found.partitions}
        tags = (tag.alias(FILE_COLUMN), sf.col(INDEX_COLUMN)) if self._tagged else ()
        columns = [
            _known(values[f.name], f).alias(f.name, metadata=f.metadata)
            if f.name in values
            else self._stored(f)
            for f in self._columns
        ]
        return rows.select(*columns, *tags)

    def _scan(
        self,
        uris: pa.ChunkedArray,
        files: pa.Table,
        told: bool,
        more: Sequence[StructField] = (),
    ) -> DataFrame:
        """Return the columns stored in data files, under their physical names.

        `more` are stored columns that aren't the table's.
        """
        values = set() if told else {p.field.name for p in self._partitions}
        stored = [f for f in self._columns if f.name not in values]
        schema = StructType([*map(self._physical, stored), *more])
        reader = self._spark.read.schema(schema).options(**_OPTIONS)
        # Without this option, Spark finds no rows in a list without partitions.
        reader = reader.option("recursiveFileLookup", str(not told).lower())
        with listed(self._spark, uris, files, self._storage_options) as place:
            try:
                rows = reader.parquet(place)
                rows.schema  # noqa: B018 - a Connect server checks the path only now
            except AnalysisException as error:
                if condition_of(error) != "PATH_NOT_FOUND":
                    raise
                raise DeltaError(
                    f"Spark can't read the list of files in {place}; set {LISTS} to a "
                    "folder that this process and the Connect server both reach"
                ) from error
        return rows

    def _arrow(self, files: pa.Table) -> DataFrame:
        target = arrow_schema(self.schema)
        reader = arrow_reader(self._snapshot, target, self._storage_options)
        if self._tagged:
            reader = replace(reader, file_column=FILE_COLUMN, row_column=INDEX_COLUMN)
        given = files.schema.names
        columns = [n for n in (*FILE_COLUMNS, *CHANGE_COLUMNS) if n in given]
        rows = from_arrow(self._spark, files.select(columns))
        bytes_ = pc.sum(files["size_bytes"]).as_py()
        tasks = min(files.num_rows, max(_TASKS, bytes_ // _TASK_BYTES))
        return rows.repartition(tasks).mapInArrow(reader.read_listed, self.schema)

    def _stored(self, column: StructField) -> Column:
        stored = self._physical(column)
        found = sf.col(quoted(stored.name))
        if column.name in self._snapshot.metadata.partition_columns:
            found = _known(found, column)
        if stored.dataType != column.dataType:
            found = found.cast(column.dataType)
        return found.alias(column.name, metadata=column.metadata)

    def _physical(self, column: StructField) -> StructField:
        found = physical_type(self._snapshot.metadata, column)
        return StructField(found.name, found.dataType, column.nullable, found.metadata)


# values of NOT NULL partition columns that no row has, to tell Spark so
_UNUSED: Mapping[type[DataType], bool | date | int | str] = {
    BooleanType: False,
    DateType: date(1970, 1, 1),
    IntegerType: 0,
    LongType: 0,
    StringType: "",
}


def _known(value: Column, column: StructField) -> Column:
    """Return the values of a partition column, not nullable if the column isn't."""
    unused = _UNUSED.get(type(column.dataType))
    if column.nullable or unused is None:
        return value
    return sf.coalesce(value, sf.lit(unused).cast(column.dataType))


def _with(files: pa.Table, name: str, values: pa.Array) -> pa.Table:
    return files.drop_columns([name]).append_column(name, values)


class _ChangeFrames(_Frames):
    """The DataFrames of changed rows.

    Spark returns the modification time of each row's file without a cost. The lists of
    files have numbers in its place, by which arrays of literals are indexed.
    """

    def __init__(
        self,
        spark: SparkSession,
        snapshot: Snapshot,
        storage_options: Mapping[str, str] | None,
    ) -> None:
        super().__init__(spark, snapshot, False, None, storage_options)

    @property
    def schema(self) -> StructType:
        """The schema of the DataFrames."""
        return StructType([*self._columns.fields, *FEED_FIELDS])

    def parts(self, files: pa.Table) -> Iterator[DataFrame]:
        """Yield DataFrames of change data files, and of files added or removed."""
        own = pc.is_null(files["change_type"])
        for some in (files.filter(own), files.filter(pc.invert(own))):
            for once in once_each(some):
                yield from super().parts(once)

    def _odd(self, files: pa.Table) -> pa.ChunkedArray:
        marked = (pc.is_valid(files[name]) for name in (_ONLY, _GONE))
        return reduce(pc.or_, marked, super()._odd(files))

    def _native(self, files: pa.Table) -> Iterator[DataFrame]:
        uris = uris_of(self._root, files["path"])
        numbers, distinct = numbered(files, _SAID)
        numbered_files = files.append_column("modification_time_ms", numbers)
        own = files["change_type"].null_count > 0
        rows = self._scan(uris, numbered_files, False, FEED_FIELDS[:1] if own else ())
        number = sf.unix_millis(about_file(rows, "file_modification_time"))
        kinds, versions, times_ms, texts = map(list, zip(*distinct, strict=True))
        feed = dict(
            zip(
                (field.name for field in FEED_FIELDS),
                (
                    sf.col(CHANGE_TYPE) if own else looked_up(number, kinds, _TEXT),
                    looked_up(number, versions, _WHOLE),
                    sf.timestamp_millis(looked_up(number, times_ms, _WHOLE)),
                ),
                strict=True,
            )
        )
        values = {
            p.field.name: looked_up(number, list(map(p.text, texts)), p.type)
            for p in self._partitions
        }
        columns = [
            _known(values[f.name], f).alias(f.name, metadata=f.metadata)
            if f.name in values
            else self._stored(f)
            for f in self._columns
        ]
        yield rows.select(*columns, *(c.alias(name) for name, c in feed.items()))
