"""The change data feed, read by Spark: row for row what delta-rs reads."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import DeltaError, SchemaMismatchError, VersionNotFoundError
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.spark.reader.source import load_schema
from delkalakedb.spark.stream import StreamReader
from tests.support.actions import remove
from tests.support.lakes import Lake

FEED = {"delta.enableChangeDataFeed": "true"}
SPAN = ["_change_type", "_commit_version", "_commit_timestamp"]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"deltasql://sqlite/{tmp_path}/meta.db?table=t"


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        yield Lake(catalog, tmp_path)


def uri_of(lake: Lake) -> str:
    return format_uri(lake.catalog.uri.with_table(lake.name))


def source(spark: SparkSession, uri: str, **options: Any) -> DataFrame:
    reader = spark.read.format("deltasql").option("readChangeFeed", "TRUE")
    return reader.options(**options).load(uri)


def counted(rows: DataFrame | pa.Table) -> Counter[str]:
    """The rows, without the times of their commits."""
    table = rows if isinstance(rows, pa.Table) else rows.toArrow()
    found = table.drop_columns(SPAN[2]).to_pylist()
    return Counter(str(sorted(row.items())) for row in found)


def by_delta_rs(uri: str, first: int, last: int | None = None) -> Counter[str]:
    feed = dk.DeltaTable(uri).load_cdf(starting_version=first, ending_version=last)
    return counted(pa.table(feed))


def times_of(uri: str) -> list[datetime]:
    """When each version was committed."""
    with dk.connect(uri) as catalog:
        commits = catalog.snapshot(str(parse_uri(uri).table)).history()
    return [datetime.fromtimestamp(c.timestamp_ms / 1000, UTC) for c in commits][::-1]


def short(rows: DataFrame, *columns: str) -> list[Any]:
    found = rows.select(*SPAN[:2], *columns).collect()
    return sorted((tuple(row) for row in found), key=str)


def test_feed_of_every_operation_is_what_delta_rs_reads_by_both_readers(
    spark: SparkSession, uri: str
) -> None:
    ids = range(20)
    data = {"id": ids, "p": [f"p{i % 3}" for i in ids], "v": [2 * i for i in ids]}
    rows = spark.createDataFrame(pa.table(data))
    dk.write_deltalake(uri, pa.table(data), partition_by="p", configuration=FEED)
    table = dk.DeltaTable(uri)
    table.update(predicate="id < 5", updates={"v": "v + 1"})
    table.delete("id > 15")
    table.delete("p = 'p1'")
    merge = (
        dks.DeltaTable.forUri(spark, uri)
        .alias("t")
        .merge(rows.where("id > 10").alias("s"), "t.id = s.id AND t.p = s.p")
    )
    merge.whenMatchedDelete("s.id = 12").whenMatchedUpdateAll().execute()
    dk.write_deltalake(uri, pa.table(data), mode="append")
    dk.DeltaTable(uri).optimize.compact()
    dks.write(rows.where("id < 3"), uri, "overwrite", replace_where="id < 3")
    dk.DeltaTable(uri).restore(2)
    dk.write_deltalake(uri, pa.table(data), mode="overwrite")
    last = dk.DeltaTable(uri).version()
    at = times_of(uri)

    found = dks.read(spark, uri, changes_from=0)

    assert found.columns == ["id", "p", "v", *SPAN]
    assert counted(found) == by_delta_rs(uri, 0)
    assert counted(source(spark, uri, startingVersion=0)) == by_delta_rs(uri, 0)
    times = found.select(*SPAN[1:]).distinct().toArrow().to_pydict()
    said = dict(zip(*map(times.get, SPAN[1:]), strict=True))
    assert said == {v: at[v] for v in range(last + 1) if v != 6}
    some = dks.read(spark, uri, changes_from=last, changes_to=99)
    assert counted(some) == by_delta_rs(uri, last)
    some = dks.read(spark, uri, changes_from=at[3], changes_to=str(at[7]))
    assert counted(some) == by_delta_rs(uri, 3, 7)
    between = {"startingTimestamp": at[3], "endingTimestamp": at[7]}
    texts = {name: moment.isoformat() for name, moment in between.items()}
    chosen = source(spark, uri, **texts, columns=f"v, {SPAN[0]}", where="id < 3")
    wanted = some.where("id < 3").select("v", SPAN[0])
    assert Counter(chosen.collect()) == Counter(wanted.collect())
    where = dks.read(
        spark, uri, "p = 'p2'", columns=["v"], changes_from=3, changes_to=7
    )
    assert Counter(where.collect()) == Counter(
        some.where("p = 'p2'").select("v").collect()
    )
    within = at[7].replace(microsecond=at[7].microsecond + 1)
    empty = dks.read(spark, uri, changes_from=within, changes_to=within)
    assert empty.count() == 0


@pytest.mark.parametrize("kind", ["name", "id", "vectors"])
def test_feed_of_mapped_columns_and_deletion_vectors(
    spark: SparkSession, lake: Lake, kind: str
) -> None:
    configuration = dict(FEED)
    features = ["changeDataFeed"]
    if kind != "vectors":
        lake.map_columns(**{"id": "col-1", "City Name": "col-2"})
        features.append("columnMapping")
        configuration["delta.columnMapping.mode"] = kind
        configuration["delta.columnMapping.maxColumnId"] = "2"
    features.append("deletionVectors")
    configuration["delta.enableDeletionVectors"] = "true"
    schema = pa.schema([("id", pa.int64()), ("City Name", pa.string())])
    names = schema.names
    lake.create(
        schema,
        partitions=names[1:],
        features=features,
        configuration=configuration,
    )
    city = {"City Name": "a b"}
    file = lake.file({"id": [1, 2, 3, 4], "City Name": ["a b"] * 4}, **city)
    other = lake.file({"id": [5], "City Name": [None]}, **{"City Name": None})
    lake.commit(file, other)
    gone, first = lake.without(file, 1)
    lake.commit(gone, first)
    gone, second = lake.without(file, 1, 2)
    lake.commit(_removing(gone, first), second)
    lake.commit(_removing(gone, second), file)
    lake.commit(remove(file), remove(other))
    uri = uri_of(lake)

    for found in (
        dks.read(spark, uri, changes_from=0),
        source(spark, uri, startingVersion=0),
    ):
        assert short(found, *(f"`{name}`" for name in names)) == [
            ("delete", 2, 2, "a b"),
            ("delete", 3, 3, "a b"),
            ("delete", 5, 1, "a b"),
            ("delete", 5, 2, "a b"),
            ("delete", 5, 3, "a b"),
            ("delete", 5, 4, "a b"),
            ("delete", 5, 5, None),
            ("insert", 1, 1, "a b"),
            ("insert", 1, 2, "a b"),
            ("insert", 1, 3, "a b"),
            ("insert", 1, 4, "a b"),
            ("insert", 1, 5, None),
            ("insert", 4, 2, "a b"),
            ("insert", 4, 3, "a b"),
        ]


def _removing(gone: Any, file: Any) -> Any:
    """The remove of a file as it is in the table now."""
    return msgspec.structs.replace(gone, deletion_vector=file.deletion_vector)


def refused(spark: SparkSession, uri: str, **bounds: Any) -> str:
    """What `read` says, as an error of delta-spark and of this package."""
    with pytest.raises(AnalysisException) as error:
        dks.read(spark, uri, **bounds)
    assert isinstance(error.value, VersionNotFoundError)
    return str(error.value)


def test_ranges_without_changes_are_refused_as_by_delta_spark(
    spark: SparkSession, uri: str
) -> None:
    start = pa.table({"x": [1]})
    dk.write_deltalake(uri, start)
    dk.DeltaTable(uri).alter.set_table_properties(FEED)
    dk.write_deltalake(uri, start, mode="append")
    more = pa.table({"x": [2], "y": ["new"]})
    dk.write_deltalake(uri, more, mode="append", schema_mode="merge")
    dk.DeltaTable(uri).alter.set_table_properties(
        {"delta.enableChangeDataFeed": "false"}
    )
    at = times_of(uri)

    said = refused(spark, uri, changes_from=0, changes_to=2)
    assert "change data was not recorded for version [0]" in said
    said = refused(spark, uri, changes_from=2)
    assert "for range [2 , 4] as change data was not recorded for version [4]" in said
    assert "can't start at version 5" in refused(spark, uri, changes_from=5)
    late = at[4] + timedelta(seconds=1)
    assert "after the table's latest version" in refused(spark, uri, changes_from=late)
    some = dks.read(spark, uri, changes_from=2, changes_to=3)
    assert short(some, "x", "y") == [("insert", 2, 1, None), ("insert", 3, 2, "new")]
    with pytest.raises(DeltaError, match="from start 3 to end 2 was invalid"):
        dks.read(spark, uri, changes_from=3, changes_to=2)
    with pytest.raises(DeltaError, match="No startingVersion or startingTimestamp"):
        dks.read(spark, uri, changes_to=2)
    with pytest.raises(DeltaError, match="give changes_to instead of version"):
        dks.read(spark, uri, version=3, changes_from=2)
    for given, message in (
        ({"startingVersion": 0}, r"not recorded for version \[0\]"),
        ({}, "No startingVersion"),
        ({"startingVersion": 2, "startingTimestamp": "x"}, "only one of"),
        ({"startingVersion": 2, "versionAsOf": 2}, "takes no versionAsOf"),
        ({"startingVersion": 2, "readChangeFeed": "false"}, "need readChangeFeed=true"),
        ({"startingVersion": 2, "readChangeFeed": "yes"}, "true or false, not 'yes'"),
    ):
        with pytest.raises(AnalysisException, match=message):
            source(spark, uri, **given).count()
    dk.DeltaTable(uri).alter.set_table_properties(FEED)
    narrow = pa.table({"x": ["text"]})
    dk.write_deltalake(uri, narrow, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(SchemaMismatchError, match="version 5 don't fit the schema"):
        dks.read(spark, uri, changes_from=5)


def test_stream_of_changes_starts_with_the_table_and_keeps_updates_whole(
    spark: SparkSession, uri: str, tmp_path: Path
) -> None:
    rows = spark.range(4).selectExpr("id", "id AS v").repartition(2)
    dks.write(rows, uri, configuration=FEED)
    inserted = [("insert", 0, i, i) for i in range(4)]
    stream = Stream(uri, maxFilesPerTrigger=1)
    assert [len(batch) for batch in stream.batches()] == [2, 2]
    table = dks.DeltaTable.forUri(spark, uri)
    table.update("id < 2", {"v": "9"})
    dk.DeltaTable(uri).delete("id = 2")
    updated = [(f"update_{kind}image", 1, i, v) for kind, i, v in IMAGES]

    assert list(stream.batches()) == [updated, [("delete", 2, 2, 2)]]
    reader = spark.readStream.format("deltasql").option("readChangeFeed", "true")
    begins = times_of(uri)[1].isoformat()
    query = reader.option("startingTimestamp", begins).load(uri).writeStream
    query = query.option("checkpointLocation", f"{tmp_path}/checkpoint")
    query = query.trigger(availableNow=True).format("parquet")
    query.start(f"{tmp_path}/changes").awaitTermination()
    found = spark.read.parquet(f"{tmp_path}/changes")
    assert short(found, "id", "v") == [("delete", 2, 2, 2), *updated]
    found = Stream(uri, startingVersion=0, maxBytesPerTrigger="1k").batches()
    assert sorted(chain.from_iterable(found)) == sorted(
        [*inserted, ("delete", 2, 2, 2), *updated]
    )


IMAGES = (("post", 0, 9), ("post", 1, 9), ("pre", 0, 0), ("pre", 1, 1))


class Stream:
    """The source of a stream of changes, as Spark's process has it."""

    def __init__(self, uri: str, **options: Any) -> None:
        given = {name.lower(): str(value) for name, value in options.items()}
        self.options = {"path": uri, "readchangefeed": "true", **given}
        version, schema = load_schema(self.options)
        self.reader = StreamReader(self.options, schema, version)
        self.offset = self.reader.initialOffset()

    def batches(self) -> Iterator[list[Any]]:
        """The sorted changes of each batch."""
        limit = self.reader.getDefaultReadLimit()
        while True:
            end = self.reader.latestOffset(self.offset, limit)
            if end == self.offset:
                return
            tasks = self.reader.partitions(self.offset, end)
            rows = [
                r for t in tasks for b in self.reader.read(t) for r in b.to_pylist()
            ]
            self.offset = end
            columns = (*SPAN[:2], "id", "v")
            yield sorted(tuple(row[name] for name in columns) for row in rows)
