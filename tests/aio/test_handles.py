"""The names of `delkalakedb.aio`: what they return, and that the loop goes on."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb import aio, waits
from delkalakedb.errors import CommitFailedError, DeltaError, TableNotFoundError
from tests.support.actions import add, creation, remove, staged, stats
from tests.support.catalogs import held

on_postgres = pytest.mark.parametrize("engine", ["postgres"], indirect=True)


async def opened(uri: str) -> aio.Catalog:
    """An asynchronous catalog with a table of three files."""
    catalog = await aio.connect(uri)
    files = [add(f"{n}.parquet", stats=stats(x=(n, n, 0))) for n in range(3)]
    await catalog.commit(creation("t", *files))
    return catalog


@pytest.mark.every_engine
def test_names_are_awaited(new_catalog_uri: str) -> None:
    async def run() -> None:
        async with aio.connect(new_catalog_uri) as catalog:
            await catalog.write("sales", pa.table({"id": [1, 2, 3]}))
            table = await catalog.open("sales")
            assert [one.name for one in await catalog.tables()] == ["sales"]
            assert (await catalog.table("sales")).num_files == 1
            assert (await catalog.files("sales", columns=["path"])).num_rows == 1
            assert (await catalog.plan("sales", "id > 3")).num_rows == 0
            assert [one.version for one in await catalog.history("sales")] == [0]
            snapshot = await catalog.snapshot("sales")
            assert len(await snapshot.paths()) == 1
            assert [f.num_records async for f in snapshot.iter_files()] == [3]
            assert (await table.delete("id = 1"))["num_deleted_rows"] == 1
            await aio.write_deltalake(table, pa.table({"id": [4]}), mode="append")
            await table.update_incremental()
            assert table.version() == 2
            assert [entry["version"] for entry in await table.history()] == [2, 1, 0]
            assert (await table.to_pyarrow_table()).num_rows == 3
            assert (await catalog.open("sales", 0)).version() == 0
            done = await table.run(lambda sync: sync.optimize.compact())
            assert done["numFilesRemoved"] == 2
        assert catalog.closed

    asyncio.run(run())


async def _fail(catalog: aio.Catalog) -> None:
    async with aio.transaction(catalog) as tx:
        await tx.delete("a")
        raise ZeroDivisionError


@pytest.mark.every_engine
def test_transaction_commits_at_the_end_of_its_block(new_catalog_uri: str) -> None:
    rows = pa.table({"id": [1]})

    async def run() -> None:
        async with aio.connect(new_catalog_uri) as catalog:
            async with aio.transaction(catalog) as tx:
                await asyncio.gather(*(tx.write(name, rows) for name in "abc"))
            assert {done.table for done in tx.committed} == {"a", "b", "c"}
            with pytest.raises(ZeroDivisionError):
                await _fail(catalog)
            assert (await catalog.table("a")).version == 0

    asyncio.run(run())


def test_commit_and_its_conflict_are_awaited(new_catalog_uri: str) -> None:
    async def run() -> None:
        async with await opened(new_catalog_uri) as catalog:
            gone = remove(add("0.parquet"))
            one = staged(catalog.sync, gone, version=0)
            (done,) = await catalog.commit(one)
            assert done.version == 1
            with pytest.raises(CommitFailedError):
                await catalog.commit(one)
            with pytest.raises(TableNotFoundError):
                await catalog.snapshot("absent")

    asyncio.run(run())


def test_table_by_path_has_the_same_methods(tmp_path: Path) -> None:
    async def run() -> None:
        await aio.write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
        table = await aio.DeltaTable.open(tmp_path / "t")
        assert (await table.to_pyarrow_table()).num_rows == 1
        with pytest.raises(DeltaError, match="by path"):
            await anext(table.follow())

    asyncio.run(run())


async def _plan(catalog: aio.Catalog) -> object:
    return await catalog.plan("t", "x = 1")


async def _commit(catalog: aio.Catalog) -> object:
    file = add(f"{uuid4()}.parquet")
    read = (await catalog.snapshot("t")).version
    return await catalog.commit(staged(catalog.sync, file, version=read))


CALLS: list[Callable[[aio.Catalog], Awaitable[object]]] = [
    lambda catalog: catalog.open("t"),
    lambda catalog: catalog.snapshot("t", 0),
    lambda catalog: catalog.files("t"),
    lambda catalog: catalog.history("t"),
    lambda catalog: catalog.tables(),
    _plan,
    _commit,
]


@on_postgres
@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_call_on_postgres_uses_no_thread(
    new_catalog_uri: str,
    monkeypatch: pytest.MonkeyPatch,
    call: Callable[[aio.Catalog], Awaitable[object]],
) -> None:
    async def run() -> None:
        async with await opened(new_catalog_uri) as catalog:
            # The first one connects, in a thread.
            await call(catalog)

            def refuse(*given: object) -> object:
                raise AssertionError("a thread was asked for")

            with monkeypatch.context() as patched:
                patched.setattr(waits, "_helpers", refuse)
                patched.setattr("delkalakedb.aio.work._threads", refuse)
                await call(catalog)

    asyncio.run(run())


@on_postgres
def test_loop_goes_on_while_a_commit_waits_for_a_lock(new_catalog_uri: str) -> None:
    async def run() -> None:
        async with await opened(new_catalog_uri) as catalog:
            with held(catalog.sync, "t"):
                waiting = asyncio.create_task(_commit(catalog))
                for _ in range(20):
                    await asyncio.sleep(0.01)
                    assert (await catalog.snapshot("t")).version == 0
                assert not waiting.done()
            await waiting
            assert (await catalog.snapshot("t")).version == 1

    asyncio.run(run())


@on_postgres
@pytest.mark.parametrize("size", [1, 3])
def test_many_opens_share_the_connections(new_catalog_uri: str, size: int) -> None:
    async def run() -> None:
        async with aio.connect(new_catalog_uri, pool={"size": size}) as catalog:
            for name in "abc":
                await catalog.commit(creation(name))
            asked = [*"abc", "absent", "\ud800"] * 20
            found = await asyncio.gather(
                *map(catalog.snapshot, asked), return_exceptions=True
            )
            for name, answer in zip(asked, found, strict=True):
                if name in "abc":
                    assert isinstance(answer, aio.AsyncSnapshot)
                    assert answer.table.name == name
                else:
                    assert isinstance(answer, dk.errors.DeltalakeDBError)

    asyncio.run(run())


@on_postgres
def test_threads_and_loops_share_the_pool(new_catalog_uri: str) -> None:
    with dk.connect(new_catalog_uri, pool={"size": 2}) as catalog:
        catalog.commit(creation("t"))
        ours = aio.Catalog(catalog)

        async def ask() -> int:
            calls = [ours.history("t") for _ in range(30)]
            return len(await asyncio.gather(*calls))

        counts: list[int] = []
        threads = [
            threading.Thread(target=lambda: counts.append(asyncio.run(ask())))
            for _ in range(2)
        ]
        threads += [
            threading.Thread(target=lambda: counts.append(len(catalog.tables())))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert sorted(counts) == [*[1] * 8, 30, 30]


@on_postgres
def test_call_sees_the_variables_of_its_task(new_catalog_uri: str) -> None:
    mark: ContextVar[str] = ContextVar("mark", default="")

    async def one(text: str) -> tuple[str, str]:
        mark.set(text)

        def look() -> str:
            waits.sleep(0.01)
            seen = mark.get()
            mark.set("of the call")
            return seen

        return await waits.run(look), mark.get()

    async def run() -> None:
        texts = [str(n) for n in range(10)]
        found = await asyncio.gather(*map(one, texts))
        assert found == [(text, text) for text in texts]

    asyncio.run(run())
