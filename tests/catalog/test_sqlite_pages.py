"""Pages of files from SQLite: the same whatever the values hold."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from actions import add, commit, create, paths, remove

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.catalog import sqlite


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db?pool_size=2") as catalog:
        yield catalog


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "_BATCH_ROWS", 3)


@pytest.mark.parametrize("rows", range(8))
def test_every_number_of_files_comes_whole(catalog: Catalog, rows: int) -> None:
    names = [f"f{n}" for n in range(rows)]
    create(catalog, "t", *map(add, names))

    assert paths(catalog) == names


@pytest.mark.parametrize("mark", ["\x1f", "\x1e", "\x1f\x1e\x1f", "'", "%", "é\u2028"])
def test_value_that_holds_a_mark_comes_whole(catalog: Catalog, mark: str) -> None:
    files = [
        add("a"),
        add(mark, stats=mark),
        add("b", tags={mark: mark}),
        add(f"x{mark}y", stats=None),
        add("c", stats=""),
    ]
    create(catalog, "t", *files)

    assert sorted(catalog.log("t").adds(), key=str) == sorted(files, key=str)


def test_column_longer_than_a_text_may_be_comes_by_row(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [add(f"f{n}", stats="x" * 400) for n in range(7)]
    create(catalog, "t", *files)
    connect = sqlite.SqliteBackend._connect

    def narrow(self: sqlite.SqliteBackend) -> Any:
        connection = connect(self)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 1_000)
        return connection

    catalog.close()
    monkeypatch.setattr(sqlite.SqliteBackend, "_connect", narrow)
    with dk.connect(catalog.uri) as again:
        assert list(again.log("t").adds()) == files


def test_file_removed_between_two_pages_comes_once(catalog: Catalog) -> None:
    files = [add(f"f{n}") for n in range(9)]
    create(catalog, "t", *files)
    reader = catalog.snapshot("t").files()
    first = reader.read_next_batch()

    commit(catalog, remove(files[0]), remove(files[8]))
    rest = reader.read_all()

    found = [*first["path"].to_pylist(), *rest["path"].to_pylist()]
    assert sorted(found) == [file.path for file in files]


def test_reader_that_is_dropped_leaves_no_transaction(catalog: Catalog) -> None:
    create(catalog, "t", *(add(f"f{n}") for n in range(9)))
    for _ in range(3):
        reader = catalog.snapshot("t").files()
        reader.read_next_batch()
        del reader

    commit(catalog, add("more"))

    assert len(paths(catalog)) == 10
