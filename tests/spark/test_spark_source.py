"""`format("deltasql")`: read and written as Arrow, without the catalog's secrets."""

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import Schema
from pyspark import cloudpickle
from pyspark.errors import AnalysisException, IllegalArgumentException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import delkalakedb as dk
from delkalakedb.errors import (
    CommitFailedError,
    DeltaError,
    PredicateError,
    ProtocolError,
    SchemaMismatchError,
    UriError,
)
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.spark.reader.source import BatchReader, load_schema
from delkalakedb.spark.writer.sink import BatchWriter, StreamWriter
from tests.support.actions import schema

NAN = float("nan")
INNER = pa.struct([("c", pa.string())])
EVERYTHING = pa.table(
    {
        "i": pa.array([1, 2, 3, None], pa.int32()),
        "l": pa.array([1, 2**60, 3, None]),
        "by": pa.array([1, -2, 3, None], pa.int8()),
        "sh": pa.array([1, -2, 3, None], pa.int16()),
        "f": pa.array([1.5, NAN, None, 2.0], pa.float32()),
        "d": pa.array([1.5, NAN, None, -0.5]),
        "s": ["a", "é", None, ""],
        "b": pa.array([b"x", b"", None, b"y"]),
        "bo": [True, False, None, True],
        "da": [date(2026, 1, 1), date(1582, 1, 1), None, date(9999, 12, 31)],
        "ts": pa.array(
            [datetime(2026, 1, 1, 1, 2, 3, 456789, UTC), None, None, None],
            pa.timestamp("us", "UTC"),
        ),
        "ntz": pa.array([datetime(1900, 1, 1), None, None, None], pa.timestamp("us")),
        "de": pa.array(
            [Decimal("1.23"), None, Decimal("-9999999999.99"), Decimal(0)],
            pa.decimal128(38, 2),
        ),
        "st": pa.array(
            [
                {"a": 1, "b": {"c": "x"}},
                {"a": None, "b": None},
                None,
                {"a": 2, "b": {}},
            ],
            pa.struct([("a", pa.int32()), ("b", INNER)]),
        ),
        "li": pa.array([[1, None], [], None, [3]], pa.list_(pa.int32())),
        "ls": pa.array([[{"c": "1"}], [], None, [None, {}]], pa.list_(INNER)),
        "m": pa.array(
            [[("k", 1)], [], None, [("z", None), ("y", 2)]],
            pa.map_(pa.string(), pa.int32()),
        ),
        "p": ["a b%/", "é=", None, "x'y"],
        "q": [date(2026, 1, 1), None, date(2026, 1, 2), date(2026, 1, 1)],
        "r": pa.array(
            [datetime(2026, 1, 1, 1, 2, 3, 456789, UTC), None, None, None],
            pa.timestamp("us", "UTC"),
        ),
    }
)
SMALL = pa.table({"id": [1, 2, 3], "p": ["a", "b", "a"]})


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"deltasql://sqlite/{tmp_path}/meta.db?table=t"


def load(spark: SparkSession, uri: str, **options: Any) -> DataFrame:
    return spark.read.format("deltasql").options(**options).load(uri)


def save(df: DataFrame, uri: str, mode: str = "append", **options: Any) -> None:
    df.write.format("deltasql").mode(mode).options(**options).save(uri)


def rows(table: Any) -> list[str]:
    return sorted(map(repr, pa.table(table).to_pylist()))


def with_table(catalog_uri: str, name: str = "t") -> str:
    return format_uri(parse_uri(catalog_uri).with_table(name))


# ---- through Spark


def test_rows_of_every_type_come_back_equal_by_every_reader(
    spark: SparkSession, uri: str
) -> None:
    copy, parted = uri.replace("table=t", "table=c"), uri.replace("table=t", "table=p")
    dk.write_deltalake(uri, EVERYTHING, partition_by=["p", "q", "r"])
    with dk.connect(uri) as catalog:
        columns = Schema.from_arrow(EVERYTHING.schema)
        catalog.create_table("p", columns, partition_by=["p", "q", "r"])

    found = load(spark, uri)
    save(found, copy)
    save(found, parted)
    save(found.where("i < 3"), copy, "overwrite")

    assert found.count() == EVERYTHING.num_rows
    assert rows(found.toArrow()) == rows(EVERYTHING)
    assert rows(dk.DeltaTable(parted).to_pyarrow_table()) == rows(EVERYTHING)
    table = dk.DeltaTable(copy)
    some = rows(EVERYTHING.slice(0, 2))
    assert rows(table.to_pyarrow_table()) == some
    assert polars.scan_delta(table).collect().height == 2
    assert len(duckdb.from_arrow(table.to_pyarrow_dataset()).fetchall()) == 2
    operations = [commit["operation"] for commit in table.history()]
    assert operations == ["WRITE", "WRITE", "CREATE TABLE"]
    assert rows(load(spark, copy, versionAsOf=1).toArrow()) == rows(EVERYTHING)


