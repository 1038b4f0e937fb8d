"""Following a table: each commit comes once, in order, whatever happens meanwhile."""

import asyncio
import os
import threading
import time
from dataclasses import replace
from itertools import islice

import psycopg
import pytest

import delkalakedb as dk
from delkalakedb import aio
from delkalakedb.errors import TableNotFoundError, VersionNotFoundError
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.actions import add, commit, create
from tests.support.servers.pgbouncer import PROGRAM, PgBouncer
from tests.support.servers.postgres_proxy import Proxy

on_postgres = pytest.mark.parametrize("engine", ["postgres"], indirect=True)
# seconds; a test that waits for a poll of so many seconds fails
_NEVER = 1000.0


class Follower:
    """A thread that follows a table up to a version; `seen` are the versions."""

    def __init__(
        self, catalog: dk.Catalog, upto: int, *, poll: float = 0.05, **options: int
    ) -> None:
        self.seen: list[int] = []
        self.error: Exception | None = None
        self._commits = catalog.follow("t", poll=poll, **options)
        self._upto = upto
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for one in self._commits:
                self.seen.append(one.version)
                if one.version == self._upto:
                    break
        except Exception as error:
            self.error = error
        finally:
            self._commits.close()  # type: ignore[attr-defined]

    def join(self) -> list[int]:
        """Wait for the end; return the versions."""
        self._thread.join(20)
        assert not self._thread.is_alive()
        return self.seen


def appends(catalog: dk.Catalog, count: int) -> None:
    """Commit new files."""
    for _ in range(count):
        commit(catalog, add(f"{time.monotonic_ns()}.parquet"))


def listening(catalog: dk.Catalog) -> list[int]:
    """The sessions of the catalog's database that listen."""
    with psycopg.connect(os.environ["DELKALAKEDB_TEST_PG_URL"]) as admin:
        return [
            pid
            for (pid,) in admin.execute(
                "SELECT pid FROM pg_stat_activity "
                "WHERE datname = %s AND query LIKE 'LISTEN %%'",
                (catalog.uri.database,),
            )
        ]


def until_listening(catalog: dk.Catalog) -> int:
    """Wait until the process listens; return the session."""
    for _ in range(400):
        if found := listening(catalog):
            return int(found[0])
        time.sleep(0.02)
    raise AssertionError("nobody listens")


@pytest.mark.every_engine
def test_every_commit_comes_once_and_in_order(catalog: dk.Catalog) -> None:
    async def follow() -> list[int]:
        ours = aio.Catalog(catalog)
        seen = []
        async for one in ours.follow("t", since=0, poll=0.05):
            seen.append(one.version)
            if one.version == 12:
                break
        return seen

    create(catalog)
    appends(catalog, 3)
    followers = [Follower(catalog, 12, since=n) for n in range(3)]
    writer = threading.Thread(target=appends, args=(catalog, 9))
    writer.start()
    assert asyncio.run(follow()) == [*range(1, 13)]
    writer.join()
    for n, follower in enumerate(followers):
        assert follower.join() == [*range(n + 1, 13)]


def test_following_begins_at_the_version_that_was_loaded(catalog_uri: str) -> None:
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    with dk.connect(catalog_uri) as catalog:
        create(catalog)
        appends(catalog, 1)
        table = dk.DeltaTable(uri)
        appends(catalog, 2)
        assert [one.version for one in islice(table.follow(), 2)] == [2, 3]
        assert [one.version for one in islice(table.follow(0), 3)] == [1, 2, 3]
        follower = Follower(catalog, 4)
        appends(catalog, 1)
        assert follower.join() == [4]
    dk.close()


