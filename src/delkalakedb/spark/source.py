"""The Python data source `deltasql`: batches read and written as Arrow.

Its parts run in processes of Spark's: schema, plan and commit near the driver, where
the catalog is opened for as long as that takes; reading and writing on executors,
which get neither the catalog nor its URI's variables.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from delkalakedb.catalog import Catalog, Snapshot, connect
from delkalakedb.errors import DeltaError, SchemaMismatchError, UriError
from delkalakedb.model.predicate import Predicate, parse_predicate
from delkalakedb.model.schema import parse_schema
from delkalakedb.spark.arrow_files import (
    FILE_COLUMNS,
    ArrowReader,
    DataFile,
    arrow_reader,
    data_files,
)
from delkalakedb.spark.filters import columns_of, row_filter
from delkalakedb.spark.schemas import spark_schema
from delkalakedb.storage.options import is_secret
from delkalakedb.uri import Uri, parse_uri, require_table
from delkalakedb.uri_options import OPTIONS

__all__ = [
    "READ_OPTIONS",
    "BatchReader",
    "FilesPartition",
    "SourceOptions",
    "arrow_schema",
    "load_schema",
    "partitions_of",
]

_STORAGE = "storage."
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_SHOWN = "Spark shows a data source's options in its plans"
# Of reads, and of streams: what has the schema can't tell them apart.
READ_OPTIONS = (
    "columns",
    "ignoreDeletes",
    "maxFilesPerTrigger",
    "skipChangeCommits",
    "startingVersion",
    "timestampAsOf",
    "versionAsOf",
    "where",
)
# A task reads about so much; opening a file counts as reading some.
_TASK_BYTES = 32 * 1024 * 1024
_OPEN_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class SourceOptions:
    """The options of a `read`, `write` or stream, which Spark shows in its plans.

    Args:
        given: their texts, by names in lower case.
        known: the names of those that mean something, besides the store's.
    """

    given: Mapping[str, str] = field(repr=False)
    known: Sequence[str]

    def __post_init__(self) -> None:
        known = {"path", *map(str.lower, self.known)}
        for name, text in self.given.items():
            if _is_secret(name, text) and not _VARIABLE.fullmatch(text):
                raise DeltaError(
                    f"option {name}: {_SHOWN}: write ${{VAR}} for its value, set where "
                    "the driver was started, or use delkalakedb.spark.read and write"
                )
            # To overwrite a table without heeding `replaceWhere` would be a loss.
            if name not in known and not name.startswith(_STORAGE):
                raise DeltaError(
                    f"option {name} isn't one of {', '.join(self.known)} or storage.*;"
                    " delkalakedb.spark.read and write can do more"
                )

    def get(self, name: str) -> str | None:
        """An option's text, whatever the case of its name."""
        return self.given.get(name.lower())

    def flag(self, name: str) -> bool:
        """An option that is true or false, the latter by default."""
        text = (self.get(name) or "false").lower()
        if text not in ("true", "false"):
            raise DeltaError(f"option {name} is true or false, not {text!r}")
        return text == "true"

    def number(self, name: str) -> int | None:
        """An option that is a whole number from 0 on."""
        text = self.get(name)
        if text is not None and not re.fullmatch(r"[0-9]{1,18}", text):
            raise DeltaError(f"option {name} is a whole number, not {text!r}")
        return None if text is None else int(text)

    @property
    def columns(self) -> list[str] | None:
        """The names of the columns to read: separated by commas, or as JSON."""
        text = self.get("columns")
        if text is None:
            return None
        if text.lstrip().startswith("["):
            return [str(name) for name in json.loads(text)]
        return [name.strip() for name in text.split(",")]

    @property
    def storage_options(self) -> dict[str, str]:
        """Those of the table's store, `${VAR}` taken from the environment."""
        return {
            name.removeprefix(_STORAGE): _VARIABLE.sub(_variable, text)
            for name, text in self.given.items()
            if name.startswith(_STORAGE)
        }

    @property
    def uri(self) -> Uri:
        """The table's URI, which holds no credentials."""
        text = self.get("path")
        if text is None:
            raise UriError("no table: give its deltasql:// URI to load() or save()")
        uri = parse_uri(text)
        secrets = {uri.password, *(v for n, v in uri.options if OPTIONS[n].secret)}
        if secrets - {None} - {os.environ.get(n) for n in _VARIABLE.findall(text)}:
            raise UriError(
                f"{uri}: {_SHOWN}: write the password as ${{VAR}}, or set "
                "DELKALAKEDB_SQL__PASSWORD, where the driver was started"
            )
        return uri

    @contextmanager
    def opened(self) -> Iterator[tuple[Catalog, str]]:
        """The catalog, for no longer than needed, and the table's name."""
        uri = self.uri
        name = require_table(uri)
        with connect(uri) as catalog:
            yield catalog, name

    @contextmanager
    def snapshot(self, version: int | None = None) -> Iterator[Snapshot]:
        """The table at a version, or at the one that the options name."""
        with self.opened() as (catalog, name):
            if version is None:
                version = self.number("versionAsOf")
            moment = self.get("timestampAsOf") if version is None else None
            timestamp_ms = None if moment is None else _parse_moment_ms(moment)
            yield catalog.snapshot(name, version, timestamp_ms=timestamp_ms)

    def predicate(self, snapshot: Snapshot) -> Predicate | None:
        """The filter over a table's rows, if one is given."""
        text = self.get("where")
        if text is None:
            return None
        return parse_predicate(text, parse_schema(snapshot.metadata.schema_string))


