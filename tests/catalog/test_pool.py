"""Connections: how many, how long, whose, and that none is left behind."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.catalog.engine.pool import Pool
from delkalakedb.errors import CatalogBusyError, CatalogUnavailableError
from delkalakedb.settings import SettingIgnoredWarning
from delkalakedb.settings.keys import PoolSettings
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.actions import add, commit, create, paths
from tests.support.catalogs import held
from tests.support.engines import shared
from tests.support.integrity import check_integrity
from tests.support.processes import run_python
from tests.support.servers.postgres_proxy import Proxy

alone = pytest.mark.parametrize("engine", ["duckdb"], indirect=True)


def test_connections_beyond_the_size_wait_and_then_fail(catalog_uri: str) -> None:
    settings = PoolSettings(size=2, connect_timeout=0.2)
    with dk.connect(catalog_uri, pool=settings) as catalog:
        catalog.init()
        with (
            catalog._backend.reading(),
            catalog._backend.reading(),
            pytest.raises(
                CatalogBusyError, match=r"all 2 connections were in use for 0\.2 s"
            ),
        ):
            catalog.tables()
        assert catalog.tables() == []


def test_connection_that_comes_back_is_handed_to_who_waits(catalog_uri: str) -> None:
    with dk.connect(catalog_uri, pool={"size": 1}) as catalog:
        catalog.init()
        answers: list[object] = []
        thread = threading.Thread(target=lambda: answers.append(catalog.tables()))
        with catalog._backend.reading():
            thread.start()
            time.sleep(0.1)
            assert answers == []
        thread.join(5)
        assert answers == [[]]


def test_connections_are_used_again(postgres_uri: str) -> None:
    with dk.connect(postgres_uri) as catalog:
        assert len({backend_pid(catalog) for _ in range(5)}) == 1


def backend_pid(catalog: Catalog) -> int:
    with catalog._backend.reading() as session:
        ((pid,),) = session.query_sql("SELECT pg_backend_pid()", {})
    return int(pid)


def test_one_pool_serves_all_catalogs_on_a_database(
    catalog_uri: str, tmp_path: Path
) -> None:
    with dk.connect(catalog_uri) as one:
        with dk.connect(catalog_uri) as same:
            assert same._backend is one._backend
        create(one)
        assert [table.name for table in one.tables()] == ["t"]
        with dk.connect(f"deltasql://sqlite/{tmp_path}/other.db") as other:
            assert other._backend is not one._backend


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"], indirect=True)
def test_file_is_the_same_database_by_whatever_path(
    catalog_uri: str, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    file = Path(parse_uri(catalog_uri).database)
    linked = catalog_uri.replace(str(file), f"{tmp_path}/link/{file.name}")
    with dk.connect(catalog_uri) as one, dk.connect(linked) as same:
        assert linked != catalog_uri
        assert same._backend is one._backend


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"], indirect=True)
def test_file_is_one_database_whatever_the_password(catalog_uri: str) -> None:
    with (
        dk.connect(catalog_uri, sql={"password": "a"}) as one,
        dk.connect(catalog_uri, sql={"password": "b"}) as other,
    ):
        assert one._backend is other._backend


def test_closed_catalog_says_so(catalog_uri: str) -> None:
    catalog = dk.connect(catalog_uri)
    catalog.close()
    catalog.close()

    with pytest.raises(CatalogUnavailableError, match="was closed"):
        catalog.tables()


def test_closing_leaves_no_connection_behind(postgres_uri: str) -> None:
    with dk.connect(postgres_uri) as catalog:
        create(catalog, "t", add("a"))
        assert paths(catalog) == ["a"]
        half_read = catalog.snapshot("t").files()
        half_read.read_next_batch()
        assert connections(postgres_uri) > 1
    del half_read

    deadline = time.monotonic() + 5
    while connections(postgres_uri) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert connections(postgres_uri) == 0


def test_size_bounds_bulk_reads_and_all_other_connections_together(
    postgres_uri: str,
) -> None:
    uri = parse_uri(postgres_uri)
    assert uri.port is not None
    with (
        closing(Proxy(uri.port)) as proxy,
        dk.connect(
            format_uri(replace(uri, port=proxy.port)), pool={"size": 2}
        ) as catalog,
    ):
        create(catalog, "t", *(add(f"f{n}") for n in range(50)))

        def work(i: int) -> None:
            for n in range(5):
                commit(catalog, add(f"{i}-{n}"))
                assert f"{i}-{n}" in paths(catalog)
                # not from memory
                reader = catalog.snapshot("t", n).files(columns=["path", "stats"])
                assert reader.read_all().num_rows >= 50

        with ThreadPoolExecutor(8) as threads:
            for job in [threads.submit(work, i) for i in range(8)]:
                job.result()
    assert proxy.most_open == 2


def test_size_bounds_the_connections_of_all_schemas_together(
    postgres_uri: str,
) -> None:
    uri = parse_uri(postgres_uri)
    assert uri.port is not None
    with closing(Proxy(uri.port)) as proxy:
        uris = [
            format_uri(replace(uri, port=proxy.port, schema=schema))
            for schema in ("one", "two", "three")
        ]
        with (
            dk.connect(uris[0], pool={"size": 2}) as one,
            dk.connect(uris[1]) as two,
            dk.connect(uris[2]) as three,
        ):
            catalogs = [one, two, three]
            for catalog in catalogs:
                create(catalog, "t", add("a"))

            def work(i: int) -> None:
                for n in range(5):
                    catalog = catalogs[(i + n) % 3]
                    commit(catalog, add(f"{i}-{n}"))
                    assert f"{i}-{n}" in paths(catalog)

            with ThreadPoolExecutor(6) as threads:
                list(threads.map(work, range(6)))
            assert [len(paths(catalog)) for catalog in catalogs] == [11, 11, 11]
            assert proxy.most_open == 2

            # Another schema doesn't take another connection.
            one.close()
            assert backend_pid(two) == backend_pid(three)


def test_catalog_in_another_schema_warns_of_pool_settings_without_effect(
    postgres_uri: str,
) -> None:
    other = format_uri(replace(parse_uri(postgres_uri), schema="other"))
    with (
        dk.connect(postgres_uri, pool={"size": 2}),
        pytest.warns(SettingIgnoredWarning, match=r"pool.size = 3 \(it is 2\)"),
        dk.connect(other, pool={"size": 3}),
    ):
        pass
    # Without a warning, which would be an error here.
    with dk.connect(other, pool={"size": 3}) as catalog:
        assert catalog.init()


def test_reads_of_one_connection_are_bulk_and_not_in_turn(postgres_uri: str) -> None:
    with dk.connect(postgres_uri, pool={"size": 1}) as catalog:
        create(catalog, "t", add("a"))
        for name in ("b", "c"):
            commit(catalog, add(name))
            assert name in paths(catalog)
            assert connections(postgres_uri) == 1
        check_integrity(catalog)


def test_bulk_connections_hold_no_transaction_open(postgres_uri: str) -> None:
    with dk.connect(postgres_uri) as catalog:
        create(catalog, "t", add("a"))
        assert paths(catalog) == ["a"]
        half_read = catalog.snapshot("t").files()
        half_read.read_next_batch()
        del half_read
        with psycopg.connect(os.environ["DELKALAKEDB_TEST_PG_URL"]) as admin:
            rows = admin.execute(
                "SELECT state FROM pg_stat_activity WHERE datname = %s",
                [parse_uri(postgres_uri).database],
            ).fetchall()
    assert rows == [("idle",), ("idle",)]


def test_server_without_a_free_slot_is_waited_for(postgres_uri: str) -> None:
    parsed = parse_uri(postgres_uri)
    role = f"r{parsed.database}"
    place = f"{parsed.host}:{parsed.port}"
    uri = f"deltasql://postgres/{role}:pw@{place}/{parsed.database}/own"
    server, database = os.environ["DELKALAKEDB_TEST_PG_URL"], parsed.database
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw' CONNECTION LIMIT 2")
        admin.execute(f"GRANT CREATE ON DATABASE {database} TO {role}")
        dsn = f"postgresql://{role}:pw@{place}/{database}"
        others = [psycopg.connect(dsn), psycopg.connect(dsn)]
        with pytest.raises(CatalogUnavailableError, match="too many connections"):
            dk.connect(uri, pool={"connect_timeout": 0.5})
        leaving = threading.Timer(0.5, lambda: [other.close() for other in others])
        leaving.start()
        with dk.connect(uri) as catalog:
            create(catalog, "t", add("a"))
            # The pool may have more connections than the server has slots: threads
            # that wait for the server take what others give back.
            with ThreadPoolExecutor(5) as threads:
                names = [f"f{n}" for n in range(20)]
                list(threads.map(lambda name: commit(catalog, add(name)), names))
            assert len(paths(catalog)) == 21
        leaving.join()
        with psycopg.connect(f"{server.rsplit('/', 1)[0]}/{database}") as owner:
            owner.execute(f"DROP OWNED BY {role}")
        admin.execute(f"DROP ROLE {role}")


def connections(uri: str) -> int:
    """How many connections of ours the server has on a catalog's database."""
    with psycopg.connect(os.environ["DELKALAKEDB_TEST_PG_URL"]) as admin:
        row = admin.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s",
            [parse_uri(uri).database],
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_many_threads_share_a_small_pool(catalog_uri: str) -> None:
    with dk.connect(catalog_uri, pool={"size": 3}) as catalog:
        create(catalog)
        failures: list[BaseException] = []

        def work(i: int) -> None:
            try:
                for n in range(3):
                    commit(catalog, add(f"{i}-{n}"))
                    assert f"{i}-{n}" in paths(catalog)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert failures == []
        assert len(paths(catalog)) == 48
        check_integrity(catalog)


