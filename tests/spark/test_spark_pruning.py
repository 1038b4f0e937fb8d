"""Files are skipped by Columns, and never one with a row that matches."""

import random
from collections.abc import Callable
from datetime import date
from operator import ge, gt, le, lt

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf

import delkalakedb as dk
from delkalakedb.spark.dml import Clauses, MergePlan, source_range
from delkalakedb.spark.reader import FILE_COLUMN, Target, pruning

FILES = 12
CONDITIONS = 60
Random = random.Random
SCHEMA = pa.schema(
    [
        ("i", pa.int32()),
        ("l", pa.int64()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("b", pa.bool_()),
        ("x", pa.float64()),
        ("p", pa.int64()),
    ]
)


def random_row(chance: Random, file: int) -> dict[str, object]:
    near = 3 * file
    row = {
        "i": near + chance.randrange(5),
        "l": 2**40 - near - chance.randrange(5),
        "s": chance.choice("aé'\\\"") + chr(97 + file) + " ",
        "d": date(2026, 1, 1 + (near + chance.randrange(5)) % 28),
        "b": file % 3 == 0,
        "x": chance.choice([float("nan"), near + 0.5]),
        "p": file % 4,
    }
    gaps = {name for name in row if name != "p" and chance.random() < 0.15}
    return row | dict.fromkeys(gaps)


@pytest.fixture
def target(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Target:
    """A table of small files, whose values overlap a little."""
    chance = Random(19)
    uri = f"deltasql://sqlite/{tmp_path_factory.mktemp('pruning')}/meta.db?table=t"
    for file in range(FILES):
        rows = [random_row(chance, file) for _ in range(4)]
        part = pa.Table.from_pylist(rows, SCHEMA)
        dk.write_deltalake(uri, part, mode="append", partition_by=["p"])
    return Target(spark, dk.connect(uri).snapshot("t"), alias="t")


def random_part(chance: Random) -> Column:
    """A condition on the table alone."""
    row = random_row(chance, chance.randrange(FILES))
    name = chance.choice(["i", "l", "s", "d", "b", "x", "p"])
    column = sf.col(chance.choice([name, f"t.{name}"]))
    value = row[name]
    literal = sf.lit(value)
    if name == "d" and chance.random() < 0.5:
        literal = sf.lit(None if value is None else str(value))
    if name in "il" and value is not None and chance.random() < 0.3:
        kinds = ["smallint", "bigint", "double", "string"]
        literal = literal.cast(chance.choice(kinds))
    compare = chance.choice([lt, le, gt, ge, Column.__eq__, Column.__eq__])
    return chance.choice(
        [
            lambda: compare(column, literal),
            lambda: compare(literal, column),
            lambda: column.isin(value, random_row(chance, 3)[name]),
            lambda: column.isNull() if chance.random() < 0.5 else column.isNotNull(),
            lambda: ~compare(column, literal),
            lambda: column.eqNullSafe(literal),
            lambda: compare(column.cast("string"), sf.lit(str(value))),
            lambda: compare(column, literal) & random_part(chance),
            lambda: compare(column, literal) | random_part(chance),
        ]
    )()


def skipped(target: Target, where: Column, found: set[str]) -> int:
    """How many files are skipped, none of which is in `found`."""
    kept = set(target.files(pruning(where, target)).rows)
    assert found <= kept, where
    return FILES - len(kept)


def paths(target: Target) -> DataFrame:
    everything = target.files(pruning(None, target))
    assert len(everything) == FILES
    return target.frame(everything, tagged=True)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(i, marks=pytest.mark.soak) for i in range(2, 12))]
)
def test_column_skips_no_file_with_a_row_that_matches(
    target: Target, seed: int
) -> None:
    chance = Random(seed)
    conditions = [random_part(chance) for _ in range(CONDITIONS)]
    matches = [sf.max(sf.coalesce(c, sf.lit(False))) for c in conditions]

    truth = paths(target).groupBy(FILE_COLUMN).agg(*matches).collect()

    skips = [
        skipped(target, condition, {row[0] for row in truth if row[i]})
        for i, condition in enumerate(conditions, 1)
    ]
    assert sum(map(bool, skips)) > CONDITIONS // 6


KEYS: list[Callable[[DataFrame], Column]] = [
    lambda s: sf.col("t.l") == sf.col("s.key"),
    lambda s: sf.col("l") == sf.col("key"),
    lambda s: sf.col("l") == s["key"],
    lambda s: (sf.col("i") == sf.col("small")) & (sf.col("p") < 3),
    lambda s: sf.expr("t.s = s.s AND i >= 6"),
    lambda s: (s["day"] == sf.col("d")) & (sf.col("l") == s["small"]),
    lambda s: (sf.col("l") == s["key"]) | (sf.col("i") == s["small"]),
    lambda s: sf.col("t.i") == sf.col("s.key") + 1,
    lambda s: (sf.col("i") == s["small"]) & (sf.col("t.s") != s["s"]),
]
# the conditions above by which files are skipped
USEFUL = {0, 1, 2, 3, 4, 5, 8}


def test_merge_by_columns_skips_no_file_with_a_row_that_matches(
    spark: SparkSession, target: Target
) -> None:
    rows = [(2**40 - 9, 7, "ac ", date(2026, 1, 8)), (2**40 - 12, 8, "éd ", None)]
    schema = "key BIGINT, small SMALLINT, s STRING, day DATE"
    plain = spark.createDataFrame(rows, schema)
    aliased = plain.alias("s")
    conditions = [condition(aliased) for condition in KEYS]
    matches = [sf.max(sf.coalesce(c, sf.lit(False))) for c in conditions]

    pairs = aliased.crossJoin(paths(target))
    truth = pairs.groupBy(FILE_COLUMN).agg(*matches).collect()

    skipping = set()
    for i, condition in enumerate(conditions):
        plan = MergePlan(plain if i == 1 else aliased, condition, Clauses([]))
        count, predicate = source_range(plan, target)
        kept = set(target.files(predicate).rows)
        assert count == 2
        assert {row[0] for row in truth if row[i + 1]} <= kept, condition
        if len(kept) < FILES:
            skipping.add(i)
    assert skipping == USEFUL
