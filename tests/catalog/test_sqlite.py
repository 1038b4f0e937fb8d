"""SQLite: durability that is forced, and files that aren't what they were."""

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.catalog.engine import sqlite as module
from delkalakedb.errors import (
    CatalogError,
    CatalogNotFoundError,
    CatalogUnavailableError,
    TableNotFoundError,
)
from tests.support.actions import add, commit, create, paths, remove
from tests.support.processes import CHILDREN, run_python
from tests.support.workers import write_without_rights

FULL = 2


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "meta.db"


@pytest.fixture
def sqlite(file: Path) -> Iterator[Catalog]:
    with dk.connect(f"deltasql://sqlite/{file}") as catalog:
        catalog.init()
        yield catalog


def test_every_connection_forces_commits_to_disk(sqlite: Catalog) -> None:
    backend = sqlite._backend
    with backend.reading() as a, backend.reading() as b, backend.writing() as c:
        for session in (a, b, c):
            assert session.query_sql("PRAGMA synchronous", {}) == [(FULL,)]
            assert session.query_sql("PRAGMA journal_mode", {}) == [("wal",)]
            assert session.query_sql("PRAGMA foreign_keys", {}) == [(1,)]


def test_reader_in_the_middle_of_a_table_does_not_stop_a_writer(
    sqlite: Catalog,
) -> None:
    create(sqlite, "t", add("a"))
    reader = sqlite.snapshot("t").files()
    assert reader.read_next_batch().num_rows == 1

    commit(sqlite, add("b"))

    assert paths(sqlite) == ["a", "b"]
    del reader


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FETCH_ROWS", 2)
    monkeypatch.setattr(module, "_BATCH_ROWS", 3)


@pytest.mark.parametrize("rows", range(8))
@pytest.mark.usefixtures("small_batches")
def test_every_number_of_files_comes_whole(sqlite: Catalog, rows: int) -> None:
    names = [f"f{n}" for n in range(rows)]
    create(sqlite, "t", *map(add, names))

    assert paths(sqlite) == names


@pytest.mark.usefixtures("small_batches")
def test_file_removed_between_two_batches_comes_once(sqlite: Catalog) -> None:
    files = [add(f"f{n}") for n in range(9)]
    create(sqlite, "t", *files)
    reader = sqlite.snapshot("t").files()
    first = reader.read_next_batch()

    commit(sqlite, remove(files[0]), remove(files[8]))
    rest = reader.read_all()

    found = [*first["path"].to_pylist(), *rest["path"].to_pylist()]
    assert sorted(found) == [file.path for file in files]


@pytest.mark.usefixtures("small_batches")
def test_reader_that_is_dropped_leaves_no_transaction(file: Path) -> None:
    with dk.connect(f"deltasql://sqlite/{file}?pool_size=2") as catalog:
        create(catalog, "t", *(add(f"f{n}") for n in range(9)))
        for _ in range(3):
            reader = catalog.snapshot("t").files()
            reader.read_next_batch()
            del reader

        commit(catalog, add("more"))

        assert len(paths(catalog)) == 10
        with catalog._backend.reading() as session:
            # Not busy: nobody reads an older state of the file.
            ((busy, *_),) = session.query_sql("PRAGMA wal_checkpoint(TRUNCATE)", {})
        assert busy == 0


def test_deleted_file_is_noticed(sqlite: Catalog, file: Path) -> None:
    create(sqlite)
    file.unlink()

    for ask in (lambda: sqlite.table("t"), lambda: commit(sqlite, add("a"), version=0)):
        with pytest.raises(CatalogError) as caught:
            ask()
        assert not isinstance(caught.value, TableNotFoundError)


def test_file_that_was_replaced_is_the_one_that_is_written(
    sqlite: Catalog, file: Path, tmp_path: Path
) -> None:
    create(sqlite, "t", add("old"))
    with dk.connect(f"deltasql://sqlite/{tmp_path}/new.db") as other:
        create(other, "t", add("new"))
    for name in os.listdir(tmp_path):
        if name.startswith("meta.db"):
            (tmp_path / name).unlink()
    (tmp_path / "new.db").rename(file)

    assert paths(sqlite) == ["new"]
    commit(sqlite, add("newer"))

    sqlite.close()
    with sqlite3.connect(file) as connection:
        rows = connection.execute("SELECT path FROM dl_files ORDER BY path").fetchall()
    connection.close()
    assert rows == [("new",), ("newer",)]


def test_file_that_is_no_database_is_unavailable(file: Path) -> None:
    file.write_text("name,age\nAda,36\n" * 100)

    with pytest.raises(CatalogUnavailableError, match=r"meta\.db: .*not a database"):
        dk.connect(f"deltasql://sqlite/{file}")

    assert file.read_text().startswith("name,age")


def test_missing_folder_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(CatalogUnavailableError) as caught:
        dk.connect(f"deltasql://sqlite/{tmp_path}/nowhere/meta.db")
    assert str(caught.value).endswith(
        f"meta.db: the folder {tmp_path}/nowhere doesn't exist; create the folder, or "
        "correct the path in the URI"
    )


