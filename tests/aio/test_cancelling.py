"""Cancelled calls: what they did is known, and nothing is left behind."""

import asyncio
import os
import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

import psycopg
import pytest

import delkalakedb as dk
from delkalakedb import aio, waits
from delkalakedb.aio import work
from delkalakedb.errors import CatalogUnavailableError, FinishedError
from delkalakedb.model.log import Staged
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.actions import add, create, paths, staged
from tests.support.catalogs import held, slow_down_commits
from tests.support.integrity import check_integrity
from tests.support.servers.postgres_proxy import Proxy

on_postgres = pytest.mark.parametrize("engine", ["postgres"], indirect=True)
T = TypeVar("T")
READS: list[Callable[[aio.Catalog], Coroutine[Any, Any, object]]] = [
    lambda catalog: catalog.open("t"),
    lambda catalog: catalog.history("t"),
    lambda catalog: catalog.files("t"),
    lambda catalog: catalog.plan("t", "x = 1"),
]
_SIZE = 3
_CALLS = 40


async def cancel_after(task: "asyncio.Task[object]", turns: int) -> None:
    """Cancel a task after some turns of the loop, or milliseconds."""
    for turn in range(turns):
        await asyncio.sleep(0.001 if turn % 5 == 4 else 0)
    task.cancel()


async def outcome_of(task: "asyncio.Task[T]") -> T | BaseException:
    """Return what a task returns or raises."""
    try:
        return await task
    except (asyncio.CancelledError, Exception) as error:
        return error


def check_nothing_is_left(catalog: dk.Catalog, size: int) -> None:
    """Check that `size` connections can be used at once, and no transaction is open."""
    with dk.connect(catalog.uri) as other:
        check_integrity(other)
    sessions = [catalog._backend.reading() for _ in range(size)]
    opened = [session.__enter__() for session in sessions]
    assert len([one.values("load_schema_version", {}) for one in opened]) == size
    for session in sessions:
        session.__exit__(None, None, None)
    if catalog._backend.capabilities.event_loops:
        name = parse_uri(str(catalog.uri)).database
        with psycopg.connect(os.environ["DELKALAKEDB_TEST_PG_URL"]) as admin:
            states = admin.execute(
                "SELECT state FROM pg_stat_activity WHERE datname = %s", (name,)
            ).fetchall()
        assert {state for (state,) in states} <= {"idle"}


@pytest.mark.every_engine
@pytest.mark.parametrize("seed", range(3))
def test_cancelled_commits_are_there_or_not_as_their_callers_know(
    catalog_uri: str, seed: int
) -> None:
    chance = random.Random(seed)
    known: dict[str, bool] = {}

    async def commit(catalog: aio.Catalog, path: str, write: Staged) -> None:
        task = asyncio.create_task(catalog.commit(write))
        await cancel_after(task, chance.randrange(40))
        outcome = await outcome_of(task)
        known[path] = True
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, asyncio.CancelledError)
            done = aio.finished(outcome)
            assert (done is None) == (outcome.__cause__ is None)
            known[path] = done is not None
            assert done is None or done.result[0].version > 0

    async def open_table(catalog: aio.Catalog) -> None:
        task = asyncio.create_task(chance.choice(READS)(catalog))
        await cancel_after(task, chance.randrange(40))
        outcome = await outcome_of(task)
        if isinstance(outcome, BaseException):
            assert isinstance(outcome, asyncio.CancelledError)

    async def run(sync: dk.Catalog) -> None:
        catalog = aio.Catalog(sync)
        files = [add(f"{n}.parquet") for n in range(_CALLS)]
        writes = {one.path: staged(sync, one, version=0) for one in files}
        calls = [commit(catalog, path, write) for path, write in writes.items()]
        await asyncio.gather(*calls, *(open_table(catalog) for _ in range(_CALLS)))
        assert (await catalog.snapshot("t")).version == sum(known.values())

    with dk.connect(catalog_uri, pool={"size": _SIZE}) as catalog:
        create(catalog)
        asyncio.run(run(catalog))
        assert len(known) == _CALLS
        assert set(paths(catalog)) == {path for path, there in known.items() if there}
        check_nothing_is_left(catalog, _SIZE)


