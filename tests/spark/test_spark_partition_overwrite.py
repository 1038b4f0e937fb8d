"""Overwrites heed `partitionOverwriteMode` as Delta Spark does."""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import CommitFailedError, DeltaError
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.mapped_tables import make

SETTING = "spark.sql.sources.partitionOverwriteMode"
ENABLED = "spark.databricks.delta.dynamicPartitionOverwrite.enabled"
Rows = list[tuple[int, str | None]]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table that isn't there yet."""
    return f"deltasql://sqlite/{tmp_path}/meta.db?table=t"


@pytest.fixture
def dynamic(spark: SparkSession) -> Iterator[None]:
    """The session's setting says dynamic."""
    spark.conf.set(SETTING, "dynamic")
    yield
    spark.conf.unset(SETTING)


def frame(spark: SparkSession, *rows: tuple[int, str | None]) -> DataFrame:
    return spark.createDataFrame(list(rows), "id long, p string")


def start(spark: SparkSession, uri: str, **options: Any) -> None:
    """Two files in `a`, one in `b`, one where p is null."""
    rows = frame(spark, (1, "a"), (2, "b"), (3, None)).coalesce(1)
    dks.write(rows, uri, partition_by="p", **options)
    dks.write(frame(spark, (4, "a")), uri)


def rows(uri: str) -> Rows:
    """The rows that plain deltalake reads."""
    assert dk.verify(uri, deep=True).ok
    table = deltalake.DeltaTable(dk.DeltaTable(uri).table_uri).to_pyarrow_table()
    found = zip(table["id"].to_pylist(), table["p"].to_pylist(), strict=True)
    return sorted(found, key=repr)


def save(df: DataFrame, uri: str, mode: str = "overwrite", **options: str) -> None:
    df.write.format("deltasql").mode(mode).options(**options).save(uri)


@pytest.mark.usefixtures("dynamic")
def test_setting_of_the_session_keeps_partitions_without_new_rows(
    spark: SparkSession, catalog_uri: str
) -> None:
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    start(spark, uri)

    dks.write(frame(spark, (9, "a"), (8, "new")), uri, "overwrite")

    assert rows(uri) == [(2, "b"), (3, None), (8, "new"), (9, "a")]
    commit = dk.DeltaTable(uri).history(1)[0]
    assert commit["operationParameters"]["isDynamicPartitionOverwrite"] is True
    assert commit["operationMetrics"]["numRemovedFiles"] == "2"
    dks.write(frame(spark, (7, None)), uri, "overwrite")
    assert rows(uri) == [(2, "b"), (7, None), (8, "new"), (9, "a")]
    dks.write(frame(spark), uri, "overwrite")
    assert len(rows(uri)) == 4


@pytest.mark.since_pyspark("4.0")
@pytest.mark.usefixtures("dynamic")
def test_data_source_and_transaction_heed_the_setting_too(
    spark: SparkSession, uri: str
) -> None:
    start(spark, uri)

    save(frame(spark, (9, "a")), uri)
    assert rows(uri) == [(2, "b"), (3, None), (9, "a")]
    save(frame(spark, (10, "a")), uri, "append")
    save(frame(spark), uri)
    assert len(rows(uri)) == 4
    with dk.transaction(parse_uri(uri).catalog) as tx:
        tx.write("t", frame(spark, (11, "b")), "overwrite")
        tx.write("t", frame(spark, (12, "b"), (13, "c")), "overwrite")
    assert rows(uri) == [(10, "a"), (12, "b"), (13, "c"), (3, None), (9, "a")]
    save(frame(spark, (1, "z")), uri, partitionOverwriteMode="STATIC")
    assert rows(uri) == [(1, "z")]


@pytest.mark.since_pyspark("4.0")
def test_option_beats_the_setting(spark: SparkSession, uri: str, dynamic: None) -> None:
    start(spark, uri)

    dks.write(
        frame(spark, (5, "a")), uri, "overwrite", partition_overwrite_mode="Static"
    )
    assert rows(uri) == [(5, "a")]
    spark.conf.unset(SETTING)
    dks.write(
        frame(spark, (6, "b")), uri, "overwrite", partition_overwrite_mode="DYNAMIC"
    )
    assert rows(uri) == [(5, "a"), (6, "b")]
    save(frame(spark, (7, "b")), uri, partitionOverwriteMode="dynamic")
    assert rows(uri) == [(5, "a"), (7, "b")]
    dks.write(frame(spark, (8, "c")), uri, "overwrite")
    assert rows(uri) == [(8, "c")]


