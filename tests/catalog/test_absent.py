"""A database without a catalog: a read says so and makes nothing, a write makes it."""

from collections.abc import Callable
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import CatalogNotFoundError, TableNotFoundError
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.actions import create

Ask = Callable[[str, str], object]


def only_read(catalog: str, table: str) -> None:
    with dk.transaction(catalog) as tx:
        tx.table("t")


def read_nothing(catalog: str, table: str) -> None:
    with dk.transaction(catalog):
        pass


READS: dict[str, Ask] = {
    "tables": lambda catalog, table: dk.connect(catalog).tables(),
    "_versions": lambda catalog, table: dk.connect(catalog)._versions(),
    "snapshot": lambda catalog, table: dk.connect(catalog).snapshot("t"),
    "DeltaTable": lambda catalog, table: dk.DeltaTable(table),
    "transaction": only_read,
    "empty transaction": read_nothing,
    "verify": lambda catalog, table: dk.verify(table),
    "status": lambda catalog, table: dk.mirror.status(catalog),
    "run": lambda catalog, table: dk.mirror.run(catalog, once=True),
    "sync": lambda catalog, table: dk.sync(table),
    "detach": lambda catalog, table: dk.detach(table),
    "drop": lambda catalog, table: dk.connect(catalog).drop_table("t"),
    "rename": lambda catalog, table: dk.connect(catalog).rename_table("t", "u"),
    "expire": lambda catalog, table: dk.connect(catalog).expire("t"),
    "copy": lambda catalog, table: dk.copy_catalog(catalog, f"{catalog}2"),
}


@pytest.fixture
def table_uri(new_catalog_uri: str) -> str:
    return format_uri(parse_uri(new_catalog_uri).with_table("t"))


def things(uri: str, folder: Path) -> list[str]:
    """Files, and the tables of a Postgres database."""
    place = parse_uri(uri)
    found = sorted(path.name for path in folder.iterdir())
    if place.engine == "postgres":
        conninfo = (
            f"host={place.host} port={place.port} user={place.user} "
            f"password={place.password} dbname={place.database}"
        )
        sql = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        with psycopg.connect(conninfo) as connection:
            found += [str(name) for (name,) in connection.execute(sql)]
    return found


def test_reads_say_that_there_is_no_catalog_and_make_none(
    new_catalog_uri: str, table_uri: str, tmp_path: Path
) -> None:
    for name, ask in READS.items():
        with pytest.raises(CatalogNotFoundError) as caught:
            ask(new_catalog_uri, table_uri)
        told = str(caught.value)
        assert f"there is no catalog at {parse_uri(new_catalog_uri)}" in told, name
        assert "deltasql init" in told
        # Which writers read as "create it".
        assert isinstance(caught.value, TableNotFoundError)
    assert not dk.DeltaTable.is_deltatable(table_uri)
    assert things(new_catalog_uri, tmp_path) == []


WRITES: dict[str, Ask] = {
    "write": lambda catalog, table: dk.write_deltalake(table, pa.table({"x": [1]})),
    "create": lambda catalog, table: dk.DeltaTable.create(
        table, pa.schema([("x", pa.int64())])
    ),
    "create_table": lambda catalog, table: dk.connect(catalog).create_table(
        "t", pa.schema([("x", pa.int64())])
    ),
    "commit": lambda catalog, table: create(dk.connect(catalog)),
}


@pytest.mark.parametrize("write", sorted(WRITES))
def test_first_write_makes_the_catalog(
    new_catalog_uri: str, table_uri: str, write: str
) -> None:
    with dk.connect(new_catalog_uri) as before:
        WRITES[write](new_catalog_uri, table_uri)

        assert [table.name for table in before.tables()] == ["t"]
    with dk.connect(new_catalog_uri, sql={"schema": "error"}) as after:
        assert [table.name for table in after.tables()] == ["t"]


def test_first_write_of_a_transaction_makes_the_catalog(new_catalog_uri: str) -> None:
    with dk.transaction(new_catalog_uri) as tx:
        tx.write("t", pa.table({"x": [1]}))
        assert tx.table("t").count() == 1

    with dk.connect(new_catalog_uri) as catalog:
        assert [table.name for table in catalog.tables()] == ["t"]


def test_write_that_fails_leaves_no_catalog(
    new_catalog_uri: str, table_uri: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match="nope"):
        dk.write_deltalake(table_uri, pa.table({"x": [1]}), partition_by=["nope"])

    with pytest.raises(CatalogNotFoundError):
        dk.connect(new_catalog_uri).tables()
    assert not [n for n in things(new_catalog_uri, tmp_path) if n.startswith("meta.")]


def test_write_makes_none_where_the_schema_must_be_there(
    new_catalog_uri: str,
    table_uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DELKALAKEDB_SQL__SCHEMA", "error")

    with pytest.raises(CatalogNotFoundError, match=r"make it with `deltasql init`$"):
        dk.write_deltalake(table_uri, pa.table({"x": [1]}))
    assert things(new_catalog_uri, tmp_path) == []


def test_init_makes_it_once(new_catalog_uri: str) -> None:
    with dk.connect(new_catalog_uri) as catalog, dk.connect(new_catalog_uri) as other:
        assert catalog.init()
        assert not catalog.init()
        assert not other.init()
        assert other.tables() == []
