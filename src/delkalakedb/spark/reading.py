"""Reading a table through Spark."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.errors import DeltaError
from delkalakedb.spark.frames import LIST_COLUMNS, frame
from delkalakedb.spark.schemas import quoted
from delkalakedb.spark.session import check_spark
from delkalakedb.spark.target import Target, pruning
from delkalakedb.table.opened import open_catalog
from delkalakedb.uri import parse_uri, require_table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

__all__ = ["load_snapshot", "read", "read_snapshot"]


def read(
    spark: "SparkSession",
    uri: str,
    where: "str | Column | None" = None,
    version: int | None = None,
    timestamp: str | datetime | date | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> "DataFrame":
    """The rows of a table at one version, which the DataFrame stays at.

    Args:
        spark: the session.
        uri: a `deltasql://` URI with a table.
        where: only rows that match. A text in Spark's SQL is first of all planned in
            the catalog's, so that no other files are looked at; a Column isn't.
        version: the version; the latest by default.
        timestamp: the newest version that isn't newer than a time; UTC where it names
            no zone.
        columns: only these, in this order.
        storage_options: of the table's store, for what Spark itself can't reach.
    """
    check_spark(spark)
    parsed = parse_uri(uri)
    name = require_table(parsed)
    snapshot = load_snapshot(open_catalog(parsed), name, version, timestamp)
    return read_snapshot(spark, snapshot, where, columns, storage_options)


def read_snapshot(
    spark: "SparkSession",
    snapshot: Snapshot,
    where: "str | Column | None" = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> "DataFrame":
    """The rows of a snapshot that match."""
    predicate = None if where is None else pruning(where, Target(spark, snapshot))
    files = snapshot.files(predicate, columns=LIST_COLUMNS).read_all()
    if where is None:
        return frame(
            spark, snapshot, files, columns=columns, storage_options=storage_options
        )
    rows = frame(spark, snapshot, files, storage_options=storage_options)
    # A file may hold other rows, too.
    matching = rows.filter(where)
    return matching if columns is None else matching.select(*map(quoted, columns))


def load_snapshot(
    catalog: Catalog,
    name: str,
    version: int | None = None,
    timestamp: str | datetime | date | None = None,
) -> Snapshot:
    """A table at a version or at a time, the latest by default."""
    moment = None if timestamp is None else _milliseconds(timestamp)
    return catalog.snapshot(name, version, timestamp_ms=moment)


def _milliseconds(timestamp: str | datetime | date) -> int:
    try:
        moment = datetime.fromisoformat(str(timestamp))
    except ValueError as error:
        raise DeltaError(f"timestamp {timestamp!r} is no time: {error}") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)
