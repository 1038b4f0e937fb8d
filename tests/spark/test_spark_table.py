"""The table API through Spark, in delta-spark's shape."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import (
    DeltaError,
    ReadOnlyFeatureError,
    SchemaMismatchError,
    TableNotFoundError,
    TransactionError,
)
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.spark.face.table import DeltaTable
from delkalakedb.spark.session import is_spark_3
from delkalakedb.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[Any, ...]
FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"deltasql://sqlite/{tmp_path}/meta.db?table=t"


def write(uri: str, rows: list[Row], **options: Any) -> None:
    ids, parts, values = zip(*rows, strict=True)
    table = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "p": pa.array(parts, pa.string()),
            "v": pa.array(values, pa.int64()),
        }
    )
    dk.write_deltalake(uri, table, mode="append", **options)


def mirror(uri: str) -> deltalake.DeltaTable:
    return deltalake.DeltaTable(dk.DeltaTable(uri).table_uri)


def rows(uri: str) -> list[Row]:
    found = mirror(uri).to_pyarrow_table().to_pylist()
    return sorted((tuple(row.values()) for row in found), key=repr)


def changes(uri: str, version: int) -> Counter[Row]:
    feed = mirror(uri).load_cdf(starting_version=version, ending_version=version)
    found = pa.table(feed).to_pylist()
    return Counter((r["_change_type"], r["id"], r["p"], r["v"]) for r in found)


def last(uri: str) -> dk.Commit:
    (commit,) = dk.connect(uri).snapshot("t").history(1)
    return commit


def test_deleted_rows_go_and_only_their_files_are_rewritten(
    spark: "SparkSession", uri: str
) -> None:
    write(uri, [(1, "a", 1), (2, "a", None), (3, "a", 3)], configuration=FEED)
    write(uri, [(4, "b", 4), (5, "b", 5)])
    write(uri, [(6, "b", 1)])
    table = DeltaTable.forUri(spark, uri)
    before = set(mirror(uri).file_uris())

    table.delete("v = 1")

    assert rows(uri) == [(2, "a", None), (3, "a", 3), (4, "b", 4), (5, "b", 5)]
    assert len(before & set(mirror(uri).file_uris())) == 1
    assert changes(uri, 3) == Counter([("delete", 1, "a", 1), ("delete", 6, "b", 1)])
    commit = last(uri)
    assert commit.operation == "DELETE"
    assert commit.operation_parameters == {"predicate": '["v = 1"]'}
    wanted = {
        "numRemovedFiles": "2",
        "numAddedFiles": "1",
        "numDeletedRows": "2",
        "numCopiedRows": "2",
    }
    assert commit.operation_metrics.items() >= wanted.items()

    table.delete("v = 99")
    assert last(uri).version == 3, "nothing to do is no version"
    table.delete()
    assert rows(uri) == []
    assert changes(uri, 4).total() == 4
    assert dk.verify(uri, deep=True).ok


def test_partitions_are_deleted_without_reading_their_files(
    spark: "SparkSession", uri: str, tmp_path: Path
) -> None:
    write(uri, [(1, "a", 1), (2, "b", 2), (3, None, 3)], partition_by=["p"])
    table = DeltaTable.forUri(spark, uri).alias("t")
    for file in tmp_path.rglob("p=a/*.parquet"):
        file.write_bytes(b"can't be read")

    table.delete("upper(t.p) = 'A' OR p IS NULL")

    assert rows(uri) == [(2, "b", 2)]
    assert last(uri).num_added_files == 0
    assert last(uri).operation_metrics["numDeletedRows"] == "2"


def test_updated_rows_change_in_value_and_partition(
    spark: "SparkSession", uri: str
) -> None:
    from pyspark.sql import functions as sf

    write(uri, [(1, "a", 1), (2, "b", 2)], partition_by=["p"], configuration=FEED)
    table = DeltaTable.forUri(spark, uri)

    table.update("id = 1", {"p": "'c'", "v": sf.col("v") + 10})

    assert rows(uri) == [(1, "c", 11), (2, "b", 2)]
    images = [("update_preimage", 1, "a", 1), ("update_postimage", 1, "c", 11)]
    assert changes(uri, 1) == Counter(images)
    metrics = last(uri).operation_metrics
    assert (metrics["numUpdatedRows"], metrics["numCopiedRows"]) == ("1", "0")

    table.update(set={"v": "id"})
    table.update(sf.col("p") == "b", {"v": "NULL"})
    assert rows(uri) == [(1, "c", 1), (2, "b", None)]
    with pytest.raises(ValueError, match="set"):
        table.update("id = 1")
    with pytest.raises(SchemaMismatchError, match="no column w"):
        table.update(set={"w": "1"})
    with pytest.raises(DeltaError, match="twice"):
        table.update(set={"v": "1", "V": "2"})


def test_rules_of_the_table_hold_for_updated_rows(
    spark: "SparkSession", uri: str, tmp_path: Path
) -> None:
    write(uri, [(1, "a", 1), (2, "b", 2)])
    face = dk.DeltaTable(uri)
    face.alter.add_constraint({"small": "v < 100"})
    table = DeltaTable.forUri(spark, uri)
    before = {file.name for file in tmp_path.rglob("*.parquet")}

    with pytest.raises(DeltaError, match="small"):
        table.update("id = 1", {"v": "1000"})
    assert {file.name for file in tmp_path.rglob("*.parquet")} == before

    face = dk.DeltaTable(uri)
    face.alter.set_table_properties({"delta.appendOnly": "true"})
    for change in (lambda: table.update(set={"v": "1"}), table.delete):
        with pytest.raises(DeltaError, match="appendOnly"):
            change()
    assert rows(uri) == [(1, "a", 1), (2, "b", 2)]


def test_values_of_literals_with_quotes_and_backslashes_prune_no_file_too_many(
    spark: "SparkSession", uri: str
) -> None:
    write(uri, [(1, "a\\b", 1)])
    write(uri, [(2, "v", 2)])
    table = DeltaTable.forUri(spark, uri)

    table.delete('p = "v"')
    assert rows(uri) == [(1, "a\\b", 1)]
    table.delete(r"p = 'a\\b'")
    assert rows(uri) == []


def test_small_files_become_one_in_each_partition(
    spark: "SparkSession", uri: str
) -> None:
    for i in range(3):
        write(uri, [(i, "a", i), (10 + i, "b", i)], partition_by=["p"])
    table = DeltaTable.forUri(spark, uri)
    before = rows(uri)

    (done,) = table.optimize().where("p = 'a'").executeCompaction().collect()
    assert (done.metrics.numFilesRemoved, done.metrics.numFilesAdded) == (3, 1)
    assert done.metrics.totalConsideredFiles == 3
    (done,) = table.optimize().executeCompaction().collect()
    assert (done.metrics.numFilesRemoved, done.metrics.numFilesAdded) == (3, 1)
    assert done.metrics.partitionsOptimized == 1
    assert rows(uri) == before
    assert last(uri).operation == "OPTIMIZE"
    version = last(uri).version
    table.optimize().executeCompaction()
    assert last(uri).version == version
    actions = dk.connect(uri).log("t").commit(version)
    assert not any(getattr(action, "data_change", False) for action in actions)
    with pytest.raises(DeltaError, match="partition columns"):
        table.optimize().where("id = 1").executeCompaction()


def test_z_order_puts_rows_that_are_alike_into_the_same_file(
    spark: "SparkSession", uri: str
) -> None:
    size = 64
    dk.write_deltalake(
        uri,
        pa.table(
            {
                "x": [i // size for i in range(size * size)],
                "y": [f"{i % size:03}" for i in range(size * size)],
            }
        ),
    )
    table = DeltaTable.forUri(spark, uri)
    spark.conf.set("spark.databricks.delta.optimize.maxFileSize", "1")
    try:
        before = dk.DeltaTable(uri).count()
        for _ in range(2):
            # As many parts as there were files.
            write_halves(uri)
        table.optimize().executeZOrderBy("x", "y")
    finally:
        spark.conf.unset("spark.databricks.delta.optimize.maxFileSize")

    files = dk.DeltaTable(uri).get_add_actions(flatten=True)
    adds = pa.table(files).to_pylist()
    assert dk.DeltaTable(uri).count() == before
    assert len(adds) == 4
    # By either column alone, files can be left out; before, each held every y.
    wide = sum(add["max.x"] - add["min.x"] for add in adds) / len(adds)
    high = sum(int(add["max.y"]) - int(add["min.y"]) for add in adds) / len(adds)
    assert max(wide, high) < 0.75 * size, (wide, high)
    with pytest.raises(SchemaMismatchError, match="no column z"):
        table.optimize().executeZOrderBy("z")


def write_halves(uri: str) -> None:
    """Each half of the rows by itself, so that there are more files."""
    table = dk.DeltaTable(uri)
    found = table.to_pyarrow_table()
    files = 2 * len(table.file_uris())
    step = len(found) // files
    table.delete()
    for i in range(files):
        dk.write_deltalake(uri, found.slice(i * step, step), mode="append")


def test_history_and_details_have_the_columns_of_delta_spark(
    spark: "SparkSession", uri: str
) -> None:
    write(uri, [(1, "a", 1)], partition_by=["p"], description="words")
    table = DeltaTable.forUri(spark, uri)
    table.delete("id = 1")

    newest, oldest = table.history().collect()
    assert (newest.version, newest.operation) == (1, "DELETE")
    assert newest.operationMetrics["numDeletedRows"] == "1"
    assert newest.readVersion == 0
    assert newest.isBlindAppend is False
    assert oldest.operation == "WRITE"
    assert [row.version for row in table.history(1).collect()] == [1]
    (detail,) = table.detail().collect()
    assert (detail.format, detail.name, detail.numFiles) == ("delta", "t", 0)
    assert (detail.description, detail.partitionColumns) == ("words", ["p"])
    assert detail.location == dk.DeltaTable(uri).table_uri.rstrip("/")


def test_versions_and_times_are_restored_and_old_files_vacuumed(
    spark: "SparkSession", uri: str, tmp_path: Path
) -> None:
    write(uri, [(1, "a", 1)])
    write(uri, [(2, "b", 2)])
    table = DeltaTable.forUri(spark, uri)
    then = table.history(1).collect()[0].timestamp
    table.delete("id = 2")

    (done,) = table.restoreToTimestamp(f"{then.isoformat(sep=' ')}").collect()
    assert rows(uri) == [(1, "a", 1), (2, "b", 2)]
    assert (done.num_restored_files, done.num_of_files_after_restore) == (1, 2)
    table.restoreToVersion(0)
    assert rows(uri) == [(1, "a", 1)]

    with pytest.raises(DeltaError, match="retention"):
        table.vacuum(0)
    setting = "spark.databricks.delta.retentionDurationCheck.enabled"
    spark.conf.set(setting, "false")
    try:
        assert table.vacuum(0.9).count() == 0
        assert len(list(tmp_path.rglob("*.parquet"))) == 2
        assert table.vacuum(0).count() == 0
    finally:
        spark.conf.unset(setting)
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    assert rows(uri) == [(1, "a", 1)]


def test_tables_are_created_as_described(
    spark: "SparkSession", uri: str, tmp_path: Path
) -> None:
    catalog = f"deltasql://sqlite/{tmp_path}/meta.db"

    def described(builder: Any) -> Any:
        return (
            builder.tableName("made")
            .addColumn("id", "BIGINT", nullable=False, comment="a key")
            .addColumn("day", "DATE")
            .addColumn("year", "INT", generatedAlwaysAs="year(day)")
            .partitionedBy("year")
            .property("delta.appendOnly", "false")
            .comment("words")
            .location(str(tmp_path / "elsewhere"))
        )

    with pytest.raises(TableNotFoundError):
        described(DeltaTable.replace(spark, catalog)).execute()
    table = described(DeltaTable.create(spark, catalog)).execute()
    made = dk.connect(catalog).table("made")
    assert made.location == (tmp_path / "elsewhere").as_uri()
    assert (made.description, made.partition_columns) == ("words", ("year",))
    assert made.configuration["delta.appendOnly"] == "false"
    assert [(f.name, f.nullable) for f in made.schema.fields] == [
        ("id", False),
        ("day", True),
        ("year", True),
    ]
    assert made.schema.fields[0].metadata == {"comment": "a key"}

    with pytest.raises(DeltaError):
        described(DeltaTable.create(spark, catalog)).execute()
    described(DeltaTable.createIfNotExists(spark, catalog)).execute()
    assert [row.version for row in table.history().collect()] == [0]
    builder = DeltaTable.createOrReplace(spark).tableName(f"{catalog}?table=made")
    builder.addColumns(spark.createDataFrame([], "n int").schema).execute()
    assert table.toDF().columns == ["n"]
    assert DeltaTable.isDeltaTable(spark, f"{catalog}?table=made")
    assert not DeltaTable.isDeltaTable(spark, f"{catalog}?table=none")
    with pytest.raises(DeltaError, match="no catalog"):
        DeltaTable.create(spark).tableName("made")
    with pytest.raises(TableNotFoundError):
        DeltaTable.forUri(spark, f"{catalog}?table=none")


def test_upkeep_is_refused_within_a_transaction(
    spark: "SparkSession", uri: str
) -> None:
    write(uri, [(1, "a", 1), (2, "b", 2)])
    with dk.transaction(dk.connect(uri)) as tx:
        table = DeltaTable.inTransaction(spark, tx, "t")
        table.update("id = 1", {"v": "10"})
        table.delete("id = 2")
        assert [tuple(row) for row in table.toDF().collect()] == [(1, "a", 10)]
        for refused in (table.vacuum, lambda: table.restoreToVersion(0)):
            with pytest.raises(TransactionError):
                refused()
        assert rows(uri) == [(1, "a", 1), (2, "b", 2)]

    assert rows(uri) == [(1, "a", 10)]


def test_an_operation_on_rows_of_every_engine_is_ratified(
    spark: "SparkSession", catalog_uri: str
) -> None:
    target = format_uri(parse_uri(catalog_uri).with_table("t"))
    write(target, [(1, "a", 1), (2, "b", 2)])
    table = DeltaTable.forUri(spark, target).alias("t")
    source = spark.createDataFrame(
        [(2, "x", 20), (3, "y", 30)], "id long, p string, v long"
    )

    merge = table.merge(source.alias("s"), "t.id = s.id").whenMatchedUpdateAll()
    merge.whenNotMatchedInsertAll().execute()
    table.delete("id = 1")

    assert rows(target) == [(2, "x", 20), (3, "y", 30)]
    assert dk.verify(target, deep=True).ok


def test_table_with_a_feature_that_nobody_here_writes_is_read_only(
    spark: "SparkSession", uri: str
) -> None:
    given = spark.range(4).toDF("id")
    dks.write(given, uri)
    with dk.connect(uri) as catalog:
        location = catalog.table("t").location
    lists = b'"minReaderVersion":1,"minWriterVersion":7,"writerFeatures":["liquid"]'
    store = open_store(location)
    store.put(
        "_delta_log/00000000000000000001.json", b'{"protocol":{' + lists + b"}}\n"
    )
    dk.mirror.adopt(uri)
    before = sorted(file.path for file in store.list())
    table = DeltaTable.forUri(spark, uri)
    source = given.alias("s")

    writers = {
        "append": lambda: dks.write(given, uri, mode="append"),
        "overwrite": lambda: dks.write(given, uri, mode="overwrite"),
        "delete": lambda: table.delete("id = 1"),
        "update": lambda: table.update("id = 1", {"id": "id + 1"}),
        "merge": lambda: (
            table.alias("t")
            .merge(source, "s.id = t.id")
            .whenMatchedUpdateAll()
            .execute()
        ),
        "compact": lambda: table.optimize().executeCompaction(),
        "vacuum": lambda: table.vacuum(),
        "restore": lambda: table.restoreToVersion(0),
    }
    if not is_spark_3():
        from delkalakedb.spark.writer.sink import BatchWriter

        writers["source"] = lambda: BatchWriter({"path": uri}, given.schema, False)
    for name, write in writers.items():
        with pytest.raises(ReadOnlyFeatureError, match=r"t: .* liquid \("):
            pytest.fail(f"{name} is not refused: {write()}")

    assert sorted(file.path for file in store.list()) == before
    assert sorted(row.id for row in table.toDF().collect()) == [0, 1, 2, 3]
    assert dks.read(spark, uri, version=0).count() == 4
