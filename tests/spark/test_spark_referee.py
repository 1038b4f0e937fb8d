"""Delta Spark itself reads the tables that Spark wrote through us, from their logs."""

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession, functions as sf
from pyspark.sql.types import StringType, StructField, StructType

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.spark.writer.evolution import plain_schema
from tests.support import delta_spark
from tests.support.processes import program

# A driver of its own, and some forty operations before it.
pytestmark = pytest.mark.soak

Make = Callable[[SparkSession, str], None]
FEED = {"delta.enableChangeDataFeed": "true"}
TYPES = """
    SELECT id, CAST(id AS TINYINT) AS tiny, CAST(id AS INT) AS whole,
        id / 3 AS double, CAST(id / 3 AS FLOAT) AS float,
        CAST(id / 7 AS DECIMAL(38, 18)) AS large, CAST(id AS DECIMAL(5, 2)) AS small,
        id % 2 = 0 AS flag, concat('text ', id, ' é') AS text,
        repeat('long', 20 * CAST(id AS INT)) AS long, CAST(id AS STRING) AS `odd-näme`,
        to_binary(hex(id), 'hex') AS data,
        date_add(DATE '1900-01-01', CAST(id * 999 AS INT)) AS day,
        timestamp_micros(id * 123456789012345 - 1) AS ts,
        CAST(timestamp_micros(id * 999) AS TIMESTAMP_NTZ) AS local,
        named_struct('a', id, 'b', named_struct('c', 'x')) AS nested,
        array(id, NULL, 3) AS list, map('k', id, 'l', NULL) AS map
    FROM range(5)
    UNION ALL SELECT NULL, NULL, NULL, double('NaN'), float('-Infinity'), NULL, NULL,
        NULL, '', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
"""
ODD = ["a b", "50%", "é/ü", "x=y", "a:b", "q'?#", "", None, "%20", "__HIVE"]


def make_types(spark: SparkSession, uri: str) -> None:
    dks.write(spark.sql(TYPES), uri)


def make_partitions(spark: SparkSession, uri: str) -> None:
    rows = [(i, text, i % 2 == 0) for i, text in enumerate(ODD)]
    df = spark.createDataFrame(rows, "id BIGINT, text STRING, even BOOLEAN")
    days = sf.expr(
        "IF(id % 3 = 0, NULL, date_add(DATE '2026-01-01', CAST(id % 3 AS INT)))"
    )
    times = sf.expr("timestamp_micros(id % 2 * 1000001)")
    df = df.withColumns(
        {"day": days, "ts": times, "n": sf.expr("CAST(id % 2 AS DECIMAL(3,1))")}
    )
    dks.write(df, uri, partition_by=["text", "even", "day", "ts", "n"])


def make_merged(spark: SparkSession, uri: str) -> None:
    dks.write(numbers(spark, 0, 100), uri, partition_by="p", configuration=FEED)
    table = dks.DeltaTable.forUri(spark, uri).alias("t")
    merge = table.merge(numbers(spark, 50, 150).alias("s"), "t.id = s.id AND t.p = s.p")
    (
        merge.whenMatchedDelete("s.id % 10 = 0")
        .whenMatchedUpdate(set={"v": "s.v + t.v"})
        .whenNotMatchedInsertAll()
        .whenNotMatchedBySourceUpdate("t.id < 5", {"v": "-1"})
        .execute()
    )
    table.update("id = 7", {"v": "v + 1"})
    table.delete("id > 140")
    table.delete("p = 2")


def make_marked(spark: SparkSession, uri: str) -> None:
    vectors = {"delta.enableDeletionVectors": "true"}
    rows = numbers(spark, 0, 2000).repartitionByRange(2, "id")
    dks.write(rows, uri, partition_by="p", configuration=vectors)
    table = dks.DeltaTable.forUri(spark, uri).alias("t")
    table.delete("id % 100 = 7")
    table.update("id % 100 = 8", {"v": "-1"})
    merge = table.merge(numbers(spark, 1950, 2050).alias("s"), "t.id = s.id")
    (
        merge.whenMatchedDelete("s.id % 10 = 0")
        .whenMatchedUpdate(set={"v": "s.v + 100"})
        .whenNotMatchedInsertAll()
        .whenNotMatchedBySourceUpdate("t.id < 5", {"v": "-2"})
        .execute()
    )


def make_evolved(spark: SparkSession, uri: str) -> None:
    dks.write(numbers(spark, 0, 10), uri)
    wider = numbers(spark, 10, 20).withColumn("more", sf.struct(sf.lit(1).alias("a")))
    dks.write(wider, uri, merge_schema=True)
    table = dks.DeltaTable.forUri(spark, uri).alias("t")
    source = numbers(spark, 15, 25).withColumn("last", sf.lit("x")).alias("s")
    merge = table.merge(source, "t.id = s.id").withSchemaEvolution()
    merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()


