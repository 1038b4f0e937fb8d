"""A closed catalog refuses everything, even if another handle has the database open."""

import os
from collections.abc import Callable
from pathlib import Path

import duckdb
import psycopg
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import CatalogUnavailableError
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.actions import add, commit, create, paths

SCHEMA = pa.schema([("x", pa.int64())])


def uses(catalog: dk.Catalog, folder: Path) -> dict[str, Callable[[], object]]:
    """Every method of a catalog, and what was made from it while it was open."""
    snapshot, log = catalog.snapshot("t"), catalog.log("t")
    files = snapshot.files()
    return {
        "tables": catalog.tables,
        "_versions": catalog._versions,
        "table": lambda: catalog.table("t"),
        "snapshot": lambda: catalog.snapshot("t"),
        "log": lambda: catalog.log("t"),
        "_try_commit": catalog._try_commit,
        "commit": lambda: commit(catalog, add("b"), version=0),
        "expire": lambda: catalog.expire("t"),
        "_mirror_state": lambda: catalog._mirror_state("t"),
        "_default_location": lambda: catalog._default_location("t"),
        "init": catalog.init,
        "create_table": lambda: catalog.create_table(
            "u", SCHEMA, location=str(folder / "u")
        ),
        "open": lambda: catalog.open("t"),
        "[]": lambda: catalog["t"],
        "in": lambda: "t" in catalog,
        "len": lambda: len(catalog),
        "write": lambda: catalog.write("t", pa.table({"x": [1]}), mode="append"),
        "follow": lambda: catalog.follow("t"),
        "find": lambda: catalog.find("t"),
        "attach": lambda: catalog.attach(duckdb.connect()),
        "sql": lambda: catalog.sql("SELECT * FROM t").fetchall(),
        "rename_table": lambda: catalog.rename_table("t", "u"),
        "drop_table": lambda: catalog.drop_table("t"),
        "backend": lambda: catalog._backend,
        "with": catalog.__enter__,
        "transaction": dk.transaction(catalog).__enter__,
        "files": snapshot.files,
        "paths": snapshot.paths,
        "files that match": lambda: snapshot.files("x > 1"),
        "read_all": files.read_all,
        "iter_files": snapshot.iter_files,
        "add_actions": snapshot.add_actions,
        "history": snapshot.history,
        "num_records": snapshot.num_records,
        "txn_version": lambda: snapshot.txn_version("app"),
        "domains": snapshot.domains,
        "head": log.head,
        "adds": lambda: list(log.adds()),
        "entry": lambda: log.commit(0),
    }


def test_uses_are_all_that_a_catalog_and_a_snapshot_have(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    create(catalog)
    methods = {
        name
        for kind in (dk.Catalog, dk.Snapshot)
        for name, value in vars(kind).items() | vars(kind.__mro__[1]).items()
        if callable(value) and not name.startswith("_")
    }

    # These don't read the catalog.
    tried = {*uses(catalog, tmp_path), "close", "check_ours", "predicate"}
    # It reads domains, and only those of a table that can be clustered.
    tried |= {"clustering_columns"}
    assert methods <= tried


@pytest.mark.parametrize("still_open", [True, False])
def test_closed_catalog_refuses_every_use(
    catalog_uri: str, tmp_path: Path, still_open: bool
) -> None:
    catalog = dk.connect(catalog_uri)
    create(catalog, "t", add("a"))
    # Kept in memory, on engines that do so.
    assert paths(catalog) == ["a"]
    other = dk.connect(catalog_uri)
    tried = uses(catalog, tmp_path)
    catalog.close()
    if not still_open:
        other.close()

    for name, use in tried.items():
        with pytest.raises(CatalogUnavailableError, match="was closed"):
            print(name, use())
    assert not (tmp_path / "u").exists()
    if still_open:
        assert paths(other) == ["a"]
        other.close()


def test_close_ends_all_connections_and_connecting_works_again(
    catalog_uri: str, tmp_path: Path
) -> None:
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    dk.write_deltalake(uri, pa.table({"x": [1]}))
    handle, catalog = dk.DeltaTable(uri), dk.connect(catalog_uri)
    assert catalog.snapshot("t").num_records() == 1
    assert connections(catalog_uri)

    dk.close()
    dk.close()

    assert not connections(catalog_uri)
    for use in (catalog.tables, handle.file_uris, handle.update_incremental):
        with pytest.raises(CatalogUnavailableError, match="was closed"):
            use()
    with dk.connect(catalog_uri) as again:
        assert [table.name for table in again.tables()] == ["t"]
    dk.write_deltalake(uri, pa.table({"x": [2]}), mode="append")
    assert dk.DeltaTable(uri).count() == 2


def connections(uri: str) -> int:
    """Ours on a catalog's database: open files, or what the server counts."""
    place = parse_uri(uri)
    if place.engine != "postgres":
        opened = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
        found = [os.readlink(name) for name in opened if os.path.islink(name)]
        return sum(name.startswith(place.database) for name in found)
    with psycopg.connect(os.environ["DELKALAKEDB_TEST_PG_URL"]) as admin:
        row = admin.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s",
            [place.database],
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_database_in_memory_stays_when_all_is_closed() -> None:
    uri = "deltasql://duckdb/:memory:"
    with dk.connect(uri) as catalog:
        create(catalog, "kept")
    dk.close()

    with pytest.raises(CatalogUnavailableError, match="was closed"):
        catalog.tables()
    with dk.connect(uri) as again:
        assert "kept" in [table.name for table in again.tables()]
