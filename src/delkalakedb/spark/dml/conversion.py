"""Make a table of the Parquet files in a folder, whose footers executors read."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from delkalakedb.deltalake import find_parquet, read_footer
from delkalakedb.errors import DeltaError, StorageError
from delkalakedb.model.actions import Action, Add, Metadata
from delkalakedb.model.new_actions import NewFile
from delkalakedb.model.paths import LOG, NULL_FOLDER, Values
from delkalakedb.model.rules.protocol import check_writable
from delkalakedb.model.schema.partition import (
    format_partition_value,
    parse_partition_value,
)
from delkalakedb.model.schema.schema import Column, parse_schema
from delkalakedb.model.stats.footer import file_stats
from delkalakedb.model.stats.stats import measured_columns
from delkalakedb.spark.pyspark_api import to_arrow
from delkalakedb.spark.schemas import check_new_schema
from delkalakedb.spark.session import can_reach, spark_url
from delkalakedb.spark.writer import commit_info, evolved_protocol, new_state
from delkalakedb.storage import ObjectMeta, open_store
from delkalakedb.write import Operation, Target
from delkalakedb.write.engines import InPlace, Work

# files of a task
_TASK_FILES = 100
_FILES = pa.schema([("number", pa.int64()), ("stats", pa.string())])


@dataclass(frozen=True)
class Conversion:
    """The conversion of a folder of Parquet files to a table.

    Args:
        spark: the Spark session, which must reach the folder.
        partitions: the partition columns, as the names of folders have them.
        storage_options: the options of the object store, which executors get.
    """

    spark: SparkSession
    partitions: StructType
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    def operation(self) -> Operation[None]:
        """Return the operation that creates the table at the folder."""
        return Operation("convert", InPlace(self._run))

    def _run(self, to: Target) -> Work[None]:
        store = open_store(to.location, self.storage_options)
        if next(store.list(LOG), None) is not None:
            raise DeltaError(f"{to.location}: there is a Delta table; import it")
        files = [file for file in find_parquet(store) if not _is_hidden(file.path)]
        if not files:
            raise DeltaError(f"{to.location}: there are no Parquet files here")
        schema = self._schema(to.location)
        check_new_schema(schema)
        names = self.partitions.names
        protocol, metadata = new_state(to, schema, partition_by=names)
        protocol = evolved_protocol(protocol, metadata)
        check_writable(protocol, metadata)
        said = {
            "numFiles": len(files),
            "partitionedBy": json.dumps(names),
            "collectStats": True,
        }
        info = commit_info("CONVERT", said, {"numConvertedFiles": len(files)})
        actions: list[Action] = [info, protocol, metadata]
        return Work(None, [[*actions, *self._adds(to.location, metadata, files)]])

    def _schema(self, location: str) -> StructType:
        """Return the columns of all files, as Spark reads them, and the partitions."""
        if not can_reach(self.spark, location):
            raise DeltaError(
                f"{location}: Spark has no JAR for this store, such as hadoop-aws; add "
                "one, or convert the folder with deltasql convert"
            )
        reader = self.spark.read.option("recursiveFileLookup", "true")
        reader = reader.option("mergeSchema", "true")
        columns = reader.option("pathGlobFilter", "*.parquet").parquet(
            unquote(spark_url(location))
        )
        names = {name.lower() for name in self.partitions.names}
        stored = [f for f in columns.schema if f.name.lower() not in names]
        return StructType([*stored, *self.partitions])

    def _adds(
        self, location: str, metadata: Metadata, files: Sequence[ObjectMeta]
    ) -> Iterator[Add]:
        starts = range(0, len(files), _TASK_FILES)
        tasks = [list(enumerate(files))[i : i + _TASK_FILES] for i in starts]
        options = dict(self.storage_options or {})
        read = _ReadFooters(location, options, tasks, measured_columns(metadata))
        numbers = self.spark.range(0, len(tasks), 1, len(tasks))
        found = to_arrow(numbers.mapInArrow(read, from_arrow_schema(_FILES)))
        texts = dict(zip(*(column.to_pylist() for column in found), strict=True))
        columns = parse_schema(metadata.schema_string)
        parts = [columns.column((name,)) for name in metadata.partition_columns]
        partitions = [column for column in parts if column is not None]
        for number, file in enumerate(files):
            values = _values(file.path, partitions)
            size, modified_ms = file.size_bytes, file.last_modified_ms
            yield NewFile(file.path, values, size, modified_ms, texts[number]).add()


@dataclass(frozen=True)
class _ReadFooters:
    """The function that returns the statistics of a task's files, by their numbers."""

    location: str
    options: Mapping[str, str] = field(repr=False)
    tasks: Sequence[Sequence[tuple[int, ObjectMeta]]]
    measured: Sequence[Column]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(self.location, self.options)
        for batch in batches:
            for task in batch.column(0).to_pylist():
                rows = []
                for number, file in self.tasks[task]:
                    try:
                        footer = pq.read_metadata(
                            pa.BufferReader(read_footer(store, file))
                        )
                    except (OSError, ValueError, StorageError) as error:
                        raise DeltaError(
                            f"{file.path}: not Parquet: {error}"
                        ) from error
                    stats = file_stats(footer, self.measured)
                    rows.append({"number": number, "stats": stats})
                yield pa.RecordBatch.from_pylist(rows, _FILES)


def _is_hidden(path: str) -> bool:
    """Return whether Spark skips the file, as it skips `_temporary` and `.x`."""
    return any(p.startswith(("_", ".")) and "=" not in p for p in path.split("/"))


def _values(path: str, partitions: Sequence[Column]) -> Values:
    """Return the partition values in the names of a file's folders."""
    folders = [part.partition("=") for part in path.split("/")[:-1] if "=" in part]
    texts = {unquote(name): unquote(text) for name, _, text in folders}
    names = [column.path[0] for column in partitions]
    if sorted(texts) != sorted(names):
        raise DeltaError(
            f"Expecting {len(names)} partition column(s): {names}, but found "
            f"{len(texts)} partition column(s): {[*texts]} from parsing the file name: "
            f"{path}; give the partition columns as partitionSchema"
        )
    values = {}
    for column in partitions:
        text = texts[column.path[0]]
        value = parse_partition_value(
            None if text == NULL_FOLDER else text, column.type
        )
        values[column.physical[0]] = format_partition_value(value, column.type)
    return values
