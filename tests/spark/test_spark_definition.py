"""Tables by their definition: clustering, and schemas that writes may extend."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import DeltaError, SchemaMismatchError
from delkalakedb.model.actions import Add, DomainMetadata
from delkalakedb.spark.face.table import DeltaTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AUTO_MERGE = "spark.databricks.delta.schema.autoMerge.enabled"


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"deltasql://sqlite/{tmp_path}/meta.db?table=t"


@contextmanager
def setting(spark: "SparkSession", name: str, value: str) -> Iterator[None]:
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name)


def rows(uri: str) -> list[tuple[Any, ...]]:
    """The rows as delta-rs reads them from the published log."""
    found = deltalake.DeltaTable(dk.DeltaTable(uri).table_uri).to_pyarrow_table()
    return sorted((tuple(row.values()) for row in found.to_pylist()), key=repr)


def live(uri: str) -> list[Add]:
    return list(dk.connect(uri).log("t").adds())


def ranges(uri: str, column: str) -> list[tuple[int, int]]:
    """The range of a column's values in each file, in order."""
    stats = [json.loads(str(add.stats)) for add in live(uri)]
    return sorted((s["minValues"][column], s["maxValues"][column]) for s in stats)


def test_clustered_table_is_clustered_by_optimize(
    spark: "SparkSession", uri: str
) -> None:
    builder = DeltaTable.create(spark, uri).addColumn("id", "BIGINT")
    table = builder.addColumn("v", "STRING").clusterBy("v", "id").execute()
    detail = table.detail().first()
    assert detail is not None
    assert detail.clusteringColumns == ["v", "id"]
    assert {"clustering", "domainMetadata"} <= set(detail.tableFeatures)
    (domain,) = (
        action
        for action in dk.connect(uri).log("t").commit(0)
        if isinstance(action, DomainMetadata)
    )
    configured = json.loads(domain.configuration)
    assert configured["clusteringColumns"] == [["v"], ["id"]]

    builder = DeltaTable.createOrReplace(spark, uri).addColumn("id", "BIGINT")
    table = builder.addColumn("v", "STRING").clusterBy(["id"]).execute()
    for part in (0, 1):
        given = spark.range(part, 400, 2).selectExpr("id", "CAST(id AS STRING) AS v")
        dks.write(given.repartition(2), uri)
    given.write.format("deltasql").mode("append").save(uri)
    table.delete("id < 10")
    with setting(spark, "spark.databricks.delta.optimize.maxFileSize", "4000"):
        done = table.optimize().executeCompaction().first()
    assert done is not None
    assert done.metrics.numFilesAdded > 2
    clustered = ranges(uri, "id")
    assert all(a[1] < b[0] for a, b in pairwise(clustered))
    assert {add.clustering_provider for add in live(uri)} == {"liquid"}
    commit = table.history(1).first()
    assert commit is not None
    assert commit.operationParameters["clusterBy"] == '["id"]'
    assert len(rows(uri)) == 585

    version = table.history(1).first()
    table.optimize().executeCompaction()
    assert table.history(1).first() == version, "all files are clustered already"
    dk.write_deltalake(uri, pa.table({"id": [1], "v": ["one"]}), mode="append")
    with setting(spark, "spark.databricks.delta.optimize.maxFileSize", "4000"):
        table.optimize().executeCompaction()
    assert {add.clustering_provider for add in live(uri)} == {"liquid"}
    assert ranges(uri, "id")[0][0] == 1
    assert dk.verify(uri, deep=True).ok
    with pytest.raises(DeltaError, match="executeCompaction"):
        table.optimize().executeZOrderBy("id")

    DeltaTable.replace(spark, uri).addColumn("n", "INT").execute()
    assert dk.connect(uri).snapshot("t").clustering_columns() == []
    builder = DeltaTable.replace(spark, uri).addColumn("n", "INT").partitionedBy("n")
    with pytest.raises(DeltaError, match="but not both"):
        builder.addColumn("m", "INT").execute()


def test_written_tables_are_clustered_as_the_call_says(
    spark: "SparkSession", uri: str
) -> None:
    given = spark.range(4).selectExpr("id", "STRUCT(id AS n, array(id) AS m) AS s")
    dks.write(given, uri, cluster_by=["s.n", "id"])
    catalog = dk.connect(uri)

    def columns() -> list[str]:
        return catalog.snapshot("t").clustering_columns()

    assert columns() == ["s.n", "id"]
    dks.write(given, uri, cluster_by=["s.n", "id"])
    DeltaTable.forUri(spark, uri).optimize().executeCompaction()
    assert {add.clustering_provider for add in live(uri)} == {"liquid"}
    with pytest.raises(DeltaError, match=r"clustered by \['s.n', 'id'\]"):
        dks.write(given, uri, cluster_by="id")
    dks.write(given.drop("s"), uri, mode="overwrite", overwrite_schema=True)
    assert columns() == ["id"]
    dks.write(given, uri, mode="overwrite", cluster_by=["s.n"], overwrite_schema=True)
    assert columns() == ["s.n"]
    options = {"mode": "overwrite", "overwrite_schema": True}
    dks.write(given, f"{uri}2", partition_by="id")
    dks.write(given, f"{uri}2", cluster_by="id", **options)
    table = catalog.table("t2")
    assert (table.partition_columns, "clustering" in table.writer_features) == (
        (),
        True,
    )
    for names, message in (
        (["none"], "no column none"),
        (["s.m"], "of type array"),
        (["id", "id"], "twice"),
        (["id"] * 5, "at most 4"),
    ):
        with pytest.raises(DeltaError, match=message):
            dks.write(given, f"{uri}3", cluster_by=names)
    with pytest.raises(DeltaError, match="but not both"):
        dks.write(given, f"{uri}3", cluster_by="id", partition_by="id")
    assert dk.verify(uri, deep=True).ok


def test_session_that_merges_schemas_adds_columns_by_writes_and_merges(
    spark: "SparkSession", uri: str
) -> None:
    dks.write(spark.sql("SELECT 1L AS id, 10 AS v"), uri)
    more = spark.sql("SELECT 2L AS id, 'x' AS word")
    table = DeltaTable.forUri(spark, uri).alias("t")
    merge = table.merge(
        spark.sql("SELECT 1L AS id, true AS flag").alias("s"), "t.id = s.id"
    ).whenMatchedUpdateAll()

    with pytest.raises(SchemaMismatchError, match="word"):
        dks.write(more, uri)
    with pytest.raises(SchemaMismatchError, match="no column v"):
        merge.execute()
    with setting(spark, AUTO_MERGE, "true"):
        with pytest.raises(SchemaMismatchError, match="word"):
            dks.write(more, uri, merge_schema=False)
        dks.write(more, uri)
        merge.execute()

    assert table.toDF().columns == ["id", "v", "word", "flag"]
    assert rows(uri) == [(1, 10, None, True), (2, None, "x", None)]
