"""Random histories on a table of Delta Spark's and on one of ours, in one Spark.

For each seed, a line of JSON says where the two tables differ.
"""

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, functions as sf

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import DeltalakeDBError
from tests.support.delta_spark import start_session
from tests.support.spark_histories import Step, history

# pyspark can't read the texts of some of Delta Spark's errors.
_REFUSALS = (PySparkException, Py4JJavaError, DeltalakeDBError, ValueError, TypeError)
# Metrics of a merge that don't depend on how rows lie in files.
_METRICS = (
    "numSourceRows",
    "numTargetRowsDeleted",
    "numTargetRowsInserted",
    "numTargetRowsMatchedDeleted",
    "numTargetRowsMatchedUpdated",
    "numTargetRowsNotMatchedBySourceDeleted",
    "numTargetRowsNotMatchedBySourceUpdated",
    "numTargetRowsUpdated",
)
_KEYWORDS = {
    "mergeSchema": "merge_schema",
    "partitionOverwriteMode": "partition_overwrite_mode",
    "replaceWhere": "replace_where",
}
_COUNTED = ("num_affected_rows", "num_updated_rows", "num_deleted_rows")


@dataclass(frozen=True)
class Theirs:
    """A table of Delta Spark's."""

    spark: SparkSession
    name: str
    folder: Path

    def sql(self, text: str) -> DataFrame:
        return self.spark.sql(text)

    def write(self, step: Step) -> None:
        writer = self.spark.sql(step.rows).write.format("delta").mode(step.mode)
        writer.options(**step.options).save(str(self.folder))

    def rows(self, version: int) -> DataFrame:
        reader = self.spark.read.format("delta").option("versionAsOf", version)
        return reader.load(str(self.folder))

    def changes(self) -> DataFrame:
        reader = self.spark.read.format("delta").option("readChangeFeed", "true")
        return reader.option("startingVersion", 0).load(str(self.folder))


@dataclass(frozen=True)
class Ours:
    """A table of a catalog."""

    spark: SparkSession
    name: str
    folder: Path

    def sql(self, text: str) -> DataFrame:
        return dks.sql(self.spark, text)

    def write(self, step: Step) -> None:
        options: dict[str, Any] = {
            _KEYWORDS[key]: value == "true" if key == "mergeSchema" else value
            for key, value in step.options.items()
        }
        dks.write(self.spark.sql(step.rows), self.name, mode=step.mode, **options)

    def rows(self, version: int) -> DataFrame:
        return dks.read(self.spark, self.name, version=version)

    def changes(self) -> DataFrame:
        return dks.read(self.spark, self.name, changes_from=0)


Table = Theirs | Ours


def do(table: Table, step: Step, before: int) -> dict[str, Any]:
    """Do a step, and return what it counted, or that it was refused."""
    try:
        if not step.sql:
            table.write(step)
            return {}
        given = {"t": table.name, "folder": table.folder, "before": before}
        found = table.sql(step.sql.format(**given))
        counted = [name for name in _COUNTED if name in found.columns]
        return {name: found.first()[name] for name in counted}
    except _REFUSALS as error:
        return {"refused": type(error).__name__, "text": str(error)[:300]}


def newest(table: Table) -> dict[str, Any]:
    """The newest commit of a table."""
    row = table.sql(f"DESCRIBE HISTORY {table.name} LIMIT 1").first()
    told = {"version": row.version, "operation": row.operation}
    if row.operation == "MERGE":
        told |= {name: row.operationMetrics.get(name) for name in _METRICS}
    return told


def texts(frames: list[DataFrame]) -> list[list[str]]:
    """The rows of several DataFrames, as sorted texts, by one job."""
    numbered = [
        rows.select(sf.lit(i).alias("i"), sf.struct("*").cast("string").alias("row"))
        for i, rows in enumerate(frames)
    ]
    found: list[list[str]] = [[] for _ in frames]
    for i, row in reduce(DataFrame.unionAll, numbered).collect():
        found[i].append(row)
    return [sorted(rows) for rows in found]


def kinds(frames: list[DataFrame]) -> list[str]:
    """The schemas of several DataFrames."""
    return [rows.schema.simpleString() for rows in frames]