def make_overwritten(spark: SparkSession, uri: str) -> None:
    dks.write(numbers(spark, 0, 30), uri, partition_by="p")
    dks.write(numbers(spark, 30, 60), uri, mode="overwrite", user_metadata="again")
    some = numbers(spark, 60, 90).where("p = 1")
    dks.write(some, uri, mode="overwrite", replace_where="p = 1")
    dks.write(
        numbers(spark, 0, 9).where("v < 4"), uri, "overwrite", replace_where="v < 4"
    )
    renamed = numbers(spark, 0, 5).withColumnRenamed("v", "w")
    dks.write(renamed, uri, mode="overwrite", overwrite_schema=True, partition_by=["w"])


def make_optimized(spark: SparkSession, uri: str) -> None:
    for first in range(0, 40, 10):
        dks.write(numbers(spark, first, first + 10), uri, partition_by="p")
    table = dks.DeltaTable.forUri(spark, uri)
    table.optimize().where("p = 1").executeCompaction()
    table.optimize().executeZOrderBy("v", "id")


def make_checkpointed(spark: SparkSession, uri: str) -> None:
    every = {"delta.checkpointInterval": "2"}
    for first in range(5):
        configuration = None if first else every
        df = spark.sql(TYPES).withColumn("p", sf.lit(f"{first} %"))
        dks.write(df, uri, partition_by="p", configuration=configuration)
    dks.DeltaTable.forUri(spark, uri).delete("id = 2")


def make_constrained(spark: SparkSession, uri: str) -> None:
    (
        dks.DeltaTable.create(spark, uri)
        .addColumn("id", "BIGINT", nullable=False, comment="the key")
        .addColumn("v", "BIGINT")
        .addColumn("p", "BIGINT", generatedAlwaysAs="id % 3")
        .comment("rules")
        .property("delta.appendOnly", "true")
        .execute()
    )
    dks.write(numbers(spark, 0, 10).drop("p"), uri)


def make_clustered(spark: SparkSession, uri: str) -> None:
    builder = dks.DeltaTable.create(spark, uri).addColumns(numbers(spark, 0, 1).schema)
    table = builder.clusterBy("v", "id").execute()
    for first in (0, 10):
        dks.write(numbers(spark, first, first + 10), uri)
        table.optimize().executeCompaction()


def make_numbered(spark: SparkSession, uri: str) -> None:
    default = StructField("w", StringType(), True, {"CURRENT_DEFAULT": "'none'"})
    identity = dks.IdentityGenerator(10, -5)
    (
        dks.DeltaTable.create(spark, uri)
        .addColumn("number", "BIGINT", generatedAlwaysAs=identity)
        .addColumn("id", "BIGINT")
        .addColumns([default])
        .execute()
    )
    dks.write(spark.range(10).repartition(3), uri)
    table = dks.DeltaTable.forUri(spark, uri).alias("t")
    merge = table.merge(spark.range(5, 15).alias("s"), "t.id = s.id")
    merge.whenMatchedUpdate(set={"w": "'met'"}).whenNotMatchedInsertAll().execute()


def make_cloned_deep(spark: SparkSession, uri: str) -> None:
    _cloned(spark, uri, shallow=False)


def make_cloned_shallow(spark: SparkSession, uri: str) -> None:
    _cloned(spark, uri, shallow=True)


def _cloned(spark: SparkSession, uri: str, *, shallow: bool) -> None:
    source = dks.DeltaTable.forUri(spark, _written(spark, f"{uri}_source"))
    clone = source.cloneAtVersion(1, uri, isShallow=shallow)
    clone.delete("id = 3")
    dks.write(numbers(spark, 50, 60), uri)


def _written(spark: SparkSession, uri: str) -> str:
    for first in (0, 10, 20):
        dks.write(numbers(spark, first, first + 10), uri, partition_by="p")
    return uri


def make_converted(spark: SparkSession, uri: str) -> None:
    catalog, _, name = uri.partition("?table=")
    folder = Path(catalog.partition("//sqlite/")[2]).parent / name
    rows = numbers(spark, 0, 20).withColumn("text", sf.lit("x %"))
    rows.write.partitionBy("text", "p").parquet(str(folder))
    own = spark.newSession()
    dks.use(own, catalog)
    parts = "text STRING, p BIGINT"
    table = dks.DeltaTable.convertToDelta(own, f"parquet.`{folder}`", parts)
    table.update("id = 3", {"v": "-1"})


