"""The catalog's schema: the same by every way to it, and refused where it is newer."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.catalog.commit.outbox import Outbox
from delkalakedb.catalog.engine import migrations
from delkalakedb.catalog.engine.backend import Backend, Insert, Row
from delkalakedb.catalog.engine.statements import load_migrations
from delkalakedb.errors import CatalogError, CatalogSchemaError
from delkalakedb.model.log import Reads, Staged
from delkalakedb.settings.uri import Uri, parse_uri
from tests.support.actions import add, create, paths

LISTINGS = {
    "sqlite": (
        'SELECT m.name, c.name, c.type, c."notnull", c.pk FROM sqlite_master m '
        "JOIN pragma_table_info(m.name) c WHERE m.type = 'table' ORDER BY 1, c.cid",
        "SELECT name, sql FROM sqlite_master WHERE type = 'index' ORDER BY 1",
        'SELECT m.name, k."table", k."from", k."to" FROM sqlite_master m '
        "JOIN pragma_foreign_key_list(m.name) k ORDER BY 1, 2, 3",
    ),
    "duckdb": (
        "SELECT table_name, column_name, data_type, is_nullable FROM duckdb_columns() "
        "WHERE database_name = 'catalog' ORDER BY table_name, column_index",
        "SELECT index_name, sql FROM duckdb_indexes() "
        "WHERE database_name = 'catalog' ORDER BY 1",
        "SELECT table_name, constraint_text FROM duckdb_constraints() "
        "WHERE database_name = 'catalog' ORDER BY 1, 2",
    ),
    "postgres": (
        "SELECT table_name, column_name, data_type, is_nullable, collation_name "
        "FROM information_schema.columns WHERE table_schema = '{schema}' "
        "ORDER BY table_name, ordinal_position",
        "SELECT indexname, replace(indexdef, schemaname || '.', '') FROM pg_indexes "
        "WHERE schemaname = '{schema}' ORDER BY 1",
        "SELECT conname, replace(pg_get_constraintdef(oid), '{schema}.', '') "
        "FROM pg_constraint WHERE connamespace = '{schema}'::regnamespace ORDER BY 1",
    ),
}
Known = Callable[[Mapping[int, str]], None]
NEXT = "ALTER TABLE dl_tables ADD COLUMN novelty INTEGER;"


def listing(backend: Backend) -> list[list[Row]]:
    """Columns, indexes and constraints, as the engine sees them."""
    schema = getattr(backend, "_schema", "")
    texts = [sql.replace("{schema}", schema) for sql in LISTINGS[backend.engine]]
    with backend.reading() as session:
        found = [session.query_sql(sql, {}) for sql in texts]
    assert found[0]
    return found


def columns(backend: Backend) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for table, column, *_ in listing(backend)[0]:
        found.setdefault(table, []).append(column)
    return found


def make(uri: str) -> None:
    """Have a catalog at the URI, of the newest version that is known."""
    with dk.connect(uri) as catalog:
        catalog.init()


def another(uri: str) -> Uri:
    """A second database, or schema, beside the first."""
    parsed = parse_uri(uri)
    if parsed.engine == "postgres":
        return replace(parsed, schema="another")
    return replace(parsed, database=parsed.database.replace("meta", "another"))


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    """Sets the migrations that the package knows, as another release would."""

    def set_known(scripts: Mapping[int, str]) -> None:
        monkeypatch.setattr(migrations, "load_migrations", lambda engine: scripts)

    return set_known


def test_migrations_are_numbered_without_a_gap(engine: str) -> None:
    assert list(load_migrations(engine)) == list(
        range(1, migrations.latest_schema_version(engine) + 1)
    )


def test_every_engine_has_the_same_migrations() -> None:
    assert len({tuple(load_migrations(engine)) for engine in LISTINGS}) == 1


def test_catalog_migrated_step_by_step_equals_a_fresh_one(
    new_catalog_uri: str, engine: str, known: Known
) -> None:
    every = {**load_migrations(engine), 99: NEXT}
    for step in every:
        known({n: script for n, script in every.items() if n <= step})
        make(new_catalog_uri)

    with (
        dk.connect(new_catalog_uri) as migrated,
        dk.connect(another(new_catalog_uri)) as fresh,
    ):
        fresh.init()
        assert listing(migrated._backend) == listing(fresh._backend)
        assert "novelty" in columns(fresh._backend)["dl_tables"]


def test_migrated_catalog_keeps_its_tables(
    new_catalog_uri: str, engine: str, known: Known
) -> None:
    with dk.connect(new_catalog_uri) as before:
        create(before, "t", add("a"))
    known({**load_migrations(engine), 99: NEXT})

    with dk.connect(new_catalog_uri) as after:
        assert paths(after) == ["a"]
        with after._backend.reading() as session:
            versions = session.query_sql(
                "SELECT version FROM dl_schema_versions ORDER BY version", {}
            )
    assert [v for (v,) in versions] == [*load_migrations(engine), 99]


def test_failed_migration_leaves_the_schema_as_it_was(
    new_catalog_uri: str, engine: str, known: Known
) -> None:
    make(new_catalog_uri)
    with dk.connect(new_catalog_uri) as catalog:
        before = listing(catalog._backend)
    known({**load_migrations(engine), 99: NEXT + "SELECT nonsense;"})

    with pytest.raises(CatalogError):
        dk.connect(new_catalog_uri)
    known(load_migrations(engine))
    with dk.connect(new_catalog_uri) as catalog:
        assert listing(catalog._backend) == before


def test_opening_again_changes_nothing(new_catalog_uri: str) -> None:
    make(new_catalog_uri)
    with dk.connect(new_catalog_uri) as first:
        before = listing(first._backend)

    with dk.connect(new_catalog_uri, sql={"schema": "error"}) as second:
        assert listing(second._backend) == before


def test_newer_schema_is_refused_naming_both_versions(new_catalog_uri: str) -> None:
    make(new_catalog_uri)
    with dk.connect(new_catalog_uri) as catalog:
        engine = catalog._backend.engine
        values = {"version": [1234], "applied_at_ms": [0], "client": ["delkalakedb/99"]}
        row = Insert("dl_schema_versions", values)
        with catalog._backend.writing() as session:
            session.apply([row])

    latest = migrations.latest_schema_version(engine)
    expected = f"schema version 1234, .* knows {latest}; upgrade delkalakedb"
    with pytest.raises(CatalogSchemaError, match=expected):
        dk.connect(new_catalog_uri)
    with pytest.raises(CatalogSchemaError, match=expected):
        dk.connect(new_catalog_uri, sql={"schema": "error"})


def test_empty_database_is_refused_and_left_empty_if_asked(
    new_catalog_uri: str, engine: str
) -> None:
    if engine == "sqlite":
        Path(parse_uri(new_catalog_uri).database).touch()
    elif engine == "duckdb":
        duckdb.connect(parse_uri(new_catalog_uri).database).close()

    for _ in range(2):
        with pytest.raises(CatalogSchemaError, match=r"make it with `deltasql init`$"):
            dk.connect(new_catalog_uri, sql={"schema": "error"})
    make(new_catalog_uri)
    with dk.connect(new_catalog_uri) as catalog:
        assert catalog.tables() == []


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_missing_file_is_refused_and_not_made_if_asked(new_catalog_uri: str) -> None:
    with pytest.raises(CatalogError):
        dk.connect(new_catalog_uri, sql={"schema": "error"})
    assert not Path(parse_uri(new_catalog_uri).database).exists()


def test_older_schema_is_refused_if_asked(
    new_catalog_uri: str, engine: str, known: Known
) -> None:
    make(new_catalog_uri)
    known({**load_migrations(engine), 99: NEXT})

    with pytest.raises(CatalogSchemaError, match="writes 99; upgrade the catalog with"):
        dk.connect(new_catalog_uri, sql={"schema": "error"})


def test_three_engines_have_the_same_tables_and_columns(
    tmp_path: Path, postgres_uri: str
) -> None:
    uris = [
        f"deltasql://sqlite/{tmp_path}/meta.db",
        f"deltasql://duckdb/{tmp_path}/meta.duckdb",
        postgres_uri,
    ]
    found = []
    for uri in uris:
        with dk.connect(uri) as catalog:
            catalog.init()
            found.append(columns(catalog._backend))

    assert found[0] == found[1] == found[2]
    assert "dl_files" in found[0]


def test_open_client_of_an_older_version_writes_nothing(
    new_catalog_uri: str, known: Known, engine: str
) -> None:
    table_uri = new_catalog_uri + ("&" if "?" in new_catalog_uri else "?") + "table=t"
    with dk.connect(new_catalog_uri) as catalog:
        dk.write_deltalake(table_uri, pa.table({"x": [1, 2]}))
        table = dk.DeltaTable(table_uri)
        staged = Staged("t", (add("late"),), Reads(version=0))
        with catalog._backend.writing() as session:
            row = {"version": [99], "applied_at_ms": [0], "client": ["newer"]}
            session.apply([Insert("dl_schema_versions", row)])

        for write in (
            lambda: dk.write_deltalake(table_uri, pa.table({"x": [3]}), mode="append"),
            lambda: table.delete("x = 1"),
            lambda: catalog._try_commit(staged),
            lambda: catalog.rename_table("t", "u"),
            lambda: Outbox(catalog._backend).take("t", 1.0),
            lambda: catalog.drop_table("t"),
        ):
            with pytest.raises(CatalogSchemaError, match=r"99.*upgrade delkalakedb"):
                write()
        assert [t.version for t in catalog.tables()] == [0]
    known({**load_migrations(engine), 99: NEXT})
    with dk.connect(new_catalog_uri) as newer:
        assert isinstance(newer._try_commit(staged), tuple)


def test_commit_that_waits_for_an_upgrade_is_refused(new_catalog_uri: str) -> None:
    with dk.connect(new_catalog_uri) as catalog, ThreadPoolExecutor(1) as pool:
        create(catalog, "t")
        staged = Staged("t", (add("late"),), Reads(version=0))
        with catalog._backend.writing(any_version=True) as session:
            catalog._backend.prepare(session)
            session.script(["ALTER TABLE dl_mirrors ADD COLUMN later INTEGER"])
            row = {"version": [99], "applied_at_ms": [0], "client": ["newer"]}
            session.apply([Insert("dl_schema_versions", row)])
            session.query("load_schema_version", {})
            commit = pool.submit(catalog._try_commit, staged)
            wait([commit], timeout=0.5)

        with pytest.raises(CatalogSchemaError, match="99"):
            commit.result()
        assert [t.version for t in catalog.tables()] == [0]
