"""Postgres: servers that die, answers that are lost, doors that stay shut."""

import logging
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.catalog.commit import ratify as ratifying
from delkalakedb.catalog.commit.outbox import Lease, Outbox
from delkalakedb.catalog.commit.outcome import Committed
from delkalakedb.catalog.commit.ratify import SqlTxnLogWriter
from delkalakedb.catalog.engine import postgres
from delkalakedb.catalog.engine.preparations import Prepared, preparation
from delkalakedb.errors import (
    CatalogError,
    CatalogUnavailableError,
    TableNotFoundError,
    UnknownOutcomeError,
)
from delkalakedb.model.log import Reads, Staged
from delkalakedb.settings.uri import parse_uri
from delkalakedb.write.committer import commit as publish
from tests.support.actions import add, commit, create, creation, paths, remove, stats
from tests.support.catalogs import slow_down_commits
from tests.support.integrity import check_integrity
from tests.support.servers.postgres import PASSWORD, USER, Server
from tests.support.servers.postgres_proxy import Proxy


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that forces its commits to disk."""
    server = Server("fsync=on")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def uri(server: Server) -> str:
    return uri_of(server.port)


def uri_of(port: int, password: str = PASSWORD) -> str:
    """A catalog in a schema of its own."""
    authority = f"{USER}:{password}@127.0.0.1:{port}"
    return f"deltasql://postgres/{authority}/postgres/s{uuid.uuid4().hex}"


def test_open_pool_lets_nobody_in_with_another_password(server: Server) -> None:
    uri = uri_of(server.port).replace(f":{PASSWORD}@", "@")
    with dk.connect(uri, sql={"password": PASSWORD}) as catalog:
        catalog.init()
        assert catalog.tables() == []
        with pytest.raises(CatalogUnavailableError, match="password"):
            dk.connect(uri, sql={"password": "wrong"})


# --- a server that dies -----------------------------------------------------------


class Writer(threading.Thread):
    """Appends until `stop` is set, and keeps the outcome of each file."""

    def __init__(self, uri: str, name: str) -> None:
        super().__init__(daemon=True)
        self._catalog = dk.connect(uri)
        self._prefix = name
        self.stopped = threading.Event()
        self.made: dict[str, Committed] = {}
        self.failed: dict[str, Exception] = {}

    def run(self) -> None:
        n = 0
        while not self.stopped.is_set():
            path = f"{self._prefix}-{(n := n + 1)}"
            try:
                self.made[path] = commit(self._catalog, add(path), version=0)
            except Exception as error:
                self.failed[path] = error
                time.sleep(0.02)
        self._catalog.close()


def test_server_killed_under_load_loses_and_doubles_nothing(
    server: Server, uri: str
) -> None:
    with dk.connect(uri) as catalog:
        create(catalog)
        writers = [Writer(uri, f"{i}") for i in range(4)]
        for writer in writers:
            writer.start()
        for _ in range(2):
            wait_for_commits(writers)
            server.kill()
            time.sleep(0.1)
            server.start()
        wait_for_commits(writers)
        for writer in writers:
            writer.stopped.set()
            writer.join()

        made = {p: c for writer in writers for p, c in writer.made.items()}
        failed = {p: e for writer in writers for p, e in writer.failed.items()}
        assert failed
        assert {type(error) for error in failed.values()} <= {
            CatalogUnavailableError,
            UnknownOutcomeError,
        }
        there = paths(catalog)
        assert len(there) == len(set(there)) == catalog.table("t").version
        assert set(made) <= set(there)
        for path in set(there) - set(made):
            assert isinstance(failed[path], UnknownOutcomeError)
        log = catalog.log("t")
        for path, committed in made.items():
            assert [a.path for a in log.commit(committed.version)[1:]] == [path]
        check_integrity(catalog)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_commits(writers: list[Writer], more: int = 5) -> None:
    goals = [len(writer.made) + more for writer in writers]
    deadline = time.monotonic() + 60
    while any(len(w.made) < goal for w, goal in zip(writers, goals, strict=True)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- statements that are prepared -------------------------------------------------


def test_statements_of_commits_are_prepared_once(uri: str) -> None:
    with dk.connect(f"{uri}?pool_size=1") as catalog:
        create(catalog)
        found = []
        for number in range(6):
            commit(catalog, add(f"f{number}"))
            with catalog._backend.reading() as session:
                rows = session.query_sql(
                    "SELECT name FROM pg_prepared_statements "
                    "WHERE name LIKE 'dk!_%%' ESCAPE '!'",
                    {},
                )
            found.append({name for (name,) in rows})
        assert len(paths(catalog)) == 6
    assert len(found[-1]) > 5
    assert found[2] == found[-1]


def test_no_two_connections_prepare_statements_of_one_name(uri: str) -> None:
    # A pooler that forwards the server's process id may give both the same session.
    names = []
    with dk.connect(f"{uri}?pool_size=2") as catalog:
        create(catalog)
        with catalog._backend.reading() as first, catalog._backend.reading() as second:
            for session in (first, second):
                for _ in range(7):
                    session.query("load_user", {})
                rows = session.query_sql("SELECT name FROM pg_prepared_statements", {})
                names.append({name for (name,) in rows})
        assert all(names)
        assert names[0].isdisjoint(names[1])
    first_name, second_name = (
        due_twice(Prepared(), "INSERT INTO t VALUES (1)") for _ in range(2)
    )
    assert first_name != second_name


def due_twice(prepared: Prepared, text: str) -> str:
    """Return the name of a statement that is used a second time."""
    assert prepared.due([text], frozenset()) == {}
    return prepared.due([text], frozenset())[text]


def test_commit_after_one_whose_statements_failed_is_as_good(uri: str) -> None:
    """Whether they had been prepared by then makes no difference."""
    with dk.connect(f"{uri}?pool_size=1") as catalog:
        create(catalog)
        commit(catalog, add("a"))
        rule = "ADD CONSTRAINT no_seven CHECK (size_bytes <> 7)"
        with catalog._backend.writing() as session:
            session.script([f"ALTER TABLE dl_files {rule}"])
        for _ in range(3):
            with pytest.raises(CatalogError, match="no_seven"):
                commit(catalog, add("b", size=7))
        commit(catalog, add("c"))
        assert paths(catalog) == ["a", "c"]
        with catalog._backend.writing() as session:
            session.script(["ALTER TABLE dl_files DROP CONSTRAINT no_seven"])


def test_commits_read_few_rows_before_the_server_has_statistics(uri: str) -> None:
    bounds = {"x": (1, 2, 0), "s": ("a", "b", 0)}
    files = [add(f"f{n}", stats=stats(1, **bounds)) for n in range(20_000)]
    names = ("load_files_at_paths", "remove_files")
    with dk.connect(uri) as catalog:
        create(catalog, "t", *files)
        plans = [
            line
            for name in (*names, "remove_number_stats", "remove_text_stats")
            for line in generic_plan(catalog, name)
        ]
    assert any("Index" in line for line in plans)
    assert not [line for line in plans if "Seq Scan" in line]


def generic_plan(catalog: Catalog, name: str) -> list[str]:
    """How a statement is carried out, whatever it is given."""
    text = preparation(catalog._backend.statements[name], "asked")
    given = ", ".join(["NULL"] * len({*re.findall(r"\$\d+", text)}))
    with catalog._backend.writing() as session:
        session.script(["SET LOCAL plan_cache_mode TO force_generic_plan", text])
        rows = session.query_sql(f"EXPLAIN EXECUTE asked ({given})", {})
        session.script(["DEALLOCATE asked"])
    return [line for (line,) in rows]


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_writers_take_turns_whatever_the_database_isolates_by_default(
    server: Server, uri: str, level: str
) -> None:
    role = f"r{uuid.uuid4().hex}"
    with (
        dk.connect(uri) as catalog,
        catalog._backend.writing(any_version=True) as session,
    ):
        session.script(
            [
                f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD '{PASSWORD}'",
                f"ALTER ROLE {role} SET default_transaction_isolation TO '{level}'",
            ]
        )
    with dk.connect(uri.replace(f"/{USER}:", f"/{role}:")) as catalog:
        create(catalog)
        with ThreadPoolExecutor(4) as threads:
            names = [f"f{n}" for n in range(40)]
            made = list(threads.map(lambda name: commit(catalog, add(name)), names))
        assert sorted(c.version for c in made) == list(range(1, 41))
        check_integrity(catalog)


def test_role_that_owns_a_schema_needs_no_right_to_make_one(uri: str) -> None:
    schema, role = parse_uri(uri).schema, f"r{uuid.uuid4().hex}"
    other = uri_of(parse_uri(uri).port or 0)
    with (
        dk.connect(other) as catalog,
        catalog._backend.writing(any_version=True) as session,
    ):
        session.script(
            [
                f"CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'",
                f"CREATE SCHEMA {schema} AUTHORIZATION {role}",
            ]
        )
    with dk.connect(uri.replace(f"/{USER}:", f"/{role}:")) as catalog:
        create(catalog)
        assert [table.name for table in catalog.tables()] == ["t"]


def test_odd_schema_names_are_used_and_long_ones_refused(server: Server) -> None:
    uri = uri_of(server.port)
    odd = uri.replace("/postgres/s", "/postgres/50%25%22%20s")
    with dk.connect(odd) as catalog:
        create(catalog)
        assert [table.name for table in catalog.tables()] == ["t"]
    with pytest.raises(CatalogError, match="name can't be longer than 63 bytes"):
        dk.connect(f"{uri}{'x' * 40}")


def test_database_of_another_encoding_is_refused(uri: str) -> None:
    name = f"d{uuid.uuid4().hex}"
    asked = f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
    place = parse_uri(uri)
    settings = f"host=127.0.0.1 port={place.port} user={USER} password={PASSWORD}"
    with psycopg.connect(f"{settings} dbname=postgres", autocommit=True) as connection:
        connection.execute(asked)

    with pytest.raises(CatalogError, match="encoding is LATIN1; a catalog needs UTF8"):
        dk.connect(replace(place, database=name))


def test_bulk_reads_are_given_up_after_the_statement_timeout(uri: str) -> None:
    slow = "SELECT CAST(1 AS BIGINT) AS a FROM (SELECT pg_sleep(60)) s"
    with dk.connect(uri, pool={"statement_timeout": 0.2}) as catalog:
        started = time.monotonic()
        with pytest.raises(CatalogError, match="statement timeout"):
            list(catalog._backend.batches(slow, {}, pa.schema([("a", pa.int64())])))
        assert time.monotonic() - started < 50


def test_catalog_that_was_dropped_is_made_anew_for_who_names_it(
    server: Server, tmp_path: Path
) -> None:
    uri = f"{uri_of(server.port)}/t?location={tmp_path}/t"
    dk.write_deltalake(uri, pa.table({"id": [1]}))
    schema = parse_uri(uri).schema
    with (
        dk.connect(uri_of(server.port)) as other,
        other._backend.writing(any_version=True) as session,
    ):
        session.script([f"DROP SCHEMA {schema} CASCADE"])
    shutil.rmtree(tmp_path / "t")

    with pytest.raises(CatalogError, match="does not exist"):
        dk.DeltaTable(uri)
    dk.write_deltalake(uri, pa.table({"id": [2]}))

    assert dk.DeltaTable(uri).to_pyarrow_table()["id"].to_pylist() == [2]


# --- an answer that is lost -------------------------------------------------------


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def cuttable(proxy: Proxy) -> Iterator[Catalog]:
    """A catalog behind the proxy, in the clear so that it can read along."""
    with dk.connect(uri_of(proxy.port) + "?sslmode=disable") as catalog:
        catalog.init()
        yield catalog


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_lost_answer_to_a_commit_is_found_out(
    proxy: Proxy, cuttable: Catalog, moment: str
) -> None:
    create(cuttable, "t", add("a"))

    proxy.cut = moment
    committed = commit(cuttable, add("b"), remove(add("a")))

    assert proxy.cuts == 1
    assert (committed.version, committed.num_added_files) == (1, 1)
    assert committed.num_removed_files == 1
    (told, _) = cuttable.snapshot("t").history()
    assert committed.transaction_id == told.transaction_id
    assert paths(cuttable) == ["b"]
    check_integrity(cuttable)


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_commit_whose_answer_was_lost_is_published_at_once(
    proxy: Proxy, cuttable: Catalog, tmp_path: Path, moment: str
) -> None:
    """The lease that came with it is known, whichever attempt it was."""
    publish(cuttable, creation(location=str(tmp_path)))

    proxy.cut = moment
    publish(cuttable, Staged("t", (add("a"),), Reads(version=0)))

    assert proxy.cuts == 1
    mirror = Outbox(cuttable._backend).load("t")
    assert mirror.published_version == mirror.ratified_version == 1
    assert mirror.lease_owner is None
    assert paths(cuttable) == ["a"]
    check_integrity(cuttable)


def test_commit_that_arrives_while_it_is_looked_for_is_made_once(
    proxy: Proxy, cuttable: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lookup waits for the lock of the transaction that it looks for."""
    publish(cuttable, creation(location=str(tmp_path)))
    append = Staged("t", (add("a"),), Reads(version=0))
    attempt, resolve, attempts = SqlTxnLogWriter._attempt, SqlTxnLogWriter._resolve, 0

    def attempted(*args: Any) -> Any:
        nonlocal attempts
        attempts += 1
        return attempt(*args)

    def resolved(*args: Any) -> Any:
        assert proxy.deliver is not None
        threading.Timer(0.3, proxy.deliver).start()
        return resolve(*args)

    monkeypatch.setattr(SqlTxnLogWriter, "_attempt", attempted)
    monkeypatch.setattr(SqlTxnLogWriter, "_resolve", resolved)
    proxy.cut = "late"
    done = publish(cuttable, append)

    assert isinstance(done, tuple)
    assert [made.version for made in done] == [1]
    assert (proxy.cuts, attempts) == (1, 1)
    assert [c.version for c in cuttable.snapshot("t").history()] == [1, 0]
    mirror = Outbox(cuttable._backend).load("t")
    assert mirror.published_version == 1
    assert mirror.lease_owner is None
    check_integrity(cuttable)


