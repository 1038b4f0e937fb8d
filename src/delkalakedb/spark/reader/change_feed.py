"""The change data feed of a range of versions, as files for Spark to read."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
from pyspark.sql.types import (
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.catalog.read import LoggedCommit
from delkalakedb.errors import DeltaError, SchemaMismatchError, VersionNotFoundError
from delkalakedb.model.actions import Metadata
from delkalakedb.model.changes import (
    CHANGE_TYPE,
    COMMIT_TIMESTAMP,
    COMMIT_VERSION,
    can_read,
)
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.model.times import from_ms, to_micros, to_ms
from delkalakedb.spark.schemas import spark_schema
from delkalakedb.write.engines import DataFile, feed_files

FEED_FIELDS = (
    StructField(CHANGE_TYPE, StringType()),
    StructField(COMMIT_VERSION, LongType()),
    StructField(COMMIT_TIMESTAMP, TimestampType()),
)

_FILES = pa.schema(
    [
        ("path", pa.string()),
        ("partition_values", pa.string()),
        ("size_bytes", pa.int64()),
        ("deletion_vector", pa.string()),
        ("only_rows", pa.string()),
        ("change_type", pa.string()),
        ("commit_version", pa.int64()),
        ("commit_ms", pa.int64()),
    ]
)
Bound = int | datetime | None


@dataclass(frozen=True)
class ChangeFeed:
    """The changes of the versions from `first` to `last`, in the schema of `snapshot`.

    There are no changes if `last` is before `first`.
    """

    catalog: Catalog
    snapshot: Snapshot
    first: int
    last: int

    @property
    def table(self) -> pa.Table:
        """The files with changed rows, in the order of the versions."""
        files = list(self.files())
        columns = {
            name: [getattr(file, name) for file in files] for name in _FILES.names
        }
        return pa.table(columns, _FILES)

    def files(self) -> Iterator[DataFile]:
        """Yield the files with changed rows, in the order of the versions."""
        name = self.snapshot.table.name
        log = self.catalog.log(name, self.snapshot.identity)
        for commit in log.commits(self.first, self.last):
            head = commit.head
            check_recorded(name, head.metadata, head.version, self.first, self.last)
            check_schema(name, commit, self.snapshot.metadata, since=self.first)
            yield from feed_files(self.catalog, name, commit)


_REMEDY = (
    "If the table has a change data feed, its history shows when the feed was enabled; "
    "otherwise set delta.enableChangeDataFeed=true to record changes from now on"
)


def open_feed(
    catalog: Catalog,
    name: str,
    since: Bound,
    until: Bound = None,
    version: int | None = None,
) -> ChangeFeed:
    """Return the changes of a range, which includes both ends.

    Args:
        catalog: the catalog.
        name: the table.
        since: the first version, or a time before which no version was committed.
        until: the last version, or the time of the last version; by default the latest.
            A later version or time means the latest.
        version: the latest version to consider.
    """
    latest = catalog.snapshot(name, version)
    first = _first(catalog, latest, since)
    last = _last(catalog, latest, until)
    if last < first:
        times = isinstance(since, datetime) and isinstance(until, datetime)
        # Two times may lie between the same two versions.
        if not times or since > until or last < first - 1:  # type: ignore[operator]
            raise DeltaError(
                f"{name}: CDC range from start {first} to end {last} was invalid. End "
                "cannot be before start."
            )
    of = latest if last < first else snapshot_of(catalog, latest, until)
    return ChangeFeed(catalog, of, first, last)


def snapshot_of(catalog: Catalog, latest: Snapshot, until: Bound) -> Snapshot:
    """Return the version whose schema changed rows have.

    As in Delta Spark, it is the last version of the range if the table has column
    mapping, because columns may be renamed later, and otherwise the latest version.
    """
    if parse_properties(latest.metadata).column_mapping_mode == "none":
        return latest
    last = _last(catalog, latest, until)
    return catalog.snapshot(latest.table.name, last, identity=latest.identity)


def check_recorded(
    name: str, metadata: Metadata, version: int, first: int, last: int
) -> None:
    """Raise `VersionNotFoundError` if the feed was off at `version`."""
    if not parse_properties(metadata).enable_change_data_feed:
        raise VersionNotFoundError(
            f"{name}: Error getting change data for range [{first} , {last}] as change "
            f"data was not recorded for version [{version}]. {_REMEDY}"
        )


def version_since(catalog: Catalog, latest: Snapshot, moment: datetime) -> int:
    """Return the first version that isn't older than a time."""
    name = latest.table.name
    before_ms = -(-to_micros(moment) // 1000) - 1
    log = catalog.log(name, latest.identity)
    try:
        found = log.version_at(before_ms) + 1
    except VersionNotFoundError:
        return log.head(latest.version).first_version
    if found > latest.version:
        newest = from_ms(latest.table.timestamp_ms)
        raise VersionNotFoundError(
            f"{name}: Timestamp {moment} is after the table's latest version "
            f"({newest}). Use a timestamp at or before {newest}."
        )
    return found


def feed_schema(metadata: Metadata, columns: list[str] | None = None) -> StructType:
    """Return the schema of changed rows, limited to `columns` if given."""
    if columns is None:
        return StructType([*spark_schema(metadata).fields, *FEED_FIELDS])
    own = {field.name: field for field in FEED_FIELDS}
    return StructType(
        [
            own[name] if name in own else spark_schema(metadata, [name])[0]
            for name in columns
        ]
    )


def check_schema(name: str, commit: LoggedCommit, wanted: Metadata, since: int) -> None:
    """Raise `SchemaMismatchError` if rows of the commit don't fit a schema."""
    first = commit.head.version == since
    if not first and not any(isinstance(a, Metadata) for a in commit.actions):
        return
    now = commit.head.metadata
    columns = (parse_schema(m.schema_string).fields for m in (wanted, now))
    if can_read(*columns) and now.partition_columns == wanted.partition_columns:
        return
    raise SchemaMismatchError(
        f"{name}: the changes of version {commit.head.version} don't fit the schema "
        "in which they are read, because columns were dropped, renamed or changed "
        "later; end the range before that change"
    )


def _first(catalog: Catalog, latest: Snapshot, since: Bound) -> int:
    name = latest.table.name
    if since is None:
        raise DeltaError(
            f"{name}: No startingVersion or startingTimestamp provided for CDC read."
        )
    if isinstance(since, datetime):
        return version_since(catalog, latest, since)
    if since > latest.version:
        raise VersionNotFoundError(
            f"{name}: changes can't start at version {since}: the latest version is "
            f"{latest.version}"
        )
    return since


def _last(catalog: Catalog, latest: Snapshot, until: Bound) -> int:
    if until is None:
        return latest.version
    if isinstance(until, datetime):
        log = catalog.log(latest.table.name, latest.identity)
        until = log.version_at(to_ms(until))
    return min(until, latest.version)
