"""A driver that dies: two streams, each killed after SQL has committed a batch.

    python stream_driver.py SOURCE_URI BY_BATCH_URI BY_SINK_URI CHECKPOINTS

The first stream writes by `foreach_batch`, the second one by the data source. The
process group is killed in the second one's commit, while the first one waits between
its commit and Spark's.
"""

import os
import signal
import sys
import threading
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from delkalakedb import spark as dks
from delkalakedb.spark.writer.sink import StreamWriter
from pyspark_deltasql import DefaultSource
from tests.support.sessions import CONFIG

LAST = 1
group = os.getpgid(0)


class DyingWriter(StreamWriter):
    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        if batchId == LAST:
            os.killpg(group, signal.SIGKILL)


class DyingSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "dying"

    def streamWriter(self, schema: Any, overwrite: bool) -> DyingWriter:  # noqa: N802
        return DyingWriter(self.options, schema, overwrite)


def main(source: str, by_batch: str, by_sink: str, checkpoints: str) -> None:
    spark = SparkSession.builder.master("local[2]").config(map=CONFIG).getOrCreate()
    spark.dataSource.register(DyingSource)
    write, waiting = dks.foreach_batch(by_batch), threading.Event()

    def write_and_wait(rows: DataFrame, batch_id: int) -> None:
        write(rows, batch_id)
        if batch_id == LAST:
            waiting.set()
            threading.Event().wait()

    reader = spark.readStream.format("deltasql").option("maxFilesPerTrigger", 1)
    rows = reader.option("startingVersion", 0).load(source)
    stream = rows.writeStream.trigger(availableNow=True)
    first = stream.option("checkpointLocation", f"{checkpoints}/by_batch")
    first.foreachBatch(write_and_wait).start()
    assert waiting.wait(120)
    second = stream.option("checkpointLocation", f"{checkpoints}/by_sink")
    second.format("dying").option("path", by_sink).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