def test_files_of_a_commit_that_may_still_arrive_stay(
    proxy: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_POOL__LOCK_TIMEOUT", "0.2")
    monkeypatch.setenv("DELKALAKEDB_CONCURRENCY__RETRIES", "2")
    uri = f"{uri_of(proxy.port)}/t?sslmode=disable&location={tmp_path}"
    dk.write_deltalake(uri, pa.table({"x": [1]}))
    table = dk.DeltaTable(uri)

    proxy.cut = "late"
    with pytest.raises(
        UnknownOutcomeError,
        match=r"the outcome is unknown, because .* Look for transaction",
    ):
        dk.write_deltalake(table, pa.table({"x": [2]}), mode="append")
    assert proxy.deliver is not None
    proxy.deliver()
    wait_for(lambda: dk.DeltaTable(uri).version() == 1)

    found = dk.DeltaTable(uri).to_pyarrow_table()["x"].to_pylist()
    assert sorted(found) == [1, 2]


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_lost_answer_to_a_commit_of_new_tables_is_found_out(
    proxy: Proxy, cuttable: Catalog, moment: str
) -> None:
    proxy.cut = moment
    outcomes = cuttable.commit(
        creation("right", add("r")), creation("left", add("l"), add("m"))
    )

    assert proxy.cuts == 1
    assert [(o.table, o.version) for o in outcomes] == [("right", 0), ("left", 0)]
    assert [t.name for t in cuttable.tables()] == ["left", "right"]
    assert paths(cuttable, "left") == ["l", "m"]
    check_integrity(cuttable)


def test_lost_answer_tells_the_commits_in_the_order_they_were_staged(
    proxy: Proxy, cuttable: Catalog
) -> None:
    cuttable.commit(creation("b"), creation("a"))
    names = ["a", "b", "a"]
    commits = [
        Staged(name, (add(f"f{n}"),), Reads(version=0)) for n, name in enumerate(names)
    ]

    proxy.cut = "after"
    outcomes = cuttable.commit(*commits)

    assert proxy.cuts == 1
    found = [(o.table, o.version) for o in outcomes]
    assert found == [("a", 1), ("b", 1), ("a", 2)]


def test_lost_answer_is_found_out_though_the_table_has_another_name_now(
    server: Server,
    proxy: Proxy,
    cuttable: Catalog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    create(cuttable)
    lock = ratifying.lock_queries

    with dk.connect(replace(cuttable.uri, port=server.port)) as other:

        def rename_first(*asked: Any) -> Any:
            # The first call locks for the commit itself, the second one to look it up.
            if proxy.cuts:
                other.rename_table("t", "u")
            return lock(*asked)

        monkeypatch.setattr(ratifying, "lock_queries", rename_first)
        proxy.cut = "after"
        committed = commit(cuttable, add("a"))

    assert proxy.cuts == 1
    assert (committed.table, committed.version) == ("u", 1)
    assert cuttable.table("u").version == 1


def test_commit_that_the_server_is_still_at_is_waited_for(
    proxy: Proxy, cuttable: Catalog
) -> None:
    create(cuttable)
    slow_down_commits(cuttable, seconds=1)

    proxy.cut = "during"
    started = time.monotonic()
    committed = commit(cuttable, add("a"))

    assert proxy.cuts == 1
    assert time.monotonic() - started > 0.9
    assert committed.version == cuttable.table("t").version == 1
    assert paths(cuttable) == ["a"]


def test_commit_while_the_server_ends_the_session_tells_the_truth(
    server: Server, proxy: Proxy, cuttable: Catalog
) -> None:
    create(cuttable)
    ended = threading.Event()

    with dk.connect(uri_of(server.port)) as other:

        def end() -> None:
            end_sessions(other)
            ended.set()

        proxy.at_commit = end
        committed = commit(cuttable, add("a"))
        assert ended.wait(10)

    assert committed.version == cuttable.table("t").version == 1
    assert paths(cuttable) == ["a"]


def test_stopped_writer_holds_up_others_for_a_bounded_time(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "_IDLE_S", 0.1)
    with dk.connect(uri, pool={"lock_timeout": 1.5}) as catalog:
        create(catalog)
        stopped = catalog._backend.writing()
        stopped.__enter__().values("lock_table", {"name": "t"})
        # As if this process stood still since: it sends nothing more.
        time.sleep(0.5)
        commit(catalog, add("f"))
        with pytest.raises(CatalogError):
            stopped.__exit__(None, None, None)
        assert paths(catalog) == ["f"]


def test_renewals_hold_no_lock_between_messages(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[tuple[str, str]]()
    together = postgres._PostgresSession._together

    def noted(session: Any, queries: Any) -> Any:
        sent.append((queries[0][0], queries[-1][0]))
        return together(session, queries)

    with dk.connect(uri) as catalog:
        create(catalog)
        outbox = Outbox(catalog._backend)
        lease = outbox.take("t", 60)
        assert isinstance(lease, Lease)
        monkeypatch.setattr(postgres._PostgresSession, "_together", noted)
        assert outbox.renew(lease)
        assert outbox.claim_checkpoint(lease.mirror, 5, 60)
        assert outbox.keeping_claim(lease.mirror, 5, 60, 60)._renew()
    assert sent == 3 * [("BEGIN", "COMMIT")]


def test_outcome_that_cannot_be_found_out_is_said_to_be_unknown(
    proxy: Proxy,
) -> None:
    uri = uri_of(proxy.port) + "?sslmode=disable"
    with dk.connect(uri, concurrency={"retries": 2}) as catalog:
        create(catalog)

        proxy.cut = "after"
        proxy.refuse()
        with pytest.raises(UnknownOutcomeError, match="the outcome is unknown"):
            commit(catalog, add("a"), version=0)


def test_idle_connections_that_the_server_ended_are_replaced(uri: str) -> None:
    with dk.connect(uri) as catalog:
        create(catalog, "t", add("a"))
        assert paths(catalog) == ["a"]
        end_sessions(catalog)
        assert paths(catalog) == ["a"]
        commit(catalog, add("b"))
        assert paths(catalog) == ["a", "b"]


def end_sessions(catalog: Catalog) -> None:
    """Let the server end all idle sessions of the catalog, as a restart does."""
    with catalog._backend.reading() as session:
        session.query_sql(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
            {},
        )


# --- a server that can't be reached -----------------------------------------------


def refusal(uri: str) -> CatalogUnavailableError:
    """The error of a catalog that can't be opened, checked for what it gives away."""
    with pytest.raises(CatalogUnavailableError) as caught:
        dk.connect(uri)
    error = caught.value
    told = "".join(traceback.format_exception(error))
    for text in (str(error), repr(error), told):
        assert "pa55word" not in text
        assert PASSWORD not in text
    assert f"deltasql://postgres/{USER}:***@" in str(error)
    assert not isinstance(error, TableNotFoundError)
    return error


def test_port_that_nobody_listens_on_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert "Connection refused" in str(refusal(uri_of(port)))


def test_server_that_never_answers_is_unavailable_after_the_timeout() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        error = refusal(uri_of(port) + "?connect_timeout=2")
    assert "timeout" in str(error)


def test_wrong_password_is_unavailable(server: Server) -> None:
    error = refusal(uri_of(server.port, password="pa55word"))
    assert "password authentication failed" in str(error)


def test_missing_database_is_unavailable(uri: str) -> None:
    error = refusal(uri.replace("/postgres/s", "/nowhere/s"))
    assert 'database "nowhere" does not exist' in str(error)


def test_outage_is_never_a_missing_table(proxy: Proxy, cuttable: Catalog) -> None:
    create(cuttable, "t", add("a"))
    snapshot = cuttable.snapshot("t")
    proxy.refuse()
    proxy.hang_up()

    for action in (
        cuttable.tables,
        lambda: cuttable.table("t"),
        lambda: snapshot.files().read_all(),
        lambda: cuttable.commit(Staged("t", [add("b")], Reads(0))),
    ):
        with pytest.raises(CatalogUnavailableError, match="Connection refused"):
            action()


def test_password_is_neither_stored_nor_logged(
    uri: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with dk.connect(uri) as catalog:
        create(catalog, "t", add("a"))
        stored = dump(catalog)
        assert PASSWORD not in repr(catalog)
    assert USER in stored
    assert PASSWORD not in stored
    assert "delkalakedb" in caplog.text
    assert PASSWORD not in caplog.text


def dump(catalog: Catalog) -> str:
    """Every row of every table of the catalog's schema, as text."""
    with catalog._backend.reading() as session:
        tables = session.query_sql(
            "SELECT tablename FROM pg_tables WHERE schemaname = %(schema)s",
            {"schema": catalog.uri.schema},
        )
        assert len(tables) > 8
        return "".join(
            row[0]
            for (table,) in tables
            for row in session.query_sql(f"SELECT CAST(t AS TEXT) FROM {table} t", {})
        )


def test_missing_driver_names_the_extra_and_leaves_other_engines_alone(
    tmp_path: Path,
) -> None:
    script = f"""
import sys
sys.modules["psycopg"] = None
import delkalakedb as dk
from delkalakedb.errors import CatalogError
dk.connect("deltasql://sqlite/{tmp_path}/meta.db").close()
try:
    dk.connect("deltasql://postgres/u:pa55word@127.0.0.1/db/public")
except CatalogError as error:
    print(error)
"""
    told = run_python(script)
    assert "pip install 'delkalakedb[postgres]'" in told
    assert "psycopg" in told
    assert "pa55word" not in told


def run_python(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr
