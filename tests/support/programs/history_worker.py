"""Random histories on a table of Delta Spark's and on one of ours, in one Spark.

For each seed, a line of JSON says where the two tables differ.
"""

import json
import os
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
from tests.support.delta_spark import CONFIG
from tests.support.sessions import CONFIG as SMALL
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
# delta-rs's names.
_OPERATIONS = {"ADD COLUMN": "ADD COLUMNS"}
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

    def rows(self, version: int, folder: Path | None = None) -> DataFrame:
        reader = self.spark.read.format("delta").option("versionAsOf", version)
        return reader.load(str(folder or self.folder))

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


def do(table: Table, step: Step, newest: int) -> dict[str, Any]:
    """Do a step, and return what it counted, or that it was refused."""
    # Delta Spark restores the newest version without a commit.
    if step.back and not newest:
        return {}
    try:
        if not step.sql:
            table.write(step)
            return {}
        before = max(newest - step.back, 0)
        given = {"t": table.name, "folder": table.folder, "before": before}
        found = table.sql(step.sql.format(**given))
        counted = [name for name in _COUNTED if name in found.columns]
        return {name: found.first()[name] for name in counted}
    except _REFUSALS as error:
        return {"refused": type(error).__name__, "text": str(error)[:300]}


def newest(table: Table) -> dict[str, Any]:
    """The newest commit of a table."""
    row = table.sql(f"DESCRIBE HISTORY {table.name} LIMIT 1").first()
    operation = _OPERATIONS.get(row.operation, row.operation)
    told = {"version": row.version, "operation": operation}
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
    version = -1
    for number, step in enumerate(history(seed)):
        told = [do(table, step, version) for table in (theirs, ours)]
        commits = [newest(table) for table in (theirs, ours)]
        if any("refused" in one for one in told):
            same = all("refused" in one for one in told)
        else:
            same = told[0] == told[1]
        if not same or commits[0] != commits[1]:
            yield [number, step.json(), *told, *commits]
            return
        version = commits[0]["version"]
    versions = range(version + 1)
    mirror = Path(dk.DeltaTable(uri_of(ours)).table_uri.removeprefix("file://"))
    frames = {
        "theirs": [theirs.rows(version) for version in versions],
        "ours": [ours.rows(version) for version in versions],
        "mirror": [theirs.rows(version, mirror) for version in versions],
    }
    drop = "_commit_timestamp"
    frames["theirs"].append(theirs.changes().drop(drop))
    frames["ours"].append(ours.changes().drop(drop))
    there = Theirs(theirs.spark, "", mirror)
    frames["mirror"].append(there.changes().drop(drop))
    schemas = {name: kinds(each) for name, each in frames.items()}
    rows = {name: texts(each) for name, each in frames.items()}
    for side in ("ours", "mirror"):
        yield from compared(side, schemas["theirs"], schemas[side])
        yield from compared(side, rows["theirs"], rows[side])


def compared(side: str, known: list[Any], found: list[Any]) -> Iterator[Any]:
    """Yield the versions in which a side differs; the last is the change feed."""
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
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config(map={**SMALL, **CONFIG})
    builder = builder.config("spark.jars", jars)
    builder = builder.config("spark.databricks.delta.snapshotPartitions", "1")
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
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
