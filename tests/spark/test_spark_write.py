"""What Spark writes to tables of a catalog, read back by others."""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import deltalake
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession, functions as sf

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import DeltaError, SchemaMismatchError, TableExistsError
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.spark.pyspark_api import to_arrow
from delkalakedb.storage import open_store
from tests.support import readers
from tests.support.mapped_tables import make
from tests.support.servers.stores import Place

ODD = """
    SELECT * FROM VALUES
      (1L, 'a b/%ü=:?', DATE'2024-02-29', TIMESTAMP'2024-01-01 01:02:03.456789',
       TIMESTAMP_NTZ'2024-01-01 01:02:03.456789', 1.5D, 1.25F, 12.50BD, X'41', true,
       named_struct('x', 1, 'y', array(1, 2)), map('k', 1), 3Y, 4S),
      (2L, '1', DATE'2024-02-29', TIMESTAMP'1890-01-01 00:00:00', NULL,
       CAST('NaN' AS DOUBLE), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
      (3L, NULL, NULL, NULL, NULL, -0.5D, NULL, -1.01BD, NULL, false,
       named_struct('x', 5, 'y', array()), map(), -128Y, -1S),
      (4L, 'it''s "x"', DATE'1900-01-01', NULL, NULL,
       CAST('-Infinity' AS DOUBLE), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
      (5L, '01', DATE'1900-01-01', NULL, NULL, 2D, NULL, NULL, NULL, NULL, NULL, NULL,
       NULL, NULL)
    AS t (id, p, d, ts, ntz, f, g, m, b, ok, st, kv, tiny, small)
"""


def table_uri(catalog_uri: str, name: str = "t", **options: str) -> str:
    """The URI of a table, its options after those of the catalog."""
    uri = format_uri(parse_uri(catalog_uri).with_table(name))
    given = "&".join(f"{key}={value}" for key, value in options.items())
    return f"{uri}{'&' if '?' in uri else '?'}{given}" if given else uri


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table that isn't there yet, in a catalog on one engine."""
    return table_uri(f"deltasql://sqlite/{tmp_path}/meta.db")


def texts(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Rows as text in one order; NaN equals NaN there."""
    return sorted(repr(dict(sorted(row.items()))) for row in rows)


def arrow_rows(df: DataFrame, table: deltalake.DeltaTable) -> pa.Table:
    """The rows in the table's own types."""
    # Spark can't give a null struct whose fields aren't null.
    nullable = sf.col("st").cast("struct<x: int, y: array<int>>")
    found = to_arrow(df.withColumn("st", nullable))
    return found.cast(pa.schema(table.schema().to_arrow()))


def mirror(uri: str) -> deltalake.DeltaTable:
    """What plain deltalake opens."""
    return deltalake.DeltaTable(dk.DeltaTable(uri).table_uri)


def ids(uri: str) -> list[int]:
    """The ids that plain deltalake reads."""
    column = mirror(uri).to_pyarrow_table(columns=["id"])["id"]
    return sorted(column.to_pylist())


def files_on_disk(uri: str) -> set[str]:
    """The Parquet files at a table's location, whether a version names them or not."""
    root = Path(dk.DeltaTable(uri).table_uri.removeprefix("file://"))
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and not path.is_relative_to(root / "_delta_log")
    }


@pytest.mark.parametrize("partitions", [(), ("p", "d"), ("ts", "f", "tiny")])
def test_rows_of_every_type_are_read_back_equal_by_others(
    spark: SparkSession, uri: str, partitions: tuple[str, ...]
) -> None:
    df = spark.sql(ODD)
    dks.write(df, uri, partition_by=partitions)

    table = mirror(uri)
    expected = arrow_rows(df, table)
    rows = texts(expected.to_pylist())
    assert texts(table.to_pyarrow_table().to_pylist()) == rows
    location = table.table_uri.removeprefix("file://").rstrip("/")
    said = readers.read("duckdb", location, 0, expected.schema).rows
    assert said == sorted(repr(list(row.values())) for row in expected.to_pylist())
    if "f" not in partitions:
        read = polars.read_delta(location).to_arrow().cast(expected.schema)
        assert texts(read.to_pylist()) == rows
    assert dk.verify(uri, deep=True).ok
    for path in table.file_uris():
        names = pq.read_schema(path.removeprefix("file://")).names
        assert not set(names) & {*partitions, "__dk_partition_0"}


