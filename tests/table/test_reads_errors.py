"""What can't be read is refused with deltalake's exceptions."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake.exceptions import DeltaError, TableNotFoundError

import delkalakedb as dk
from delkalakedb.errors import (
    CatalogError,
    CatalogUnavailableError,
    StorageError,
)
from delkalakedb.settings.uri import format_uri, parse_uri

NOBODY = 65534


@pytest.fixture
def uri(catalog_uri: str) -> str:
    """A table of one version, on each engine in turn."""
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    dk.write_deltalake(uri, pa.table({"n": [1, 2], "p": ["a", "b"]}))
    return uri


def raised(table: deltalake.DeltaTable, call: str, predicate: Any) -> type:
    try:
        getattr(table, call)(file_pruning_predicate=predicate)
    except (DeltaError, ValueError) as error:
        return DeltaError if isinstance(error, DeltaError) else ValueError
    raise AssertionError("nothing was raised")


def test_absent_table_is_table_not_found(catalog_uri: str) -> None:
    absent = format_uri(parse_uri(catalog_uri).with_table("absent"))
    with pytest.raises(TableNotFoundError, match="absent"):
        dk.DeltaTable(absent)


def test_absent_version_is_a_delta_error_and_leaves_the_handle(uri: str) -> None:
    table = dk.DeltaTable(uri)
    with pytest.raises(DeltaError) as caught:
        table.load_as_version(9)
    assert not isinstance(caught.value, TableNotFoundError)
    assert table.version() == 0
    with pytest.raises(DeltaError):
        dk.DeltaTable(uri, version=9)


@pytest.mark.parametrize("version", [-1, 2**70])
def test_version_that_is_no_version_is_an_overflow(uri: str, version: int) -> None:
    theirs = deltalake.DeltaTable(dk.DeltaTable(uri).table_uri)
    for table in (dk.DeltaTable(uri), theirs):
        with pytest.raises(OverflowError):
            table.load_as_version(version)
    with pytest.raises(OverflowError):
        dk.DeltaTable(uri, version=version)
    with pytest.raises(OverflowError):
        dk.DeltaTable(uri).history(-1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "foo",
        "2026-01-01",
        "2026-01-01T00:00:00",
        "2026-13-01T00:00:00Z",
        "20260101",
    ],
)
def test_text_that_is_no_time_is_refused_in_deltalakes_words(
    uri: str, text: str
) -> None:
    table = dk.DeltaTable(uri)
    theirs = deltalake.DeltaTable(table.table_uri)
    for each in (table, theirs):
        with pytest.raises(ValueError, match="Failed to parse datetime string:"):
            each.load_as_version(text)


def test_version_of_another_type_is_a_type_error(uri: str) -> None:
    given: Any = 1.5
    with pytest.raises(TypeError, match="only int, str or datetime"):
        dk.DeltaTable(uri, version=given)


@pytest.mark.parametrize(
    ("call", "predicate"),
    [
        ("file_uris", [("absent", "=", "1")]),
        ("file_uris", "absent = 1"),
        ("file_uris", "n = "),
        ("file_uris", [("n", "=", "abc")]),
        ("file_uris", [("n", "~", "1")]),
        ("file_uris", [("n", "=", "1"), []]),
        ("partitions", [("absent", "=", "1")]),
        ("to_pyarrow_dataset", "absent = 1"),
    ],
)
def test_filter_that_cant_be_is_refused_as_by_deltalake(
    uri: str, call: str, predicate: Any
) -> None:
    ours = dk.DeltaTable(uri)
    theirs = deltalake.DeltaTable(ours.table_uri)
    assert raised(ours, call, predicate) == raised(theirs, call, predicate)


def test_catalog_that_cant_be_reached_is_no_absent_table(tmp_path: Path) -> None:
    (tmp_path / "meta.db").write_bytes(b"not a database" * 100)
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    for call in (dk.DeltaTable, dk.DeltaTable.is_deltatable):
        with pytest.raises(CatalogError) as caught:
            call(uri)
        assert not isinstance(caught.value, TableNotFoundError)


def refused_as_unavailable(uri: str, reason: str) -> None:
    for call in (dk.DeltaTable, dk.DeltaTable.is_deltatable):
        with pytest.raises(CatalogUnavailableError) as caught:
            call(f"{uri}?table=t")
        assert str(caught.value).startswith(f"{uri}: ")
        assert str(caught.value).endswith(reason)
        assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("away/meta.db", "create the folder, or correct the path in the URI"),
        ("link.db", "create the folder, or correct the path in the URI"),
        ("file/meta.db", "Not a directory"),
        ("loop.db", "Too many levels of symbolic links"),
    ],
)
def test_catalog_whose_folder_is_away_is_no_absent_table(
    engine: str, file: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link.db").symlink_to(tmp_path / "away" / "meta.db")
    (tmp_path / "loop.db").symlink_to(tmp_path / "loop.db")

    refused_as_unavailable(f"deltasql://{engine}/{tmp_path}/{file}", reason)


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_catalog_in_a_folder_without_permission_is_no_absent_table(engine: str) -> None:
    user = os.geteuid()
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0)
        if user == 0:
            os.seteuid(NOBODY)
        try:
            uri = f"deltasql://{engine}/{folder}/meta.db"
            refused_as_unavailable(uri, "Permission denied")
        finally:
            os.seteuid(user)
            os.chmod(folder, 0o700)


def test_missing_data_file_is_named_in_plain_words_with_advice(uri: str) -> None:
    table = dk.DeltaTable(uri)
    (file,) = table.file_uris()
    Path(file.removeprefix("file://")).unlink()

    for read in (table.to_pyarrow_table, table.to_pyarrow_dataset().to_table):
        with pytest.raises(StorageError) as caught:
            read()
        error = caught.value
        assert isinstance(error, FileNotFoundError)
        assert str(error).startswith("t: read version 0: there is no file file:///")
        assert Path(file).name in str(error)
        assert "repair()" in str(error)
        for text in (str(error), str(error.__cause__)):
            assert text.isascii()
            assert text.isprintable()


def test_uri_without_a_table_says_so(catalog_uri: str) -> None:
    for call in (dk.DeltaTable, dk.DeltaTable.is_deltatable):
        with pytest.raises(ValueError, match="table"):
            call(catalog_uri)
