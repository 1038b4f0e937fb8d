"""Tables by their definition: clustering, identity columns, defaults, new columns."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import deltalake
import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, UnsupportedOperationException
from pyspark.sql.types import LongType, StringType, StructField

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import DeltaError, ProtocolError, SchemaMismatchError
from delkalakedb.model.actions import Add, DomainMetadata
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.spark.face.table import DeltaTable
from delkalakedb.spark.schemas import COLUMN_ID

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


def identity_table(spark: "SparkSession", uri: str) -> DeltaTable:
    return (
        DeltaTable.create(spark, uri)
        .addColumn("id1", "BIGINT", generatedAlwaysAs=dks.IdentityGenerator())
        .addColumn("id2", "BIGINT", generatedByDefaultAs=dks.IdentityGenerator(2, 2))
        .addColumn("v", "BIGINT", nullable=False)
        .addColumn("w", "BIGINT", generatedAlwaysAs="id1 * 100")
        .execute()
    )


def test_identity_columns_get_values_by_writes_and_merges(
    spark: "SparkSession", uri: str
) -> None:
    table = identity_table(spark, uri)
    assert "identityColumns" in dk.connect(uri).table("t").writer_features
    for value in range(2):
        dks.write(spark.createDataFrame([(value,)], "v BIGINT"), uri)
    dks.write(spark.createDataFrame([(8, 2)], "id2 BIGINT, v BIGINT"), uri)
    assert rows(uri) == [(1, 2, 0, 100), (2, 4, 1, 200), (3, 8, 2, 300)]
    history, other = table.history(1).first(), pa.table({"v": [1]})

    for refused, message in (
        (lambda: dks.write(spark.range(1).toDF("id1"), uri), "GENERATED ALWAYS"),
        (lambda: table.update(set={"id2": "5"}), "UPDATE on IDENTITY column id2"),
        (lambda: dk.write_deltalake(uri, other, mode="append"), "Spark can"),
        (lambda: dk.DeltaTable(uri).delete("v = 1"), "Spark can"),
    ):
        with pytest.raises(DeltaError, match=message):
            refused()
    given = spark.range(1).selectExpr("id AS v")
    with pytest.raises(AnalysisException, match="identityColumns; write with"):
        given.write.format("deltasql").mode("append").save(uri)
    assert table.history(1).first() == history

    # of three partitions, one without rows
    part = spark.sparkContext.parallelize([(10,), (11,), (12,)], 3)
    given = spark.createDataFrame(part, "v BIGINT").filter("v <> 11")
    table.update("v = 2", {"v": "v + 1"})
    dks.write(given, uri, mode="overwrite")
    assert rows(uri) == [(4, 6, 10, 400), (5, 8, 12, 500)]
    source = spark.range(10, 15).selectExpr("id AS v").repartition(3, "v")
    table = table.alias("t")
    merge = table.merge(source.alias("s"), "t.v = s.v")
    merge = merge.whenMatchedUpdate(set={"v": "-s.v"})
    merge = merge.whenNotMatchedInsert("s.v = 11", {"id2": "0", "v": "s.v"})
    merge.whenNotMatchedInsert(values={"v": "s.v"}).execute()
    found = rows(uri)
    assert {row[:3] for row in found} >= {(4, 6, -10), (5, 8, -12)}
    assert sorted(row[0] for row in found) == [4, 5, 6, 7, 8]
    seconds = {row[2]: row[1] for row in found if row[2] > 10}
    assert seconds[11] == 0
    assert {seconds[13], seconds[14]} < {10, 12, 14}
    insert = table.merge(source.alias("s"), "t.v = s.v").whenNotMatchedInsertAll()
    assert insert.execute().first().num_inserted_rows == 2
    assert sorted(row[0] for row in rows(uri)) == [4, 5, 6, 7, 8, 9, 10]
    refused = table.merge(
        spark.sql("SELECT 1L AS id1, 1L AS v").alias("s"), "t.v = s.v"
    )
    with pytest.raises(DeltaError, match="GENERATED ALWAYS"):
        refused.whenNotMatchedInsertAll().execute()

    table.restoreToVersion(1)
    dks.write(given.limit(1), uri)
    assert sorted(row[0] for row in rows(uri)) == [1, 11]
    assert dk.verify(uri, deep=True).ok
    detail = DeltaTable.forUri(spark, uri).toDF()
    assert [field.metadata for field in detail.schema] == [{}, {}, {}, {}]


def test_identity_columns_cannot_partition_a_table(
    spark: "SparkSession", uri: str
) -> None:
    builder = DeltaTable.create(spark, uri).addColumn("v", "INT")
    identity = dks.IdentityGenerator()
    builder = builder.addColumn("id", "BIGINT", generatedAlwaysAs=identity)

    with pytest.raises(ProtocolError, match="id partitions the table"):
        builder.partitionedBy("id").execute()

    assert not dk.DeltaTable.is_deltatable(uri)


def test_concurrent_writers_never_get_one_identity_value_twice(
    spark: "SparkSession", uri: str
) -> None:
    table = identity_table(spark, uri)
    dks.write(spark.range(3).selectExpr("id AS v"), uri)

    def work(number: int) -> None:
        if number == 2:
            table.delete("v = 0")
        elif number == 3:
            source = spark.range(300, 310).selectExpr("id AS v").alias("s")
            merge = table.alias("t").merge(source, "t.v = s.v")
            merge.whenNotMatchedInsertAll().execute()
        else:
            first = 100 * (number + 1)
            dks.write(spark.range(first, first + 10).selectExpr("id AS v"), uri)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))

    found = rows(uri)
    assert [row[0] for row in sorted(found)] == list(range(2, 34))
    assert len({row[1] for row in found}) == 32
    assert dk.verify(uri, deep=True).ok


def test_rows_without_a_value_get_the_default(spark: "SparkSession", uri: str) -> None:
    fields = [
        StructField("id", LongType()),
        StructField("v", StringType(), False, {"CURRENT_DEFAULT": "concat('a', 'b')"}),
        StructField("n", LongType(), True, {"CURRENT_DEFAULT": "7"}),
    ]
    table = DeltaTable.create(spark, uri).addColumns(fields).execute()
    assert "allowColumnDefaults" in dk.connect(uri).table("t").writer_features
    dks.write(spark.range(1), uri)
    dks.write(spark.sql("SELECT 1L AS id, CAST(NULL AS BIGINT) AS n"), uri)
    merge = table.alias("t").merge(spark.range(1, 4).alias("s"), "t.id = s.id")
    merge = merge.whenMatchedUpdate(set={"n": "9"})
    merge = merge.whenNotMatchedInsert("s.id = 2", {"id": "s.id", "n": "null"})
    merge.whenNotMatchedInsertAll().execute()

    assert rows(uri) == [(0, "ab", 7), (1, "ab", 9), (2, "ab", None), (3, "ab", 7)]
    with pytest.raises(DeltaError, match="Spark can"):
        dk.write_deltalake(uri, pa.table({"id": [1]}), mode="append")
    fields = [StructField("n", LongType(), True, {"CURRENT_DEFAULT": "other + 1"})]
    builder = DeltaTable.create(spark, f"{uri}2").addColumns(fields)
    with pytest.raises(DeltaError, match="column n: 'other \\+ 1' can't be a default"):
        builder.execute()
    assert dk.verify(uri, deep=True).ok


def test_arguments_of_generated_columns_are_checked_as_in_delta_spark(
    spark: "SparkSession", uri: str
) -> None:
    add = DeltaTable.create(spark, uri).addColumn
    identity, wrong = dks.IdentityGenerator(), cast("Any", 1)

    for given in ("generatedAlwaysAs", "generatedByDefaultAs"):
        with pytest.raises(TypeError, match="must be"):
            add("a", "BIGINT", **{given: wrong})
        with pytest.raises(UnsupportedOperationException, match="make it BIGINT"):
            add("a", "INT", **{given: identity})
        with pytest.raises(ValueError, match="non-zero"):
            add("a", "BIGINT", **{given: dks.IdentityGenerator(step=0)})
    with pytest.raises(ValueError, match="cannot both be set"):
        add("a", "BIGINT", True, "", identity)
    for arguments in ((wrong, "INT"), ("a", wrong), ("a", "INT", wrong)):
        with pytest.raises(TypeError, match="must be"):
            add(*arguments)
    with pytest.raises(TypeError, match="comment must be str"):
        add("a", "INT", comment=wrong)


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_are_added_to_a_mapped_table(
    spark: "SparkSession", uri: str, mode: str
) -> None:
    mapping = {"delta.columnMapping.mode": mode}
    dks.write(
        spark.sql("SELECT 1L AS id, named_struct('a', 1) AS s"),
        uri,
        configuration=mapping,
    )
    table = dks.DeltaTable.forUri(spark, uri).alias("t")
    wider = spark.sql(
        "SELECT 2L AS id, named_struct('a', 2, 'b c', 'x') AS s, 5 AS `d e`"
    )

    dks.write(wider, uri, merge_schema=True)
    source = spark.sql("SELECT 3L AS id, array(named_struct('f', 6)) AS more").alias(
        "s"
    )
    merge = table.merge(source, "t.id = s.id").withSchemaEvolution()
    merge.whenNotMatchedInsertAll().execute()
    dks.sql(spark, f"ALTER TABLE deltasql.`{uri}` ADD COLUMNS (last INT, s.g INT)")
    table.update("id = 1", {"last": "7", "s.g": "8"})

    found = {row.id: row.asDict(recursive=True) for row in table.toDF().collect()}
    nothing = {"d e": None, "more": None, "last": None}
    first = {"a": 1, "b c": None, "g": 8}
    second = {"a": 2, "b c": "x", "g": None}
    assert found == {
        1: {**nothing, "id": 1, "s": first, "last": 7},
        2: {**nothing, "id": 2, "s": second, "d e": 5},
        3: {**nothing, "id": 3, "s": None, "more": [{"f": 6}]},
    }
    metadata = dk.connect(uri).snapshot("t").metadata
    fields = [*parse_schema(metadata.schema_string).walk()]
    ids = [f.metadata[COLUMN_ID] for f in fields if COLUMN_ID in f.metadata]
    last = cast(dict[str, str], metadata.configuration)[
        "delta.columnMapping.maxColumnId"
    ]
    assert len(ids) == len(set(ids)) == 9
    assert int(last) >= max(ids)
    assert dk.verify(uri, deep=True).ok
