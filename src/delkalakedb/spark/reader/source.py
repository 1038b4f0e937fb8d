"""The reader of the Python data source `deltasql`, which returns Arrow batches."""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from delkalakedb.catalog import Catalog, Snapshot, connect
from delkalakedb.errors import DeltaError, SchemaMismatchError, UriError
from delkalakedb.model.predicate.predicate import Predicate, parse_predicate
from delkalakedb.model.schema.properties import parse_size
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.model.times import to_ms
from delkalakedb.settings import OPTIONS, Uri, parse_uri, require_table
from delkalakedb.spark.reader.change_feed import (
    ChangeFeed,
    feed_schema,
    open_feed,
    snapshot_of,
)
from delkalakedb.spark.schemas import arrow_schema, spark_schema
from delkalakedb.storage import is_secret
from delkalakedb.write.engines import (
    FILE_COLUMNS,
    ArrowReader,
    DataFile,
    arrow_reader,
    columns_of,
    data_files,
    row_filter,
)

_STORAGE = "storage."
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_NO_TIME = "must be a time with a zone, like 2026-01-31T12:30:00Z"
_SHOWN = "Spark shows a data source's options in its plans"
# for reads and streams, because `schema` can't tell which one it is called for
READ_OPTIONS = (
    "columns",
    "endingTimestamp",
    "endingVersion",
    "failOnDataLoss",
    "ignoreChanges",
    "ignoreDeletes",
    "maxBytesPerTrigger",
    "maxFilesPerTrigger",
    "readChangeData",
    "readChangeFeed",
    "skipChangeCommits",
    "startingTimestamp",
    "startingVersion",
    "timestampAsOf",
    "versionAsOf",
    "where",
)
_ENDS = ("startingVersion", "startingTimestamp", "endingVersion", "endingTimestamp")
# the second name is an older one of Delta Spark's
_FEED = ("readChangeFeed", "readChangeData")
_TRAVEL = ("versionAsOf", "timestampAsOf")
# bytes of a task; opening a file counts as reading `_OPEN_BYTES`
_TASK_BYTES = 32 * 1024 * 1024
_OPEN_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class SourceOptions:
    """The options of a read, write or stream of the data source.

    Spark shows these options in its plans, so secrets in them are refused.

    Args:
        given: the values by lower-case names.
        known: the names that are allowed, besides those of the object store.
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
            # Ignoring an unknown option such as `replaceWhere` could destroy data.
            if name not in known and not name.startswith(_STORAGE):
                raise DeltaError(
                    f"option {name} isn't one of {', '.join(self.known)} or storage.*;"
                    " delkalakedb.spark.read and write have more options"
                )

    def get(self, name: str) -> str | None:
        """Return the text of an option; case doesn't matter in its name."""
        return self.given.get(name.lower())

    def either(self, *names: str) -> None:
        """Raise `DeltaError` if several of the options are given."""
        given = [name for name in names if self.get(name) is not None]
        if len(given) > 1:
            raise DeltaError(f"give only one of the options {', '.join(given)}")

    def flag(self, name: str, default: str = "false") -> bool:
        """Return an option that is true or false."""
        text = (self.get(name) or default).lower()
        if text not in ("true", "false"):
            raise DeltaError(f"option {name} must be true or false, not {text!r}")
        return text == "true"

    def number(self, name: str) -> int | None:
        """Return an option that is a whole number of at least 0."""
        text = self.get(name)
        if text is not None and not re.fullmatch(r"[0-9]{1,18}", text):
            raise DeltaError(f"option {name} must be a whole number, not {text!r}")
        return None if text is None else int(text)

    def size_bytes(self, name: str) -> int | None:
        """Return an option that is a size, such as `10m` or a number of bytes."""
        if (text := self.get(name)) is None:
            return None
        if not (found := parse_size(text)):
            raise DeltaError(
                f"option {name} must be a size of at least 1 byte, such as 10m or 1g, "
                f"not {text!r}"
            )
        return found

    def time(self, name: str) -> datetime | None:
        """Return an option that is a time with a zone.

        Spark doesn't tell a data source the session's time zone, in which the other
        calls read a time without one.
        """
        text = self.get(name)
        try:
            moment = None if text is None else datetime.fromisoformat(text)
        except ValueError as error:
            raise DeltaError(f"option {name}: {text!r} {_NO_TIME}") from error
        if moment is not None and moment.tzinfo is None:
            raise DeltaError(f"option {name}: {text!r} {_NO_TIME}")
        return moment

    @property
    def since(self) -> int | datetime | None:
        """The version or time at which changes start."""
        self.either(*_ENDS[:2])
        return self.number(_ENDS[0]) if self.get(_ENDS[0]) else self.time(_ENDS[1])

    @property
    def until(self) -> int | datetime | None:
        """The version or time at which changes end."""
        self.either(*_ENDS[2:])
        return self.number(_ENDS[2]) if self.get(_ENDS[2]) else self.time(_ENDS[3])

    @property
    def changes(self) -> bool:
        """Whether the change data feed is read."""
        self.either(*_FEED)
        changes = any(map(self.flag, _FEED))
        self.either(*_TRAVEL)
        for name in _TRAVEL:
            if changes and self.get(name) is not None:
                raise DeltaError(f"readChangeFeed takes no {name}; use endingVersion")
        return changes

    @property
    def columns(self) -> list[str] | None:
        """The names of the columns to read, given as JSON or with commas."""
        text = self.get("columns")
        if text is None:
            return None
        if text.lstrip().startswith("["):
            return [str(name) for name in json.loads(text)]
        return [name.strip() for name in text.split(",")]

    @property
    def storage_options(self) -> dict[str, str]:
        """The options of the object store, with `${VAR}` expanded."""
        return {
            name.removeprefix(_STORAGE): _VARIABLE.sub(_variable, text)
            for name, text in self.given.items()
            if name.startswith(_STORAGE)
        }

    @property
    def uri(self) -> Uri:
        """The table's URI, which must hold no credentials."""
        text = self.get("path")
        if text is None:
            raise UriError("no table; give its deltasql:// URI to load() or save()")
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
        """Open the catalog briefly, and return it with the table's name."""
        uri = self.uri
        name = require_table(uri)
        with connect(uri) as catalog:
            yield catalog, name

    @contextmanager
    def snapshot(self, version: int | None = None) -> Iterator[Snapshot]:
        """Open the table at `version`, or at the version in the options."""
        with self.opened() as (catalog, name):
            if version is None:
                version = self.number("versionAsOf")
            moment = self.time("timestampAsOf") if version is None else None
            at_ms = None if moment is None else to_ms(moment)
            yield catalog.snapshot(name, version, timestamp_ms=at_ms)

    def predicate(self, snapshot: Snapshot) -> Predicate | None:
        """Return the option `where` as a predicate on the table."""
        text = self.get("where")
        if text is None:
            return None
        return parse_predicate(text, parse_schema(snapshot.metadata.schema_string))