def test_options_choose_version_columns_and_rows(spark: SparkSession, uri: str) -> None:
    dk.write_deltalake(uri, SMALL, partition_by=["p"])
    table = load(spark, uri)
    with dk.connect(uri) as catalog:
        moment = catalog.snapshot("t").history(1)[0].timestamp_ms
    dk.write_deltalake(uri, SMALL.slice(0, 1), mode="overwrite")
    at = datetime.fromtimestamp(moment / 1000, UTC).isoformat()

    table.createOrReplaceTempView("of_version_0")
    spark.sql(
        f"CREATE OR REPLACE TEMP VIEW chosen USING deltasql "
        f"OPTIONS (path '{uri}', versionAsOf 0, columns 'P', where 'id > 1')"
    )

    counted = spark.sql("SELECT count(*), max(id) FROM of_version_0").first()
    assert tuple(counted) == (3, 3)
    assert load(spark, uri).count() == 1
    assert load(spark, uri, timestampAsOf=at).count() == 3
    chosen = spark.sql("SELECT * FROM chosen ORDER BY p").collect()
    assert [row.asDict() for row in chosen] == [{"p": "a"}, {"p": "b"}]
    given = spark.read.format("deltasql").schema("p string").load(uri)
    assert [tuple(row) for row in given.collect()] == [("a",)]


def test_what_spark_cannot_pass_on_is_refused(spark: SparkSession, uri: str) -> None:
    dk.write_deltalake(uri, SMALL)
    rows = load(spark, uri)
    secret = "deltasql://postgres/u:s3cret@localhost/d/s/t"

    for mode, name in (("default", "ErrorIfExists"), ("ignore", "Ignore")):
        said = f'"deltasql" cannot be written in the "{name}" mode'
        with pytest.raises(AnalysisException, match=said):
            save(rows, uri, mode)
    said = "partitioning or clustering columns do not match the existing table's"
    with pytest.raises(IllegalArgumentException, match=said):
        rows.write.format("deltasql").mode("append").partitionBy("p").save(uri)
    with pytest.raises(AnalysisException, match=r"replaceon .*spark.read and write"):
        save(rows, uri, "overwrite", replaceOn="id")
    assert load(spark, uri).count() == 3
    with pytest.raises(AnalysisException, match=r"\$\{VAR\}") as refused:
        load(spark, secret)
    assert "s3cret" not in str(refused.value)
    with pytest.raises(AnalysisException, match="no column x"):
        save(rows.selectExpr("1 AS x"), uri)