def test_writer_that_waits_too_long_for_another_is_told(catalog_uri: str) -> None:
    with dk.connect(catalog_uri, pool={"lock_timeout": 0.2}) as catalog:
        create(catalog)
        with held(catalog, "t"):
            started = time.monotonic()
            with pytest.raises(CatalogBusyError, match=r"0\.2 s|lock timeout"):
                commit(catalog, add("a"))
            assert 0.15 < time.monotonic() - started < 5
        assert commit(catalog, add("a")).version == 1


# --- the pool by itself -----------------------------------------------------------


class Line:
    """Something that is connected, or not any more."""

    def __init__(self) -> None:
        self.open = True

    def close(self) -> None:
        self.open = False


def lines(size: int = 2, connect: type[Line] = Line) -> Pool[Line]:
    return Pool(
        connect,
        close=Line.close,
        healthy=lambda line: line.open,
        size=size,
        timeout_s=0.1,
        name="lines",
    )


def test_line_that_broke_is_replaced() -> None:
    pool = lines()
    with pool.connection() as first:
        pass
    first.open = False
    with pool.connection() as second:
        assert second is not first
        assert second.open


def test_line_that_cannot_be_made_does_not_use_up_the_pool() -> None:
    class Dead(Line):
        def __init__(self) -> None:
            raise OSError("no route")

    pool = lines(1, Dead)
    for _ in range(3):
        with pytest.raises(OSError, match="no route"), pool.connection():
            pass