def test_partition_values_that_folders_mix_up_are_kept_apart(
    spark: SparkSession, uri: str
) -> None:
    values = ["__HIVE_DEFAULT_PARTITION__", None, "", "v", "n", "x" * 150, "é" * 80]
    df = spark.createDataFrame(list(enumerate(values)), "id long, p string")
    dks.write(df, uri, partition_by="p")
    read = mirror(uri).to_pyarrow_table().to_pylist()
    # The log has no empty string: it is null there.
    expected = dict(enumerate(values)) | {2: None}
    assert {row["id"]: row["p"] for row in read} == expected
    assert {row["id"]: row["p"] for row in dks.read(spark, uri).collect()} == expected


def test_a_filter_on_statistics_finds_each_row(spark: SparkSession, uri: str) -> None:
    dks.write(spark.sql(ODD).repartition(5, "id"), uri)
    rows = mirror(uri).to_pyarrow_table().to_pylist()
    for row in rows:
        for name in ("id", "d", "ts", "ntz", "m", "g", "tiny"):
            if row[name] is None:
                continue
            found = mirror(uri).to_pyarrow_table(filters=[(name, "=", row[name])])
            assert row["id"] in found["id"].to_pylist(), (name, row)


def test_each_engine_takes_appends_overwrites_and_more_writers(
    spark: SparkSession, catalog_uri: str
) -> None:
    uri = table_uri(catalog_uri)
    df = spark.range(3)
    dks.write(df, uri, "error", description="numbers")
    with pytest.raises(TableExistsError):
        dks.write(df, uri, "errorifexists")
    dks.write(df, uri, "ignore")
    assert dk.DeltaTable(uri).version() == 0
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: dks.write(df, uri), range(3)))
    assert ids(uri) == sorted([0, 1, 2] * 4)
    dks.write(spark.range(10, 11), uri, "overwrite", user_metadata="fresh")
    assert ids(uri) == [10]

    last = mirror(uri).history(1)[0]
    metrics = last.pop("operationMetrics")
    assert int(metrics.pop("numOutputBytes")) > 0
    assert metrics["numOutputRows"] == metrics["numFiles"] == "1"
    assert int(metrics["numRemovedFiles"]) == 8
    assert last["operation"] == "WRITE"
    assert last["operationParameters"] == {"mode": "Overwrite", "partitionBy": "[]"}
    assert last["userMetadata"] == "fresh"
    assert mirror(uri).metadata().description == "numbers"
    assert dk.verify(uri, deep=True).ok


def test_a_transaction_of_an_application_is_written_once(
    spark: SparkSession, uri: str
) -> None:
    for version in (0, 1, 1, 0, 2):
        dks.write(spark.range(version, version + 1), uri, txn=("stream", version))
    assert ids(uri) == [0, 1, 2]
    assert mirror(uri).transaction_version("stream") == 2


def test_a_write_that_changes_nothing_makes_no_version(
    spark: SparkSession, uri: str
) -> None:
    rows, none = spark.range(3), spark.range(0)
    dks.write(rows, uri)

    dks.write(none, uri)
    dks.write(none, uri, mode="overwrite", replace_where="id > 5")
    assert mirror(uri).version() == 0
    dks.write(none, uri, txn=("app", 1))
    dks.write(none, uri, mode="overwrite")
    dks.write(none, uri, mode="overwrite")
    assert mirror(uri).version() == 2


def test_a_schema_is_kept_evolved_or_replaced_as_asked(
    spark: SparkSession, uri: str
) -> None:
    first = spark.sql("SELECT 1L id, named_struct('a', 1L) s, array(1L) l")
    dks.write(first, uri)
    narrower = spark.sql("SELECT 2 ID, named_struct('a', 2S) s")
    dks.write(narrower, uri)
    more = spark.sql(
        "SELECT 3L id, named_struct('b', 'x', 'a', 3L) s, TIMESTAMP_NTZ'2024-01-01' n"
    )
    for bad, said in (
        (more, "no column n; merge_schema"),
        (first.withColumn("id", sf.lit("x")), "id is bigint in the table and string"),
        (first.selectExpr("id", "named_struct('c', 1) s"), "s has no field c"),
        (first.withColumn("l", sf.array(sf.lit(0.5))), "l.element is bigint"),
    ):
        with pytest.raises(SchemaMismatchError, match=said):
            dks.write(bad, uri)
    with pytest.raises(DeltaError, match="partitioned by"):
        dks.write(first, uri, partition_by="id")
    dks.write(more, uri, merge_schema=True)

    read = mirror(uri).to_pyarrow_table().drop_columns(["n"])
    assert texts(read.to_pylist()) == texts(
        [
            {"id": 1, "s": {"a": 1, "b": None}, "l": [1]},
            {"id": 2, "s": {"a": 2, "b": None}, "l": None},
            {"id": 3, "s": {"a": 3, "b": "x"}, "l": None},
        ]
    )
    dks.write(more, uri, "overwrite", overwrite_schema=True, partition_by=["id"])
    table = mirror(uri)
    assert [field.name for field in table.schema().fields] == ["id", "s", "n"]
    assert table.metadata().partition_columns == ["id"]
    assert dk.verify(uri, deep=True).ok