def test_missing_file_is_not_created_where_the_schema_must_be_there(
    file: Path,
) -> None:
    with pytest.raises(CatalogNotFoundError, match=r"no catalog at .*meta\.db; make"):
        dk.connect(f"deltasql://sqlite/{file}", sql={"schema": "error"})
    assert not file.exists()


@pytest.mark.parametrize("closed", ["file", "folder"])
def test_what_may_not_be_written_is_read_and_refused_to_writers(
    public: Path, closed: str
) -> None:
    uri = f"deltasql://sqlite/{public}/meta.db"
    if closed == "file":
        with dk.connect(uri) as catalog:
            create(catalog)
        (public / "meta.db").chmod(0o444)
    else:
        public.chmod(0o555)

    seen, kind, text, failed = told_without_rights(uri)
    lacking = {
        "file": (["t"], "CatalogPermissionError", []),
        "folder": ([], "CatalogUnavailableError", ["connection"]),
    }
    assert (seen, kind, failed) == lacking[closed], text
    assert "meta.db" in text


def told_without_rights(uri: str) -> tuple[list[str], str, str, list[str]]:
    """What `write_without_rights` sends."""
    told, ours = CHILDREN.Pipe(duplex=False)
    child = CHILDREN.Process(target=write_without_rights, args=(uri, ours))
    child.start()
    with told, ours:
        answer: tuple[list[str], str, str, list[str]] = told.recv()
    child.join()
    return answer


@pytest.mark.parametrize("left", ["nothing", "log and index", "log", "no log mode"])
def test_files_in_a_folder_that_may_not_be_written_are_read_whole(
    public: Path, left: str
) -> None:
    uri = f"deltasql://sqlite/{public}/meta.db"
    if left in ("nothing", "no log mode"):
        with dk.connect(uri) as catalog:
            create(catalog)
    else:
        # Killed, so that its commits are in the log alone.
        run_python(MADE.format(uri=uri))
        assert (public / "meta.db-wal").stat().st_size > 0
    if left == "log":
        (public / "meta.db-shm").unlink()
    if left == "no log mode":
        with closing(sqlite3.connect(public / "meta.db")) as connection:
            connection.execute("PRAGMA journal_mode = DELETE")
    before = {file.name: file.read_bytes() for file in public.iterdir()}
    for file in public.iterdir():
        file.chmod(0o444)
    public.chmod(0o555)

    seen, kind, text, failed = told_without_rights(uri)

    assert (seen, failed) == (["t"], [])
    assert (kind, "meta.db" in text) == ("CatalogPermissionError", True), text
    assert {file.name: file.read_bytes() for file in public.iterdir()} == before


def test_version_that_is_not_published_is_scanned_without_rights(public: Path) -> None:
    uri = f"deltasql://sqlite/{public}/meta.db"
    rows = pa.table({"x": [1, 2]})
    dk.write_deltalake(f"{uri}?table=t", rows)
    with (
        dk.connect(uri, mirror={"mode": "external"}) as catalog,
        dk.transaction(catalog) as tx,
    ):
        tx.write("t", rows, mode="append")
    dk.close()
    for file in public.rglob("*"):
        file.chmod(0o555 if file.is_dir() else 0o444)
    public.chmod(0o555)

    assert run_python(SCANNED.format(uri=f"{uri}?table=t")) == "4 4\n"
    assert not [*public.rglob("*1.json")]


# A process of a user who may write nowhere, and who may not read Python's own files.
SCANNED = """
import os, tempfile
import pyarrow as pa
import delkalakedb as dk

def counts(uri):
    table = dk.DeltaTable(uri)
    asked = dk.QueryBuilder().register("t", table).execute("select * from t")
    return pa.table(table.scan()).num_rows, pa.table(asked).num_rows

with tempfile.TemporaryDirectory() as folder:
    other = f"deltasql://sqlite/{{folder}}/meta.db?table=t"
    dk.write_deltalake(other, pa.table({{"x": [1]}}))
    counts(other)
    dk.close()
if os.getuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
print(*counts({uri!r}))
"""


# A process that drops dead.
MADE = """
import os
import delkalakedb as dk
from tests.support.actions import create
create(dk.connect({uri!r}))
os._exit(0)
"""


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that everyone may enter."""
    folder = Path(tempfile.mkdtemp(prefix="dk-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def test_damaged_file_is_unavailable(sqlite: Catalog, file: Path) -> None:
    create(sqlite, "t", *(add(f"f{i}") for i in range(500)))
    sqlite.close()
    size = file.stat().st_size
    with file.open("r+b") as handle:
        handle.seek(4096)
        handle.write(os.urandom(size - 4096))

    with (
        pytest.raises(CatalogUnavailableError, match=r"malformed|not a database"),
        dk.connect(f"deltasql://sqlite/{file}") as again,
    ):
        paths(again)


def test_memory_is_refused_with_what_to_use_instead() -> None:
    with pytest.raises(CatalogError, match="duckdb/:memory:"):
        dk.connect("deltasql://sqlite/:memory:")