def test_line_in_use_when_the_pool_closes_is_closed_when_it_comes_back() -> None:
    pool = lines()
    with pool.connection() as line:
        pool.close()
        assert line.open
    assert not line.open
    with pytest.raises(CatalogUnavailableError, match="closed"), pool.connection():
        pass


# --- the garbage collector, which may run anywhere ------------------------------------

# Each line of the modules below meets a collection that ends an abandoned transaction
# and an abandoned session.
COLLECTED = """
import faulthandler, gc, sys
faulthandler.dump_traceback_later(30, exit=True)
import delkalakedb as dk
from delkalakedb.catalog.engine import cache, duckdb, pool, sqlite
from tests.support.actions import add, commit, create, paths
gc.disable()
gc.freeze()
FILES = {{module.__file__ for module in (cache, duckdb, pool, sqlite)}}
MANY = 500
catalog = dk.connect({uri!r}, pool={{"size": MANY + 10}})
create(catalog, "t", add("a"))
met = set()
def abandon():
    held = [dk.transaction({uri!r}).__enter__(), catalog._backend.reading()]
    held[1].__enter__()
    held.append(held)
    return held
abandoned = [abandon() for _ in range(MANY)]
def collect(frame, event, _):
    place = frame.f_code.co_filename, frame.f_lineno
    if place[0] not in FILES:
        return None
    if event == "line" and place not in met and abandoned:
        met.add(place)
        abandoned.pop()
        sys.settrace(None)
        gc.collect()
        sys.settrace(collect)
    return collect
sys.settrace(collect)
with dk.connect({other!r}) as second:
    create(second, "t", add("a"))
with dk.connect({uri!r}) as again:
    commit(again, add("b"))
    assert sorted(paths(again)) == ["a", "b"]
catalog.close()
dk.close()
sys.settrace(None)
gc.unfreeze()
assert len(met) > 50 and abandoned, (len(met), len(abandoned))
print("done")
"""


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"], indirect=True)
def test_collection_at_any_line_ends_what_was_abandoned(
    catalog_uri: str, tmp_path: Path
) -> None:
    other = f"deltasql://duckdb/{tmp_path}/other.db"
    code = COLLECTED.format(uri=catalog_uri, other=other)
    assert run_python(code).strip() == "done"


# --- the end of a process, and its beginning as a fork ----------------------------

LEFT_OPEN = """
import delkalakedb as dk
from tests.support.actions import add, create, paths
catalog = dk.connect({uri!r})
create(catalog, "t", add("a"))
assert paths(catalog) == ["a"]
"""


def test_process_that_ends_without_closing_ends_quietly(catalog_uri: str) -> None:
    assert run_python(LEFT_OPEN.format(uri=catalog_uri)) == ""
    with dk.connect(catalog_uri) as catalog:
        assert paths(catalog) == ["a"]


