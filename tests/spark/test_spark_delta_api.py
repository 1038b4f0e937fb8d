"""The parts of delta-spark's API that aren't rows: clones, features, conversion."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import msgspec
import pyarrow as pa
import pytest
from pyspark.sql import functions as sf

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import DeltaError, ProtocolError, TableExistsError
from tests.support.hostile_tables import HostileTable
from tests.support.lakes import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


STAND_INS = [
    "delta",
    *(f"delta.{name}" for name in ("tables", "exceptions", "pip_utils", "version")),
]


@pytest.fixture
def session(spark: "SparkSession", tmp_path: Path) -> "SparkSession":
    """A session of its own with a catalog of its own."""
    own = spark.newSession()
    dks.use(own, f"deltasql://sqlite/{tmp_path}/meta.db")
    return own


def ids(table: dks.DeltaTable) -> list[int]:
    return sorted(row.id for row in table.toDF().collect())


def clone_uri(folder: Path, place: str) -> str:
    name = Path(place).name.replace(" ", "%20")
    return f"deltasql://sqlite/{folder}/meta.db?table={name}"


def test_clones_share_files_or_copy_them(
    session: "SparkSession", tmp_path: Path
) -> None:
    rows = session.range(6).withColumn("p", sf.concat(sf.lit("a b%"), sf.col("id") % 2))
    dks.write(rows, "t", partition_by="p", configuration={"mine": "1"})
    dks.write(rows.where("id > 3"), "t", mode="overwrite")
    table = dks.DeltaTable.forName(session, "t")
    shallow, deep = str(tmp_path / "shallow"), str(tmp_path / "deep copy")

    one = table.cloneAtVersion(0, shallow, True, False, {"foo": "bar"})
    two = table.cloneAtVersion(0, deep)

    for clone, place in ((one, shallow), (two, deep)):
        assert ids(clone) == list(range(6))
        assert dks.DeltaTable.forPath(session, place).toDF().columns == ["id", "p"]
        query = dk.QueryBuilder().register(
            "t", dk.DeltaTable(clone_uri(tmp_path, place))
        )
        plain = pa.table(query.execute("SELECT id FROM t ORDER BY id").read_all())
        assert plain["id"].to_pylist() == list(range(6))
        clone.delete("id = 1")
        assert ids(clone) == [0, 2, 3, 4, 5]
    assert ids(table) == [4, 5]
    # deltalake itself can't read the absolute paths of a shallow clone
    assert deltalake.DeltaTable(deep).to_pyarrow_table().num_rows == 5
    properties = one.detail().first().properties
    assert (properties["mine"], properties["foo"]) == ("1", "bar")
    assert one.detail().first().id != two.detail().first().id
    history = {row.version: row for row in two.history().collect()}[0]
    assert history.operation == "CLONE"
    assert history.operationParameters["sourceVersion"] == "0"
    assert history.operationMetrics["numCopiedFiles"] == "4"

    with pytest.raises(TableExistsError, match="replace=True"):
        table.clone(shallow, True)
    again = table.clone(shallow, True, True)
    assert (ids(again), ids(table)) == ([4, 5], [4, 5])
    assert again.detail().first().id == one.detail().first().id
    table.clone(shallow, True, True)
    assert ids(again) == [4, 5]
    table.clone("named", False)
    assert ids(dks.DeltaTable.forName(session, "named")) == [4, 5]
    with pytest.raises(DeltaError, match="a clone of itself"):
        table.clone("t", True, True)

    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
    one.vacuum(0)
    assert (ids(again), ids(table)) == ([4, 5], [4, 5])
    for name in ("shallow", "deep copy", "named"):
        assert dk.verify(clone_uri(tmp_path, name), deep=True).ok


def test_clone_takes_no_file_from_outside_the_location(
    session: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A catalog as it came to be before paths were checked at the door.
    monkeypatch.setattr("delkalakedb.migrate.loader.check_inside", lambda *a, **k: None)
    source = HostileTable(tmp_path / "source")
    source.begin()
    victim = source.data(1, name="victim.parquet").rename(tmp_path / "victim.parquet")
    source.commit(source.add("../victim.parquet", victim))
    dk.import_table(str(source.folder), clone_uri(tmp_path, "t"))
    table = dks.DeltaTable.forName(session, "t")

    for name, shallow in (("shallow", True), ("deep", False)):
        with pytest.raises(DeltaError, match="nothing is read"):
            table.clone(str(tmp_path / name), shallow)
        assert not dk.DeltaTable.is_deltatable(clone_uri(tmp_path, name))


def test_clone_keeps_deletion_vectors_and_checks_its_arguments(
    session: "SparkSession", tmp_path: Path
) -> None:
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        lake = Lake(catalog, tmp_path)
        vectors = {"delta.enableDeletionVectors": "true"}
        schema = pa.schema([("id", pa.int64())])
        lake.create(schema, features=["deletionVectors"], configuration=vectors)
        file = lake.file({"id": [1, 2, 3]}, "a b.parquet")
        lake.commit(file)
        lake.commit(*lake.without(file, 1))
    table = dks.DeltaTable.forName(session, lake.name)

    for shallow in (True, False):
        clone = table.clone(str(tmp_path / f"clone{shallow}"), shallow)
        assert ids(clone) == [1, 3]
        clone.update("id = 3", {"id": "4"})
        assert (ids(clone), ids(table)) == ([1, 4], [1, 3])
    assert ids(table.cloneAtVersion(1, "whole")) == [1, 2, 3]

    wrong: list[tuple[str, Any, list[Any]]] = [
        ("target needs to be a string", table.clone, [10]),
        ("isShallow needs to be a boolean", table.clone, ["x", 10]),
        ("replace needs to be a boolean", table.clone, ["x", False, 10]),
        ("properties needs to be a dict", table.clone, ["x", False, False, 10]),
        ("All property values including 1", table.clone, ["x", False, False, {"a": 1}]),
        ("version needs to be an int", table.cloneAtVersion, ["0", "x"]),
        ("timestamp needs to be a string", table.cloneAtTimestamp, [10, "x"]),
        ("The readerVersion needs to be", table.upgradeTableProtocol, ["a", 3]),
        ("The writerVersion needs to be", table.upgradeTableProtocol, [1, []]),
        ("featureName needs to be a string", table.addFeatureSupport, [1]),
        ("featureName needs to be a string", table.dropFeatureSupport, [{}]),
        ("truncateHistory needs to be", table.dropFeatureSupport, ["a", 1]),
    ]
    for message, call, given in wrong:
        with pytest.raises(ValueError, match=message):
            call(*given)


def test_protocol_is_upgraded_and_features_come_and_go(
    session: "SparkSession", tmp_path: Path
) -> None:
    dks.write(session.range(3), "t")
    table = dks.DeltaTable.forName(session, "t")

    def protocol() -> tuple[int, int, list[str]]:
        found = table.detail().first()
        features = list(found.tableFeatures)
        return found.minReaderVersion, found.minWriterVersion, features

    table.upgradeTableProtocol(1, 2)
    assert table.history().count() == 1
    table.addFeatureSupport("checkConstraints")
    assert protocol()[:2] == (1, 3)
    table.dropFeatureSupport("checkConstraints")
    assert protocol() == (1, 2, ["appendOnly", "invariants"])
    table.addFeatureSupport("deletionVectors")
    assert protocol() == (3, 7, ["appendOnly", "deletionVectors", "invariants"])
    operations = [row.operation for row in table.history().collect()]
    assert operations[:2] == ["SET TBLPROPERTIES", "DROP FEATURE"]
    place = dk.DeltaTable(f"deltasql://sqlite/{tmp_path}/meta.db?table=t").table_uri
    assert deltalake.DeltaTable(place).protocol().min_reader_version == 3
    table.delete("id = 1")
    assert ids(table) == [0, 2]
    with pytest.raises(ProtocolError, match="DELTA_FEATURE_DROP_NONREMOVABLE"):
        table.dropFeatureSupport("deletionVectors")


def test_vacuum_is_lite_or_takes_an_inventory(session: "SparkSession") -> None:
    dks.write(session.range(3).coalesce(1), "t")
    dks.write(session.range(2).coalesce(1), "t", mode="overwrite")
    table = dks.DeltaTable.forName(session, "t")
    place = Path(table.detail().first().location.removeprefix("file://"))
    for name in ("one é.txt", "two.txt", "three.txt"):
        (place / name).write_text("x")
    session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")

    def texts() -> list[str]:
        return sorted(path.name for path in place.glob("*.txt"))

    assert table.vacuum(0.5, lite=True, dryRun=True).count() == 0
    listed = [row.path for row in table.vacuum(0, dryRun=True).collect()]
    assert len(listed) == 4
    assert table.vacuum(0, lite=True).count() == 0
    assert len(texts()) == 3
    rows = [
        (f"{place}/one é.txt", 1, False, 0),
        ("two.txt", 1, False, 2**50),
        ("/elsewhere/three.txt", 1, False, 0),
        (str(place), 0, True, 0),
        *((str(path), 1, False, 0) for path in place.glob("*.parquet")),
    ]
    columns = "path STRING, length BIGINT, isDir BOOLEAN, modificationTime BIGINT"
    table.vacuum(0, inventory=session.createDataFrame(rows, columns))
    assert texts() == ["three.txt", "two.txt"]
    table.vacuum(0)
    assert texts() == []
    assert ids(table) == [0, 1]


def test_parquet_folder_becomes_a_table(
    session: "SparkSession", tmp_path: Path
) -> None:
    place = tmp_path / "a folder%"
    rows = session.range(4).select(
        "id",
        sf.expr("IF(id = 3, NULL, concat('x %/', id % 2))").alias("p"),
        sf.expr("date_add(DATE'2026-01-01', CAST(id AS INT) % 2)").alias("d"),
        sf.expr("timestamp_micros(id)").alias("ts"),
    )
    rows.write.partitionBy("p", "d").parquet(str(place))
    more = session.range(4, 5).selectExpr("id", "'y' AS p", "DATE'2026-01-01' AS d")
    more = more.withColumn("added", sf.lit(7))
    more.write.partitionBy("p", "d").mode("append").parquet(str(place))
    (place / "_temporary").mkdir()
    (place / "_temporary" / "x.parquet").write_text("no Parquet")
    identifier = f"parquet.`{place}`"
    convert = dks.DeltaTable.convertToDelta
    with pytest.raises(DeltaError, match=r"Expecting 1 partition column.*found 2"):
        convert(session, identifier, "p string")

    table = convert(session, identifier, "p string, d date")

    wanted = {(r.id, r.p, r.d, r.ts, None) for r in rows.collect()}
    first = table.detail().first()
    assert first.partitionColumns == ["p", "d"]
    found = table.toDF().select("id", "p", "d", "ts", "added").collect()
    assert {tuple(row) for row in found if row.id < 4} == wanted
    assert [row.added for row in found if row.id == 4] == [7]
    name = dks.DeltaTable.forPath(session, str(place)).detail().first().name
    where = "id = 2 AND p = 'x %/0'"
    assert dks.read(session, name, where=where).first().id == 2
    plain = deltalake.DeltaTable(str(place)).to_pyarrow_table()
    assert sorted(plain["id"].to_pylist()) == [0, 1, 2, 3, 4]
    adds = pa.table(deltalake.DeltaTable(str(place)).get_add_actions(flatten=True))
    assert sorted(adds["max.id"].to_pylist()) == [0, 1, 2, 3, 4]
    with pytest.raises(TableExistsError, match="a table already"):
        convert(session, identifier)
    with pytest.raises(DeltaError, match=r"write parquet\.`path`"):
        convert(session, str(tmp_path))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DeltaError, match="no Parquet files"):
        convert(session, f"parquet.`{empty}`")


def test_optimize_returns_delta_sparks_metrics(session: "SparkSession") -> None:
    rows = session.range(40).withColumn("p", sf.col("id") % 2)
    dks.write(rows.repartition(3), "t", partition_by="p")
    optimize = dks.DeltaTable.forName(session, "t").optimize()

    metrics = optimize.where("p = 1").executeZOrderBy("id").first().metrics

    stats = metrics.zOrderStats
    assert (stats.strategyName, stats.numOutputCubes) == ("all", 1)
    assert stats.mergedFiles.num == metrics.numFilesRemoved == 3
    assert metrics.numTableColumns == 2
    assert metrics.endTimeMs >= metrics.startTimeMs
    assert optimize.executeCompaction().first().metrics.zOrderStats is None
    history = dks.DeltaTable.forName(session, "t").history()
    said = history.where("version = 1").first().operationParameters
    assert json.loads(said["predicate"]) == ["('p = 1)"]
    with pytest.raises(DeltaError, match=r"non-partition column 'id'.*: \[p\]"):
        optimize.where("id = 1").executeCompaction()


def test_optimize_of_a_clustered_table_counts_its_runs(session: "SparkSession") -> None:
    dks.write(session.range(30).repartition(2), "t", cluster_by="id")
    optimize = dks.DeltaTable.forName(session, "t").optimize

    def stats() -> Any:
        found = optimize().executeCompaction().first().metrics.clusteringStats
        return {
            key: value.num if hasattr(value, "num") else value
            for key, value in found.asDict().items()
        }

    names = ["inputZCubeFiles", "inputOtherFiles", "inputNumZCubes", "mergedFiles"]
    names.append("numOutputZCubes")
    assert stats() == dict(zip(names, [0, 2, 0, 2, 1], strict=True))
    assert stats() == dict(zip(names, [1, 0, 1, 0, 0], strict=True))
    dks.write(session.range(5).coalesce(1), "t")
    assert stats() == dict(zip(names, [1, 1, 1, 2, 1], strict=True))
    dks.write(session.range(5), "plain")
    plain = dks.DeltaTable.forName(session, "plain").optimize()
    assert plain.executeCompaction().first().metrics.clusteringStats is None


def test_history_is_loaded_in_pages(
    session: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delkalakedb.spark.face.table._PAGE_COMMITS", 2)
    for number in range(5):
        dks.write(session.range(number + 1), "t", user_metadata=f"{number}")
    table = dks.DeltaTable.forName(session, "t")

    found = table.history().collect()

    assert [row.version for row in found] == [4, 3, 2, 1, 0]
    assert [row.userMetadata for row in found] == ["4", "3", "2", "1", "0"]
    assert found[0].operationParameters["mode"] == "Append"
    for limit in range(7):
        versions = [row.version for row in table.history(limit).collect()]
        assert versions == [4, 3, 2, 1, 0][:limit]


def test_code_for_delta_spark_runs_without_delta_spark(
    session: "SparkSession",
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    for name in STAND_INS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "delta.py").write_text("")
    with pytest.raises(ImportError, match="uninstall delta-spark"):
        dks.install()
    (tmp_path / "delta.py").unlink()
    code = """