@dataclass
class FilesPartition(InputPartition):
    """The files of one task."""

    files: list[DataFile]


def load_schema(options: Mapping[str, str]) -> tuple[int, StructType]:
    """The version that is read, and its columns that are."""
    source = SourceOptions(dict(options), READ_OPTIONS)
    with source.snapshot() as snapshot:
        if (where := source.predicate(snapshot)) is not None:
            row_filter(where)
        return snapshot.version, spark_schema(snapshot.metadata, source.columns)


class BatchReader(DataSourceReader):
    """Reads the files of one version."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, version: int | None
    ) -> None:
        self._options = SourceOptions(dict(options), READ_OPTIONS)
        self._names = schema.names
        with self._options.snapshot(version) as snapshot:
            self._version = snapshot.version
            self._where = self._options.predicate(snapshot)
            reader = table_reader(
                snapshot, schema, self._where, self._options.storage_options
            )
        self._reader: ArrowReader = reader

    def partitions(self) -> Sequence[InputPartition]:
        """The files that may hold rows, some for each task."""
        with self._options.snapshot(self._version) as snapshot:
            files = snapshot.files(self._where, columns=FILE_COLUMNS)
            return partitions_of(data_files(files))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task's files."""
        # Spark gives an empty table one task, without files.
        files = partition.files if isinstance(partition, FilesPartition) else ()
        for batch in self._reader.read(files):
            yield batch.select(self._names)


def table_reader(
    snapshot: Snapshot,
    schema: StructType,
    where: Predicate | None,
    storage_options: Mapping[str, str],
) -> ArrowReader:
    """Reads a table's files as the columns of `schema` and those of the filter."""
    there = spark_schema(snapshot.metadata, schema.names)
    for given, column in zip(schema, there, strict=True):
        if given.simpleString() != column.simpleString():
            raise SchemaMismatchError(
                f"the column {column.simpleString()} can't be read as "
                f"{given.simpleString()}"
            )
    if where is None:
        return arrow_reader(snapshot, arrow_schema(schema), storage_options)
    seen = {column.path[0] for column in columns_of(where)} - {*schema.names}
    more = spark_schema(snapshot.metadata, sorted(seen))
    wider = StructType([*schema.fields, *more.fields])
    reader = arrow_reader(snapshot, arrow_schema(wider), storage_options)
    return replace(reader, condition=row_filter(where))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark takes and gives for its own."""
    return to_arrow_schema(schema, timezone="UTC")


def partitions_of(files: Sequence[DataFile]) -> list[InputPartition]:
    """Tasks of about the same size."""
    tasks: list[InputPartition] = []
    together: list[DataFile] = []
    size_bytes = 0
    for file in files:
        cost_bytes = file.size_bytes + _OPEN_BYTES
        if together and size_bytes + cost_bytes > _TASK_BYTES:
            tasks.append(FilesPartition(together))
            together, size_bytes = [], 0
        together.append(file)
        size_bytes += cost_bytes
    return [*tasks, FilesPartition(together)] if together else tasks


def _is_secret(name: str, text: str) -> bool:
    """Whether an option is of a store's secrets; the table's URI is judged apart."""
    in_text = text if name.startswith(_STORAGE) else ""
    return name != "path" and is_secret(name, in_text)


def _variable(found: re.Match[str]) -> str:
    value = os.environ.get(found[1])
    if value is None:
        raise DeltaError(f"the environment variable {found[1]} isn't set")
    return value


def _parse_moment_ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise DeltaError(
            f"option timestampAsOf: {text!r} is not like 2026-01-31T12:30:00Z"
        ) from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - _EPOCH) // timedelta(milliseconds=1)
