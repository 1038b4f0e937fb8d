"""Spark's deletes, updates and merges mark rows in deletion vectors."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.spark.dml import deletion
from delkalakedb.spark.face.table import DeltaTable
from tests.support.merges import FEED, changes_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from delkalakedb.spark.face.builders import DeltaMergeBuilder

ON = {"delta.enableDeletionVectors": "true"}
ROWS = 600
Change = Callable[[DeltaTable], object]


class Pair:
    """A table that takes deletion vectors, and an equal one that doesn't."""

    def __init__(self, spark: "SparkSession", folder: Path) -> None:
        self.spark = spark
        catalog = f"deltasql://sqlite/{folder}/meta.db"
        self.uri, self.plain = (f"{catalog}?table={name}" for name in ("t", "plain"))

    def make(self, partition_by: list[str] | None = None, **properties: str) -> None:
        """Make both tables, each with two files or two in each partition."""
        for uri, more in ((self.uri, ON), (self.plain, {})):
            if "delta.columnMapping.mode" in properties:
                rows = self.spark.createDataFrame([], "id long, p string, v long")
                dks.write(rows, uri, configuration={**more, **properties})
            for start in (0, ROWS // 2):
                ids = range(start, start + ROWS // 2)
                values = {
                    "id": ids,
                    "p": ["a" if i % 2 else "b" for i in ids],
                    "v": [i % 100 for i in ids],
                }
                if "delta.columnMapping.mode" in properties:
                    dks.write(self.spark.createDataFrame(pa.table(values)), uri)
                    continue
                dk.write_deltalake(
                    uri,
                    pa.table(values),
                    mode="append",
                    partition_by=partition_by,
                    configuration={**more, **properties},
                )

    @property
    def mapped(self) -> bool:
        """Whether columns are mapped, which delta-rs can't read."""
        configuration = dk.DeltaTable(self.uri).metadata().configuration
        return "delta.columnMapping.mode" in configuration

    def change(self, change: Change) -> None:
        """Change both tables."""
        for uri in (self.uri, self.plain):
            change(DeltaTable.forUri(self.spark, uri).alias("t"))

    def check(self) -> None:
        """Every reader finds the rows, and the changes, of the plain table."""
        table, plain = dk.DeltaTable(self.uri), dk.DeltaTable(self.plain)
        expected = sorted(map(repr, plain.to_pyarrow_table().to_pylist()))
        spark = dks.read(self.spark, self.uri)
        found = {"Spark": [row.asDict() for row in spark.collect()]}
        if not self.mapped:
            rows = pa.table(table.scan()).select(["id", "p", "v"])
            found["delta-rs"] = rows.to_pylist()
            found["Arrow"] = table.to_pyarrow_table().to_pylist()
        for who, rows in found.items():
            assert sorted(map(repr, rows)) == expected, who
        if table.metadata().configuration.get("delta.enableChangeDataFeed"):
            for version in range(table.version() + 1):
                feeds = (changes_of(t, version, version) for t in (table, plain))
                assert next(feeds) == next(feeds), version
        assert dk.verify(self.uri, deep=True).ok

    def metrics(self) -> dict[str, int]:
        """Return what the history says of the last commit, without times."""
        (commit,) = dk.connect(self.uri).snapshot("t").history(1)
        return {
            name: int(number)
            for name, number in commit.operation_metrics.items()
            if not name.endswith("Ms")
        }


@pytest.fixture
def pair(spark: "SparkSession", tmp_path: Path) -> Pair:
    return Pair(spark, tmp_path)


SOURCE = [(5, "s", -5), (6, "s", -6), (7, "s", -7), (311, "s", -8), (9000, "s", -9)]


def merge(table: DeltaTable, condition: str = "t.id = s.id") -> "DeltaMergeBuilder":
    spark = table.toDF().sparkSession
    source = spark.createDataFrame(SOURCE, "id long, p string, v long")
    return table.merge(source.alias("s"), condition)


CHANGES: dict[str, Change] = {
    "delete": lambda t: t.delete("id IN (3, 70, 71, 400)"),
    "delete by an expression": lambda t: t.delete("id % 97 = 5 AND v > 3"),
    "delete nothing": lambda t: t.delete("id = -1"),
    "update": lambda t: t.update("id IN (3, 70, 400)", {"v": "v + id"}),
    "update of a partition": lambda t: t.update("id % 97 = 5", {"p": "'c'"}),
    "update all": lambda t: (
        merge(t).whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
    ),
    "insert only": lambda t: merge(t).whenNotMatchedInsertAll().execute(),
    "update only": lambda t: (
        merge(t).whenMatchedUpdate(set={"v": "s.v + t.v"}).execute()
    ),
    "every clause": lambda t: (
        merge(t)
        .whenMatchedDelete("s.id = 6")
        .whenMatchedUpdate("t.id > 6", {"v": "s.v * t.v", "p": "t.p"})
        .whenNotMatchedInsert("s.v < 0", {"id": "s.id", "p": "'new'"})
        .whenNotMatchedBySourceUpdate("t.id % 200 = 11", {"v": "-1"})
        .whenNotMatchedBySourceDelete("t.id % 200 = 12")
        .execute()
    ),
    "unchanged matches": lambda t: (
        merge(t)
        .whenMatchedUpdate("s.id = 6", {"v": "0"})
        .whenNotMatchedInsertAll()
        .execute()
    ),
    "delete matches": lambda t: merge(t).whenMatchedDelete().execute(),
    "SQL": lambda t: (
        merge(t, "t.id = s.id AND t.p = 'a'")
        .whenMatchedUpdateAll("s.id < 100")
        .whenMatchedDelete()
        .execute()
    ),
}


SOME = ("update of a partition", "update all", "every clause")
KINDS = [
    *(("plain", name) for name in CHANGES),
    *(("partitioned", name) for name in SOME),
    *(("mapped", name) for name in SOME[1:]),
]


@pytest.mark.parametrize(("kind", "name"), KINDS)
def test_changes_with_vectors_are_those_without(
    pair: Pair, kind: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__INLINE_BYTES", "40")
    by = ["p"] if kind == "partitioned" else None
    mapping = {"delta.columnMapping.mode": "name"} if kind == "mapped" else FEED
    pair.make(by, **mapping)
    pair.change(CHANGES[name])
    metrics = pair.metrics()
    # onto the vectors of the first change
    pair.change(lambda t: t.delete("id IN (1, 2, 3, 4, 310)"))
    pair.check()
    if name in ("delete nothing", "insert only"):
        return
    kinds = {key.removeprefix("numTarget").removeprefix("num") for key in metrics}
    assert {"DeletionVectorsAdded", "DeletionVectorsUpdated"} <= kinds
    added = metrics.get("numDeletionVectorsAdded")
    assert added or metrics.get("numTargetDeletionVectorsAdded")
    copied = metrics.get("numCopiedRows", metrics.get("numTargetRowsCopied"))
    # matched rows that no clause changes
    assert copied == {"unchanged matches": 3, "every clause": 1}.get(name, 0)


def test_metrics_count_vectors_and_rows_as_delta_spark_does(pair: Pair) -> None:
    pair.make()
    table = DeltaTable.forUri(pair.spark, pair.uri)

    table.delete("id IN (1, 2, 301)")
    first = pair.metrics()
    table.update("id = 3", {"v": "0"})
    second = pair.metrics()

    assert (
        first.items()
        >= {
            "numDeletedRows": 3,
            "numCopiedRows": 0,
            "numRemovedFiles": 0,
            "numAddedFiles": 0,
            "numDeletionVectorsAdded": 2,
            "numDeletionVectorsUpdated": 0,
            "numDeletionVectorsRemoved": 0,
        }.items()
    )
    assert (
        second.items()
        >= {
            "numUpdatedRows": 1,
            "numCopiedRows": 0,
            "numRemovedFiles": 0,
            "numAddedFiles": 1,
            "numDeletionVectorsAdded": 1,
            "numDeletionVectorsUpdated": 1,
            "numDeletionVectorsRemoved": 1,
        }.items()
    )


def test_many_rows_are_rewritten_unless_vectors_are_forced(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.make()
    pair.change(lambda t: t.delete("id % 4 = 0"))
    assert pair.metrics()["numDeletionVectorsAdded"] == 0
    assert pair.metrics()["numCopiedRows"] == ROWS * 3 // 4
    monkeypatch.setenv("DELKALAKEDB_VECTORS__MODE", "always")
    dk.close()
    pair.change(lambda t: t.delete("id % 4 = 1"))
    assert pair.metrics()["numDeletionVectorsAdded"] == 2
    monkeypatch.setenv("DELKALAKEDB_VECTORS__MODE", "never")
    dk.close()
    pair.change(lambda t: t.delete("id = 2"))
    assert pair.metrics()["numDeletionVectorsAdded"] == 0
    pair.check()


def test_file_whose_last_row_is_deleted_is_removed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__MODE", "always")
    pair.make(**FEED)
    pair.change(lambda t: t.delete("id < 200"))
    pair.change(lambda t: t.delete("id < 301"))
    metrics = pair.metrics()
    assert metrics["numRemovedFiles"] == 1
    assert metrics["numDeletionVectorsAdded"] == 1
    assert metrics["numDeletionVectorsRemoved"] == 1
    pair.check()


def test_two_changes_of_one_file_both_succeed(pair: Pair) -> None:
    pair.make()
    before = dk.connect(pair.uri).snapshot("t")
    table = DeltaTable.forUri(pair.spark, pair.uri)
    target = table._target
    operation = deletion(target, "id = 8", files=_where(table, "id = 8"))
    table.delete("id = 9")

    result, version = _perform(pair.uri, before, operation)

    assert (result, version) == (1, before.version + 2)
    ids = {row.id for row in dks.read(pair.spark, pair.uri).collect()}
    assert ids == {*range(ROWS)} - {8, 9}


def _where(table: DeltaTable, condition: str) -> Any:
    from delkalakedb.spark.reader import pruning

    return pruning(condition, table._target(table._handle.snapshot()))


def _perform(uri: str, snapshot: Any, operation: Any) -> Any:
    from delkalakedb.write import perform

    return perform(dk.connect(uri), snapshot, operation, retries=0)
