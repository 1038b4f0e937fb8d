"""Roles of Postgres that may do no more than docs/postgres.md grants them."""

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import deltalake
import psycopg
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.catalog.admin.backup import upgrade_catalog
from delkalakedb.catalog.engine import migrations
from delkalakedb.catalog.engine.statements import load_migrations
from delkalakedb.doctor import examine
from delkalakedb.errors import CatalogPermissionError
from delkalakedb.settings.configuration import load_settings
from delkalakedb.settings.uri import parse_uri
from tests.support.servers.postgres import Server

PAGE = Path(__file__).parents[2] / "docs" / "postgres.md"
ROLES = ("reader", "writer", "reconciler", "upgrader")
SCHEMA = "lake"


def grants(names: Mapping[str, str]) -> str:
    """The statements of the page, for roles of other names."""
    (block,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for role in ROLES:
        block = re.sub(rf"\b{role}\b", names[role], block)
    return block


@pytest.fixture
def roles(postgres_uri: str, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """The catalog's URI as each role names it."""
    parsed = parse_uri(postgres_uri)
    database = parsed.database
    server = os.environ["DELKALAKEDB_TEST_PG_URL"]
    names = {role: f"{role}_{database}" for role in ROLES}

    def uri_of(role: str) -> str:
        place = f"{names[role]}:pw@{parsed.host}:{parsed.port}/{database}/{SCHEMA}"
        return f"deltasql://postgres/{place}?data_path={tmp_path}/tables"

    inside = f"{server.rsplit('/', 1)[0]}/{database}"
    with psycopg.connect(inside, autocommit=True) as admin:
        for name in names.values():
            admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'pw'")
        admin.execute(f"CREATE SCHEMA {SCHEMA} AUTHORIZATION {names['upgrader']}")
        with dk.connect(uri_of("upgrader")) as catalog:
            catalog.init()
        with psycopg.connect(
            f"postgresql://{names['upgrader']}:pw@{parsed.host}:{parsed.port}/{database}"
        ) as owner:
            owner.execute(grants(names))
        yield uri_of
        for name in names.values():
            admin.execute(f"DROP OWNED BY {name} CASCADE")
            admin.execute(f"DROP ROLE {name}")


def named(uri: str, table: str) -> str:
    return uri.replace("?", f"/{table}?")


def rows(*values: int) -> pa.Table:
    return pa.table({"x": list(values)})


def append_unpublished(uri: str, more: pa.Table) -> None:
    with (
        dk.connect(uri, mirror={"mode": "external"}) as catalog,
        dk.transaction(catalog) as tx,
    ):
        tx.write("t", more, mode="append")


def check_doctor(uri: str, insert: str, create: bool = False) -> None:
    checks = {c.check: c for c in examine(parse_uri(uri), settings(uri))}
    assert [c for c in checks.values() if c.state != "ok"] == []
    assert checks["insert"].detail == insert
    assert ("can't create" not in checks["create"].detail) is create


def settings(uri: str) -> Any:
    return load_settings(parse_uri(uri), sql={"schema": "error"})


def read_all(uri: str, count: int) -> None:
    with dk.connect(uri) as catalog:
        assert catalog.tables()
        assert len(catalog.snapshot("t").history()) == catalog.table("t").version + 1
    table = dk.DeltaTable(named(uri, "t"))
    assert table.to_pyarrow_table().num_rows == count
    assert pa.table(table.scan()).num_rows == count
    counted = dk.QueryBuilder().register("t", table).execute("select count(*) n from t")
    assert pa.table(counted)["n"].to_pylist() == [count]
    assert table.file_uris()
    assert dk.DeltaTable(named(uri, "t"), version=0).version() == 0
    assert dk.mirror.status(uri)
    assert dk.verify(named(uri, "t"), deep=True).ok


def test_writer_does_all_that_changes_tables(
    roles: Callable[[str], str], tmp_path: Path
) -> None:
    uri = roles("writer")
    dk.write_deltalake(named(uri, "t"), rows(1, 2, 3))
    dk.write_deltalake(named(uri, "t"), rows(4), mode="append")
    table = dk.DeltaTable(named(uri, "t"))
    table.delete("x = 4")
    table.update(updates={"x": "x + 10"}, predicate="x = 3")
    table.merge(
        rows(1, 7), "s.x = t.x", source_alias="s", target_alias="t"
    ).when_not_matched_insert_all().execute()
    table.optimize.compact()
    table.restore(1)
    table.vacuum(0, dry_run=False, enforce_retention_duration=False)
    table.alter.set_table_properties({"delta.checkpointInterval": "5"})
    table.create_checkpoint()
    with dk.transaction(uri) as tx:
        tx.write("t", rows(5), mode="append")
        tx.write("u", rows(6))
    with dk.connect(uri) as catalog:
        catalog.rename_table("u", "v")
        catalog.drop_table("v")
    deltalake.write_deltalake(f"{tmp_path}/plain", rows(9))
    dk.import_table(f"{tmp_path}/plain", named(uri, "plain"))
    dk.mirror.run(uri, once=True)
    read_all(uri, 5)
    check_doctor(uri, "rows can be written to the catalog")


def test_reader_reads_and_changes_nothing(
    roles: Callable[[str], str], tmp_path: Path
) -> None:
    dk.write_deltalake(named(roles("writer"), "t"), rows(1, 2))
    files = sorted(tmp_path.rglob("*"))
    uri = roles("reader")
    read_all(uri, 2)
    check_doctor(uri, "this role only reads")

    table = dk.DeltaTable(named(uri, "t"))
    for write in (
        lambda: dk.write_deltalake(named(uri, "t"), rows(3), mode="append"),
        lambda: table.delete("x = 1"),
        lambda: table.delete(),
        lambda: table.alter.set_table_properties({"delta.appendOnly": "true"}),
    ):
        with pytest.raises(CatalogPermissionError, match=r"docs/postgres\.md"):
            write()
    assert sorted(tmp_path.rglob("*")) == files


def test_reader_scans_a_version_that_is_not_published(
    roles: Callable[[str], str], tmp_path: Path
) -> None:
    writer = roles("writer")
    changes = {"delta.enableChangeDataFeed": "true"}
    dk.write_deltalake(named(writer, "t"), rows(1, 2), configuration=changes)
    append_unpublished(writer, rows(3))
    files = sorted(tmp_path.rglob("*"))

    read_all(roles("reader"), 3)
    table = dk.DeltaTable(named(roles("reader"), "t"))
    assert pa.table(table.load_cdf(1))["x"].to_pylist() == [3]

    assert sorted(tmp_path.rglob("*")) == files
    assert dk.mirror.status(writer)[0].published_version == 0


def test_reconciler_publishes_and_writes_no_rows(roles: Callable[[str], str]) -> None:
    writer = roles("writer")
    with dk.connect(writer, mirror={"mode": "external"}) as catalog:
        dk.write_deltalake(named(writer, "t"), rows(1))
        for n in range(2, 5):
            dk.write_deltalake(named(writer, "t"), rows(n), mode="append")
        assert catalog.table("t").version == 3
    uri = roles("reconciler")
    dk.mirror.run(uri, once=True)
    read_all(uri, 4)
    with pytest.raises(CatalogPermissionError):
        dk.write_deltalake(named(uri, "t"), rows(5), mode="append")
    check_doctor(uri, "this role reads and publishes")


def test_upgrader_upgrades(
    roles: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dk.write_deltalake(named(roles("writer"), "t"), rows(1))
    uri = roles("upgrader")
    check_doctor(uri, "rows can be written to the catalog", create=True)
    newer = {
        **load_migrations("postgres"),
        99: "ALTER TABLE dl_tables ADD COLUMN novelty INTEGER;",
    }
    monkeypatch.setattr(migrations, "load_migrations", lambda engine: newer)
    with pytest.raises(CatalogPermissionError):
        upgrade_catalog(parse_uri(roles("writer")), load_settings())
    upgrade_catalog(parse_uri(uri), load_settings(parse_uri(uri)))
    read_all(roles("reader"), 1)


def test_role_without_usage_is_told_of_the_schema(
    roles: Callable[[str], str], postgres_uri: str
) -> None:
    database = parse_uri(postgres_uri).database
    server = os.environ["DELKALAKEDB_TEST_PG_URL"]
    with psycopg.connect(f"{server.rsplit('/', 1)[0]}/{database}") as admin:
        admin.execute(f"REVOKE USAGE ON SCHEMA {SCHEMA} FROM reader_{database}")

    with pytest.raises(CatalogPermissionError, match=r"schema lake; .* needs USAGE"):
        dk.connect(roles("reader")).tables()


def test_replica_is_read_and_says_what_it_is(tmp_path: Path) -> None:
    primary = Server("fsync=off")
    primary.start()
    copy = Server(primary=primary)
    try:
        place = f"?data_path={tmp_path}/tables"
        uri = f"deltasql://postgres/{primary.authority}/postgres/lake{place}"
        there = f"deltasql://postgres/{copy.authority}/postgres/lake{place}"
        dk.write_deltalake(named(uri, "t"), rows(1))
        copy.start()
        with psycopg.connect(copy.dsn("postgres"), autocommit=True) as admin:
            found = "SELECT 1 FROM pg_tables WHERE tablename = 'dl_mirrors'"
            while not admin.execute(found).fetchall():
                time.sleep(0.05)
        read_all(there, 1)
        append_unpublished(uri, rows(2))
        while dk.DeltaTable(named(there, "t")).version() == 0:
            time.sleep(0.05)
        read_all(there, 2)
        with pytest.raises(CatalogPermissionError, match="replica"):
            dk.write_deltalake(named(there, "t"), rows(2), mode="append")
        check_doctor(there, "a replica only reads")
        with psycopg.connect(copy.dsn("postgres"), autocommit=True) as admin:
            admin.execute("SELECT pg_wal_replay_pause()")
        dk.write_deltalake(named(uri, "t"), rows(3), mode="append")
        read_all(there, 2)
        assert dk.verify(named(uri, "t"), deep=True).ok
        for deep in (False, True):
            assert dk.verify(named(there, "t"), deep=deep).ok
    finally:
        copy.stop()
        primary.stop()
