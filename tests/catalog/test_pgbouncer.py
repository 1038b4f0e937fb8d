"""Catalogs behind a real PgBouncer, whose sessions other clients use in between."""

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.catalog.load.staged_table import locked_mirror
from delkalakedb.errors import CatalogBusyError, CatalogError
from tests.support.actions import add, commit, create, paths, stats
from tests.support.integrity import check_integrity
from tests.support.servers.pgbouncer import PROGRAM, PgBouncer

pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason="PgBouncer isn't installed: apt-get install pgbouncer"
)
MODES = ("transaction", "session")
SCHEMAS = ("left", "right")


@pytest.fixture
def database(postgres_uri: str) -> str:
    """The name of a database of the test's own."""
    return postgres_uri.split("/")[-2]


@pytest.fixture(params=MODES)
def pooler(request: pytest.FixtureRequest) -> Iterator[PgBouncer]:
    """A pooler; in session mode each client needs a session of its own."""
    sessions = 2 if request.param == "transaction" else 20
    pooler = PgBouncer(
        os.environ["DELKALAKEDB_TEST_PG_URL"], request.param, sessions=sessions
    )
    pooler.start()
    yield pooler
    pooler.stop()


in_transaction_mode = pytest.mark.parametrize("pooler", ["transaction"], indirect=True)


def uri_of(pooler: PgBouncer, database: str, schema: str, place: Path) -> str:
    return (
        f"deltasql://postgres/{pooler.authority}/{database}/{schema}"
        f"?data_path={place}/{schema}"
    )


def rows_of(table: dk.DeltaTable) -> list[str]:
    return sorted(table.to_pyarrow_table()["s"].to_pylist())


def append(uri: str, text: str) -> None:
    dk.write_deltalake(uri, pa.table({"s": [text]}), mode="append")


def two_tables(
    pooler: PgBouncer, database: str, place: Path
) -> tuple[dict[str, str], dict[str, str]]:
    """Write one row to a table of each schema; return the URIs of both, by schema."""
    uris = {s: uri_of(pooler, database, s, place) for s in SCHEMAS}
    tables = {s: uri.replace("?", "/t?") for s, uri in uris.items()}
    for schema in SCHEMAS:
        append(tables[schema], f"{schema}-first")
    return uris, tables


def test_two_catalogs_of_one_pool_stay_apart(
    pooler: PgBouncer, database: str, tmp_path: Path
) -> None:
    uris, tables = two_tables(pooler, database, tmp_path)

    def write(schema: str, writer: int) -> None:
        for n in range(8):
            append(tables[schema], f"{schema}-{writer}-{n}")
            table = dk.DeltaTable(tables[schema])
            assert {text.split("-")[0] for text in rows_of(table)} == {schema}
            assert len(table.file_uris()) == table.version() + 1

    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(write, s, w) for s in SCHEMAS for w in range(2)]
        for job in jobs:
            job.result()
    for schema in SCHEMAS:
        found = rows_of(dk.DeltaTable(tables[schema]))
        expected = [f"{schema}-{w}-{n}" for w in range(2) for n in range(8)]
        assert found == sorted([f"{schema}-first", *expected])
        assert dk.verify(tables[schema], deep=True).ok
        with dk.connect(uris[schema]) as catalog:
            check_integrity(catalog)


WRITER = """
import sys
import time
import warnings
import delkalakedb as dk
import pyarrow as pa
from delkalakedb.errors import CatalogError
warnings.simplefilter("ignore", dk.PublishWarning)
uri, name = sys.argv[1:]
for n in range(100_000):
    try:
        dk.write_deltalake(uri, pa.table({"s": [f"{name}-{n}"]}), mode="append")
    except CatalogError:
        time.sleep(0.05)
    else:
        print(f"{name}-{n}", flush=True)
"""


def test_killed_sessions_poolers_and_writers_lose_and_misfile_nothing(
    pooler: PgBouncer, database: str, tmp_path: Path
) -> None:
    uris, tables = two_tables(pooler, database, tmp_path)
    said = {s: {f"{s}-first"} for s in SCHEMAS}
    with ExitStack() as held:
        writers = {
            schema: held.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", WRITER, tables[schema], schema],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for schema in SCHEMAS
        }
        for writer in writers.values():
            held.callback(writer.kill)

        def wait_for_commits() -> None:
            for schema, writer in writers.items():
                assert writer.stdout is not None
                said[schema] |= {writer.stdout.readline().strip() for _ in range(3)}

        wait_for_commits()
        with psycopg.connect(os.environ["DELKALAKEDB_TEST_PG_URL"]) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = %s",
                [database],
            )
        wait_for_commits()
        pooler.kill()
        pooler.start()
        wait_for_commits()
        for schema, writer in writers.items():
            writer.kill()
            assert writer.stdout is not None
            said[schema] |= set(writer.stdout.read().split())
    for schema in SCHEMAS:
        append(tables[schema], f"{schema}-last")
        dk.mirror.run(uris[schema], once=True)
        found = rows_of(dk.DeltaTable(tables[schema]))
        assert len(found) == len(set(found))
        assert said[schema] <= set(found)
        assert {text.split("-")[0] for text in found} == {schema}
        assert dk.verify(tables[schema], deep=True).ok