@on_postgres
def test_commit_that_waits_for_a_lock_is_cancelled_at_once(catalog_uri: str) -> None:
    async def run(catalog: dk.Catalog) -> None:
        commit = aio.Catalog(catalog).commit(staged(catalog, add("a"), version=0))
        task = asyncio.create_task(commit)
        await asyncio.sleep(0.2)
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        assert time.monotonic() - started < 2
        assert caught.value.__cause__ is None

    with dk.connect(catalog_uri, pool={"size": _SIZE}) as catalog:
        create(catalog)
        with held(catalog, "t"):
            asyncio.run(run(catalog))
        assert catalog.table("t").version == 0
        check_nothing_is_left(catalog, _SIZE)


@pytest.mark.parametrize("moment", ["during", "after", "before", None])
def test_commit_that_is_cancelled_during_commit_says_what_it_did(
    postgres_uri: str, proxy: Proxy, moment: str | None
) -> None:
    parsed = parse_uri(postgres_uri)
    uri = format_uri(replace(parsed, port=proxy.port))

    async def run(catalog: aio.Catalog, write: Staged) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(catalog.commit(write))
        if moment is None:
            sent = asyncio.Event()
            proxy.at_commit = lambda: loop.call_soon_threadsafe(sent.set)
            await sent.wait()
        else:
            proxy.cut = moment
            while proxy.cuts == 0:
                await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        done = aio.finished(caught.value)
        assert done is not None
        assert done.result[0].version == 1

    with dk.connect(uri, pool={"size": _SIZE}) as catalog:
        create(catalog)
        slow_down_commits(catalog, seconds=0.3)
        write = staged(catalog, add("a"), version=0)
        asyncio.run(run(aio.Catalog(catalog), write))
        assert catalog.table("t").version == 1
        check_nothing_is_left(catalog, _SIZE)


def test_call_fails_when_the_server_hangs_up(postgres_uri: str, proxy: Proxy) -> None:
    uri = format_uri(replace(parse_uri(postgres_uri), port=proxy.port))

    async def run(catalog: aio.Catalog, write: Staged) -> None:
        task = asyncio.create_task(catalog.commit(write))
        await asyncio.sleep(0.1)
        proxy.hang_up()
        with pytest.raises(CatalogUnavailableError):
            await task
        # An idle connection of the pool was cut, too.
        assert (await catalog.snapshot("t")).version == 0

    with dk.connect(postgres_uri) as direct, dk.connect(uri) as catalog:
        create(catalog)
        write = staged(catalog, add("a"), version=0)
        with held(direct, "t"):
            asyncio.run(run(aio.Catalog(catalog), write))
        assert catalog.table("t").version == 0
        check_nothing_is_left(catalog, _SIZE)


def test_call_that_is_cancelled_while_libraries_load_has_done_nothing(
    postgres_uri: str,
) -> None:
    async def run(catalog: aio.Catalog) -> None:
        work._load_libraries.cache_clear()
        task = asyncio.create_task(catalog.tables())
        await asyncio.sleep(0)
        task.cancel()
        outcome = await outcome_of(task)
        assert isinstance(outcome, asyncio.CancelledError)
        assert aio.finished(outcome) is None

    with dk.connect(postgres_uri) as catalog:
        asyncio.run(run(aio.Catalog(catalog)))


def test_timeout_tells_what_a_call_did() -> None:
    def slow() -> str:
        time.sleep(0.05)
        return "done"

    async def run() -> None:
        with pytest.raises(TimeoutError) as caught:
            await asyncio.wait_for(work.in_thread(slow), 0.01)
        assert isinstance(aio.finished(caught.value), FinishedError)

    asyncio.run(run())


def test_sealed_call_waits_for_its_end() -> None:
    ended: list[str] = []

    def work(text: str) -> str:
        waits.sleep(0.01)
        waits.seal()
        waits.sleep(0.05)
        ended.append(text)
        if text == "fails":
            raise ValueError(text)
        return text

    async def run() -> None:
        for text, turn in (("early", 0.001), ("late", 0.03), ("fails", 0.03)):
            task = asyncio.create_task(waits.run(work, text))
            await asyncio.sleep(turn)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            done = aio.finished(caught.value)
            assert (done and done.result) == ("late" if text == "late" else None)
            assert isinstance(caught.value.__cause__, ValueError) == (text == "fails")

    asyncio.run(run())
    assert ended == ["late", "fails"]
