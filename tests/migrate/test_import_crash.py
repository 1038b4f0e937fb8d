"""Imports that are killed, or run while others go on writing."""

import signal
import subprocess
import threading
from pathlib import Path

import deltalake
import pytest

import delkalakedb as dk
from delkalakedb.errors import MirrorError
from delkalakedb.migrate import loader as loading
from delkalakedb.migrate.importer import import_table
from delkalakedb.migrate.loader import ImportRange
from delkalakedb.storage import open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader
from tests.support.imports import assert_same_history, with_table
from tests.support.integrity import check_integrity
from tests.support.logs import FORMS, LAST, drop_commits, lines_at, rows, write_history
from tests.support.processes import program

POINTS = [
    ("begin", 1),
    ("write", 2),
    ("part", 1),
    ("write", 2),
    ("part", 2),
    ("check", 1),
    ("show", 1),
    ("adopt", 1),
]


def run(*arguments: str) -> int:
    command = program("import_worker", *arguments)
    return subprocess.run(command, check=False, timeout=120).returncode


@pytest.fixture
def location(tmp_path: Path) -> str:
    """A table whose log starts at a checkpoint."""
    place = str(tmp_path / "a table")
    write_history(place)
    store = open_store(place)
    FORMS["multi-part"](store, 4, *lines_at(FileTxnLogReader(store), 4))
    drop_commits(store, range(4))
    return place


def test_import_that_is_killed_again_and_again_ends_whole(
    catalog_uri: str, location: str
) -> None:
    uri = with_table(catalog_uri, "t")
    for point, count in POINTS:
        assert run("import", location, uri, point, str(count)) == -signal.SIGKILL
        with dk.connect(catalog_uri) as catalog:
            names = [table.name for table in catalog.tables()]
            assert names == (["t"] if point in ("show", "adopt") else [])

    done = dk.import_table(location, uri, deep=True)

    assert done.ok, done.report
    assert (done.first_version, done.version) == (4, LAST)
    with dk.connect(catalog_uri) as catalog:
        assert_same_history(catalog, "t", open_store(location), first=4)


def test_import_taken_up_again_goes_on_where_it_stopped(
    catalog: dk.Catalog, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_TOGETHER", 3)
    monkeypatch.setattr(loading, "_COMMITS_TOGETHER", 2)
    store = open_store(location)
    told: list[dk.ImportProgress] = []

    def stop_at(parts: int) -> None:
        def tell(progress: dk.ImportProgress) -> None:
            told.append(progress)
            if len(told) == parts:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            import_table(store, catalog, table="t", progress=tell)

    stop_at(1)
    stop_at(2)
    stop_at(4)
    import_table(store, catalog, table="t", progress=told.append)

    assert len(set(told)) == len(told)
    assert_same_history(catalog, "t", store, first=4)


def test_log_that_was_cut_meanwhile_is_started_anew(
    catalog: dk.Catalog, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_COMMITS_TOGETHER", 2)
    store = open_store(location)

    def stop(progress: dk.ImportProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_table(store, catalog, table="t", progress=stop)
    FORMS["v1"](store, 7, *lines_at(FileTxnLogReader(store), 7))
    for path in [m.path for m in store.list("_delta_log") if ".00000000" in m.path]:
        store.delete(path)
    drop_commits(store, range(8))

    done = import_table(store, catalog, table="t")

    assert (done.first_version, done.ok) == (7, True)
    assert_same_history(catalog, "t", store, first=7)


def test_import_that_another_took_over_stops(
    catalog: dk.Catalog, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_COMMITS_TOGETHER", 2)
    store = open_store(location)
    finished = []

    def overtake(progress: dk.ImportProgress) -> None:
        if not finished:
            finished.append(True)
            import_table(store, catalog, table="t")

    with pytest.raises(MirrorError, match="another process has taken over the import"):
        import_table(store, catalog, table="t", progress=overtake)

    assert_same_history(catalog, "t", store, first=4)


def test_commits_made_while_importing_are_brought_in(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    location = str(tmp_path / "a table")
    write_history(location)
    wrote = []

    def write(progress: dk.ImportProgress) -> None:
        if len(wrote) < 3:
            deltalake.write_deltalake(location, rows(60), mode="append")
            wrote.append(progress.version)

    done = import_table(open_store(location), catalog, table="t", progress=write)

    assert done.version == LAST + 3
    assert done.ok
    assert_same_history(catalog, "t", open_store(location), first=0)
    check_integrity(catalog)


def test_writer_that_goes_on_is_noticed_and_caught_up(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    location = str(tmp_path / "a table")
    command = program("import_worker", "write", location, "40")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        store = open_store(location)
        drain = threading.Thread(target=writer.stdout.read)
        drain.start()
        while writer.poll() is None:
            done = import_table(store, catalog, table="t")
            assert done.ok, done.report
        drain.join()
    assert writer.returncode == 0

    done = import_table(store, catalog, table="t")

    assert (done.version, done.newer, done.ok) == (39, (), True)
    assert_same_history(catalog, "t", store, first=0)


def test_key_of_a_source_tells_checkpoints_apart(location: str) -> None:
    metas = tuple(open_store(location).list("_delta_log"))

    assert ImportRange(4, metas).key == ImportRange(4, metas).key
    assert ImportRange(4, metas).key != ImportRange(5, metas).key
    assert ImportRange(4, metas).key != ImportRange(4, metas[1:]).key
