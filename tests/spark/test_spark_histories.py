"""The same histories on deltalake's face and on Spark's give the same tables."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import delkalakedb as dk
from tests.support.merges import FEED, SCHEMA, SOURCE, Merged, Row, changes_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYS = st.integers(0, 7)
VALUES = st.one_of(st.none(), st.integers(-5, 5))
PARTS = st.sampled_from(["a", "b", None])
ROWS = st.lists(st.tuples(st.one_of(st.none(), KEYS), PARTS, VALUES), max_size=4)
SOURCES = st.dictionaries(KEYS, st.tuples(PARTS, VALUES), max_size=5)
CONDITIONS = st.sampled_from(
    ["id > 3", "p = 'a'", "v IS NULL", "id IN (1, 2) OR v < 0", "p IS NULL"]
)
CLAUSES = {
    "update": lambda m: m.when_matched_update({"v": "source.v", "p": "source.p"}),
    "update some": lambda m: m.when_matched_update(
        {"v": "target.v + 1"}, predicate="source.v > 0"
    ),
    "delete": lambda m: m.when_matched_delete(predicate="source.v < 0"),
    "insert": lambda m: m.when_not_matched_insert_all(),
    "insert some": lambda m: m.when_not_matched_insert(
        {"id": "source.id", "v": "source.v"}, predicate="source.v > 0"
    ),
    "by source update": lambda m: m.when_not_matched_by_source_update(
        {"v": "0"}, predicate="target.v < 0"
    ),
    "by source delete": lambda m: m.when_not_matched_by_source_delete(
        predicate="target.id = 7"
    ),
}
SPARK_CLAUSES = {
    "update": lambda m: m.whenMatchedUpdate(set={"v": "source.v", "p": "source.p"}),
    "update some": lambda m: m.whenMatchedUpdate("source.v > 0", {"v": "target.v + 1"}),
    "delete": lambda m: m.whenMatchedDelete("source.v < 0"),
    "insert": lambda m: m.whenNotMatchedInsertAll(),
    "insert some": lambda m: m.whenNotMatchedInsert(
        "source.v > 0", {"id": "source.id", "v": "source.v"}
    ),
    "by source update": lambda m: m.whenNotMatchedBySourceUpdate(
        "target.v < 0", {"v": "0"}
    ),
    "by source delete": lambda m: m.whenNotMatchedBySourceDelete("target.id = 7"),
}
MERGES = [
    ("delete", "update", "insert"),
    ("update some", "insert some"),
    ("insert",),
    ("update", "by source update", "by source delete"),
    ("delete", "by source delete", "insert"),
]
STEPS = st.one_of(
    st.tuples(st.just("append"), ROWS),
    st.tuples(st.just("delete"), CONDITIONS),
    st.tuples(st.just("update"), CONDITIONS),
    st.tuples(st.just("merge"), SOURCES, st.sampled_from(MERGES)),
    st.tuples(st.just("optimize")),
)


class Pair:
    """The same operations on deltalake's face and on Spark's."""

    def __init__(self, spark: "SparkSession", folder: Path, number: int) -> None:
        self.face = Merged(spark, folder / str(number) / "face")
        self.ours = Merged(spark, folder / str(number) / "spark")
        for each in (self.face, self.ours):
            each.folder.mkdir(parents=True)
            each.write([(1, "a", 1), (2, "b", -2)], partition_by=["p"])
            each.write([(7, None, None), (None, "a", 0)])
            dk.DeltaTable(each.uri).alter.set_table_properties(FEED)

    def do(self, step: tuple[Any, ...]) -> None:
        """Do one step to both."""
        name, *given = step
        getattr(self, name)(*given)

    def append(self, rows: list[Row]) -> None:
        for each in (self.face, self.ours):
            each.write(rows)

    def delete(self, condition: str) -> None:
        dk.DeltaTable(self.face.uri).delete(condition)
        self.ours.table.delete(condition)

    def update(self, condition: str) -> None:
        dk.DeltaTable(self.face.uri).update(predicate=condition, updates={"v": "id"})
        self.ours.table.update(condition, {"v": "id"})

    def merge(self, source: dict[int, Any], clauses: tuple[str, ...]) -> None:
        rows = [(key, part, value) for key, (part, value) in source.items()]
        columns = list(zip(*rows, strict=True)) or [[], [], []]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)]
        plain = dk.DeltaTable(self.face.uri).merge(
            pa.table(arrays, schema=SCHEMA),
            "target.id = source.id",
            source_alias="source",
            target_alias="target",
        )
        frame = self.ours.spark.createDataFrame(rows, SOURCE).alias("source")
        builder: Any = self.ours.table.alias("target")
        builder = builder.merge(frame, "target.id = source.id")
        for clause in clauses:
            plain = CLAUSES[clause](plain)
            builder = SPARK_CLAUSES[clause](builder)
        plain.execute()
        builder.execute()

    def optimize(self) -> None:
        dk.DeltaTable(self.face.uri).optimize.compact()
        self.ours.table.optimize().executeCompaction()

    def check(self) -> None:
        """Equal rows, a mirror that says the same, and a feed that adds up to it."""
        assert self.ours.rows() == self.face.rows()
        assert dk.verify(self.ours.uri, deep=True).ok
        rows = Counter(self.ours.rows())
        start = Counter([(1, "a", 1), (2, "b", -2), (7, None, None), (None, "a", 0)])
        mirror = self.ours.mirror
        # What changes nothing may make no version.
        changes = changes_of(mirror, 3) if mirror.version() > 2 else Counter()
        for (kind, *row), count in changes.items():
            sign = 1 if kind in ("insert", "update_postimage") else -1
            start[tuple(row)] += sign * count
        assert +start == rows
        assert not -start


def histories(spark: "SparkSession", folder: Path) -> Callable[[list[Any]], None]:
    numbers: Iterator[int] = iter(range(10_000))

    def run(steps: list[Any]) -> None:
        pair = Pair(spark, folder, next(numbers))
        for step in steps:
            pair.do(step)
        pair.check()

    return run


def check_random(spark: "SparkSession", folder: Path, count: int, steps: int) -> None:
    run = histories(spark, folder)

    @settings(max_examples=count, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(STEPS, min_size=1, max_size=steps))
    def check(history: list[Any]) -> None:
        run(history)

    check()


def test_a_history_on_both_faces_gives_equal_tables(
    spark: "SparkSession", tmp_path: Path
) -> None:
    histories(spark, tmp_path)(
        [
            ("append", [(3, "a", 3), (3, "b", None)]),
            ("merge", {1: ("b", -1), 3: ("a", 5), 6: (None, 6)}, MERGES[0]),
            ("update", "id > 3"),
            ("merge", {2: ("a", 9), 5: ("b", -9)}, MERGES[3]),
            ("optimize",),
            ("delete", "p = 'a'"),
            ("merge", {0: ("a", 1), 7: ("a", -1)}, MERGES[4]),
        ]
    )


def test_random_histories_on_both_faces_give_equal_tables(
    spark: "SparkSession", tmp_path: Path
) -> None:
    check_random(spark, tmp_path, 2, 2)


@pytest.mark.soak
def test_many_random_histories_on_both_faces_give_equal_tables(
    spark: "SparkSession", tmp_path: Path
) -> None:
    check_random(spark, tmp_path, 60, 6)
