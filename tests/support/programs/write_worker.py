"""A driver of its own: a task of its first write fails once, its second never ends."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from delkalakedb import spark as dks
from tests.support.sessions import CONFIG

Batches = Iterable[pa.RecordBatch]


def main(uri: str, s3_uri: str, options: str, folder: str) -> None:
    """Write to both tables, then to the first until this process is killed."""
    marks = Path(folder)
    given = dict(item.split("=", 1) for item in options.split(","))
    # Tasks are tried three times.
    spark = SparkSession.builder.master("local[2,3]").config(map=CONFIG).getOrCreate()
    for name, target, store in (("disk", uri, None), ("s3", s3_uri, given)):
        rows = spark.range(0, 40_000, 1, 4).mapInArrow(
            failing_once(marks / name), "id long"
        )
        dks.write(rows, target, storage_options=store)
    endless = spark.range(0, 40_000, 1, 4).mapInArrow(stuck(marks / "stuck"), "id long")
    dks.write(endless, uri)


def failing_once(mark: Path) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Gives the rows it gets, but fails after the first of them, once."""

    def rows(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if batch["id"][0].as_py() >= 20_000 and not mark.exists():
                mark.touch()
                raise RuntimeError("this task fails once")

    return rows


def stuck(mark: Path) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Gives a batch, and then nothing for long."""

    def rows(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if batch["id"][0].as_py() >= 20_000:
                mark.touch()
                time.sleep(120)

    return rows


if __name__ == "__main__":
    main(*sys.argv[1:])
