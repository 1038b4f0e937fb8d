"""A database whose file is removed, or replaced, while a process has it open."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import (
    CatalogNotFoundError,
    CatalogUnavailableError,
    TableNotFoundError,
)
from tests.support.actions import add, commit, create, paths
from tests.support.integrity import check_integrity
from tests.support.processes import run_python

pytestmark = pytest.mark.parametrize("engine", ["sqlite", "duckdb"], indirect=True)

# A process that makes a database and drops dead: its commits are in the log alone.
MADE = """
import os
import delkalakedb as dk
from tests.support.actions import add, commit, create
catalog = dk.connect({uri!r})
create(catalog, "t", add("a"))
commit(catalog, add("b"))
os._exit(0)
"""


def remove_files(folder: Path) -> None:
    for file in folder.glob("meta.*"):
        file.unlink()


def test_file_is_made_anew_by_whoever_connects(
    catalog: dk.Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    create(catalog)
    remove_files(tmp_path)

    with dk.connect(catalog_uri) as second:
        with pytest.raises(CatalogNotFoundError, match="there is no catalog at"):
            second.tables()
        assert not list(tmp_path.glob("meta.*"))
        create(second, "u")

    assert [table.name for table in catalog.tables()] == ["u"]


def test_head_of_a_database_that_is_gone_is_not_told(
    catalog: dk.Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    create(catalog)
    assert catalog.snapshot("t").version == 0
    remove_files(tmp_path)
    run_python(MADE.format(uri=catalog_uri))

    assert catalog.snapshot("t").version == 1


def test_old_handle_says_that_the_file_is_gone_and_makes_none(
    catalog: dk.Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    uri = f"{catalog_uri}?table=t"
    dk.write_deltalake(uri, pa.table({"x": [1]}))
    handle = dk.DeltaTable(uri)
    remove_files(tmp_path)

    for _ in range(2):
        with pytest.raises(CatalogUnavailableError):
            handle.to_pyarrow_table()
        with pytest.raises(CatalogUnavailableError):
            catalog.tables()
    with pytest.raises(TableNotFoundError, match="no catalog"):
        dk.DeltaTable(uri)
    assert not list(tmp_path.glob("meta.*"))

    shutil.rmtree(handle.table_uri.removeprefix("file://"))
    dk.write_deltalake(uri, pa.table({"x": [2]}))
    assert [table.name for table in catalog.tables()] == ["t"]


@pytest.mark.parametrize("goes_on", [True, False])
def test_what_another_process_put_in_its_place_is_left_whole(
    catalog_uri: str, tmp_path: Path, goes_on: bool
) -> None:
    with dk.connect(catalog_uri) as catalog:
        create(catalog, "t", add("old"))
        commit(catalog, add("older"))
        remove_files(tmp_path)
        run_python(MADE.format(uri=catalog_uri))
        if goes_on:
            assert paths(catalog) == ["a", "b"]

    with dk.connect(catalog_uri) as catalog:
        assert paths(catalog) == ["a", "b"]
        check_integrity(catalog)