def test_module_that_spark_looks_into_loads_nothing() -> None:
    code = (
        "import sys, pyspark_deltasql as p; print(p.DefaultSource.name(), "
        "[m for m in ('deltalake', 'pyarrow', 'delkalakedb') if m in sys.modules])"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert said.stdout.strip() == "deltasql []", said.stderr


# ---- its parts, as Spark's processes have them


def sent(part: Any) -> Any:
    """What another process gets."""
    return cloudpickle.loads(cloudpickle.dumps(part))


def hidden(uri: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """A URI with its password in a variable, and the password."""
    password = parse_uri(uri).password or ""
    if password:
        monkeypatch.setenv("A_PASSWORD", password)
        uri = uri.replace(f":{password}@", ":${A_PASSWORD}@")
    return uri, password


def test_executors_get_no_credentials_and_no_catalog(
    catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, password = hidden(with_table(catalog_uri), monkeypatch)
    dk.write_deltalake(with_table(catalog_uri), SMALL)
    options = {"path": uri, "where": "id > 1", "storage.key": "k"}

    version, columns = load_schema(options)
    reader = BatchReader(options, columns, version)
    tasks = reader.partitions()
    writer = BatchWriter({"path": uri}, columns, False)
    parts = [cloudpickle.dumps(part) for part in (reader, writer, tasks)]
    monkeypatch.delenv("A_PASSWORD", raising=False)
    monkeypatch.setattr("delkalakedb.spark.reader.source.connect", lambda uri: 1 / 0)
    (batch,) = (b for task in tasks for b in sent(reader).read(task))
    message = sent(writer).write(iter([SMALL.to_batches()[0]]))

    assert batch.to_pylist() == SMALL.slice(1).to_pylist()
    assert len(message.files) == 1
    if password:
        assert not any(password.encode() in part for part in parts)


def struct(**types: str) -> StructType:
    return StructType.fromJson(json.loads(schema(**types)))


def small_schema() -> StructType:
    return struct(id="long", p="string")


def written(writer: BatchWriter | StreamWriter, table: pa.Table = SMALL) -> Any:
    return sent(writer).write(iter(table.to_batches(max_chunksize=2)))


def on_disk(table: dk.DeltaTable) -> set[str]:
    folder = Path(urlsplit(table.table_uri).path)
    return {str(file) for file in folder.rglob("*.parquet")}


def live(table: dk.DeltaTable) -> set[str]:
    return {file.removeprefix("file://") for file in table.file_uris()}


@pytest.fixture
def place(catalog_uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table's URI on each engine, without its password."""
    return hidden(with_table(catalog_uri), monkeypatch)[0]


def test_commit_repeated_with_its_txn_adds_nothing(place: str) -> None:
    options = {"path": place, "txnappid": "app", "txnversion": "7"}
    for _ in range(2):
        writer = BatchWriter(options, small_schema(), False)
        sent(writer).commit([written(writer), written(writer)])

    table = dk.DeltaTable(place)

    assert table.to_pyarrow_table().num_rows == 6
    assert table.version() == 1
    assert table.transaction_version("app") == 7
    assert on_disk(table) == live(table)


@pytest.mark.since_pyspark("4.1")
def test_batch_committed_again_after_a_crash_is_known_by_query_and_number(
    place: str,
) -> None:
    for batch in (0, 1, 1):
        writer = StreamWriter({"path": place}, small_schema(), False)
        message = replace(written(writer), query_id="query")
        sent(writer).commit([message], batch)

    table = dk.DeltaTable(place)

    assert (table.version(), table.transaction_version("query")) == (2, 1)
    assert table.to_pyarrow_table().num_rows == 6
    assert on_disk(table) == live(table)
    parameters = table.history(1)[0]["operationParameters"]
    assert parameters == {"outputMode": "Append", "queryId": "query", "epochId": "1"}


def test_abort_removes_only_what_sql_does_not_know(place: str) -> None:
    writer = BatchWriter({"path": place}, small_schema(), False)
    committed, failed = written(writer), written(writer)
    sent(writer).commit([committed])
    kept = live(dk.DeltaTable(place))

    sent(writer).abort([failed])
    assert len(on_disk(dk.DeltaTable(place))) == 2
    sent(writer).abort([committed, failed, None])

    assert on_disk(dk.DeltaTable(place)) == kept
    assert dk.DeltaTable(place).to_pyarrow_table().num_rows == 3


def test_append_commutes_with_others_but_not_with_a_new_schema(place: str) -> None:
    writer = BatchWriter({"path": place}, small_schema(), False)
    first, second = written(writer), written(writer)
    dk.write_deltalake(place, SMALL, mode="append")
    sent(writer).commit([first])
    assert dk.DeltaTable(place).to_pyarrow_table().num_rows == 6
    more = SMALL.append_column("x", pa.array([1, 2, 3]))
    dk.write_deltalake(place, more, mode="append", schema_mode="merge")

    with pytest.raises(CommitFailedError):
        sent(writer).commit([second])

    table = dk.DeltaTable(place)
    assert table.to_pyarrow_table().num_rows == 9
    assert on_disk(table) == live(table)


def test_constraints_and_replacing_kept_rows_are_refused(uri: str) -> None:
    with dk.connect(uri) as catalog:
        only = {"delta.appendOnly": "true"}
        catalog.create_table("t", SMALL.schema, configuration=only)
    with pytest.raises(DeltaError, match="appendOnly"):
        BatchWriter({"path": uri}, small_schema(), True)
    dk.DeltaTable(uri).alter.add_constraint({"c": "id > 0"})

    with pytest.raises(ProtocolError, match=r"checkConstraints; .*spark\.write"):
        BatchWriter({"path": uri}, small_schema(), False)


def test_null_in_a_column_that_takes_none_fails_the_task(uri: str) -> None:
    field = pa.field("id", pa.int64(), nullable=False)
    with dk.connect(uri) as catalog:
        catalog.create_table("t", pa.schema([field, ("p", pa.string())]))
    writer = BatchWriter({"path": uri}, small_schema(), False)
    nothing = pa.table({"id": pa.array([1, None]), "p": ["a", "b"]})

    with pytest.raises(SchemaMismatchError, match="id, which is NOT NULL"):
        written(writer, nothing)

    sent(writer).commit([written(writer)])
    assert rows(dk.DeltaTable(uri).to_pyarrow_table()) == rows(SMALL)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ({"id": "long", "x": "integer"}, "no column x; mergeSchema=true adds it"),
        ({"id": "string"}, "id:bigint can't take string"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    uri: str, types: dict[str, str], message: str
) -> None:
    dk.write_deltalake(uri, SMALL)

    with pytest.raises(SchemaMismatchError, match=message):
        BatchWriter({"path": uri}, struct(**types), False)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"path": "deltasql://postgres/u:s3cret@h/d/s/t"}, UriError, r"\$\{VAR\}"),
        ({"path": "deltasql://postgres/d/s/t?sslpassword=x"}, UriError, r"\$\{VAR\}"),
        ({}, UriError, "load"),
        ({"versionasof": "x"}, DeltaError, "versionAsOf must be a whole number"),
        (
            {"timestampasof": "x"},
            DeltaError,
            "timestampAsOf: 'x' must be a time with a zone",
        ),
        ({"where": "id % 2 = 0"}, PredicateError, "where"),
        ({"columns": "id, nope"}, SchemaMismatchError, "no column nope"),
        ({"storage.x": "${NOT_SET}"}, DeltaError, "NOT_SET isn't set"),
        ({"storage.aws_secret_access_key": "s3cret"}, DeltaError, r"write \$\{VAR\}"),
        ({"storage.token": "a${V}s3cret"}, DeltaError, r"option storage.token: Spark"),
        ({"storage.proxy_url": "http://u:s3cret@h"}, DeltaError, r"write \$\{VAR\}"),
        ({"azure_storage_account_key": "s3cret"}, DeltaError, r"spark.read and write"),
        ({"readchanges": "true"}, DeltaError, "readchanges isn't one of columns"),
        ({"readchangefeed": "true"}, DeltaError, "No startingVersion or"),
        ({"versionasof": "0", "timestampasof": "0"}, DeltaError, "give only one of"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    uri: str, options: dict[str, str], error: type[Exception], message: str
) -> None:
    dk.write_deltalake(uri, SMALL)
    given = {"path": uri, **options} if options else {}

    with pytest.raises(error, match=message) as refused:
        BatchReader(given, small_schema(), load_schema(given)[0])

    assert "s3cret" not in str(refused.value)


def test_null_and_odd_partition_values_keep_apart(uri: str) -> None:
    odd = ["a b", "50%", "%20", "é", "a/b", "a=b", "x'y", "..", "NULL", None, "01", "1"]
    data = pa.table({"id": list(range(len(odd))), "p": odd})
    with dk.connect(uri) as catalog:
        catalog.create_table("t", data.schema, partition_by="p")
    writer = BatchWriter({"path": uri}, small_schema(), False)

    sent(writer).commit([written(writer, data), written(writer, data.slice(0, 0))])

    table = dk.DeltaTable(uri)
    assert rows(table.to_pyarrow_table()) == rows(data)
    assert len(live(table)) == len(odd)
    options = {"path": uri, "where": "p IS NULL"}
    reader = BatchReader(options, small_schema(), None)
    found = [r for t in reader.partitions() for b in reader.read(t) for r in b["id"]]
    assert [value.as_py() for value in found] == [odd.index(None)]


# ---- options of writes


def test_spark_passes_on_the_options_of_a_write(spark: SparkSession, uri: str) -> None:
    dk.write_deltalake(uri, SMALL, partition_by=["p"])
    rows = spark.createDataFrame([(7, "a", 1.5)], "id long, p string, x double")

    options = {"REPLACEWHERE": "p = 'a'", "mergeschema": "TRUE", "userMetadata": "why"}
    save(rows, uri, "overwrite", **options)

    table = dk.DeltaTable(uri)
    found = sorted(map(tuple, load(spark, uri).select("id", "p", "x").collect()))
    assert found == [(2, "b", None), (7, "a", 1.5)]
    (commit,) = dk.connect(uri).snapshot("t").history(1)
    assert commit.user_metadata == "why"
    assert commit.operation_parameters["predicate"] == "[\"p = 'a'\"]"
    narrow = spark.createDataFrame([("a", 3)], "p string, n int")
    save(narrow, uri, "overwrite", overwriteSchema="true")
    assert table.version() == 2
    assert sorted(load(spark, uri).columns) == ["n", "p"]
    assert dk.DeltaTable(uri).metadata().partition_columns == ["p"]
    with pytest.raises(
        AnalysisException, match="replaceWhere needs the mode overwrite"
    ):
        save(narrow, uri, replaceWhere="p = 'a'")
    assert dk.verify(uri, deep=True).ok


def test_replace_where_replaces_partitions_and_holds_for_all_new_rows(
    place: str,
) -> None:
    with dk.connect(place) as catalog:
        catalog.create_table("t", SMALL.schema, partition_by="p")
    dk.write_deltalake(place, SMALL, mode="append")
    options = {"path": place, "replacewhere": "p IN ('a', 'c')"}
    writer = BatchWriter(options, small_schema(), True)

    with pytest.raises(DeltaError, match=r"doesn't match replaceWhere \(p IN"):
        written(writer)
    dk.write_deltalake(place, SMALL.slice(1, 1), mode="append")
    rows = pa.table({"id": [8, 9], "p": ["a", "c"]})
    sent(writer).commit([written(writer, rows)])

    table = dk.DeltaTable(place)
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == [2, 2, 8, 9]
    assert on_disk(table) >= live(table)
    late = BatchWriter(options, small_schema(), True)
    message = written(late, rows)
    dk.write_deltalake(place, rows, mode="append")
    with pytest.raises(CommitFailedError):
        sent(late).commit([message])


def test_files_have_the_given_sizes_and_compression(place: str) -> None:
    with dk.connect(place) as catalog:
        small = {"delta.targetFileSize": "1b"}
        catalog.create_table("t", SMALL.schema, configuration=small)
        catalog.create_table("u", SMALL.schema)
    ids = list(range(10))
    rows = pa.table({"id": ids, "p": ["x"] * len(ids)})
    options = {"maxrecordsperfile": "4", "compression": "ZSTD"}
    for name, given in (("t", {}), ("u", options)):
        uri = place.replace("table=t", f"table={name}")
        writer = BatchWriter({"path": uri, **given}, small_schema(), False)
        batches = iter(rows.to_batches(max_chunksize=3))
        sent(writer).commit([sent(writer).write(batches)])

    assert len(dk.DeltaTable(place).file_uris()) == 10
    table = dk.DeltaTable(place.replace("table=t", "table=u"))
    footers = [pq.read_metadata(path) for path in sorted(live(table))]
    assert sorted(footer.num_rows for footer in footers) == [2, 4, 4]
    codecs = {footer.row_group(0).column(0).compression for footer in footers}
    assert codecs == {"ZSTD"}
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == ids


@pytest.mark.parametrize(
    ("options", "overwrite", "error", "message"),
    [
        ({"compression": "zip"}, True, DeltaError, "compression must be one of"),
        ({"maxrecordsperfile": "x"}, True, DeltaError, "must be a whole number"),
        ({"mergeschema": "yes"}, True, DeltaError, "true or false"),
        ({"overwriteschema": "true"}, False, DeltaError, "needs the mode overwrite"),
        ({"txnappid": "a"}, True, DeltaError, "give both"),
        ({"replacewhere": "id > 1"}, True, DeltaError, r"id, .*replace_where="),
        ({"replacewhere": "p LIKE 'a%'"}, True, PredicateError, "only Spark"),
        (
            {"replacewhere": "p = 'a'", "partitionoverwritemode": "dynamic"},
            True,
            DeltaError,
            "contradict",
        ),
        (
            {"overwriteschema": "true", "mergeschema": "true"},
            True,
            DeltaError,
            "contradict",
        ),
        ({"partitionoverwritemode": "x"}, True, DeltaError, "'static' or 'dynamic'"),
    ],
)
def test_values_that_a_write_cannot_have_are_refused(
    uri: str,
    options: dict[str, str],
    overwrite: bool,
    error: type[Exception],
    message: str,
) -> None:
    dk.write_deltalake(uri, SMALL, partition_by=["p"])

    with pytest.raises(error, match=message):
        BatchWriter({"path": uri, **options}, small_schema(), overwrite)
