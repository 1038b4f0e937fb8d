"""Tables by name and by location, and arguments and errors as delta-spark has them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf
from pyspark.sql.types import IntegerType, StructField

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import (
    DeltaError,
    SchemaMismatchError,
    TableExistsError,
    TableNotFoundError,
    UriError,
    VersionNotFoundError,
)
from delkalakedb.spark.session import can_reach
from delkalakedb.spark.session_catalog import CATALOG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def session(spark: "SparkSession", catalog_uri: str) -> "SparkSession":
    """A session of its own whose catalog is `catalog_uri`."""
    own = spark.newSession()
    dks.use(own, catalog_uri)
    return own


def table_uri(catalog_uri: str, name: str) -> str:
    return f"{catalog_uri}{'&' if '?' in catalog_uri else '?'}table={name}"


def test_table_is_found_by_name_and_by_location(
    session: "SparkSession", catalog_uri: str
) -> None:
    dk.write_deltalake(table_uri(catalog_uri, "sales"), ROWS)
    location = dk.DeltaTable(table_uri(catalog_uri, "sales")).table_uri

    for table in (
        dks.DeltaTable.forName(session, "sales"),
        dks.DeltaTable.forName(session, "`sales`"),
        dks.DeltaTable.forName(session, "default.sales"),
        dks.DeltaTable.forPath(session, location),
        dks.DeltaTable.forName(session, f"delta.`{location}`"),
        dks.DeltaTable.forPath(session, location, {"fs.s3a.endpoint": "x"}),
    ):
        assert table.toDF().count() == 3
    assert dks.read(session, "sales", where="id > 1").count() == 2


def test_rows_are_written_by_name(session: "SparkSession", catalog_uri: str) -> None:
    rows = session.range(2)

    dks.write(rows, "fresh")
    dks.write(rows, "fresh")

    assert dk.DeltaTable(table_uri(catalog_uri, "fresh")).version() == 1


def test_setting_names_the_catalog(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dk.write_deltalake(f"deltasql://sqlite/{tmp_path}/meta.db?table=t", ROWS)
    session = spark.newSession()
    monkeypatch.setenv("TEST_FOLDER", str(tmp_path))
    session.conf.set(CATALOG, "deltasql://sqlite/${TEST_FOLDER}/meta.db")

    assert dks.DeltaTable.forName(session, "t").toDF().count() == 3


def test_password_in_the_setting_is_refused(spark: "SparkSession") -> None:
    session = spark.newSession()
    session.conf.set(CATALOG, "deltasql://postgres/me:hunter2@127.0.0.1:1/db/public")

    with pytest.raises(UriError, match="write the password as") as refused:
        dks.DeltaTable.forName(session, "t")
    assert "hunter2" not in str(refused.value)


def test_session_without_a_catalog_says_how_to_give_one(spark: "SparkSession") -> None:
    with pytest.raises(DeltaError, match=r"call delkalakedb\.spark\.use"):
        dks.DeltaTable.forName(spark.newSession(), "t")


def test_absent_table_is_an_analysis_exception_too(session: "SparkSession") -> None:
    for missing in (
        lambda: dks.DeltaTable.forName(session, "none"),
        lambda: (
            dks.DeltaTable.replace(session)
            .tableName("none")
            .addColumn("x", "int")
            .execute()
        ),
    ):
        with pytest.raises(TableNotFoundError, match="none") as refused:
            missing()
        assert isinstance(refused.value, AnalysisException)
        assert "cannot be found" in str(refused.value)


def test_every_call_raises_the_errors_of_delta_spark(
    session: "SparkSession", catalog_uri: str, tmp_path: Path
) -> None:
    dks.write(session.range(3), "t")
    dks.write(session.range(3), "gone")
    table = dks.DeltaTable.forName(session, "t")
    gone = dks.DeltaTable.forName(session, "gone")
    dk.connect(catalog_uri).drop_table("gone")
    absent: list[Callable[[], Any]] = [
        lambda: dks.DeltaTable.forPath(session, str(tmp_path / "none")),
        lambda: dks.DeltaTable.forName(session, f"delta.`{tmp_path}/none`"),
        lambda: dks.read(session, "none"),
        lambda: dks.read(session, "none", changes_from=0),
        gone.toDF,
        gone.history,
        gone.vacuum,
        gone.delete,
        lambda: gone.generate("symlink_format_manifest"),
        lambda: gone.restoreToVersion(0),
        lambda: gone.cloneAtVersion(0, "other"),
    ]
    too_new: list[Callable[[], Any]] = [
        lambda: dks.read(session, "t", version=99),
        lambda: table.restoreToVersion(99),
        lambda: table.cloneAtVersion(99, "other"),
    ]

    for kind, calls in ((TableNotFoundError, absent), (VersionNotFoundError, too_new)):
        for call in calls:
            with pytest.raises(kind) as refused:
                call()
            assert isinstance(refused.value, AnalysisException)


def test_existing_table_is_an_analysis_exception_too(session: "SparkSession") -> None:
    builder = dks.DeltaTable.create(session).tableName("t").addColumn("x", "int")
    builder.execute()

    with pytest.raises(TableExistsError, match="already exists") as refused:
        builder.execute()
    assert isinstance(refused.value, AnalysisException)


def test_is_delta_table_takes_locations_and_uris(
    session: "SparkSession", catalog_uri: str, tmp_path: Path
) -> None:
    dk.write_deltalake(table_uri(catalog_uri, "t"), ROWS)
    location = dk.DeltaTable(table_uri(catalog_uri, "t")).table_uri
    is_table = dks.DeltaTable.isDeltaTable

    assert is_table(session, location)
    assert is_table(session, table_uri(catalog_uri, "t"))
    assert not is_table(session, table_uri(catalog_uri, "u"))
    assert not is_table(session, str(tmp_path))


def test_table_is_created_by_location_alone(
    session: "SparkSession", tmp_path: Path
) -> None:
    place = str(tmp_path / "events")
    build = dks.DeltaTable.createIfNotExists(session).location(place)

    build.addColumn("x", "int").property("foo", "bar").execute()
    again = dks.DeltaTable.createIfNotExists(session).location(place)
    again.addColumn("y", "int").execute()

    table = dks.DeltaTable.forPath(session, place)
    assert table.toDF().columns == ["x"]
    assert table.detail().first().properties["foo"] == "bar"
    assert dks.DeltaTable.forName(session, "events").toDF().columns == ["x"]
    other = dks.DeltaTable.createIfNotExists(session).location(f"{place}2/events")
    with pytest.raises(DeltaError, match=r"give the new table a name"):
        other.addColumn("x", "int").execute()


def test_builders_take_the_active_session(session: "SparkSession") -> None:
    session.createDataFrame([(1,)], "x int")
    builder = dks.DeltaTable.createOrReplace().tableName("t")

    assert builder.addColumn("x", "int").execute().toDF().columns == ["x"]


def test_own_properties_are_kept(catalog_uri: str) -> None:
    uri = table_uri(catalog_uri, "t")
    dk.DeltaTable.create(uri, pa.schema({"x": pa.int64()}), configuration={"a": "1"})
    dk.write_deltalake(
        table_uri(catalog_uri, "u"), ROWS, configuration={"a": "1", "Delta x": "2"}
    )
    table = dk.DeltaTable(uri)
    table.alter.set_table_properties({"b": "2"}, raise_if_not_exists=True)

    assert table.metadata().configuration == {"a": "1", "b": "2"}
    written = dk.DeltaTable(table_uri(catalog_uri, "u")).metadata().configuration
    assert written == {"a": "1", "Delta x": "2"}


def test_arguments_are_checked_as_delta_spark_checks_them(
    session: "SparkSession",
) -> None:
    dks.write(session.range(3), "t")
    table = dks.DeltaTable.forName(session, "t")
    source = session.range(3)
    merge = table.merge(source, sf.lit(True))
    build = dks.DeltaTable.create(session)
    wrong: list[tuple[type[Exception], str, Callable[..., Any], list[Any]]] = [
        (TypeError, "must be a Spark SQL Column or a string", table.delete, [1]),
        (ValueError, "cannot be None", table.update, [{"id": "1"}]),
        (TypeError, "must be a dict", table.update, [None, 1]),
        (TypeError, "must be a Spark SQL Column or", table.update, [1, {}]),
        (TypeError, "Values of dict in .* must", table.update, [None, {"id": 1}]),
        (TypeError, "Keys of dict in .* must", table.update, [None, {1: "id"}]),
        (TypeError, "must be DataFrame", table.merge, [1, "true"]),
        (TypeError, "must be a Spark SQL Column", table.merge, [source, 1]),
        (ValueError, "cannot be None", merge.whenMatchedUpdate, [1]),
        (TypeError, "Column or a string", merge.whenMatchedDelete, [1]),
        (ValueError, "cannot be None", merge.whenNotMatchedInsert, ["true"]),
        (
            TypeError,
            "Keys of dict",
            merge.whenNotMatchedBySourceUpdate,
            [None, {1: ""}],
        ),
        (ValueError, "an int but got", table.restoreToVersion, ["0"]),
        (ValueError, "a string but got", table.restoreToTimestamp, [1]),
        (
            DeltaError,
            r"\('05/04/1999'\) cannot",
            table.restoreToTimestamp,
            ["05/04/1999"],
        ),
        (TypeError, "Identifier must be str", build.tableName, [1]),
        (TypeError, "Location must be str", build.location, [1]),
        (TypeError, "comment must be str", build.comment, [1]),
        (TypeError, "must be StructType", build.addColumns, [1]),
        (
            TypeError,
            "must be StructField",
            build.addColumns,
            [[StructField("x", IntegerType()), 1]],
        ),
        (TypeError, "Partitioning column must be str", build.partitionedBy, [[1]]),
        (TypeError, "property must be string", build.property, ["x", 1]),
        (
            TypeError,
            "Z-order column must be str",
            table.optimize().executeZOrderBy,
            [1],
        ),
    ]

    for kind, message, call, given in wrong:
        with pytest.raises(kind, match=message):
            call(*given)


def test_times_without_a_zone_are_in_the_sessions_zone(
    session: "SparkSession", catalog_uri: str
) -> None:
    dks.write(session.range(3), "t")
    first = dk.connect(catalog_uri).table("t")
    dks.write(session.range(2), "t")
    session.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    at = sf.lit(first.timestamp_ms).cast("bigint")
    text = session.range(1).select(sf.timestamp_millis(at).cast("string")).first()[0]

    assert dks.read(session, "t", timestamp=text).count() == 3
    assert dks.DeltaTable.forName(session, "t").restoreToTimestamp(text)
    assert dks.read(session, "t").count() == 3


def test_partition_of_times_without_a_zone_is_written_and_read(
    session: "SparkSession",
) -> None:
    text = "timestamp_ntz'2026-01-02 03:04:05.123'"
    rows = session.sql(f"SELECT {text} AS at, 1 AS x UNION ALL SELECT NULL, 2")

    dks.write(rows, "t", partition_by="at")

    assert dks.read(session, "t", where=f"at = {text}").first().x == 1
    assert sorted(dks.read(session, "t").collect(), key=lambda row: row.x) == sorted(
        rows.collect(), key=lambda row: row.x
    )


def test_restore_to_the_newest_version_makes_a_version(
    session: "SparkSession", catalog_uri: str
) -> None:
    dks.write(session.range(3), "t")

    row = dks.DeltaTable.forName(session, "t").restoreToVersion(0).first()

    assert (row.num_removed_files, row.num_restored_files) == (0, 0)
    assert dk.DeltaTable(table_uri(catalog_uri, "t")).version() == 1
    with pytest.raises(DeltaError, match="should be less"):
        dk.DeltaTable(table_uri(catalog_uri, "t")).restore(1)


@pytest.mark.parametrize("name", ["a b", "a,b", "a;b", "a=b", "a(b", "a\tb"])
def test_column_names_that_need_a_mapping_are_refused(
    session: "SparkSession", name: str
) -> None:
    rows = session.range(1).toDF(name)
    nested = session.range(1).select(sf.array(sf.struct(sf.lit(1).alias(name))))
    struct = f"STRUCT<`{name}`: INT>"
    mapping = {"delta.columnMapping.mode": "name"}
    dks.write(session.range(1), "there")

    for write in (
        lambda: dks.write(rows, "t"),
        lambda: dks.write(nested.toDF("x"), "t"),
        lambda: dks.write(rows, "there", merge_schema=True),
        lambda: dks.write(rows, "there", mode="overwrite", overwrite_schema=True),
        lambda: (
            dks.DeltaTable.forName(session, "there")
            .merge(rows.withColumn("id", sf.lit(7)), f"`{name}` = 5")
            .withSchemaEvolution()
            .whenNotMatchedInsertAll()
            .execute()
        ),
        lambda: dks.sql(session, f"ALTER TABLE there ADD COLUMN `{name}` INT"),
        lambda: dks.sql(session, f"ALTER TABLE there ADD COLUMN x {struct}"),
        lambda: (
            dks.DeltaTable.create(session)
            .tableName("t")
            .addColumns(rows.schema)
            .execute()
        ),
    ):
        with pytest.raises(SchemaMismatchError, match="Found invalid character"):
            write()
    dks.write(rows, "mapped", configuration=mapping)
    assert dks.read(session, "mapped").columns == [name]
    assert dks.read(session, "there").columns == ["id"]


def test_table_of_void_columns_alone_is_refused(session: "SparkSession") -> None:
    with pytest.raises(SchemaMismatchError, match="type void"):
        dks.write(session.sql("SELECT NULL AS x"), "t")


@pytest.mark.since_pyspark("4.0")
@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("SELECT 1 AS `a b`", "Found invalid character"),
        ("SELECT NULL AS x", "type void"),
    ],
)
def test_data_source_refuses_columns_that_no_table_can_have(
    session: "SparkSession", tmp_path: Path, query: str, problem: str
) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    writer = session.sql(query).write.format("deltasql").mode("append")

    with pytest.raises(AnalysisException, match=problem):
        writer.save(uri)
    dks.write(session.range(1), uri)
    with pytest.raises(AnalysisException, match="Found invalid character"):
        session.sql("SELECT 1 AS `a b`").write.format("deltasql").mode("append").option(
            "mergeSchema", "true"
        ).save(uri)
    assert dks.read(session, uri).columns == ["id"]


def test_classes_of_a_store_are_looked_for_without_a_word(
    session: "SparkSession", capfd: pytest.CaptureFixture[str]
) -> None:
    assert not can_reach(session, "gs://bucket/t")
    assert can_reach(session, "file:///tmp/t")
    assert capfd.readouterr().err == ""
