"""Merge through Spark: Delta's semantics, and what its files and history tell."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as sf

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import DeltaError, SchemaMismatchError
from delkalakedb.model.predicate.merge_condition import other_aliases
from delkalakedb.spark.face.table import DeltaTable
from delkalakedb.write.engines.in_place import InPlace
from tests.support.merges import FEED, Merged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def merged(spark: "SparkSession", tmp_path: Path) -> Merged:
    return Merged(spark, tmp_path)


def test_rows_are_updated_deleted_and_inserted_by_the_first_clause_that_holds(
    merged: Merged,
) -> None:
    merged.write([(1, "a", 1), (2, "a", 2)], partition_by=["p"], configuration=FEED)
    merged.write([(3, "b", 3), (4, "b", 4)])
    merged.write([(9, "c", 9)])
    source = merged.source((1, "a", 10), (2, "a", -1), (4, "c", 40), (5, None, 50))

    done = (
        merged.table.merge(source, "t.id = s.id")
        .whenMatchedDelete("s.v < 0")
        .whenMatchedUpdate("s.v > 30", {"t.p": "s.p", "v": "s.v + t.v"})
        .whenMatchedUpdateAll()
        .whenNotMatchedInsert("s.v > 99", {"id": "0"})
        .whenNotMatchedInsertAll()
        .execute()
    )

    assert [tuple(row) for row in done.collect()] == [(4, 2, 1, 1)]
    expected = [(1, "a", 10), (3, "b", 3), (4, "c", 44), (5, None, 50), (9, "c", 9)]
    assert merged.rows() == expected
    assert merged.changes(3) == Counter(
        [
            ("update_preimage", 1, "a", 1),
            ("update_postimage", 1, "a", 10),
            ("delete", 2, "a", 2),
            ("update_preimage", 4, "b", 4),
            ("update_postimage", 4, "c", 44),
            ("insert", 5, None, 50),
        ]
    )
    metrics = merged.metrics()
    wanted = {
        "numSourceRows": "4",
        "numTargetRowsInserted": "1",
        "numTargetRowsUpdated": "2",
        "numTargetRowsDeleted": "1",
        "numTargetRowsCopied": "1",
        "numOutputRows": "4",
        "numTargetFilesRemoved": "2",
    }
    assert metrics.items() >= wanted.items()
    assert dk.verify(merged.uri, deep=True).ok


def test_clauses_are_checked_even_if_no_row_can_match(
    merged: Merged, spark: "SparkSession"
) -> None:
    merged.write([(1, "a", 1)])
    merged.table.delete()
    lacking = spark.createDataFrame([(1,)], "id long").alias("s")
    source = merged.source((1, "a", 10))

    for condition, given, clause in (
        ("t.id = s.id", lacking, lambda m: m.whenMatchedUpdateAll()),
        ("t.id = s.id", source, lambda m: m.whenMatchedUpdate(set={"v": "s.nope"})),
        ("t.id = s.id", source, lambda m: m.whenMatchedDelete("s.nope > 1")),
        ("t.id = s.nope", source, lambda m: m.whenMatchedDelete()),
    ):
        before = merged.table.history(1).collect()
        with pytest.raises((SchemaMismatchError, AnalysisException)):
            clause(merged.table.merge(given, condition)).execute()
        assert merged.table.history(1).collect() == before


def test_rows_that_nothing_matches_change_by_the_clauses_for_them(
    merged: Merged,
) -> None:
    merged.write([(1, "a", 1), (2, "a", 2), (None, "a", 3)], configuration=FEED)
    merged.write([(4, "b", 4)])
    (
        merged.table.merge(merged.source((1, "x", 1)), "t.id = s.id")
        .whenNotMatchedBySourceUpdate("t.v = 2", {"v": "-2"})
        .whenNotMatchedBySourceDelete("t.id IS NULL")
        .execute()
    )

    assert merged.rows() == [(1, "a", 1), (2, "a", -2), (4, "b", 4)]
    kinds = [kind for kind, *_ in merged.changes(2)]
    assert sorted(kinds) == ["delete", "update_postimage", "update_preimage"]
    metrics = merged.metrics()
    # The file of row 4 is as it was.
    assert metrics["numTargetFilesRemoved"] == "1"
    assert metrics["numTargetRowsNotMatchedBySourceUpdated"] == "1"
    assert metrics["numTargetRowsNotMatchedBySourceDeleted"] == "1"


def test_clauses_on_unmatched_rows_cannot_use_the_source(merged: Merged) -> None:
    merged.write([(1, "a", 1), (2, "a", 2)])
    source = merged.source((1, "x", 1))
    merge = merged.table.merge(source, "t.id = s.id")

    for refused in (
        merge.whenNotMatchedBySourceUpdate(set={"v": "s.v"}),
        merge.whenNotMatchedBySourceUpdate(set={"v": sf.col("s.v") + 1}),
        merge.whenNotMatchedBySourceDelete("coalesce(s.v, 0) = 0"),
        merge.whenNotMatchedBySourceDelete(source["v"].isNull()),
    ):
        with pytest.raises(AnalysisException):
            refused.execute()

    assert merged.rows() == [(1, "a", 1), (2, "a", 2)]


def test_null_keys_match_nothing_unless_the_condition_says_so(merged: Merged) -> None:
    merged.write([(None, "a", 1), (2, "a", 2)])
    source = merged.source((None, "a", 10))
    update = merged.table.merge(source, "t.id = s.id").whenMatchedUpdateAll()
    update.whenNotMatchedInsertAll().execute()

    assert merged.rows() == [(2, "a", 2), (None, "a", 1), (None, "a", 10)]

    merged.table.delete("v = 10")
    merged.table.merge(source, "t.id <=> s.id").whenMatchedUpdateAll().execute()

    assert merged.rows() == [(2, "a", 2), (None, "a", 10)]


def test_only_inserts_leave_files_alone_and_take_repeated_matches(
    merged: Merged,
) -> None:
    merged.write([(1, "a", 1)], configuration=FEED | {"delta.appendOnly": "true"})
    source = merged.source((1, "x", 0), (1, "y", 0), (2, "b", 2), (3, "b", 3))
    insert = merged.table.merge(source, "t.id = s.id").whenNotMatchedInsert
    insert("s.v < 3", {"id": "s.id", "v": "s.v"}).execute()

    assert merged.rows() == [(1, "a", 1), (2, None, 2)]
    assert merged.changes(1) == Counter([("insert", 2, None, 2)])
    assert merged.metrics()["numTargetFilesRemoved"] == "0"

    merged.table.merge(source, "t.id = s.id").whenNotMatchedInsertAll(
        "s.v > 9"
    ).execute()

    assert dk.DeltaTable(merged.uri).version() == 1, "nothing to do is no version"
    with pytest.raises(DeltaError, match="appendOnly"):
        merged.table.merge(source, "t.id = s.id").whenMatchedDelete().execute()


def test_several_matches_of_one_row_raise_unless_it_is_deleted_anyway(
    merged: Merged,
) -> None:
    merged.write([(1, "a", 1), (2, "a", 2)], configuration=FEED)
    source = merged.source((1, "x", 1), (1, "y", 2))
    merge = merged.table.merge(source, "t.id = s.id")

    with pytest.raises(DeltaError, match="multiple source rows matched"):
        merge.whenMatchedUpdate(set={"v": "s.v"}).execute()
    assert merged.rows() == [(1, "a", 1), (2, "a", 2)]

    (done,) = merge.whenMatchedDelete().execute().collect()
    assert done.num_deleted_rows == 1
    assert merged.rows() == [(2, "a", 2)]
    assert merged.changes(1) == Counter([("delete", 1, "a", 1)])


def test_clauses_behind_one_without_a_condition_are_refused(merged: Merged) -> None:
    merged.write([(1, "a", 1)])
    merge = merged.table.merge(merged.source((1, "a", 2)), "t.id = s.id")

    with pytest.raises(DeltaError, match="only the last"):
        merge.whenMatchedDelete().whenMatchedUpdateAll().execute()
    with pytest.raises(DeltaError, match="at least one"):
        merge.execute()
    with pytest.raises(SchemaMismatchError, match="no column w"):
        merge.whenMatchedUpdate(set={"w": "1"}).execute()


def test_candidates_are_the_files_within_the_range_of_the_keys(merged: Merged) -> None:
    for start in (0, 10, 20, 30):
        merged.write([(start + i, "a", i) for i in range(10)])
    source = merged.source((12, "a", 0), (25, "a", 0))
    before = set(merged.mirror.file_uris())
    (
        merged.table.merge(source, "t.id = s.id AND t.p = 'a'")
        .whenMatchedUpdate(set={"v": "100"})
        .whenNotMatchedInsertAll()
        .execute()
    )

    assert len(before & set(merged.mirror.file_uris())) == 2
    (commit,) = dk.connect(merged.uri).snapshot("t").history(1)
    assert json.loads(commit.operation_parameters["predicate"]) == [
        "t.id = s.id AND t.p = 'a'"
    ]
    assert commit.operation == "MERGE"
    assert json.loads(commit.operation_parameters["matchedPredicates"]) == [
        {"actionType": "update"}
    ]


def test_new_columns_come_with_schema_evolution_alone(merged: Merged) -> None:
    merged.write([(1, "a", 1), (2, "a", 2)])
    source = merged.source(
        (2, 20, "x"), (3, 30, "y"), schema="id long, v long, w string"
    )
    merge = merged.table.merge(source, "t.id = s.id")
    merge = merge.whenMatchedUpdateAll().whenNotMatchedInsertAll()

    with pytest.raises(SchemaMismatchError, match="no column p"):
        merge.execute()
    merge.withSchemaEvolution().execute()

    assert merged.rows() == [
        (1, "a", 1, None),
        (2, "a", 20, "x"),
        (3, None, 30, "y"),
    ]


def test_rules_of_the_table_hold_for_merged_rows(merged: Merged) -> None:
    (
        DeltaTable.create(merged.spark, merged.uri)
        .addColumn("id", "BIGINT", nullable=False)
        .addColumn("v", "BIGINT")
        .addColumn("twice", "BIGINT", generatedAlwaysAs="v * 2")
        .execute()
    )
    dk.DeltaTable(merged.uri).alter.add_constraint({"small": "v < 100"})
    source = merged.source((1, 5), (2, 6), schema="id long, v long")
    merge = merged.table.merge(source, "t.id = s.id").whenNotMatchedInsertAll()
    merge.whenMatchedUpdate(set={"v": "t.v + 1"}).execute()
    merge.whenMatchedUpdate(set={"v": "t.v + 1"}).execute()

    assert merged.rows() == [(1, 6, 12), (2, 7, 14)]
    files = set(merged.folder.rglob("*.parquet"))
    for values, rule in (({"v": "200"}, "small"), ({"id": "NULL"}, "NOT NULL")):
        with pytest.raises(DeltaError, match=rule):
            merge.whenMatchedUpdate(set=values).execute()
    with pytest.raises(DeltaError, match="twice"):
        merge.whenMatchedUpdate(set={"twice": "1"}).execute()
    assert merged.rows() == [(1, 6, 12), (2, 7, 14)]
    assert set(merged.folder.rglob("*.parquet")) == files, "none is left of the refused"


def test_structs_are_merged_by_name_and_by_field(merged: Merged) -> None:
    spark = merged.spark
    start = spark.createDataFrame(
        [(1, (1, "x")), (2, None)], "id long, s struct<a: int, b: string>"
    )
    (
        DeltaTable.createIfNotExists(spark, merged.uri)
        .addColumns(start.schema)
        .execute()
        .alias("t")
        .merge(start.alias("s"), "t.id = s.id")
        .whenNotMatchedInsertAll()
        .execute()
    )
    turned = spark.createDataFrame(
        [(1, ("y", 9))], "id long, s struct<b: string, a: int>"
    ).alias("n")
    merge = merged.table.merge(turned, "t.id = n.id")
    merge.whenMatchedUpdate(set={"s": "n.s"}).execute()
    merged.table.update("id = 2", {"s.a": "7"})

    assert merged.rows() == [(1, {"a": 9, "b": "y"}), (2, {"a": 7, "b": None})]


STRUCT = "id long, s struct<a: int, b: string, n: struct<x: int, y: int>>"


@pytest.fixture
def nested(merged: Merged) -> Merged:
    """A table with structs, some of them null."""
    rows = [(1, (1, "x", (1, 2))), (2, None), (3, (3, "z", None))]
    start = merged.spark.createDataFrame(rows, STRUCT)
    dks.write(start, merged.uri)
    return merged


def test_fields_that_the_source_lacks_stay_as_they_are(nested: Merged) -> None:
    source = nested.source(
        (1, None),
        (2, None),
        (3, (30, (8,))),
        (4, (40, (9,))),
        schema="id long, s struct<a: int, n: struct<y: int>>",
    )
    merge = nested.table.merge(source, "t.id = s.id")
    merge = merge.whenMatchedUpdateAll().whenNotMatchedInsertAll()

    merge.withSchemaEvolution().execute()

    assert nested.rows() == [
        (1, {"a": None, "b": "x", "n": {"x": 1, "y": None}}),
        (2, None),
        (3, {"a": 30, "b": "z", "n": {"x": None, "y": 8}}),
        (4, {"a": 40, "b": None, "n": {"x": None, "y": 9}}),
    ]


def test_fields_of_an_assigned_struct_that_are_missing_become_null(
    nested: Merged,
) -> None:
    source = nested.source((1, (9,)), schema="id long, s struct<a: int>")
    merge = nested.table.merge(source, "t.id = s.id")
    merge = merge.whenMatchedUpdate(set={"s": "s.s"})

    with pytest.raises(SchemaMismatchError, match="the same fields"):
        merge.execute()
    merge.withSchemaEvolution().execute()

    assert nested.rows()[0] == (1, {"a": 9, "b": None, "n": None})


@pytest.mark.parametrize(
    "value",
    [
        "named_struct('a', 9)",
        "named_struct('a', 9, 'b', 'x', 'n', s.n, 'more', 1)",
        "struct(9, 'x', s.n)",
        "named_struct('a', 9, 'b', 'x', 'n', named_struct('x', 1))",
    ],
)
def test_structs_of_other_fields_are_refused(nested: Merged, value: str) -> None:
    source = nested.source((1,), schema="id long")
    merge = nested.table.merge(source, "t.id = s.id")

    with pytest.raises(SchemaMismatchError, match="the same fields"):
        nested.table.update("id = 1", {"s": value})
    with pytest.raises(SchemaMismatchError, match="the same fields"):
        merge.whenMatchedUpdate(set={"s": value.replace("s.n", "t.s.n")}).execute()

    assert len(nested.table.history().collect()) == 1


@pytest.mark.parametrize("key", ["w", "`w`", "t.W"])
def test_new_columns_that_a_clause_assigns_come_with_schema_evolution(
    merged: Merged, key: str
) -> None:
    merged.write([(1, "a", 1)])
    source = merged.source((1, 2, 3), schema="id long, w long, unused long")
    merge = merged.table.merge(source, "t.id = s.id")
    merge = merge.whenMatchedUpdate(set={key: "s.w + 1"})

    with pytest.raises(SchemaMismatchError, match="to assign to"):
        merge.execute()
    merge.withSchemaEvolution().execute()

    assert merged.rows() == [(1, "a", 1, 3)]


def test_merges_in_a_transaction_become_true_together(merged: Merged) -> None:
    merged.write([(1, "a", 1)])
    spark = merged.spark
    catalog = dk.connect(merged.uri)
    with dk.transaction(catalog) as tx:
        tx.write("dim", pa.table({"id": [1]}))
        table = DeltaTable.inTransaction(spark, tx, "t").alias("t")
        for value in (10, 20):
            merge = table.merge(merged.source((1, "a", value)), "t.id = s.id")
            merge.whenMatchedUpdate(set={"v": "t.v + s.v"}).execute()
        table.delete("v < 0")
        assert [row.v for row in table.toDF().collect()] == [31]
        assert merged.rows() == [(1, "a", 1)]

    assert merged.rows() == [(1, "a", 31)]
    assert {done.table for done in tx.committed} == {"dim", "t"}


def test_a_merge_that_lost_a_race_runs_again_on_the_newest_version(
    merged: Merged,
) -> None:
    merged.write([(1, "a", 1)])
    raced = []

    def race(row: Any) -> None:
        if not raced:
            raced.append(row)
            dk.DeltaTable(merged.uri).update(updates={"v": "v + 100"})

    source = merged.source((1, "a", 10))
    merge = merged.table.merge(source, "t.id = s.id")
    merge = merge.whenMatchedUpdate(set={"v": "t.v + s.v"})
    before_staging(merge, race)
    merge.execute()

    assert raced
    assert merged.rows() == [(1, "a", 111)]


def before_staging(merge: Any, call: Callable[[Any], None]) -> None:
    """Call something after the merge has read, before it is ratified."""
    handle = merge._handle
    perform = handle.perform

    class Racing:
        storage_options = handle.storage_options
        snapshot = handle.snapshot

        def perform(self, operation: Any) -> Any:
            def racing(target: Any) -> Any:
                work = operation.engine.run(target)
                call(work)
                return work

            return perform(replace(operation, engine=InPlace(racing)))

    merge._handle = Racing()


@pytest.mark.parametrize(
    ("condition", "expected"),
    [("t.a = s.b AND s.c > 1", {"s"}), ("t.a = 1", set()), ("a.x = b.y", {"a", "b"})],
)
def test_names_of_the_source_are_found_in_the_condition(
    condition: str, expected: set[str]
) -> None:
    assert other_aliases(condition, "t") == expected