@dataclass
class FilesPartition(InputPartition):
    """The files that one task reads."""

    files: list[DataFile]


def load_schema(options: Mapping[str, str]) -> tuple[int, StructType]:
    """Return the version that `options` select, and the columns to read."""
    source = SourceOptions(dict(options), READ_OPTIONS)
    changes = source.changes
    with source.snapshot() as snapshot:
        version = snapshot.version
        if (where := source.predicate(snapshot)) is not None:
            row_filter(where)
        if not changes:
            return version, spark_schema(snapshot.metadata, source.columns)
    with source.opened() as (catalog, name):
        latest = catalog.snapshot(name, version)
        metadata = snapshot_of(catalog, latest, source.until).metadata
        return version, feed_schema(metadata, source.columns)


class BatchReader(DataSourceReader):
    """The reader of the files of one version, or of the changes of a range."""

    def __init__(
        self, options: Mapping[str, str], schema: StructType, version: int | None
    ) -> None:
        self._options = SourceOptions(dict(options), READ_OPTIONS)
        self._names = schema.names
        self._changes = self._options.changes
        if not self._changes and any(map(self._options.get, _ENDS)):
            raise DeltaError(f"{', '.join(_ENDS)} need readChangeFeed=true")
        with self._options.snapshot(version) as snapshot:
            self._version = snapshot.version
            if not self._changes:
                self._reader = self._table_reader(snapshot, schema)
        if self._changes:
            with self._feed() as feed:
                self._reader = self._table_reader(feed.snapshot, schema)

    def partitions(self) -> Sequence[InputPartition]:
        """Return the files that may hold matching rows, grouped by task."""
        if self._changes:
            with self._feed() as feed:
                return tasks_of(list(feed.files()))
        with self._options.snapshot(self._version) as snapshot:
            files = snapshot.files(self._where, columns=FILE_COLUMNS)
            return tasks_of(data_files(files.read_all()))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's files."""
        # For an empty table Spark runs one task without files.
        files = partition.files if isinstance(partition, FilesPartition) else ()
        for batch in self._reader.read(files):
            yield batch.select(self._names)

    def _table_reader(self, snapshot: Snapshot, schema: StructType) -> ArrowReader:
        self._where = self._options.predicate(snapshot)
        options = self._options.storage_options
        return table_reader(
            snapshot, schema, self._where, options, changes=self._changes
        )

    @contextmanager
    def _feed(self) -> Iterator[ChangeFeed]:
        options = self._options
        with options.opened() as (catalog, name):
            yield open_feed(catalog, name, options.since, options.until, self._version)


def table_reader(
    snapshot: Snapshot,
    schema: StructType,
    where: Predicate | None,
    storage_options: Mapping[str, str],
    *,
    changes: bool = False,
) -> ArrowReader:
    """Return the reader of the columns of `schema` and of the filter `where`.

    With `changes`, the columns may be those of the change data feed.
    """
    schema_of = feed_schema if changes else spark_schema
    there = schema_of(snapshot.metadata, schema.names)
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


def tasks_of(files: Sequence[DataFile]) -> list[InputPartition]:
    """Group `files` into tasks of about equal size."""
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
    """Return whether an option holds a secret of the object store."""
    in_text = text if name.startswith(_STORAGE) else ""
    return name != "path" and is_secret(name, in_text)


def _variable(found: re.Match[str]) -> str:
    value = os.environ.get(found[1])
    if value is None:
        raise DeltaError(f"the environment variable {found[1]} isn't set")
    return value