@pytest.mark.since_pyspark("4.0")
@pytest.mark.usefixtures("dynamic")
def test_options_that_contradict_each_other_are_refused_as_by_delta_spark(
    spark: SparkSession, uri: str
) -> None:
    start(spark, uri)
    some = frame(spark, (9, "a"))

    with pytest.raises(DeltaError, match="contradict each other"):
        dks.write(
            some,
            uri,
            "overwrite",
            replace_where="p = 'a'",
            partition_overwrite_mode="dynamic",
        )
    with pytest.raises(DeltaError, match="overwrite_schema can't be used"):
        dks.write(some, uri, "overwrite", overwrite_schema=True)
    with pytest.raises(DeltaError, match="must be 'static' or 'dynamic'"):
        dks.write(some, uri, "overwrite", partition_overwrite_mode="both")
    with pytest.raises(Exception, match="must be 'static' or 'dynamic'"):
        save(some, uri, partitionOverwriteMode="both")
    assert dk.DeltaTable(uri).version() == 1
    # The setting alone is ignored: the condition is of this write.
    dks.write(frame(spark, (0, "a")), uri, "overwrite", replace_where="id < 4")
    assert rows(uri) == [(0, "a"), (4, "a")]
    flat = format_uri(parse_uri(uri).with_table("flat"))
    dks.write(some, flat)
    dks.write(frame(spark, (1, "b")), flat, "overwrite")
    assert rows(flat) == [(1, "b")]


@pytest.mark.usefixtures("dynamic")
def test_append_only_table_and_concurrent_append_are_heeded(
    spark: SparkSession, uri: str
) -> None:
    start(spark, uri)

    def replace_beside(rival: tuple[int, str]) -> None:
        with dk.transaction(parse_uri(uri).catalog) as tx:
            tx.write("t", frame(spark, (9, "a")), "overwrite")
            dks.write(frame(spark, rival), uri)

    with pytest.raises(CommitFailedError):
        replace_beside((5, "a"))
    assert (5, "a") in rows(uri)
    replace_beside((6, "b"))
    assert rows(uri) == [(2, "b"), (3, None), (6, "b"), (9, "a")]
    dk.DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(DeltaError, match=r"delta\.appendOnly"):
        dks.write(frame(spark, (9, "a")), uri, "overwrite")


@pytest.mark.usefixtures("dynamic")
def test_delta_sparks_own_setting_forbids_dynamic_overwrites(
    spark: SparkSession, uri: str
) -> None:
    start(spark, uri)
    spark.conf.set(ENABLED, "false")
    said = "Dynamic partition overwrite mode is specified .* but it is disabled"
    try:
        with pytest.raises(DeltaError, match=said):
            dks.write(frame(spark, (9, "a")), uri, "overwrite")
        with pytest.raises(PySparkException, match=said):
            save(frame(spark, (9, "a")), uri)
        assert len(rows(uri)) == 4
        save(frame(spark, (9, "a")), uri, partitionOverwriteMode="static")
    finally:
        spark.conf.unset(ENABLED)
    assert rows(uri) == [(9, "a")]
    location = Path(dk.DeltaTable(uri).table_uri.removeprefix("file://"))
    assert len(list(location.rglob("*.parquet"))) == 5


@pytest.mark.usefixtures("dynamic")
def test_partitions_are_told_apart_by_value_whoever_wrote_them(
    spark: SparkSession, uri: str
) -> None:
    values: dict[str, list[Any]] = {
        "s": ["a b/%", "1", "01", "", None],
        "d": [date(2024, 2, 29), None, date(1900, 1, 1), None, None],
        "t": [datetime(2024, 1, 1, 1, 2, 3, 456000, UTC), None, None, None, None],
        "f": [1.5, float("nan"), -0.0, float("inf"), None],
        "m": [Decimal("1.50"), Decimal("-1.00"), None, None, None],
        "ok": [True, False, None, None, None],
    }
    kinds = (
        "id long, s string, d date, t timestamp, f double, m decimal(9,2), ok boolean"
    )
    names = list(values)
    written = pa.table(
        {
            "id": list(range(5)),
            **{
                n: pa.array(v, pa.timestamp("us", "UTC")) if n == "t" else v
                for n, v in values.items()
                if n != "m"
            },
            "m": pa.array(values["m"], pa.decimal128(9, 2)),
        }
    )
    dk.write_deltalake(uri, written, partition_by=names)
    for i in range(5):
        row = (100 + i, *(values[n][i] for n in names))
        dks.write(spark.createDataFrame([row], kinds), uri, "overwrite")

    found = dk.DeltaTable(uri).to_pyarrow_table()["id"].to_pylist()
    assert sorted(found) == [100, 101, 102, 103, 104]


@pytest.mark.usefixtures("dynamic")
def test_mapped_columns_are_compared_by_their_physical_names(
    spark: SparkSession, tmp_path: Path
) -> None:
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        table, rows = make("id partitions vectors", catalog, tmp_path)
        city = next(iter(rows))[1]
        new = spark.createDataFrame([(9, city)], "id long, `City Name` string")
        dks.write(new, table.catalog_uri, "overwrite")
        read = dk.DeltaTable(table.catalog_uri).to_pyarrow_table().to_pylist()
    found = {(r["id"], r["City Name"]) for r in read}
    assert found == {row for row in rows if row[1] != city} | {(9, city)}
