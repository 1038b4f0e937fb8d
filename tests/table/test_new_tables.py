"""New tables take deletion vectors if a setting says so, however they are created."""

from collections.abc import Callable
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import delkalakedb as dk
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.cli import Cli

PROPERTY = "delta.enableDeletionVectors"
SCHEMA = pa.schema([("id", pa.int64())])
ROWS = pa.table({"id": [1, 2, 3]})


def convert(uri: str, folder: Path) -> None:
    folder.mkdir()
    pq.write_table(ROWS, folder / "a.parquet")
    dk.register()
    try:
        deltalake.convert_to_deltalake(f"{uri}&location={folder}")
    finally:
        dk.unregister()


def transaction(uri: str, folder: Path) -> None:
    with dk.transaction(format_uri(parse_uri(uri).catalog)) as tx:
        tx.write("t", ROWS)


def create_table(uri: str, folder: Path) -> None:
    with dk.connect(format_uri(parse_uri(uri).catalog)) as catalog:
        catalog.create_table("t", SCHEMA)


WAYS: dict[str, Callable[[str, Path], object]] = {
    "write_deltalake": lambda uri, _: dk.write_deltalake(uri, ROWS),
    "create": lambda uri, _: dk.DeltaTable.create(uri, SCHEMA),
    "Catalog.create_table": create_table,
    "transaction": transaction,
    "convert": convert,
}


def uri_of(catalog_uri: str) -> str:
    return format_uri(parse_uri(catalog_uri).with_table("t"))


@pytest.mark.parametrize("way", WAYS)
def test_setting_turns_deletion_vectors_on(
    catalog_uri: str, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__NEW_TABLES", "true")
    uri = uri_of(catalog_uri)
    WAYS[way](uri, tmp_path / "given")
    table = dk.DeltaTable(uri)
    assert table.metadata().configuration == {PROPERTY: "true"}
    assert "deletionVectors" in (table.protocol().reader_features or ())
    dk.write_deltalake(uri, pa.table({"id": range(10, 90)}), mode="append")
    table = dk.DeltaTable(uri)
    assert table.delete("id = 15")["num_deletion_vectors_added"] == 1
    assert dk.verify(uri, deep=True).ok


def test_tables_are_plain_by_default(catalog_uri: str) -> None:
    dk.write_deltalake(uri_of(catalog_uri), ROWS)
    table = dk.DeltaTable(uri_of(catalog_uri))
    assert table.metadata().configuration == {}
    assert table.protocol().min_reader_version == 1


@pytest.mark.parametrize("given", ["true", "false"])
def test_properties_of_a_table_win(
    catalog_uri: str, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__NEW_TABLES", "true")
    uri = uri_of(catalog_uri)
    dk.write_deltalake(uri, ROWS, configuration={PROPERTY: given})
    table = dk.DeltaTable(uri)
    assert table.metadata().configuration == {PROPERTY: given}
    # A table that exists keeps its properties.
    dk.write_deltalake(uri, ROWS, mode="overwrite")
    assert dk.DeltaTable(uri).metadata().configuration == {PROPERTY: given}


def test_command_turns_deletion_vectors_on_and_off(
    catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(catalog_uri)
    cli("create", "on", "--schema", "id BIGINT", "--deletion-vectors")
    cli("create", "off", "--schema", "id BIGINT", "--no-deletion-vectors")
    cli("create", "unsaid", "--schema", "id BIGINT")
    found = [
        dk.DeltaTable(cli.table(name)).metadata().configuration
        for name in ("on", "off", "unsaid")
    ]
    assert found == [{PROPERTY: "true"}, {PROPERTY: "false"}, {}]