def test_many_commits_come_in_pieces(
    catalog: dk.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delkalakedb.catalog.read.commit_stream._TOGETHER", 2)
    create(catalog)
    appends(catalog, 5)

    assert [c.version for c in islice(catalog.follow("t", 0), 5)] == [*range(1, 6)]


def test_renamed_table_is_still_followed_and_a_dropped_one_is_not(
    catalog: dk.Catalog,
) -> None:
    create(catalog)
    follower = Follower(catalog, 9, since=0)
    catalog.rename_table("t", "u")
    commit(catalog, add("a"), table="u")
    while follower.seen != [1]:
        time.sleep(0.01)
    catalog.drop_table("u", force=True)
    assert follower.join() == [1]
    assert isinstance(follower.error, TableNotFoundError)


def test_version_that_is_gone_or_never_was_is_an_error(catalog: dk.Catalog) -> None:
    create(catalog)
    with pytest.raises(VersionNotFoundError, match="no version 7"):
        next(catalog.follow("t", 7))
    with pytest.raises(TableNotFoundError):
        next(catalog.follow("absent"))


def test_closed_catalog_ends_its_followers(catalog: dk.Catalog) -> None:
    create(catalog)
    follower = Follower(catalog, 1)
    catalog.close()
    follower.join()
    assert "closed" in str(follower.error)


@on_postgres
def test_commit_is_heard_of_at_once(catalog: dk.Catalog) -> None:
    async def follow() -> int:
        async for one in aio.Catalog(catalog).follow("t", poll=_NEVER):
            return one.version
        raise AssertionError

    create(catalog)
    follower = Follower(catalog, 2, poll=_NEVER)
    until_listening(catalog)
    appends(catalog, 1)
    waiting = threading.Thread(target=lambda: seen.append(asyncio.run(follow())))
    seen: list[int] = []
    waiting.start()
    time.sleep(0.1)
    appends(catalog, 1)
    assert follower.join() == [1, 2]
    waiting.join(20)
    assert seen in ([2], [1])


@on_postgres
def test_nobody_listens_once_the_followers_have_ended(catalog: dk.Catalog) -> None:
    create(catalog)
    create(catalog, "other")
    for _ in range(2):
        follower = Follower(catalog, catalog.table("t").version + 1, poll=_NEVER)
        other = catalog.follow("other", poll=0.01)
        until_listening(catalog)
        appends(catalog, 1)
        assert len(follower.join()) == 1
        del other
        for _ in range(400):
            if not listening(catalog):
                break
            time.sleep(0.02)
        assert not listening(catalog)
    with psycopg.connect(os.environ["DELKALAKEDB_TEST_PG_URL"]) as admin:
        held = admin.execute(
            "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database "
            "WHERE l.locktype = 'advisory' AND d.datname = %s",
            (catalog.uri.database,),
        ).fetchone()
    assert held == (0,)


@on_postgres
def test_follower_listens_again_when_its_session_ends(catalog: dk.Catalog) -> None:
    create(catalog)
    follower = Follower(catalog, 3, poll=_NEVER)
    session = until_listening(catalog)
    appends(catalog, 1)
    with psycopg.connect(os.environ["DELKALAKEDB_TEST_PG_URL"]) as admin:
        admin.execute("SELECT pg_terminate_backend(%s)", (session,))
    # While nobody listens.
    appends(catalog, 1)
    until_listening(catalog)
    appends(catalog, 1)
    assert follower.join() == [1, 2, 3]


def test_follower_waits_for_a_server_that_is_down(
    postgres_uri: str, proxy: Proxy, caplog: pytest.LogCaptureFixture
) -> None:
    uri = format_uri(replace(parse_uri(postgres_uri), port=proxy.port))
    with dk.connect(postgres_uri) as direct, dk.connect(uri) as catalog:
        create(direct)
        follower = Follower(catalog, 6, since=0)
        for _ in range(3):
            appends(direct, 2)
            proxy.hang_up()
        assert follower.join() == [*range(1, 7)]


def test_follower_polls_with_a_pool_of_one_connection(postgres_uri: str) -> None:
    with dk.connect(postgres_uri, pool={"size": 1}) as catalog:
        create(catalog)
        follower = Follower(catalog, 2)
        appends(catalog, 2)
        assert follower.join() == [1, 2]
        assert listening(catalog) == []


@pytest.mark.skipif(PROGRAM is None, reason="PgBouncer isn't installed")
def test_follower_polls_behind_a_pooler(postgres_uri: str) -> None:
    pooler = PgBouncer(os.environ["DELKALAKEDB_TEST_PG_URL"], "transaction")
    pooler.start()
    try:
        database = parse_uri(postgres_uri).database
        uri = f"deltasql://postgres/{pooler.authority}/{database}/public"
        with dk.connect(uri) as catalog:
            create(catalog)
            follower = Follower(catalog, 2)
            appends(catalog, 2)
            assert follower.join() == [1, 2]
            assert listening(catalog) == []
        # A writer behind a pooler notifies a follower that isn't.
        with dk.connect(postgres_uri) as direct, dk.connect(uri) as catalog:
            follower = Follower(direct, 3, poll=_NEVER)
            until_listening(direct)
            appends(catalog, 1)
            assert follower.join() == [3]
    finally:
        pooler.stop()
