"""DuckDB: the file's format, odd paths, and a database in memory."""

from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest

import delkalakedb as dk
from delkalakedb.catalog.engine.duckdb import DuckDBBackend
from delkalakedb.catalog.read import find_kept
from delkalakedb.errors import (
    CatalogError,
    CatalogNotFoundError,
    CatalogUnavailableError,
)
from delkalakedb.model.actions import Action
from delkalakedb.settings.uri import Uri, format_uri
from tests.support.actions import (
    add,
    commit,
    create,
    metadata,
    paths,
    remove,
    stats,
    txn,
)
from tests.support.integrity import check_integrity
from tests.support.processes import run_python

MEMORY = "deltasql://duckdb/:memory:"


def test_file_is_of_the_format_that_older_releases_read(tmp_path: Path) -> None:
    file = tmp_path / "meta.duckdb"
    with dk.connect(f"deltasql://duckdb/{file}") as catalog:
        create(catalog, "t", add("a"))

    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{file}' AS meta (READ_ONLY)")
        ((tags,),) = connection.execute(
            "SELECT tags FROM duckdb_databases() WHERE database_name = 'meta'"
        ).fetchall()
        rows = connection.execute("SELECT path FROM meta.dl_files").fetchall()
    assert tags["storage_version"].startswith("v1.2.0")
    assert rows == [("a",)]


def test_parsed_statements_are_kept_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delkalakedb.catalog.engine.duckdb._MOST_PARSED", 5)
    with dk.connect(f"deltasql://duckdb/{tmp_path}/meta.duckdb") as catalog:
        files = [add(f"f{i}", stats=stats(1, x=(i, i, 0))) for i in range(20)]
        create(catalog, "t", *files)
        for i in range(20):
            found = catalog.snapshot("t").files(f"x = {i}", columns=["path"])
            assert found.read_all()["path"].to_pylist() == [f"f{i}"]
        assert isinstance(catalog._backend, DuckDBBackend)
        assert len(catalog._backend._parsed) <= 5


@pytest.mark.parametrize("name", ["it's.duckdb", 'a "b" c.duckdb', "ünï%20.duckdb"])
def test_path_may_hold_any_character(tmp_path: Path, name: str) -> None:
    uri = Uri("duckdb", str(tmp_path / name))
    with dk.connect(uri) as catalog:
        create(catalog, "t", add("a"))
    assert (tmp_path / name).exists()
    with dk.connect(format_uri(uri)) as catalog:
        assert paths(catalog) == ["a"]
        check_integrity(catalog)


def test_memory_is_one_database_for_the_life_of_the_process() -> None:
    script = f"""
import delkalakedb as dk
from tests.support.actions import add, commit, create, paths
with dk.connect("{MEMORY}") as one, dk.connect("{MEMORY}") as same:
    create(one, "t", add("a"))
    assert paths(same) == ["a"]
with dk.connect("{MEMORY}") as later:
    assert paths(later) == ["a"]
"""
    for _ in range(2):
        run_python(script)


def test_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    file = tmp_path / "meta.duckdb"
    file.write_text("name,age\nAda,36\n" * 1000)

    with pytest.raises(CatalogUnavailableError, match=r"meta\.duckdb"):
        dk.connect(Uri("duckdb", str(file)))

    assert file.read_text().startswith("name,age")


def test_missing_folder_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(CatalogUnavailableError, match="nowhere"):
        dk.connect(Uri("duckdb", f"{tmp_path}/nowhere/meta.duckdb"))


def test_missing_file_is_not_created_where_the_schema_must_be_there(
    tmp_path: Path,
) -> None:
    file = tmp_path / "meta.duckdb"
    with pytest.raises(CatalogNotFoundError, match="there is no catalog at"):
        dk.connect(Uri("duckdb", str(file)), sql={"schema": "error"})
    assert not file.exists()


def test_reader_in_the_middle_of_a_table_does_not_stop_a_writer(
    tmp_path: Path,
) -> None:
    with dk.connect(Uri("duckdb", f"{tmp_path}/meta.duckdb")) as catalog:
        create(catalog, "t", add("a"))
        reader = catalog.snapshot("t").files()
        assert reader.read_next_batch().num_rows == 1

        commit(catalog, add("b"))

        assert paths(catalog) == ["a", "b"]
        del reader


def test_failed_commit_leaves_the_catalog_usable(tmp_path: Path) -> None:
    with dk.connect(Uri("duckdb", f"{tmp_path}/meta.duckdb")) as catalog:
        create(catalog, "t", add("a"))
        with pytest.raises(CatalogError), catalog._backend.writing() as session:
            session.query_sql("SELECT * FROM dl_nothing", {})
        assert commit(catalog, add("b")).version == 1
        check_integrity(catalog)


@pytest.mark.parametrize("where", [None, "x = 1"])
def test_files_of_a_database_that_was_removed_are_refused(
    tmp_path: Path, where: str | None
) -> None:
    with dk.connect(Uri("duckdb", f"{tmp_path}/meta.duckdb")) as catalog:
        create(catalog, "t", add("a"))
        snapshot = catalog.snapshot("t")
        assert snapshot.files(where).read_all()["path"].to_pylist() == ["a"]
        Path(catalog.uri.database).unlink()

        with pytest.raises(CatalogUnavailableError, match="the file was removed"):
            snapshot.files(where).read_all()


def test_bounds_of_a_commit_are_stored_in_order_in_small_row_groups(
    tmp_path: Path,
) -> None:
    file = tmp_path / "meta.duckdb"
    bounds = [number * 7919 % 40_000 for number in range(40_000)]
    with dk.connect(f"deltasql://duckdb/{file}") as catalog:
        create(catalog, "t", *(add(str(i), stats=stats(x=(i, i, 0))) for i in bounds))
        assert catalog.snapshot("t").files("x = 123").read_all().num_rows == 1

    with duckdb.connect(str(file), read_only=True) as connection:
        stored = connection.execute(
            "SELECT lo FROM dl_number_stats ORDER BY rowid"
        ).fetchall()
        ((groups,),) = connection.execute(
            "SELECT count(DISTINCT row_group_id) "
            "FROM pragma_storage_info('dl_number_stats')"
        ).fetchall()
    assert stored == sorted(stored)
    assert groups >= 3


def test_head_that_a_commit_made_is_the_one_that_would_be_loaded(
    tmp_path: Path,
) -> None:
    with dk.connect(f"deltasql://duckdb/{tmp_path / 'meta.duckdb'}") as catalog:
        create(catalog, "t", add("a", stats=stats(x=(1, 2, 0))))
        changes: list[Sequence[Action]] = [
            [add("b")],
            [remove(add("a"))],
            [metadata(configuration={"delta.appendOnly": "false"})],
            [txn("app", 1), add("c", stats=stats(x=(-5, None, 1)))],
        ]
        for actions in changes:
            commit(catalog, *actions)
            made, heads = catalog.log("t").head(), catalog._backend.heads
            heads.forget()
            assert made == catalog.log("t").head()


def test_commit_after_another_asks_for_no_head(tmp_path: Path) -> None:
    with dk.connect(f"deltasql://duckdb/{tmp_path / 'meta.duckdb'}") as catalog:
        create(catalog)
        commit(catalog, add("a"))
        assert find_kept(catalog._backend, "t") is catalog.log("t").head()
        with catalog._backend.writing() as session:
            session.apply([])
        assert find_kept(catalog._backend, "t") is None
