"""Tables on an object store for which Spark has no JAR: Arrow does it all."""

from collections import Counter
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from delkalakedb import spark as dks
from delkalakedb.errors import DeltaError
from delkalakedb.spark.session import can_reach
from delkalakedb.storage import open_store
from tests.support.servers.stores import Place


@pytest.fixture
def uri(tmp_path: Path, s3: Place) -> str:
    return f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={s3.location}"


@pytest.fixture
def shown(s3: Place) -> dict[str, str]:
    """The store's options as those of a data source, without its secrets."""
    secrets = {
        "AWS_ACCESS_KEY_ID": "${DELKALAKEDB_TEST_S3_KEY}",
        "AWS_SECRET_ACCESS_KEY": "${DELKALAKEDB_TEST_S3_SECRET}",
    }
    return {f"storage.{k}": v for k, v in (s3.storage_options | secrets).items()}


def judged(s3: Place) -> dict[int, str | None]:
    """The rows as delta-rs has them, by id."""
    table = deltalake.DeltaTable(s3.location, storage_options=s3.storage_options)
    rows = table.to_pyarrow_table().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["p"] for row in rows}


def test_table_api_writes_and_reads_s3_without_a_jar(
    spark: SparkSession, uri: str, s3: Place
) -> None:
    options: Any = {"storage_options": s3.storage_options}
    rows = spark.range(0, 30, 1, 3).selectExpr("id", "concat('p ', id % 3) AS p")
    assert not can_reach(spark, s3.location)

    feed = {"delta.enableChangeDataFeed": "true"}
    dks.write(rows, uri, partition_by="p", configuration=feed, **options)
    table = dks.DeltaTable.forUri(spark, uri, **options).alias("t")
    source = rows.selectExpr("id + 20 AS id", "p").alias("s")
    merge = table.merge(source, "t.id = s.id").whenMatchedDelete()
    merge.whenNotMatchedInsertAll().execute()
    table.update("id = 1", {"p": "null"})
    table.optimize().executeCompaction()

    left = {i: f"p {i % 3}" for i in range(20)}
    added = {i: f"p {(i - 20) % 3}" for i in range(30, 50)}
    wanted = {**left, **added, 1: None}
    assert judged(s3) == wanted
    assert {row.id: row.p for row in table.toDF().collect()} == wanted
    some = dks.read(spark, uri, where="p = 'p 1' AND id < 20", **options)
    assert sorted(row.id for row in some.collect()) == [4, 7, 10, 13, 16, 19]
    assert dks.read(spark, uri, version=0, **options).count() == 30
    changes = dks.read(spark, uri, changes_from=1, changes_to=2, **options)
    kinds = Counter(row._change_type for row in changes.collect())
    updates = {"update_preimage": 1, "update_postimage": 1}
    assert kinds == {"delete": 10, "insert": 20, **updates}


def test_tables_are_cloned_converted_and_queried_on_s3_without_a_jar(
    spark: SparkSession, tmp_path: Path, s3: Place
) -> None:
    options: Any = {"storage_options": s3.storage_options}
    session = spark.newSession()
    dks.use(session, f"deltasql://sqlite/{tmp_path}/meta.db")

    def sql(text: str) -> list[Any]:
        return dks.sql(session, text, **options).collect()

    sql(f"CREATE TABLE t (id BIGINT, p STRING) LOCATION '{s3.location}/t'")
    sql("INSERT INTO t SELECT id, concat('p', id % 2) FROM range(10)")
    sql(f"CREATE TABLE delta.`{s3.location}/deep` CLONE t")
    sql(f"CREATE TABLE delta.`{s3.location}/shallow` SHALLOW CLONE t")
    sql("DELETE FROM deep WHERE id < 4")
    sql("UPDATE shallow SET p = 'new' WHERE id = 1")
    counts = "SELECT p, count(*) AS n FROM {} GROUP BY p ORDER BY p"
    assert sql(counts.format("t")) == [("p0", 5), ("p1", 5)]
    assert sql(counts.format("deep")) == [("p0", 3), ("p1", 3)]
    assert sql(counts.format("shallow")) == [("new", 1), ("p0", 5), ("p1", 4)]
    sql("OPTIMIZE shallow")
    assert sql("SELECT sum(id) AS s FROM shallow") == [(45,)]
    place = f"{s3.location}/t"
    table = deltalake.DeltaTable(place, storage_options=s3.storage_options)
    assert table.to_pyarrow_table().num_rows == 10


def test_conversion_without_a_jar_says_what_to_do(
    spark: SparkSession, tmp_path: Path, s3: Place
) -> None:
    session = spark.newSession()
    dks.use(session, f"deltasql://sqlite/{tmp_path}/meta.db")
    data = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": [1]}), data)
    # without the options, the folder couldn't even be listed
    store = open_store(s3.location, s3.storage_options)
    store.put("a.parquet", data.getvalue().to_pybytes())

    with pytest.raises(DeltaError, match="add one, or convert the folder"):
        dks.DeltaTable.convertToDelta(
            session, f"parquet.`{s3.location}`", storage_options=s3.storage_options
        )
    with pytest.raises(DeltaError, match="deltasql convert"):
        dks.sql(
            session,
            f"CONVERT TO DELTA parquet.`{s3.location}`",
            storage_options=s3.storage_options,
        )


def test_settings_of_the_session_hold_on_an_object_store(
    spark: SparkSession, uri: str, s3: Place
) -> None:
    settings = {
        "spark.sql.files.maxRecordsPerFile": "4",
        "spark.sql.parquet.compression.codec": "gzip",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        rows = spark.range(0, 10, 1, 1)
        dks.write(rows, uri, storage_options=s3.storage_options)
    finally:
        for name in settings:
            spark.conf.unset(name)

    table = deltalake.DeltaTable(s3.location, storage_options=s3.storage_options)
    counts = pa.table(table.get_add_actions())["num_records"].to_pylist()
    assert sorted(counts) == [2, 4, 4]
    store = open_store(s3.location, s3.storage_options)
    data = [store.get(f.path) for f in store.list() if f.path.endswith(".parquet")]
    footers = [pq.read_metadata(pa.BufferReader(each)) for each in data]
    codecs = {footer.row_group(0).column(0).compression for footer in footers}
    assert codecs == {"GZIP"}


@pytest.mark.since_pyspark("4.0")
def test_data_source_writes_and_reads_s3_without_a_jar(
    spark: SparkSession, uri: str, s3: Place, shown: dict[str, str]
) -> None:
    rows = spark.range(0, 10, 1, 2).selectExpr("id", "string(null) AS p")
    writer = rows.write.format("deltasql").options(**shown)
    writer.mode("append").save(uri)
    writer.mode("overwrite").save(uri)

    found = spark.read.format("deltasql").options(**shown).load(uri)

    assert judged(s3) == dict.fromkeys(range(10))
    assert pa.table(found.toArrow()).num_rows == 10
    files = open_store(s3.location, s3.storage_options).list()
    # A file for each task of each write.
    assert len([f for f in files if f.path.endswith(".parquet")]) == 4