# A child of each kind: one that closes, one that just ends, one that drops dead.
FORK = """
import os, sys
import delkalakedb as dk
from tests.support.actions import add, commit, create, paths
from delkalakedb.catalog.engine import pool
from delkalakedb.catalog.engine.cache import LISTS
catalog = dk.connect({uri!r})
create(catalog, "t", add("a"))
catalog.snapshot("t").files().read_all()
reader = catalog.snapshot("t").files()
assert reader.read_next_batch().num_rows == 1
for end in (lambda: (catalog.close(), sys.exit()), sys.exit, lambda: os._exit(0)):
    before = len(paths(catalog))
    assert dk.cache_info().entries == 1
    held = [LISTS._lock, pool._lock]
    for lock in held:
        lock.acquire()  # as another thread may at that moment
    if (child := os.fork()) == 0:
        assert dk.cache_info().entries == 0
        for n in range(3):
            commit(catalog, add(f"child-{{os.getpid()}}-{{n}}"))
        assert len(paths(catalog)) >= before + 3
        end()
    for lock in held:
        lock.release()
    for n in range(3):
        commit(catalog, add(f"parent-{{child}}-{{n}}"))
    assert os.waitpid(child, 0)[1] == 0
    assert len(paths(catalog)) == before + 6
assert sum(batch.num_rows for batch in reader) == 0
catalog.close()
"""


@shared
def test_parent_and_child_both_go_on_after_a_fork(catalog_uri: str) -> None:
    run_python(FORK.format(uri=catalog_uri))

    with dk.connect(catalog_uri) as catalog:
        assert len(paths(catalog)) == 19
        check_integrity(catalog)


FORK_LEFT = """
import os, subprocess, sys
import delkalakedb as dk
from tests.support.actions import add, commit, create
OTHER = '''
import delkalakedb as dk
from tests.support.actions import add, commit
with dk.connect({uri!r}) as catalog:
    assert commit(catalog, add("other")).version == 2
'''
catalog = dk.connect({uri!r})
create(catalog, "t", add("a"))
(begun, ready), (go, ended) = os.pipe(), os.pipe()
if os.fork() == 0:
    assert commit(catalog, add("child-1")).version == 1
    os.write(ready, b"1")
    os.close(ended)
    os.read(go, 1)
    assert commit(catalog, add("child-2")).version == 3
    os._exit(0)
os.read(begun, 1)
catalog.close()
subprocess.run([sys.executable, "-c", OTHER], check=True)
os.close(ended)
assert os.wait()[1] == 0
"""


@shared
def test_commits_of_a_child_are_kept_when_its_parent_closes_first(
    catalog_uri: str,
) -> None:
    run_python(FORK_LEFT.format(uri=catalog_uri))

    with dk.connect(catalog_uri) as catalog:
        assert sorted(paths(catalog)) == ["a", "child-1", "child-2", "other"]
        check_integrity(catalog)


FORK_AT_WORK = """
import os
import delkalakedb as dk
from tests.support.actions import add, commit, create
from delkalakedb.errors import CatalogBusyError
catalog = dk.connect({uri!r})
create(catalog, "t", add("a"))
with catalog._backend.writing():
    if (child := os.fork()) == 0:
        for ask in (
            lambda: commit(catalog, add("b"), version=0),
            catalog.tables,
            lambda: (catalog.close(), dk.connect({uri!r})),
        ):
            try:
                ask()
            except CatalogBusyError as error:
                assert "forked while its parent was at work" in str(error)
            else:
                os._exit(1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
commit(catalog, add("c"))
catalog.close()
"""


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_child_forked_while_its_parent_writes_to_sqlite_is_refused(
    catalog_uri: str,
) -> None:
    run_python(FORK_AT_WORK.format(uri=catalog_uri))

    with dk.connect(catalog_uri) as catalog:
        assert sorted(paths(catalog)) == ["a", "c"]
        check_integrity(catalog)


FORK_ALONE = """
import os, sys
import delkalakedb as dk
from tests.support.actions import add, commit, create, paths
from delkalakedb.errors import CatalogBusyError
catalog = dk.connect({uri!r})
create(catalog, "t", add("a"))
for end in (lambda: (catalog.close(), sys.exit()), sys.exit, lambda: os._exit(0)):
    version = catalog.snapshot("t").version
    if (child := os.fork()) == 0:
        for ask in (
            lambda: commit(catalog, add("b"), version=version),
            lambda: catalog.snapshot("t"),
            catalog.tables,
        ):
            try:
                ask()
            except CatalogBusyError as error:
                assert "another process" in str(error)
            else:
                os._exit(1)
        end()
    assert os.waitpid(child, 0)[1] == 0
    commit(catalog, add(f"parent-{{child}}"))
assert len(paths(catalog)) == 4
catalog.close()
"""


@alone
def test_forked_child_of_a_duckdb_catalog_is_told_that_the_parent_has_it(
    catalog_uri: str,
) -> None:
    run_python(FORK_ALONE.format(uri=catalog_uri))

    with dk.connect(catalog_uri) as catalog:
        assert len(paths(catalog)) == 4
        check_integrity(catalog)
