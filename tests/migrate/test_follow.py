"""Tables that others still write by file, read-only here until the cut-over."""

import subprocess
from pathlib import Path

import deltalake
import pytest

import delkalakedb as dk
from delkalakedb.errors import DeltaError, MirrorError, ReadOnlyError
from delkalakedb.storage import open_store
from tests.support.imports import assert_same_history, log_files, with_table
from tests.support.logs import LAST, drop_commits, rows, write_history
from tests.support.processes import program


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "a table")


@pytest.fixture
def uri(catalog_uri: str) -> str:
    return with_table(catalog_uri, "t")


@pytest.fixture
def on_sqlite(tmp_path: Path, location: str) -> str:
    """A table that is followed."""
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    deltalake.write_deltalake(location, rows(0))
    dk.follow(location, uri)
    return uri


def test_followed_table_is_caught_up_until_it_is_cut_over(
    uri: str, catalog: dk.Catalog, location: str
) -> None:
    write_history(location)
    before = log_files(Path(location))

    done = dk.follow(location, uri)

    assert (done.version, done.ok) == (LAST, True)
    assert log_files(Path(location)) == before
    deltalake.write_deltalake(location, rows(40), mode="append")
    deltalake.DeltaTable(location).delete("id = 41")
    synced = dk.sync(uri)
    assert (synced.version, synced.versions, synced.hold) == (LAST + 2, 2, "following")
    assert synced.timestamp == catalog.table("t").timestamp
    assert dk.sync(uri).versions == 0
    assert_same_history(catalog, "t", open_store(location), first=0)

    deltalake.write_deltalake(location, rows(50), mode="append")
    over = dk.cut_over(uri)
    assert (over.version, over.versions, over.hold) == (LAST + 3, 1, None)
    dk.write_deltalake(uri, rows(60), mode="append")
    assert deltalake.DeltaTable(location).version() == LAST + 4
    report = dk.verify(uri, deep=True)
    assert isinstance(report, dk.mirror.verify.Report)
    assert report.ok, report


def test_commit_to_a_followed_table_is_refused_and_leaves_nothing(
    uri: str, location: str
) -> None:
    deltalake.write_deltalake(location, rows(0))
    dk.follow(location, uri)
    before = sorted(Path(location).rglob("*"))
    table = dk.DeltaTable(uri)

    with pytest.raises(
        ReadOnlyError,
        match=r"t: nothing was written, because .*\(following\).*cut_over",
    ):
        dk.write_deltalake(uri, rows(4), mode="append")
    for operation in (
        lambda: table.delete("id = 1"),
        lambda: table.update({"id": "id + 1"}),
        lambda: table.vacuum(0, dry_run=False, enforce_retention_duration=False),
        lambda: table.optimize.compact(),
        lambda: dk.mirror.fence(uri),
        lambda: dk.mirror.adopt(uri, discard=True),
    ):
        try:
            operation()
        except ReadOnlyError:
            continue
        # What has nothing to do may say so.
        assert dk.DeltaTable(uri).version() == 0
    with dk.transaction(uri) as tx, pytest.raises(ReadOnlyError):
        tx.write("t", rows(0), mode="append")

    assert sorted(Path(location).rglob("*")) == before
    assert dk.DeltaTable(uri).version() == 0
    assert dk.mirror.status(uri)[0].state == "held"


def test_reconciler_leaves_a_followed_table_alone(
    on_sqlite: str, location: str
) -> None:
    deltalake.write_deltalake(location, rows(4), mode="append")
    before = log_files(Path(location))

    (status,) = dk.mirror.run(on_sqlite, once=True)

    assert (status.state, status.last_error) == ("held", None)
    assert log_files(Path(location)) == before
    assert dk.sync(on_sqlite).version == 1


def test_writer_that_goes_on_is_followed(uri: str, location: str) -> None:
    command = program("import_worker", "write", location, "15")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        dk.follow(location, uri)
        while writer.poll() is None:
            assert dk.sync(uri).hold == "following"
    assert writer.returncode == 0

    assert (dk.cut_over(uri).version, dk.DeltaTable(uri).version()) == (14, 14)


def test_own_table_has_nobody_to_follow(on_sqlite: str, location: str) -> None:
    dk.cut_over(on_sqlite)

    for call in (dk.sync, dk.cut_over):
        with pytest.raises(DeltaError, match="this catalog's own"):
            call(on_sqlite)
    with pytest.raises(DeltaError, match="this catalog's own"):
        dk.follow(location, on_sqlite)


def test_import_catches_up_and_the_table_stays_followed(
    on_sqlite: str, location: str
) -> None:
    deltalake.write_deltalake(location, rows(4), mode="append")

    assert dk.import_table(location, on_sqlite).adopted == 1
    with pytest.raises(ReadOnlyError):
        dk.write_deltalake(on_sqlite, rows(8), mode="append")


def test_log_that_lost_a_version_is_followed_anew(
    on_sqlite: str, location: str
) -> None:
    for start in (4, 8):
        deltalake.write_deltalake(location, rows(start), mode="append")
    table = deltalake.DeltaTable(location)
    table.create_checkpoint()
    drop_commits(open_store(location), [1])

    with pytest.raises(MirrorError, match="lost version 1 before the catalog"):
        dk.sync(on_sqlite)
    dk.detach(on_sqlite)
    assert dk.follow(location, on_sqlite).first_version == 2


def test_log_that_disagrees_is_not_cut_over(on_sqlite: str, location: str) -> None:
    commit = Path(location) / "_delta_log" / f"{0:020}.json"
    commit.write_bytes(commit.read_bytes().replace(b"WRITE", b"WROTE"))

    with pytest.raises(MirrorError, match=r"(?s)t isn't cut over.*was changed"):
        dk.cut_over(on_sqlite)
    with pytest.raises(ReadOnlyError):
        dk.write_deltalake(on_sqlite, rows(8), mode="append")


def test_detached_follower_writes_nothing(on_sqlite: str, location: str) -> None:
    deltalake.write_deltalake(location, rows(4), mode="append")
    before = log_files(Path(location))

    left = dk.detach(on_sqlite)

    assert left.version == 0
    assert log_files(Path(location)) == before


def test_data_of_a_followed_table_is_never_deleted(
    on_sqlite: str, location: str
) -> None:
    with dk.connect(on_sqlite) as catalog, pytest.raises(ReadOnlyError):
        catalog.drop_table("t", with_data=True)

    assert deltalake.DeltaTable(location).version() == 0
