"""The catalogs that URIs name."""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.catalog.catalog import open_catalog
from delkalakedb.settings.uri import parse_uri

pytestmark = pytest.mark.parametrize("engine", ["sqlite", "duckdb"], indirect=True)


def test_database_that_was_removed_is_made_anew(
    catalog_uri: str, tmp_path: Path
) -> None:
    uri = f"{catalog_uri}?table=t"
    dk.write_deltalake(uri, pa.table({"a": [1]}))
    for entry in tmp_path.iterdir():
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    dk.write_deltalake(uri, pa.table({"a": [2]}))

    assert dk.DeltaTable(uri).to_pyarrow_table()["a"].to_pylist() == [2]
    assert any(entry.is_file() for entry in tmp_path.iterdir())


def test_catalog_stays_open_while_its_file_is_there(catalog_uri: str) -> None:
    uri = parse_uri(catalog_uri)

    assert open_catalog(uri) is open_catalog(uri)
