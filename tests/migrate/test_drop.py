"""Dropped tables are forgotten; their files stay as a plain Delta table, or go."""

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import deltalake
import pytest

import delkalakedb as dk
from delkalakedb.catalog.commit.outbox import Lease
from delkalakedb.errors import DeltaError, MirrorError, TableNotFoundError
from delkalakedb.migrate import departure as dropping
from tests.support.imports import with_table
from tests.support.logs import rows


@pytest.fixture
def uri(catalog_uri: str) -> str:
    return with_table(catalog_uri, "t")


def folder(catalog: dk.Catalog, name: str = "t") -> Path:
    return Path(catalog.table(name).location.removeprefix("file://"))


def test_dropped_table_goes_on_as_a_plain_one(
    uri: str, catalog: dk.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_MIRROR__MODE", "external")
    dk.write_deltalake(uri, rows(0))
    dk.write_deltalake(uri, rows(4), mode="append")

    done = catalog.drop_table("t")

    assert (done.version, done.unpublished_versions, done.deleted_files) == (1, 0, 0)
    assert catalog.tables() == []
    assert deltalake.DeltaTable(done.location).to_pyarrow_table().num_rows == 8
    with pytest.raises(TableNotFoundError):
        catalog.drop_table("t")
    assert dk.import_table(done.location, uri).version == 1


def test_data_goes_with_the_table_when_that_is_asked(
    uri: str, catalog: dk.Catalog
) -> None:
    dk.write_deltalake(uri, rows(0), partition_by=["id"])
    place = folder(catalog)
    beside = place.parent / "beside.txt"
    beside.write_text("stays")
    told: list[dk.Progress] = []

    done = catalog.drop_table("t", with_data=True, progress=told.append)

    assert not place.exists()
    assert beside.exists()
    assert done.deleted_files > 4
    assert done.deleted_bytes > 0
    count = done.deleted_files
    assert told == [dk.Progress(what="drop t", done=count, total=count, unit="files")]
    dk.write_deltalake(uri, rows(8))
    assert dk.DeltaTable(uri).version() == 0


def test_data_that_other_tables_share_is_not_deleted(
    uri: str, catalog: dk.Catalog
) -> None:
    dk.write_deltalake(uri, rows(0))
    place = folder(catalog)
    catalog.create_table("inner", rows(0).schema, location=str(place / "in"))

    with pytest.raises(DeltaError, match="inner lies below"):
        catalog.drop_table("t", with_data=True)
    catalog.drop_table("inner")
    with pytest.raises(DeltaError, match="another Delta table lies below"):
        catalog.drop_table("t", with_data=True)

    assert dk.DeltaTable(uri).to_pyarrow_table().num_rows == 4


def test_table_whose_log_cannot_be_completed_is_dropped_by_force_only(
    uri: str, catalog: dk.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    dk.write_deltalake(uri, rows(0))
    monkeypatch.setenv("DELKALAKEDB_MIRROR__MODE", "external")
    dk.write_deltalake(f"{uri}&pool_size=2", rows(4), mode="append")
    place = folder(catalog)
    shutil.copy(
        place / "_delta_log" / f"{0:020}.json", place / "_delta_log" / f"{1:020}.json"
    )

    with pytest.raises(MirrorError, match=r"isn't dropped: .*a writer that bypassed"):
        catalog.drop_table("t")
    assert [table.name for table in catalog.tables()] == ["t"]

    assert catalog.drop_table("t", force=True).unpublished_versions == 1
    assert catalog.tables() == []


def test_commits_come_before_the_drop_or_find_no_table(
    uri: str, catalog: dk.Catalog
) -> None:
    dk.write_deltalake(uri, rows(0))
    some, failed = threading.Semaphore(0), threading.Event()

    def append() -> int:
        count = 0
        while not failed.is_set():
            try:
                table = dk.DeltaTable(uri)
                dk.write_deltalake(table, rows(0), mode="append")
            except TableNotFoundError:
                return count
            count += 1
            some.release()
        return count

    with ThreadPoolExecutor(1) as writer:
        appended = writer.submit(append)
        some.acquire()
        try:
            done = catalog.drop_table("t")
        except BaseException:
            failed.set()
            raise
        count = appended.result()

    assert done.version == count
    assert deltalake.DeltaTable(done.location).version() == count


def test_commit_that_comes_just_before_the_drop_is_in_the_log(
    uri: str, catalog: dk.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    dk.write_deltalake(uri, rows(0))
    monkeypatch.setenv("DELKALAKEDB_MIRROR__MODE", "external")
    take = dropping.hold_mirror

    def commit_and_take(*args: Any) -> AbstractContextManager[Lease]:
        dk.write_deltalake(f"{uri}&pool_size=2", rows(4), mode="append")
        return take(*args)

    monkeypatch.setattr(dropping, "hold_mirror", commit_and_take)
    done = catalog.drop_table("t")

    assert (done.version, done.unpublished_versions) == (1, 0)
    assert deltalake.DeltaTable(done.location).to_pyarrow_table().num_rows == 8


def test_one_of_two_drops_the_table(uri: str, catalog: dk.Catalog) -> None:
    dk.write_deltalake(uri, rows(0))
    together = threading.Barrier(2)

    def drop(_: int) -> bool:
        together.wait()
        try:
            catalog.drop_table("t")
        except TableNotFoundError:
            return False
        return True

    with ThreadPoolExecutor(2) as both:
        assert sorted(both.map(drop, range(2))) == [False, True]


def test_handle_on_a_dropped_table_says_so_and_reads_no_other(
    uri: str, catalog: dk.Catalog
) -> None:
    dk.write_deltalake(uri, rows(0))
    handle, snapshot = dk.DeltaTable(uri), catalog.snapshot("t")
    catalog.drop_table("t", with_data=True)
    dk.write_deltalake(uri, rows(8))
    looks: list[Callable[[], object]] = [
        handle.count,
        handle.file_uris,
        handle.history,
        handle.to_pyarrow_table,
        lambda: handle.file_uris(file_pruning_predicate="id >= 0"),
        lambda: snapshot.files().read_all(),
    ]

    for look in looks:
        with pytest.raises(TableNotFoundError, match="t: the table was dropped since"):
            look()

    assert snapshot.domains() == {}
    assert dk.DeltaTable(uri).count() == 4


def test_number_of_a_dropped_table_does_not_come_back(
    uri: str, catalog: dk.Catalog
) -> None:
    seen = set()
    for _ in range(3):
        dk.write_deltalake(uri, rows(0))
        identity = catalog.snapshot("t").identity
        assert identity is not None
        seen.add(identity[0])
        catalog.drop_table("t", with_data=True)

    assert len(seen) == 3


def test_number_that_an_older_client_took_is_passed_over(
    uri: str, catalog: dk.Catalog
) -> None:
    dk.write_deltalake(uri, rows(0))
    with catalog._backend.writing() as session:
        # Before schema version 3 it was the greatest, and one more.
        session.script(["UPDATE dl_table_ids SET last_table_id = 0"])

    catalog.create_table("u", rows(0).schema)

    assert len({catalog.snapshot(name).identity for name in ("t", "u")}) == 2