def make_streamed(spark: SparkSession, uri: str) -> None:
    source, state = (
        f"{uri}_source",
        Path(uri.partition("//sqlite/")[2]).parent / "state",
    )
    for first in (0, 10):
        dks.write(numbers(spark, first, first + 10), source)
    for sink in (_by_format, _by_batch):
        stream = spark.readStream.format("deltasql").load(source)
        sink(stream, uri, state / sink.__name__)


def _by_format(stream: DataFrame, uri: str, state: Path) -> None:
    writer = stream.writeStream.format("deltasql").option("path", uri)
    writer = writer.option("checkpointLocation", str(state))
    writer.trigger(availableNow=True).start().awaitTermination()


def _by_batch(stream: DataFrame, uri: str, state: Path) -> None:
    writer = stream.writeStream.foreachBatch(dks.foreach_batch(uri))
    writer = writer.option("checkpointLocation", str(state))
    writer.trigger(availableNow=True).start().awaitTermination()


def numbers(spark: SparkSession, first: int, end: int) -> DataFrame:
    return spark.range(first, end).selectExpr("id", "id % 7 AS v", "id % 3 AS p")


MAKERS: dict[str, Make] = {
    name.removeprefix("make_"): make
    for name, make in globals().copy().items()
    if name.startswith("make_")
}


@dataclass(frozen=True)
class Verdict:
    """A table, and what Delta Spark says of it."""

    uri: str
    told: Path

    def json(self, name: str) -> Any:
        return json.loads((self.told / f"{name}.json").read_text())


@pytest.fixture(scope="module")
def verdicts(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Verdict]:
    """Tables of every kind, each read by Delta Spark in a driver of its own."""
    folder = tmp_path_factory.mktemp("referee")
    try:
        jars = delta_spark.find_jars(folder / "jars")
    except delta_spark.UnavailableError as error:
        pytest.skip(str(error))
    uris, tables = {}, {}
    for name, make in MAKERS.items():
        uris[name] = f"deltasql://sqlite/{folder}/meta.db?table={name}"
        make(spark, uris[name])
        location = dk.DeltaTable(uris[name]).table_uri.removeprefix("file://")
        tables[name] = {"location": location, "fed": name == "merged"}
    given = [",".join(map(str, jars)), json.dumps(tables), str(folder / "told")]
    command = program("referee_worker", *given)
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return {n: Verdict(uri, folder / "told" / n) for n, uri in uris.items()}


def texts(df: DataFrame) -> list[str]:
    return sorted(map(repr, df.collect()))


@pytest.mark.parametrize("name", MAKERS)
def test_delta_spark_reads_the_same_rows_and_schema(
    spark: SparkSession, verdicts: Mapping[str, Verdict], name: str
) -> None:
    verdict = verdicts[name]
    ours = dks.read(spark, verdict.uri)
    # Ours may all be null, like those of every other file source.
    assert ours.schema == plain_schema(StructType.fromJson(verdict.json("schema")))
    told = texts(spark.read.parquet(str(verdict.told / "rows")))
    assert told
    assert texts(ours) == told


def told_of(df: DataFrame) -> list[dict[str, Any]]:
    return stripped(json.loads(line) for line in df.toJSON().collect())


def stripped(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without what is nothing, and what the catalog alone has or writes otherwise."""
    odd = ("userName", "name", "location")
    return [{k: v for k, v in row.items() if v and k not in odd} for row in rows]


@pytest.mark.parametrize("name", MAKERS)
def test_delta_spark_tells_the_same_history_and_detail(
    spark: SparkSession, verdicts: Mapping[str, Verdict], name: str
) -> None:
    verdict = verdicts[name]
    table = dks.DeltaTable.forUri(spark, verdict.uri)
    assert told_of(table.history()) == stripped(verdict.json("history"))
    assert told_of(table.detail()) == stripped(verdict.json("detail"))


def test_delta_spark_tells_the_same_changes(
    spark: SparkSession, verdicts: Mapping[str, Verdict]
) -> None:
    verdict = verdicts["merged"]
    theirs = spark.read.parquet(str(verdict.told / "changes"))
    feed = dk.DeltaTable(verdict.uri).load_cdf(starting_version=0)
    columns = ["id", "v", "p", "_change_type", "_commit_version"]
    ours = pa.table(feed.read_all()).select(columns).to_pylist()
    told = (row.asDict() for row in theirs.select(*columns).collect())
    assert sorted(map(repr, ours)) == sorted(map(repr, told))


def test_checkpointed_table_has_a_checkpoint(verdicts: Mapping[str, Verdict]) -> None:
    location = dk.DeltaTable(verdicts["checkpointed"].uri).table_uri
    log = Path(location.removeprefix("file://")) / "_delta_log"
    assert (log / "_last_checkpoint").exists()