def test_a_row_that_breaks_a_rule_of_the_table_is_refused(
    spark: SparkSession, uri: str
) -> None:
    fields = [
        {"name": "id", "type": "long", "nullable": False, "metadata": {}},
        {
            "name": "twice",
            "type": "long",
            "nullable": True,
            "metadata": {"delta.generationExpression": "id * 2"},
        },
        {
            "name": "s",
            "type": {
                "type": "struct",
                "fields": [
                    {"name": "a", "type": "long", "nullable": False, "metadata": {}}
                ],
            },
            "nullable": True,
            "metadata": {},
        },
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    parsed = parse_uri(uri)
    with dk.connect(parsed.catalog) as catalog:
        catalog.create_table("t", schema)
    dk.DeltaTable(uri).alter.add_constraint({"small": "id < 100"})
    dks.write(spark.sql("SELECT 1L id"), uri)
    dks.write(spark.sql("SELECT 2L id, 4 twice, named_struct('a', 1) s"), uri)
    before = files_on_disk(uri)
    for row, said in (
        ("CAST(NULL AS LONG) id", "column id is NOT NULL"),
        ("100L id", r"CHECK constraint small \(id < 100\)"),
        ("1L id, 3L twice", r"generated column twice isn't id \* 2"),
        ("1L id, named_struct('a', CAST(NULL AS INT)) s", "a part of column s"),
    ):
        with pytest.raises(DeltaError, match=said):
            dks.write(spark.sql(f"SELECT {row}"), uri)
    assert files_on_disk(uri) == before
    read = mirror(uri).to_pyarrow_table(columns=["id", "twice"]).to_pylist()
    assert texts(read) == texts([{"id": 1, "twice": 2}, {"id": 2, "twice": 4}])

    dk.DeltaTable(uri).alter.set_table_properties({"delta.appendOnly": "true"})
    dks.write(spark.sql("SELECT 3L id"), uri)
    for options in ({}, {"replace_where": "id = 1"}):
        with pytest.raises(DeltaError, match=r"delta\.appendOnly"):
            dks.write(spark.sql("SELECT 1L id"), uri, "overwrite", **options)


@pytest.mark.parametrize("feed", ["false", "true"])
def test_replace_where_replaces_the_rows_that_match(
    spark: SparkSession, uri: str, feed: str
) -> None:
    df = spark.range(8).withColumn("p", sf.col("id") % 2)
    properties = {"delta.enableChangeDataFeed": feed}
    dks.write(df.coalesce(1), uri, partition_by="p", configuration=properties)
    old = set(mirror(uri).file_uris())
    odd = spark.sql("SELECT 11L id, 1L p")
    dks.write(odd, uri, "overwrite", replace_where="p = 1")
    assert ids(uri) == [0, 2, 4, 6, 11]
    assert len(old & set(mirror(uri).file_uris())) == 1
    with pytest.raises(DeltaError, match=r"replace_where \(id < 3\)"):
        dks.write(odd, uri, "overwrite", replace_where="id < 3")
    dks.write(spark.sql("SELECT 1L id, 0L p"), uri, "overwrite", replace_where="id < 3")
    assert ids(uri) == [1, 4, 6, 11]
    assert dk.verify(uri, deep=True).ok
    if feed == "true":
        changes = pa.table(mirror(uri).load_cdf(starting_version=2).read_all())
        found = zip(
            changes["id"].to_pylist(), changes["_change_type"].to_pylist(), strict=True
        )
        assert sorted(found) == [(0, "delete"), (1, "insert"), (2, "delete")]


@pytest.mark.parametrize("kind", ["name", "id partitions vectors"])
def test_columns_are_written_under_their_physical_names(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        table, rows = make(kind, catalog, tmp_path)
        uri = table.catalog_uri
        dks.write(spark.createDataFrame([(9, "z")], "id long, `City Name` string"), uri)
        read = dk.DeltaTable(uri).to_pyarrow_table().to_pylist()
    assert {(r["id"], r["City Name"]) for r in read} == {*rows, (9, "z")}
    add = next(
        add
        for add in pa.table(dk.DeltaTable(uri).get_add_actions()).to_pylist()
        if add["num_records"] == 1
    )
    path = Path(unquote(urlsplit(table.table_uri).path), add["path"])
    field = pq.ParquetFile(path).schema_arrow.field("col-1")
    assert field.metadata[b"PARQUET:field_id"] == b"1"


def test_tables_are_written_together_or_not_at_all(
    spark: SparkSession, catalog_uri: str
) -> None:
    fact, dim = table_uri(catalog_uri, "fact"), table_uri(catalog_uri, "dim")
    dks.write(spark.range(2), fact)
    before = files_on_disk(fact)
    rows = spark.range(3).withColumn("n", sf.col("id") % 2)
    with dk.transaction(catalog_uri) as tx:
        tx.write("dim", rows, partition_by="n", configuration={})
        tx.write("fact", spark.range(5, 6), mode="overwrite")
        tx.write("fact", spark.range(7, 8), mode="append")
    assert ids(fact) == [5, 7]
    assert ids(dim) == [0, 1, 2]
    after = files_on_disk(fact)
    assert before < after

    def fail(tx: dk.Transaction, df: DataFrame) -> None:
        tx.write("fact", df, mode="append")
        tx.write("dim", df.withColumn("more", sf.lit(1)), mode="append")

    with pytest.raises(SchemaMismatchError), dk.transaction(catalog_uri) as tx:
        fail(tx, spark.range(1))
    assert files_on_disk(fact) == after
    assert ids(fact) == [5, 7]


def test_options_that_contradict_each_other_are_refused(
    spark: SparkSession, uri: str
) -> None:
    for options, said in (
        ({"mode": "upsert"}, "isn't one of append"),
        ({"replace_where": "id = 1"}, "replace_where needs mode='overwrite'"),
        ({"overwrite_schema": True}, "overwrite_schema needs mode='overwrite'"),
        (
            {"mode": "overwrite", "overwrite_schema": True, "replace_where": "true"},
            "overwrite_schema can.t be used with replace_where",
        ),
    ):
        with pytest.raises(DeltaError, match=said):
            dks.write(spark.range(1), uri, **options)


def test_files_have_the_given_sizes_and_compression(
    spark: SparkSession, uri: str
) -> None:
    rows = spark.range(0, 10, 1, 1).selectExpr("id", "id % 2 AS p")

    how = {"max_records_per_file": 2, "compression": "zstd"}
    dks.write(rows, uri, partition_by="p", **how)
    dks.write(rows, uri, target_file_size=1)

    first = set(dk.DeltaTable(uri, version=0).file_uris())
    footers = {
        path: pq.read_metadata(unquote(urlsplit(path).path))
        for path in dk.DeltaTable(uri).file_uris()
    }
    codecs = {footers[p].row_group(0).column(0).compression for p in first}
    assert codecs == {"ZSTD"}
    assert sorted(footers[p].num_rows for p in first) == [1, 1, 2, 2, 2, 2]
    assert [footers[p].num_rows for p in footers.keys() - first] == [1] * 10
    assert dks.read(spark, uri).count() == 20
    for wrong, message in (
        ({"compression": "zip"}, "must be one of brotli, gzip"),
        ({"max_records_per_file": 0}, "records of a file must be at least 1, not 0"),
    ):
        with pytest.raises(DeltaError, match=message):
            dks.write(rows, uri, **wrong)


def test_an_object_store_is_written_by_executors(
    spark: SparkSession, tmp_path: Path, s3: Place
) -> None:
    options = s3.storage_options
    catalog_uri = f"deltasql://sqlite/{tmp_path}/meta.db"
    uri = table_uri(catalog_uri, location=s3.location)
    df = spark.sql(ODD)
    dks.write(df, uri, partition_by=["p", "d"], storage_options=options)
    table = deltalake.DeltaTable(s3.location, storage_options=options)
    expected = arrow_rows(df, table)
    assert texts(table.to_pyarrow_table().to_pylist()) == texts(expected.to_pylist())
    store = open_store(s3.location, options)
    before = [file.path for file in store.list()]
    bad = sf.when(sf.col("id") == 5, sf.raise_error(sf.lit("no"))).otherwise(1)
    with pytest.raises(Exception, match="no"):
        dks.write(df.withColumn("tiny", bad.cast("byte")), uri, storage_options=options)
    assert [file.path for file in store.list()] == before
    dks.write(
        df.where("id = 1"),
        uri,
        "overwrite",
        replace_where="id <= 2",
        storage_options=options,
    )
    table.update_incremental()
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == [1, 3, 4, 5]
