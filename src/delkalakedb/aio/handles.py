"""Catalogs, snapshots and tables whose methods are awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import aclosing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from delkalakedb import connection, deltalake as face
from delkalakedb.aio.work import at_once, in_thread, looped, threaded, where_it_may
from delkalakedb.catalog import Snapshot
from delkalakedb.catalog.read import CommitStream, Identity
from delkalakedb.errors import FinishedError

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.catalog import Filter
    from delkalakedb.catalog.commit import Committed, Skipped
    from delkalakedb.model.actions import Metadata, Protocol
    from delkalakedb.model.log import Staged
    from delkalakedb.model.records import Commit, File, Table
    from delkalakedb.model.times import Moment
    from delkalakedb.settings import Settings, SettingsDict, Uri

T = TypeVar("T")
# actions; checking and encoding more takes the loop longer than a few ms
_FEW_ACTIONS = 200


class Catalog:
    """A catalog whose methods are awaited; an asynchronous context manager.

    Args:
        sync: the synchronous catalog, which `connect` opens.

    Examples:
        >>> async with dk.aio.connect("deltasql://sqlite/meta.db") as catalog:
        ...     print([table.name for table in await catalog.tables()])
        ['sales']
    """

    def __init__(self, sync: connection.Catalog) -> None:
        self.sync = sync
        self.in_loop = sync._backend.capabilities.event_loops

    tables = looped(connection.Catalog.tables)
    table = looped(connection.Catalog.table)
    init = threaded(connection.Catalog.init)
    write = threaded(connection.Catalog.write)
    create_table = threaded(connection.Catalog.create_table)
    rename_table = threaded(connection.Catalog.rename_table)
    drop_table = threaded(connection.Catalog.drop_table)
    expire = threaded(connection.Catalog.expire)
    close = threaded(connection.Catalog.close)

    @property
    def uri(self) -> Uri:
        """The catalog's URI."""
        return self.sync.uri

    @property
    def closed(self) -> bool:
        """Whether the catalog was closed."""
        return self.sync.closed

    async def open(
        self,
        name: str,
        version: int | Moment | None = None,
        *,
        storage_options: dict[str, str] | None = None,
    ) -> DeltaTable:
        """Open a table.

        Args:
            name: the table.
            version: a number or a time; the latest version by default.
            storage_options: options of the table's object store.

        Returns:
            The table, whose methods are awaited.

        Examples:
            >>> catalog = await dk.aio.connect("deltasql://sqlite/meta.db")
            >>> table = await catalog.open("sales")
            >>> table.version()
            1
        """
        opening = partial(self.sync.open, name, version)
        opened = await where_it_may(self, opening, storage_options=storage_options)
        return DeltaTable(opened)

    async def snapshot(
        self,
        name: str,
        version: int | None = None,
        *,
        timestamp: Moment | None = None,
        timestamp_ms: int | None = None,
        identity: Identity | None = None,
    ) -> AsyncSnapshot:
        """Return a table at its latest version, at a version, or at a time.

        Args:
            name: the table.
            version: the number of the version.
            timestamp: the time; without a zone it is in UTC.
            timestamp_ms: the time in milliseconds since the epoch, instead.
            identity: raise an error if another table has the name now.

        Returns:
            The snapshot, whose methods are awaited.

        Examples:
            >>> catalog = await dk.aio.connect("deltasql://sqlite/meta.db")
            >>> (await catalog.snapshot("sales", 0)).num_files
            1
        """
        found = await where_it_may(
            self,
            self.sync.snapshot,
            name,
            version,
            timestamp=timestamp,
            timestamp_ms=timestamp_ms,
            identity=identity,
        )
        return AsyncSnapshot(self, found)

    async def plan(
        self, name: str, where: Filter, *, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return the files of a table that may hold a matching row, as an Arrow table.

        Args:
            name: the table.
            where: the filter.
            columns: the columns to load; all by default.

        Returns:
            The files.

        Examples:
            >>> catalog = await dk.aio.connect("deltasql://sqlite/meta.db")
            >>> (await catalog.plan("sales", "id > 2")).num_rows
            1
        """
        snapshot = await self.snapshot(name)
        return await snapshot.files(where, columns=columns)

    async def files(
        self, name: str, *, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return all files of a table as an Arrow table.

        Args:
            name: the table.
            columns: the columns to load; all by default.

        Returns:
            The files.

        Examples:
            >>> catalog = await dk.aio.connect("deltasql://sqlite/meta.db")
            >>> (await catalog.files("sales")).num_rows
            2
        """
        snapshot = await self.snapshot(name)
        return await snapshot.files(columns=columns)

    async def history(self, name: str, limit: int | None = None) -> list[Commit]:
        """Return the commits of a table, newest first.

        Args:
            name: the table.
            limit: at most so many.

        Returns:
            The commits.

        Examples:
            >>> catalog = await dk.aio.connect("deltasql://sqlite/meta.db")
            >>> [commit.version for commit in await catalog.history("sales")]
            [1, 0]
        """
        return await (await self.snapshot(name)).history(limit)

    async def commit(self, *staged: Staged) -> tuple[Committed | Skipped, ...]:
        """Commit all of `staged`, or none of it, without publishing.

        A call that is cancelled before COMMIT is sent commits nothing. Later it runs to
        its end, and the cause of the `CancelledError` has the outcome: see `finished`.

        Args:
            staged: the actions for each table, and what the writer read.

        Returns:
            For each of `staged`, the version that it made.

        Raises:
            CommitFailedError: Another commit conflicts with one of `staged`.

        Examples:
            >>> from delkalakedb.model.actions import Txn
            >>> from delkalakedb.model.log import Reads, Staged
            >>> catalog = await dk.aio.connect("deltasql://sqlite/meta.db")
            >>> actions = [Txn(app_id="loader", version=7)]
            >>> staged = Staged("sales", actions, Reads(version=1))
            >>> (done,) = await catalog.commit(staged)
            >>> done.version
            2
        """
        if sum(len(one.actions) for one in staged) > _FEW_ACTIONS:
            return await in_thread(self.sync.commit, *staged)
        return await where_it_may(self, self.sync.commit, *staged)

    async def follow(
        self, name: str, since: int | None = None, *, poll: float = 1.0
    ) -> AsyncGenerator[Commit, None]:
        """Yield the commits of a table as they are made, as `dk.Catalog.follow` does.

        Args:
            name: the table.
            since: the version after which commits are wanted; by default the latest.
            poll: seconds between two looks.

        Returns:
            The commits, in the order of their versions.

        Examples:
            >>> catalog = await dk.aio.connect("deltasql://sqlite/meta.db")
            >>> (await anext(catalog.follow("sales", since=0))).version
            1
        """
        stream = await where_it_may(self, self.sync._stream, name, since, poll)
        async with aclosing(_follow(self, stream)) as commits:
            async for commit in commits:
                yield commit

    async def run(self, function: Callable[[connection.Catalog], T]) -> T:
        """Return the result of a function of the synchronous catalog, in a thread.

        Args:
            function: takes the synchronous catalog.

        Returns:
            What the function returns.

        Examples:
            >>> catalog = await dk.aio.connect("deltasql://sqlite/meta.db")
            >>> await catalog.run(len)
            1
        """
        return await in_thread(function, self.sync)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"aio.Catalog({str(self.uri)!r})"


class AsyncSnapshot:
    """A table at one version, which never changes; methods that load are awaited.

    Args:
        catalog: the table's catalog.
        sync: the synchronous snapshot.

    Examples:
        >>> catalog = await dk.aio.connect("deltasql://sqlite/meta.db")
        >>> snapshot = await catalog.snapshot("sales")
        >>> snapshot.version, snapshot.num_files
        (1, 2)
    """

    def __init__(self, catalog: Catalog, sync: Snapshot) -> None:
        self.catalog = catalog
        self.sync = sync
        self.in_loop = catalog.in_loop

    paths = looped(Snapshot.paths)
    history = looped(Snapshot.history)
    txn_version = looped(Snapshot.txn_version)
    domains = looped(Snapshot.domains)
    num_records = threaded(Snapshot.num_records)

    @property
    def table(self) -> Table:
        """The table at this version."""
        return self.sync.table

    @property
    def version(self) -> int:
        """The version."""
        return self.sync.version

    @property
    def num_files(self) -> int:
        """The number of files of this version."""
        return self.sync.num_files

    @property
    def protocol(self) -> Protocol:
        """The protocol action in force."""
        return self.sync.protocol

    @property
    def metadata(self) -> Metadata:
        """The metaData action in force."""
        return self.sync.metadata

    async def files(
        self, where: Filter | None = None, *, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return the files as an Arrow table.

        Args:
            where: only files that may hold a row that matches.
            columns: the columns to load; all by default.

        Returns:
            The files.

        Examples:
            >>> catalog = await dk.aio.connect("deltasql://sqlite/meta.db")
            >>> snapshot = await catalog.snapshot("sales")
            >>> (await snapshot.files("id > 2")).num_rows
            1
        """

        def load() -> pa.Table:
            return self.sync.files(where, columns=columns).read_all()

        return await where_it_may(self, load)

    async def iter_files(self, where: Filter | None = None) -> AsyncIterator[File]:
        """Yield the files one by one.

        Args:
            where: only files that may hold a row that matches.

        Returns:
            The files.

        Examples:
            >>> catalog = await dk.aio.connect("deltasql://sqlite/meta.db")
            >>> snapshot = await catalog.snapshot("sales")
            >>> [file.num_records async for file in snapshot.iter_files("id > 2")]
            [1]
        """

        def load() -> list[File]:
            return list(self.sync.iter_files(where))

        for file in await in_thread(load):
            yield file

    def __repr__(self) -> str:
        return f"Async{self.sync!r}"


class DeltaTable:
    """A `DeltaTable` whose methods are awaited where they load or write.

    Builders have no counterpart: `run` takes a function that uses them. A handle is for
    one task at a time, because writing moves it.

    Args:
        sync: the synchronous table, which `open` opens.

    Examples:
        >>> uri = "deltasql://sqlite/meta.db?table=sales"
        >>> table = await dk.aio.DeltaTable.open(uri)
        >>> (await table.to_pyarrow_table()).num_rows
        3
    """

    def __init__(self, sync: face.DeltaTable) -> None:
        self.sync = sync
        self.in_loop = sync._loads_in_loop

    version = at_once(face.DeltaTable.version)
    schema = at_once(face.DeltaTable.schema)
    metadata = at_once(face.DeltaTable.metadata)
    protocol = at_once(face.DeltaTable.protocol)
    history = looped(face.DeltaTable.history)
    update_incremental = looped(face.DeltaTable.update_incremental)
    load_as_version = looped(face.DeltaTable.load_as_version)
    file_uris = threaded(face.DeltaTable.file_uris)
    get_add_actions = threaded(face.DeltaTable.get_add_actions)
    partitions = threaded(face.DeltaTable.partitions)
    count = threaded(face.DeltaTable.count)
    to_pyarrow_table = threaded(face.DeltaTable.to_pyarrow_table)
    to_pyarrow_dataset = threaded(face.DeltaTable.to_pyarrow_dataset)
    to_pandas = threaded(face.DeltaTable.to_pandas)
    delete = threaded(face.DeltaTable.delete)
    update = threaded(face.DeltaTable.update)
    restore = threaded(face.DeltaTable.restore)
    vacuum = threaded(face.DeltaTable.vacuum)
    repair = threaded(face.DeltaTable.repair)
    create_checkpoint = threaded(face.DeltaTable.create_checkpoint)
    cleanup_metadata = threaded(face.DeltaTable.cleanup_metadata)

    @classmethod
    async def open(
        cls,
        table_uri: str | Path | tuple[Catalog, str],
        version: int | Moment | None = None,
        storage_options: dict[str, str] | None = None,
    ) -> DeltaTable:
        """Open a table.

        Args:
            table_uri: what `dk.DeltaTable` takes.
            version: a number or a time; the latest version by default.
            storage_options: options of the table's object store.

        Returns:
            The table, whose methods are awaited.

        Examples:
            >>> uri = "deltasql://sqlite/meta.db?table=sales"
            >>> (await dk.aio.DeltaTable.open(uri, 0)).version()
            0
        """
        if isinstance(table_uri, tuple):
            catalog, name = table_uri
            return await catalog.open(name, version, storage_options=storage_options)
        # In a thread, because the catalog may have to be opened first.
        return cls(
            await in_thread(face.DeltaTable, table_uri, version, storage_options)
        )

    @property
    def table_uri(self) -> str:
        """The storage location."""
        return self.sync.table_uri

    async def run(self, function: Callable[[face.DeltaTable], T]) -> T:
        """Return the result of a function of the synchronous table, in a thread.

        Args:
            function: takes the synchronous table.

        Returns:
            What the function returns.

        Examples:
            >>> uri = "deltasql://sqlite/meta.db?table=sales"
            >>> table = await dk.aio.DeltaTable.open(uri)
            >>> await table.run(lambda table: table.count())
            3
        """
        return await in_thread(function, self.sync)

    async def follow(
        self, since: int | None = None, *, poll: float = 1.0
    ) -> AsyncGenerator[Commit, None]:
        """Yield the commits of the table as they are made.

        Args:
            since: the version after which commits are wanted; by default the loaded
                version.
            poll: seconds between two looks, for databases that don't tell of commits.

        Returns:
            The commits, in the order of their versions.

        Examples:
            >>> uri = "deltasql://sqlite/meta.db?table=sales"
            >>> table = await dk.aio.DeltaTable.open(uri)
            >>> (await anext(table.follow(since=0))).version
            1
        """
        stream = self.sync._stream(since, poll)
        async with aclosing(_follow(self, stream)) as commits:
            async for commit in commits:
                yield commit

    def __repr__(self) -> str:
        return f"aio.{self.sync!r}"


async def _follow(
    handle: Catalog | DeltaTable, stream: CommitStream
) -> AsyncGenerator[Commit, None]:
    try:
        while True:
            found = await where_it_may(handle, stream.load)
            for commit in found:
                yield commit
            if found:
                continue
            if handle.in_loop:
                await where_it_may(handle, stream.wait)
            else:
                await asyncio.sleep(stream.poll_s)
    finally:
        stream.close()


class _Connecting:
    """A catalog that is being opened, to be awaited or entered by `async with`."""

    def __init__(self, opening: Callable[[], connection.Catalog]) -> None:
        self._opening = opening

    async def _open(self) -> Catalog:
        return Catalog(await in_thread(self._opening))

    def __await__(self) -> Generator[Any, Any, Catalog]:
        return self._open().__await__()

    async def __aenter__(self) -> Catalog:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(self, *ended: Any) -> None:
        await self._opened.close()


def connect(
    uri: str | Uri,
    settings: Settings | SettingsDict | None = None,
    **sections: Unpack[SettingsDict],
) -> _Connecting:
    """Open a catalog, as `dk.connect` does, to be awaited or for `async with`.

    Args:
        uri: the catalog's URI; a table in the URI is ignored.
        settings: the settings; only the keys that were set in a `Settings` count.
        sections: sections of the settings, such as `pool={"size": 10}`.

    Returns:
        The catalog, once it is awaited.

    Examples:
        >>> catalog = await dk.aio.connect("deltasql://sqlite/meta.db")
        >>> (await catalog.table("sales")).version
        1
    """
    return _Connecting(partial(connection.connect, uri, settings, **sections))


async def write_deltalake(
    table_or_uri: str | Path | DeltaTable | tuple[Catalog, str],
    data: Any,
    **options: Any,
) -> None:
    """Write to a table as `dk.write_deltalake` does, in a thread.

    Args:
        table_or_uri: a table, a URI, a pair of a catalog and a name, or a path.
        data: anything that gives Arrow data.
        options: the other arguments of `dk.write_deltalake`.

    Examples:
        >>> uri = "deltasql://sqlite/meta.db?table=sales"
        >>> more = pa.table({"id": [4], "city": ["Bern"], "amount": [40.0]})
        >>> await dk.aio.write_deltalake(uri, more, mode="append")
        >>> dk.DeltaTable(uri).count()
        4
    """
    target: Any = table_or_uri
    if isinstance(table_or_uri, DeltaTable):
        target = table_or_uri.sync
    elif isinstance(table_or_uri, tuple):
        target = (table_or_uri[0].sync, table_or_uri[1])
    await in_thread(face.write_deltalake, target, data, **options)


def finished(error: BaseException) -> FinishedError | None:
    """Return what a cancelled call did, if it was cancelled too late.

    Args:
        error: the `CancelledError` or `TimeoutError` of the call.

    Returns:
        The error whose `result` is what the call returned; None if there is none.

    Examples:
        >>> import asyncio
        >>> table = await dk.aio.DeltaTable.open("deltasql://sqlite/meta.db?table=sales")
        >>> try:
        ...     async with asyncio.timeout(0):
        ...         await table.delete("id = 1")
        ... except TimeoutError as error:
        ...     done = dk.aio.finished(error)
        >>> done is None or done.result["num_deleted_rows"] == 1
        True
    """
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, FinishedError):
        cause = cause.__cause__ or cause.__context__
    return cause