def differences(theirs: Theirs, ours: Ours, seed: int) -> Iterator[Any]:
    """Run a history on both tables, and yield where these differ."""
    versions = [(-1, -1)]
    for number, step in enumerate(history(seed)):
        if step.back and not (older := _older(versions)):
            continue
        before = older[max(len(older) - step.back, 0)] if step.back else (0, 0)
        told = [do(theirs, step, before[0]), do(ours, step, before[1])]
        commits = [newest(theirs), newest(ours)]
        now = commits[0].pop("version"), commits[1].pop("version")
        same = told[0] == told[1] or all("refused" in one for one in told)
        # Whether there is something to optimize depends on how rows lie in files.
        if same and not step.sql.startswith("OPTIMIZE"):
            (a, b), (c, d) = versions[-1], now
            same = c - a == d - b and (commits[0] == commits[1] or c == a)
        if not same:
            yield [number, step.json(), *told, *commits, versions[-1], now]
            return
        if now != versions[-1]:
            versions.append(now)
    yield from compared_tables(theirs, ours, versions[1:])


def _older(versions: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The versions before the newest of each table, after the first commit."""
    a, b = versions[-1]
    return [(c, d) for c, d in versions[1:] if c < a and d < b]


def compared_tables(
    theirs: Theirs, ours: Ours, versions: list[tuple[int, int]]
) -> Iterator[Any]:
    """Yield where versions or change feeds differ, by side and number."""
    mirror = Theirs(
        theirs.spark, "", Path(dk.DeltaTable(uri_of(ours)).table_uri[len("file://") :])
    )
    sides: dict[str, tuple[Table, list[int]]] = {
        "theirs": (theirs, [version for version, _ in versions]),
        "ours": (ours, [version for _, version in versions]),
        "mirror": (mirror, [version for _, version in versions]),
    }
    frames = {name: [*map(t.rows, numbers)] for name, (t, numbers) in sides.items()}
    schemas = {name: kinds(each) for name, each in frames.items()}
    rows = {name: texts(each) for name, each in frames.items()}
    feeds = {name: fed(*side) for name, side in sides.items()}
    for side in ("ours", "mirror"):
        yield from compared(side, schemas["theirs"], schemas[side])
        yield from compared(side, rows["theirs"], rows[side])
        yield from compared(f"feed of {side}", feeds["theirs"], feeds[side])


def fed(table: Table, versions: list[int]) -> list[Any]:
    """The columns and rows of the change feed, or nothing if the feed is refused."""
    try:
        changes = [feed(table, versions)]
        return [kinds(changes), *texts(changes)]
    except _REFUSALS:
        return [[], []]


def feed(table: Table, versions: list[int]) -> DataFrame:
    """The changes of a table, by the numbers of versions instead of the versions."""
    numbers = {version: i for i, version in reversed([*enumerate(versions)])}
    literals = [sf.lit(each) for pair in numbers.items() for each in pair]
    number = sf.create_map(*literals)[sf.col("_commit_version")]
    changes = table.changes().drop("_commit_timestamp")
    return changes.withColumn("_commit_version", number)


def compared(side: str, known: list[Any], found: list[Any]) -> Iterator[Any]:
    """Yield the numbers of what differs on a side."""
    for version, (one, other) in enumerate(zip(known, found, strict=True)):
        if one != other:
            both = difference(one, other) if isinstance(one, list) else [one, other]
            yield [side, version, both]


def difference(known: list[str], found: list[str]) -> dict[str, list[str]]:
    """What is on one side only."""
    more, less = list(found), []
    for row in known:
        if row in more:
            more.remove(row)
        else:
            less.append(row)
    return {"missing": less, "extra": more}


def uri_of(ours: Ours) -> str:
    return f"deltasql://sqlite/{ours.folder.parent}/meta.db?table={ours.name}"


def told(run: Callable[[], list[Any]]) -> list[Any]:
    """What `run` returns, or the error that it raises."""
    try:
        return run()
    except Exception:
        return [traceback.format_exc()[-3000:]]


def main(jars: str, folder: str, seeds: str) -> None:
    """Run the histories of some seeds."""
    spark = start_session(jars, folder)
    own = spark.newSession()
    for seed in json.loads(seeds):
        place = Path(folder) / str(seed)
        place.mkdir(parents=True)
        name = f"t{seed}"
        dks.use(own, f"deltasql://sqlite/{place}/meta.db")
        theirs = Theirs(spark, name, place / "theirs")
        ours = Ours(own, name, place / "ours")
        found = told(lambda a=theirs, b=ours, s=seed: list(differences(a, b, s)))
        print(json.dumps([seed, found]), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
