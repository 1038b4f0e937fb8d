"""The progress of long calls, as callbacks get it and as the bar shows it."""

import inspect
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake.table import TableOptimizer

import delkalakedb as dk
from delkalakedb.deltalake.optimizer import Optimizer
from delkalakedb.progress import counted, is_reporting, reporting
from delkalakedb.settings.uri import format_uri, parse_uri

VECTORS = {"delta.enableDeletionVectors": "true"}
FILES = 2


class StopError(Exception):
    """What a callback raises."""


def stop(progress: dk.Progress) -> None:
    raise StopError(progress.what)


@pytest.fixture
def uri(catalog_uri: str) -> str:
    """A table of some small files, each with a deleted row, and one removed file."""
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    with dk.connect(catalog_uri) as catalog:
        catalog.create_table("t", rows(0).schema, configuration=VECTORS)
    for number in range(FILES):
        dk.write_deltalake(uri, rows(10 * number), mode="append")
    table = dk.DeltaTable(uri)
    table.delete("id % 10 = 3")
    return uri


def rows(first: int) -> pa.Table:
    return pa.table({"id": pa.array(range(first, first + 10), pa.int64())})


Call = Callable[[str, Path, Any], object]
CALLS: dict[str, tuple[Call, set[str]]] = {
    "verify": (
        lambda uri, tmp_path, progress: dk.verify(uri, deep=True, progress=progress),
        {"versions", "files"},
    ),
    "compact": (
        lambda uri, tmp_path, progress: dk.DeltaTable(uri).optimize.compact(
            progress=progress
        ),
        {"bytes"},
    ),
    "z-order": (
        lambda uri, tmp_path, progress: dk.DeltaTable(uri).optimize.z_order(
            ["id"], progress=progress
        ),
        {"bytes"},
    ),
    "purge": (
        lambda uri, tmp_path, progress: dk.DeltaTable(uri).optimize.purge(
            progress=progress
        ),
        {"files"},
    ),
    "copy": (
        lambda uri, tmp_path, progress: dk.copy_catalog(
            uri.partition("?")[0],
            f"deltasql://sqlite/{tmp_path}/copy.db",
            progress=progress,
        ),
        {"rows"},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_long_call_reports_all_of_its_work_and_a_callback_that_raises_stops_it(
    uri: str, tmp_path: Path, name: str
) -> None:
    call, units = CALLS[name]
    table, told = dk.DeltaTable(uri), list[dk.Progress]()
    version, files = table.version(), table.file_uris()

    with pytest.raises(StopError, match=f"{name} t"):
        call(uri, tmp_path, stop)

    table.update_incremental()
    assert (table.version(), table.file_uris()) == (version, files)
    assert dk.verify(uri, deep=True).ok
    call(uri, tmp_path, told.append)
    assert {each.what for each in told} == {f"{name} t"}
    assert {each.unit for each in told} == units
    for unit in units:
        found = [each for each in told if each.unit == unit]
        assert found[-1].done == found[-1].total
        assert all(a.done <= b.done for a, b in pairwise(found))
    assert not is_reporting()
    assert dk.DeltaTable(uri).to_pyarrow_table().num_rows == 9 * FILES


def test_vacuum_reports_and_a_stopped_one_is_in_the_history(uri: str) -> None:
    dk.DeltaTable(uri).optimize.z_order(["id"])
    table, told = dk.DeltaTable(uri), list[dk.Progress]()
    options: Any = {"retention_hours": 0, "enforce_retention_duration": False}

    with pytest.raises(StopError):
        table.vacuum(**options, dry_run=False, progress=stop)
    stopped = table.history(1)[0]
    dk.write_deltalake(uri, rows(90), mode="overwrite")
    deleted = dk.DeltaTable(uri).vacuum(**options, dry_run=False, progress=told.append)

    assert stopped["operation"] == "VACUUM END"
    assert stopped["operationParameters"]["status"] == "FAILED"
    count = len(deleted)
    assert count
    assert told == [dk.Progress(what="vacuum t", done=count, total=count, unit="files")]
    assert dk.verify(uri, deep=True).ok


def test_import_and_sync_report_and_continue_after_a_stop(
    catalog_uri: str, tmp_path: Path
) -> None:
    location, told = str(tmp_path / "plain"), list[dk.Progress]()
    for _ in range(3):
        deltalake.write_deltalake(location, rows(0), mode="append")
    uri = format_uri(parse_uri(catalog_uri).with_table("f"))

    with pytest.raises(StopError, match="import f"):
        dk.follow(location, uri, progress=stop)
    dk.follow(location, uri, progress=told.append)
    deltalake.write_deltalake(location, rows(0), mode="append")
    with pytest.raises(StopError, match="adopt commits of f"):
        dk.sync(uri, progress=stop)
    deltalake.write_deltalake(location, rows(0), mode="append")
    synced = dk.sync(uri, progress=told.append)

    assert synced.version == 4
    assert dk.DeltaTable(uri).count() == 50
    assert told[-1].what == "adopt commits of f"
    assert (told[-1].done, told[-1].total, told[-1].unit) == (1, None, "versions")


def test_inner_call_reports_to_the_outer_one_unless_it_has_its_own() -> None:
    outer, inner = list[dk.Progress](), list[dk.Progress]()

    with reporting(outer.append):
        with reporting(None):
            list(counted("a", "x", 1, "files"))
        with reporting(inner.append):
            list(counted("b", "x", 1, "files"))
        with reporting(False):
            list(counted("c", "x", 1, "files"))

    assert {each.what for each in outer} == {"a"}
    assert {each.what for each in inner} == {"b"}


@pytest.mark.parametrize("name", ["compact", "z_order"])
def test_methods_of_optimize_begin_with_the_arguments_of_deltalake(name: str) -> None:
    ours, theirs = (
        [(p.name, p.kind, p.default) for p in inspect.signature(f).parameters.values()]
        for f in (getattr(Optimizer, name), getattr(TableOptimizer, name))
    )
    assert ours[:-1] == theirs
    assert ours[-1][0] == "progress"


BAR = """
import time
from delkalakedb.progress import counted, reporting
with reporting(True):
    for _ in counted("long work", range(8), 8, "files"):
        time.sleep(0.1)
"""


def test_true_draws_a_bar_on_a_terminal_and_nothing_in_a_pipe() -> None:
    command = [sys.executable, "-c", BAR]
    piped = subprocess.run(command, check=True, capture_output=True, text=True)
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    done = subprocess.run(command, check=True, stderr=theirs, env=environment)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)

    assert (piped.stdout, piped.stderr, done.returncode) == ("", "", 0)
    assert "long work" in shown
    assert "/8 files" in shown
