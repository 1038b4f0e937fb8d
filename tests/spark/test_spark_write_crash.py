"""Writes of which a task fails, or whose driver is killed half-way."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import delkalakedb as dk
from delkalakedb import spark as dks
from tests.support.processes import program
from tests.support.servers.stores import Place


def wait_for(mark: Path, worker: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    while not mark.exists():
        assert worker.poll() is None, worker.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def wait_for_end(group: int) -> None:
    """Until Spark's own processes have noticed that their driver is gone."""
    deadline = time.monotonic() + 60
    with suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.1)
        pytest.fail("Spark outlives its driver")


def rows(table: deltalake.DeltaTable) -> list[int]:
    return sorted(table.to_pyarrow_table()["id"].to_pylist())


def test_a_failing_task_and_a_killed_driver_lose_and_double_nothing(
    spark: SparkSession, tmp_path: Path, s3: Place
) -> None:
    catalog = f"deltasql://sqlite/{tmp_path}/meta.db"
    uri = f"{catalog}?table=t"
    s3_uri = f"{catalog}?table=u&location={s3.location}"
    options = ",".join(f"{k}={v}" for k, v in s3.storage_options.items())
    command = program("write_worker", uri, s3_uri, options, str(tmp_path))
    environment = os.environ | {"PYSPARK_PYTHON": sys.executable}
    worker = subprocess.Popen(
        command,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with worker:
        try:
            wait_for(tmp_path / "stuck", worker)
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait()
            wait_for_end(worker.pid)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)

    everything = list(range(40_000))
    on_s3 = deltalake.DeltaTable(s3.location, storage_options=s3.storage_options)
    assert rows(on_s3) == everything
    root = Path(dk.DeltaTable(uri).table_uri.removeprefix("file://"))
    assert rows(deltalake.DeltaTable(root)) == everything
    assert any((root / "_delta_work").iterdir())
    assert {str(path) for path in root.glob("*.parquet")} == {
        path.removeprefix("file://") for path in dk.DeltaTable(uri).file_uris()
    }

    dks.write(spark.range(40_000, 40_001), uri)
    assert rows(deltalake.DeltaTable(root)) == [*everything, 40_000]
    assert not any((root / "_delta_work").iterdir())
    assert pa.table(dk.DeltaTable(uri).get_add_actions()).num_rows == 5