@in_transaction_mode
def test_nothing_of_a_catalog_is_left_in_a_shared_session(
    pooler: PgBouncer, database: str, tmp_path: Path
) -> None:
    uri = uri_of(pooler, database, "left", tmp_path)
    with dk.connect(uri, pool={"lock_timeout": 3, "statement_timeout": 4}) as catalog:
        create(catalog)
        for n in range(8):
            commit(catalog, add(f"f{n}"))
            assert len(paths(catalog)) == n + 1
        url = f"postgresql://{pooler.authority}/{database}"
        for _ in range(4):
            with psycopg.connect(url, prepare_threshold=None) as other:
                names = ("lock_timeout", "statement_timeout", "synchronous_commit")
                found = [other.execute(f"SHOW {n}").fetchone() for n in names]
                assert found == [("0",), ("0",), ("on",)]
                assert other.execute("SHOW search_path").fetchone() == ('""',)
                prepared = other.execute("SELECT name FROM pg_prepared_statements")
                assert prepared.fetchall() == []


@in_transaction_mode
def test_settings_count_in_every_transaction(
    pooler: PgBouncer, database: str, tmp_path: Path
) -> None:
    uri = uri_of(pooler, database, "left", tmp_path)
    url = os.environ["DELKALAKEDB_TEST_PG_URL"]
    with psycopg.connect(url, autocommit=True) as admin:
        for setting in ("synchronous_commit = off", "lock_timeout = 7"):
            admin.execute(f"ALTER DATABASE {database} SET {setting}")
        isolation = "default_transaction_isolation = 'serializable'"
        admin.execute(f"ALTER DATABASE {database} SET {isolation}")
    with dk.connect(uri, pool={"lock_timeout": 0.3, "statement_timeout": 1}) as catalog:
        create(catalog)
        names = ("synchronous_commit", "transaction_isolation", "statement_timeout")
        with catalog._backend.writing() as session:
            found = [session.query_sql(f"SHOW {name}", {}) for name in names]
            assert found == [[("on",)], [("read committed",)], [("1s",)]]
        with locked_mirror(catalog, "t"), pytest.raises(CatalogBusyError):
            commit(catalog, add("late"))
        slow = ("SELECT pg_sleep(5)", {})
        for queries in ([slow], [("SELECT 1", {}), slow]):
            with pytest.raises(CatalogBusyError), catalog._backend.reading() as reader:
                reader.query_many(queries)
        bulk = catalog._backend.batches(
            "SELECT 1 AS x, pg_sleep(5)", {}, pa.schema({"x": pa.int64()})
        )
        with pytest.raises(CatalogError):
            list(bulk)


@in_transaction_mode
def test_plans_and_bulk_reads_of_many_clients_are_their_own(
    pooler: PgBouncer, database: str, tmp_path: Path
) -> None:
    with ExitStack() as held:
        catalogs = {
            s: held.enter_context(dk.connect(uri_of(pooler, database, s, tmp_path)))
            for s in SCHEMAS
        }
        for number, (schema, catalog) in enumerate(catalogs.items(), 1):
            files = [
                add(f"{schema}{n}", stats=stats(1, x=(n, n, 0)))
                for n in range(300 * number)
            ]
            create(catalog, "t", *files)

        def look(schema: str, count: int) -> None:
            for n in range(20):
                assert catalogs[schema].table("t").num_files == count
                found = (
                    catalogs[schema]
                    .snapshot("t")
                    .files(f"x = {n}", columns=["path"])
                    .read_all()
                )
                assert found["path"].to_pylist() == [f"{schema}{n}"]
                every = catalogs[schema].snapshot("t").files(columns=["path"])
                assert every.read_all().num_rows == count

        with ThreadPoolExecutor(4) as threads:
            numbered = zip(SCHEMAS * 2, (300, 600) * 2, strict=True)
            for job in [threads.submit(look, *each) for each in numbered]:
                job.result()