from delta import configure_spark_with_delta_pip
from delta.exceptions import ConcurrentAppendException
from delta.tables import DeltaTable
from delta.tables import DeltaMergeBuilder, DeltaOptimizeBuilder, DeltaTableBuilder
import delta.tables

assert delta.tables.DeltaTable is DeltaTable
DeltaTable.create(spark).tableName("t").addColumn("id", "long").execute()
found = DeltaTable.forName(spark, "t").toDF().count()
builder = configure_spark_with_delta_pip(spark.builder)

import delta.pip_utils
from delta.version import __version__

assert delta.pip_utils.configure_spark_with_delta_pip is configure_spark_with_delta_pip
assert delta.__version__ == __version__ == "4.4.0"
assert delta.pip_utils.configure_spark_with_delta_pip(builder) is builder
"""
    dks.install()
    dks.install()
    names: dict[str, Any] = {"spark": session}

    exec(code, names)

    assert names["found"] == 0
    for name in STAND_INS:
        monkeypatch.delitem(sys.modules, name)


def test_not_null_columns_are_read_as_such(
    session: "SparkSession", tmp_path: Path
) -> None:
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        lake = Lake(catalog, tmp_path)
        fields = [("id", pa.int64()), ("p", pa.string()), ("n", pa.int64())]
        schema = pa.schema([pa.field(*f, nullable=f[0] == "n") for f in fields])
        vectors = {"delta.enableDeletionVectors": "true"}
        lake.create(
            schema,
            partitions=["p"],
            features=["deletionVectors"],
            configuration=vectors,
        )
        empty = dks.read(session, lake.name).schema
        told = lake.file(
            {"id": [1, 2], "p": ["x", "x"], "n": [1, None]}, "p=x/1.parquet"
        )
        told = msgspec.structs.replace(told, partition_values={"p": "x"})
        cut = lake.file({"id": [3, 4], "p": ["y"] * 2, "n": [5, 6]}, "2.parquet", p="y")
        lake.commit(told, cut)
        plain = dks.read(session, lake.name)
        lake.commit(*lake.without(cut, 0))
        rows = dks.read(session, lake.name)

    for found in (empty, plain.schema, rows.schema):
        assert [field.nullable for field in found] == [False, False, True]
    assert sorted(rows.collect()) == [(1, "x", 1), (2, "x", None), (4, "y", 6)]
    assert [tuple(row) for row in rows.where("p = 'y' AND id > 3").collect()] == [
        (4, "y", 6)
    ]
    table = dks.DeltaTable.forName(session, lake.name)
    table.update("id = 1", {"n": "NULL"})
    with pytest.raises(DeltaError, match="id"):
        table.update("id = 2", {"id": "NULL"})
