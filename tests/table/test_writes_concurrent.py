"""Operations that run at the same time end as Delta's rules say."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties

import delkalakedb as dk
from delkalakedb.catalog.read.retention import expire_versions
from delkalakedb.errors import CommitFailedError
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.twins import rows

CHILDREN = multiprocessing.get_context("spawn")
COUNT = 12
Operation = Callable[[str], Any]


def compact(uri: str) -> None:
    dk.DeltaTable(uri).optimize.compact()


def z_order(uri: str) -> None:
    dk.DeltaTable(uri).optimize.z_order(["id"])


def overwrite(uri: str) -> None:
    data = pa.table({"id": pa.array(range(COUNT), pa.int64())})
    dk.write_deltalake(uri, data, mode="overwrite")


def replace_row(uri: str) -> None:
    data = pa.table({"id": pa.array([3], pa.int64())})
    dk.write_deltalake(uri, data, mode="overwrite", predicate="id = 3")


def merge_row(uri: str) -> None:
    data = pa.table({"id": pa.array([4], pa.int64())})
    aliases = {"source_alias": "s", "target_alias": "t"}
    merger = dk.DeltaTable(uri).merge(data, "s.id = t.id", **aliases)
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


@pytest.fixture
def uri(catalog_uri: str) -> str:
    """A table of several small files, on each engine in turn."""
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    for start in range(0, COUNT, 3):
        data = pa.table({"id": pa.array(range(start, start + 3), pa.int64())})
        dk.write_deltalake(uri, data, mode="append")
    return uri


def at_once(uri: str, *operations: Operation) -> list[BaseException]:
    """Run operations in threads that start together; what they raised."""
    barrier = threading.Barrier(len(operations))
    failures: list[BaseException] = []

    def run(operation: Operation) -> None:
        barrier.wait()
        try:
            operation(uri)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(o,)) for o in operations]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


@pytest.mark.parametrize(
    "pair",
    [
        (compact, compact),
        (z_order, compact),
        (overwrite, compact),
        (replace_row, compact),
        (merge_row, z_order),
        (merge_row, replace_row),
    ],
    ids=lambda pair: "-".join(o.__name__ for o in pair),
)
def test_pair_keeps_the_rows(uri: str, pair: tuple[Operation, Operation]) -> None:
    assert at_once(uri, *pair) == []
    expected = sorted(repr({"id": number}) for number in range(COUNT))
    table = dk.DeltaTable(uri)
    assert rows(table) == rows(deltalake.DeltaTable(table.table_uri)) == expected
    report = dk.verify(uri, deep=True)
    assert report.ok, report


def test_appends_never_fail_because_of_deletes(uri: str) -> None:
    def append(uri: str) -> None:
        for number in range(100, 105):
            data = pa.table({"id": pa.array([number], pa.int64())})
            dk.write_deltalake(uri, data, mode="append")

    def delete(uri: str) -> None:
        for number in range(5):
            dk.DeltaTable(uri).delete(f"id = {number}")

    assert at_once(uri, append, delete, append) == []
    assert dk.DeltaTable(uri).count() == COUNT - 5 + 10


def test_operation_on_a_stale_handle_is_run_again_on_the_newest_version(
    uri: str,
) -> None:
    first, second = dk.DeltaTable(uri), dk.DeltaTable(uri)
    first.update({"id": "id + 100"}, predicate="id = 0")
    second.update({"id": "id + 1000"}, predicate="id >= 100 OR id = 1")
    found = second.to_pyarrow_table()["id"].to_pylist()
    assert {1100, 1001} <= set(found)
    assert len(found) == COUNT


def test_append_on_a_version_that_expired_since_keeps_what_it_read(uri: str) -> None:
    stale = dk.DeltaTable(uri)
    for _ in range(2):
        dk.write_deltalake(uri, pa.table({"id": pa.array([COUNT])}), mode="append")
    dk.DeltaTable(uri).create_checkpoint()
    with dk.connect(uri) as catalog:
        in_a_year_ms = int((time.time() + 365 * 24 * 3600) * 1000)
        expired = expire_versions(catalog._backend, "t", now_ms=in_a_year_ms)
    assert expired.floor > stale.version()
    once = CommitProperties(app_transactions=[deltalake.Transaction("app", 1)])
    # A reader is read once.
    reader = pa.table({"id": pa.array([100, 101])}).to_reader()

    dk.write_deltalake(stale, reader, mode="append", commit_properties=once)

    table = dk.DeltaTable(uri)
    assert table.count() == COUNT + 4
    assert table.transaction_version("app") == 1


def test_no_more_retries_than_asked_for_are_made(uri: str) -> None:
    first, second = dk.DeltaTable(uri), dk.DeltaTable(uri)
    first.delete("id = 0")
    version = first.version()
    once = CommitProperties(max_commit_retries=0)
    with pytest.raises(CommitFailedError, match=f"version {version} was taken by"):
        second.delete("id = 1", commit_properties=once)
    folder = Path(first.table_uri.removeprefix("file://"))
    named = {Path(u).name for v in range(version + 1) for u in _files(uri, v)}
    assert {f.name for f in folder.glob("*.parquet")} == named


def _files(uri: str, version: int) -> list[str]:
    return dk.DeltaTable(uri, version).file_uris()


def test_changed_schema_is_for_the_caller_to_look_at(uri: str) -> None:
    stale = dk.DeltaTable(uri)
    wide = pa.table({"id": pa.array([1], pa.int64()), "more": [1]})
    dk.write_deltalake(uri, wide, mode="append", schema_mode="merge")
    with pytest.raises(CommitFailedError, match="metadata_changed"):
        stale.delete("id = 1")


def die_while_deleting(uri: str) -> None:
    """Delete, and be killed once delta-rs has written into the workspace."""
    from delkalakedb.write.engines.deltars import workspace as runner

    def kill(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    runner._commits = kill
    dk.DeltaTable(uri).delete("id = 1")


def test_killed_delete_leaves_the_table_as_it_was(tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    dk.write_deltalake(uri, pa.table({"id": [1, 2]}))
    child = CHILDREN.Process(target=die_while_deleting, args=(uri,))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    table = dk.DeltaTable(uri)
    work = Path(table.table_uri.removeprefix("file://")) / "_delta_work"
    (left,) = work.iterdir()
    assert list(left.glob("*.parquet"))
    assert (table.version(), len(rows(table))) == (0, 2)

    table.delete("id = 2")
    assert not list(work.iterdir())
    assert rows(table) == ["{'id': 1}"]


def compact_often(uri: str, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        compact(uri)


def test_processes_that_compact_and_append_lose_nothing(tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    dk.write_deltalake(uri, pa.table({"id": [0]}))
    children = [
        CHILDREN.Process(target=compact_often, args=(uri, 2.0)) for _ in range(2)
    ]
    for child in children:
        child.start()
    appended = 0
    while any(child.is_alive() for child in children):
        dk.write_deltalake(uri, pa.table({"id": [0]}), mode="append")
        appended += 1
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert dk.DeltaTable(uri).count() == appended + 1
