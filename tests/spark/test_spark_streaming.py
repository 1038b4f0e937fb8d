"""Streams of tables, from tables and to tables: each row once, after any crash."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import DeltaError, VersionNotFoundError
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.spark.pyspark_api import ReadAllAvailable, ReadLimit, ReadMaxFiles
from delkalakedb.spark.stream import StreamReader
from tests.support.lakes import Lake
from tests.support.processes import program

pytestmark = pytest.mark.since_pyspark("4.2")


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return f"deltasql://sqlite/{tmp_path}/meta.db?table=source"


def append(uri: str, *values: int) -> None:
    dk.write_deltalake(uri, pa.table({"x": values}), mode="append")


def values(uri: str) -> list[int]:
    return sorted(dk.DeltaTable(uri).to_pyarrow_table()["x"].to_pylist())


# ---- the source, as Spark's process has it


class Stream:
    """A query: batches from where the last one ended."""

    def __init__(self, uri: str, **options: Any) -> None:
        self.options = {"path": uri} | {k.lower(): str(v) for k, v in options.items()}
        self.reader = self.start()
        self.offset = self.reader.initialOffset()

    def start(self) -> StreamReader:
        """The reader of a query that is started, again or not."""
        with dk.connect(self.options["path"]) as catalog:
            name = parse_uri(self.options["path"]).table
            snapshot = catalog.snapshot(str(name))
        columns = StructType.fromJson(json.loads(snapshot.metadata.schema_string))
        self.reader = StreamReader(self.options, columns, snapshot.version)
        return self.reader

    def batches(self, limit: ReadLimit | None = None) -> Iterator[list[int]]:
        """What is read until there is no more."""
        limit = limit or self.reader.getDefaultReadLimit()
        while True:
            end = self.reader.latestOffset(self.offset, limit)
            if end == self.offset:
                return
            tasks = self.reader.partitions(self.offset, end)
            found = [b for task in tasks for b in self.reader.read(task)]
            self.offset = end
            yield sorted(v.as_py() for batch in found for v in batch["x"])


def test_new_query_reads_the_whole_table_and_then_what_is_added(
    catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = format_uri(parse_uri(catalog_uri).with_table("source"))
    if password := parse_uri(uri).password:
        monkeypatch.setenv("A_PASSWORD", password)
        uri = uri.replace(f":{password}@", ":${A_PASSWORD}@")
    for i in range(3):
        append(uri, 2 * i, 2 * i + 1)
    stream = Stream(uri, maxFilesPerTrigger=2)

    assert list(stream.batches()) == [[0, 1, 2, 3], [4, 5]]
    append(uri, 7)
    dk.DeltaTable(uri).optimize.compact()
    append(uri, 8)
    stream.start()
    assert [b for b in stream.batches(ReadMaxFiles(1)) if b] == [[7], [8]]
    assert list(stream.batches()) == []


def test_starting_version_chooses_the_first_commit(uri: str) -> None:
    for i in range(4):
        append(uri, i)
    latest = Stream(uri, startingVersion="latest")
    later = Stream(uri, startingVersion=2)
    append(uri, 9)

    assert list(Stream(uri, startingVersion=3).batches()) == [[3, 9]]
    assert list(later.batches(ReadMaxFiles(1))) == [[2], [3], [9]]
    assert list(latest.batches(ReadAllAvailable())) == [[9]]
    with pytest.raises(VersionNotFoundError):
        Stream(uri, startingVersion=5)


def test_starting_timestamp_and_sizes_of_batches(uri: str) -> None:
    for i in range(4):
        append(uri, i)
    with dk.connect(uri) as catalog:
        ms = catalog.snapshot("source", 2).table.timestamp_ms
        at = datetime.fromtimestamp(ms / 1000, UTC)
        sizes = catalog.snapshot("source").files().read_all()["size_bytes"].to_pylist()
    two = f"{max(sizes) + 1}b"

    assert list(Stream(uri, startingTimestamp=at.isoformat()).batches()) == [[2, 3]]
    found = Stream(uri, startingVersion=0, maxBytesPerTrigger=two).batches()
    assert list(found) == [[0, 1], [2, 3]]
    late = (at + timedelta(days=1)).isoformat()
    with pytest.raises(VersionNotFoundError, match="after the table's latest version"):
        Stream(uri, startingTimestamp=late)


def test_expired_versions_stop_the_stream_or_are_left_out(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(4):
        append(uri, i)
    dk.DeltaTable(uri).create_checkpoint()
    later = time.time() + 60 * 24 * 3600
    with dk.connect(uri) as catalog, monkeypatch.context() as patch:
        patch.setattr("time.time", lambda: later)
        catalog.expire("source", before_version=2)
        first = catalog.log("source").head().first_version
        assert first == 2
    stream = Stream(uri, startingVersion=1)

    with pytest.raises(VersionNotFoundError, match="set failOnDataLoss to false"):
        list(stream.batches())
    found = Stream(uri, startingVersion=1, failOnDataLoss="false").batches()
    assert list(found) == [list(range(first + 1, 4))]


def test_available_now_reads_up_to_the_version_of_its_start(uri: str) -> None:
    append(uri, 1)
    stream = Stream(uri, startingVersion=0)
    stream.reader.prepareForTriggerAvailableNow()
    append(uri, 2)

    assert list(stream.batches()) == [[1]]
    stream.start()
    assert list(stream.batches()) == [[2]]


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        ("delete", {}, "ignoreDeletes or skipChangeCommits"),
        ("delete", {"ignoreDeletes": "true"}, [1, 2, 3]),
        ("delete", {"skipChangeCommits": "true"}, [1, 2, 3]),
        ("update", {"ignoreDeletes": "true"}, "set skipChangeCommits"),
        ("update", {"skipChangeCommits": "true"}, [1, 2, 3]),
        ("update", {"ignoreChanges": "true"}, [1, 2, 3, 5]),
        ("delete", {"ignoreChanges": "true"}, [1, 2, 3]),
        ("optimize", {}, [1, 2, 3]),
    ],
)
def test_version_that_takes_rows_away_stops_the_stream_or_is_left_out(
    uri: str, change: str, options: dict[str, str], expected: Any
) -> None:
    append(uri, 1)
    append(uri, 2)
    stream = Stream(uri, startingVersion=0, **options)
    table = dk.DeltaTable(uri)
    if change == "delete":
        table.delete("x = 1")
    elif change == "update":
        table.update(predicate="x = 1", updates={"x": "5"})
    else:
        table.optimize.compact()
    append(uri, 3)

    if isinstance(expected, str):
        with pytest.raises(DeltaError, match=expected):
            list(stream.batches())
    else:
        assert sorted(x for batch in stream.batches() for x in batch) == expected


def test_changed_schema_stops_the_query_until_it_is_started_again(uri: str) -> None:
    append(uri, 1)
    stream = Stream(uri, startingVersion=0)
    more = pa.table({"x": [2], "y": ["new"]})
    dk.write_deltalake(uri, more, mode="append", schema_mode="merge")

    with pytest.raises(DeltaError, match="version 1 changed the schema; restart"):
        list(stream.batches())
    stream.start()
    assert list(stream.batches()) == [[1, 2]]


def test_rows_deleted_by_a_vector_are_not_in_the_first_batch(tmp_path: Path) -> None:
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        lake = Lake(catalog, tmp_path)
        lake.create(
            pa.schema([("x", pa.int64())]),
            features=["deletionVectors"],
            configuration={"delta.enableDeletionVectors": "true"},
        )
        file = lake.file({"x": [1, 2, 3]})
        lake.commit(file)
        lake.commit(*lake.without(file, 1))
        uri = format_uri(catalog.uri.with_table(lake.name))

    assert list(Stream(uri).batches()) == [[1, 3]]
    with pytest.raises(DeltaError, match="skipChangeCommits"):
        list(Stream(uri, startingVersion=0).batches())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "x > 1"}, "takes no where"),
        ({"versionAsOf": "0"}, "takes no versionAsOf"),
        ({"maxFilesPerTrigger": "0"}, "at least 1"),
        ({"maxBytesPerTrigger": "0"}, "at least 1 byte"),
        ({"maxBytesPerTrigger": "10 bananas"}, "a size of at least 1 byte"),
        ({"endingVersion": "1"}, "takes no endingVersion"),
        ({"startingVersion": 0, "startingTimestamp": "x"}, "only one of"),
        ({"startingVersion": "soon"}, "whole number"),
        ({"skipChangeCommits": "yes", "startingVersion": 0}, "true or false"),
    ],
)
def test_options_that_a_stream_cannot_have_are_refused(
    uri: str, options: dict[str, Any], message: str
) -> None:
    append(uri, 1)
    dk.write_deltalake(uri, pa.table({"x": [2]}), mode="overwrite")

    with pytest.raises(DeltaError, match=message):
        list(Stream(uri, **options).batches())


# ---- through Spark


def resume(spark: SparkSession, source: str, checkpoint: str) -> Any:
    reader = spark.readStream.format("deltasql").option("maxFilesPerTrigger", 1)
    rows: DataFrame = reader.option("startingVersion", 0).load(source)
    stream = rows.writeStream.trigger(availableNow=True)
    return stream.option("checkpointLocation", checkpoint)


def test_rows_are_there_once_after_the_driver_was_killed_between_two_commits(
    spark: SparkSession, tmp_path: Path, uri: str
) -> None:
    by_batch = uri.replace("table=source", "table=by_batch")
    by_sink = uri.replace("table=source", "table=by_sink")
    for i in range(3):
        append(uri, 2 * i, 2 * i + 1)
    arguments = [uri, by_batch, by_sink, str(tmp_path / "checkpoints")]

    killed = subprocess.run(
        program("stream_driver", *arguments),
        start_new_session=True,
        timeout=240,
    )

    assert killed.returncode == -signal.SIGKILL
    for name, target in (("by_batch", by_batch), ("by_sink", by_sink)):
        checkpoint = tmp_path / "checkpoints" / name
        assert values(target) == [0, 1, 2, 3]
        assert sorted(p.name for p in (checkpoint / "commits").glob("[0-9]*")) == ["0"]
    resumed = resume(spark, uri, f"{tmp_path}/checkpoints/by_batch")
    resumed.foreachBatch(dks.foreach_batch(by_batch)).start().awaitTermination()
    resumed = resume(spark, uri, f"{tmp_path}/checkpoints/by_sink").format("deltasql")
    resumed.start(by_sink).awaitTermination()

    for target in (by_batch, by_sink):
        assert values(target) == [0, 1, 2, 3, 4, 5]
        table = dk.DeltaTable(target)
        folder = Path(table.table_uri.removeprefix("file://"))
        assert len(list(folder.rglob("*.parquet"))) == len(table.file_uris())
        operations = [commit["operation"] for commit in table.history(3)]
        assert "CREATE TABLE" not in operations
        assert table.version() == 2 + (target == by_sink)
