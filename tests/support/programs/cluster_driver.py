"""A driver on a cluster: what it found, as JSON; what Spark shows, in a folder.

Its standard input has the places, and the catalog's password with them: it is in no
command line. Tasks are killed and dawdle on their first attempts.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

import delkalakedb as dk
from delkalakedb import spark as dks
from tests.support.sessions import CONFIG

ROWS = 4000
CLUSTER = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.host": "127.0.0.1",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.compress": "false",
    "spark.ui.enabled": "true",
    "spark.ui.port": "0",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.5",
}
PAGES = ("environment", "sql?length=1000", "jobs", "stages?details=true", "executors")
Batches = Iterable[pa.RecordBatch]


class Driver:
    """Works on tables of one catalog; keeps what Spark shows of that."""

    def __init__(self, spark: SparkSession, given: dict[str, Any]) -> None:
        self.spark = spark
        self.given = given
        self.seen = Path(given["folder"], "seen")

    def uri(self, table: str) -> str:
        return f"{self.given['uri']}&table={table}"

    def shown_uri(self, table: str) -> str:
        """One that may be an option of a data source."""
        password = f":{os.environ['CATALOG_PASSWORD']}@"
        return self.uri(table).replace(password, ":${CATALOG_PASSWORD}@")

    def rows(self, fault: Callable[[], None] | None = None) -> DataFrame:
        """Rows in four tasks, one of which has a fault when it is first tried."""
        rows = self.spark.range(0, ROWS, 1, 4)
        if fault is not None:
            rows = rows.mapInArrow(faulty(fault), "id long")
        return rows.selectExpr("id", "id % 3 AS day")

    def looked_at(self, rows: DataFrame) -> list[int]:
        """A frame's rows; its plans are kept."""
        with (self.seen / "plans").open("a") as out, redirect_stdout(out):
            rows.explain(True)
        return sorted(row.id for row in rows.select("id").collect())

    def keep_pages(self) -> None:
        context = self.spark.sparkContext
        home = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"
        for number, page in enumerate(PAGES):
            with urlopen(f"{home}/{page}") as answer:
                (self.seen / f"page-{number}").write_bytes(answer.read())


def batch(driver: Driver, name: str, **options: Any) -> dict[str, Any]:
    """Write twice, merge and read a table."""
    uri, where = driver.uri(name), options.pop("location", None)
    dks.write(driver.rows(kill), uri, partition_by="day", location=where, **options)
    dks.write(driver.rows(dawdle).where("id < 100"), uri, **options)
    table = dks.DeltaTable.forUri(driver.spark, uri, **options).alias("t")
    source = driver.rows(kill).selectExpr("id + 100 AS id", "day AS day").alias("s")
    merge = table.merge(source, "t.id = s.id AND t.id >= 100")
    merged = merge.whenMatchedDelete().whenNotMatchedInsertAll().execute().first()
    found = dks.read(driver.spark, uri, where="id < 100", **options)
    return {
        "deleted": merged.num_deleted_rows,
        "inserted": merged.num_inserted_rows,
        "found": driver.looked_at(found),
        "all": driver.looked_at(dks.read(driver.spark, uri, **options)),
    }


def source(driver: Driver, name: str, **options: str) -> list[int]:
    """Write and read a table through the data source."""
    uri = driver.shown_uri(name)
    for rows, mode in ((driver.rows(kill), "append"), (driver.rows(), "overwrite")):
        rows.write.format("deltasql").options(**options).mode(mode).save(uri)
    read = driver.spark.read.format("deltasql").options(**options)
    # Otherwise `${...}` in a statement is Spark's.
    driver.spark.conf.set("spark.sql.variable.substitute", "false")
    driver.spark.sql(
        f"CREATE OR REPLACE TEMP VIEW shown USING deltasql OPTIONS (path '{uri}')"
    )
    return driver.looked_at(read.load(uri))


def streams(driver: Driver, name: str) -> dict[str, list[int]]:
    """Copy a table by two streams."""
    found = {}
    for kind in ("by_batch", "by_sink"):
        rows = driver.spark.readStream.format("deltasql").load(driver.shown_uri(name))
        stream = rows.writeStream.trigger(availableNow=True)
        place = f"{driver.given['folder']}/checkpoints/{kind}"
        stream = stream.option("checkpointLocation", place)
        if kind == "by_batch":
            stream = stream.foreachBatch(dks.foreach_batch(driver.uri(kind)))
            query = stream.start()
        else:
            query = stream.format("deltasql").start(driver.shown_uri(kind))
        query.awaitTermination()
        found[kind] = driver.looked_at(dks.read(driver.spark, driver.uri(kind)))
    return found


def faulty(fault: Callable[[], None]) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Gives the rows it gets; the first attempt of a task gets into trouble by that."""

    def rows(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            context = TaskContext.get()
            assert context is not None
            if context.partitionId() == 1 and context.attemptNumber() == 0:
                fault()

    return rows


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dawdle() -> None:
    time.sleep(300)


def surroundings(batches: Batches) -> Iterator[pa.RecordBatch]:
    """What an executor and its Python have for environment and command."""
    for _ in batches:
        pid, texts = "self", []
        while not any("CoarseGrainedExecutorBackend" in text for text in texts):
            parts = (Path("/proc", pid, part) for part in ("cmdline", "environ"))
            texts += [part.read_text().replace("\0", "\n") for part in parts]
            status = Path("/proc", pid, "status").read_text()
            pid = status.partition("PPid:")[2].split()[0]
        yield pa.RecordBatch.from_pydict({"text": ["\n".join(texts)]})


def opening(uri: str) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Tries to open a catalog on an executor."""

    def rows(batches: Batches) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            try:
                dk.connect(uri).close()
                said = "opened"
            except Exception as error:
                said = type(error).__name__
            yield pa.RecordBatch.from_pydict({"text": [said]})

    return rows


def main() -> None:
    given = json.load(sys.stdin)
    folder = given["folder"]
    config = CONFIG | CLUSTER | {"spark.eventLog.dir": f"file:{folder}/seen"}
    builder = SparkSession.builder.master(given["master"])
    spark = builder.config(map=config).getOrCreate()
    driver = Driver(spark, given)
    two = spark.range(0, 2, 1, 2)
    around = [row.text for row in two.mapInArrow(surroundings, "text string").collect()]
    (driver.seen / "surroundings").write_text("\n".join(around))
    catalog = f"deltasql://sqlite/{folder}/none.db"
    tried = two.mapInArrow(opening(catalog), "text string").collect()
    s3, location = given["s3"], given["s3_location"]
    shown = {f"storage.{name}": f"${{S3_{name}}}" for name in s3}
    found = {
        "executors": len(set(around)),
        "opened": sorted({row.text for row in tried}),
        "disk": batch(driver, "disk"),
        "s3": batch(driver, "s3", location=location, storage_options=s3),
        "source": source(driver, "source"),
        "s3_source": source(driver, "s3", **shown),
        **streams(driver, "source"),
    }
    driver.keep_pages()
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
