"""The public `Catalog`: its SQL tables, and operations that also change files."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack

from delkalakedb import catalog
from delkalakedb.catalog.engine import close_all
from delkalakedb.errors import CatalogNotFoundError, DeltaError
from delkalakedb.mirror.publisher import drain_loaded
from delkalakedb.model.records import Commit, Table
from delkalakedb.settings import Uri

if TYPE_CHECKING:
    from delkalakedb.deltalake import Data, DeltaTable
    from delkalakedb.migrate import Dropped
    from delkalakedb.model.times import Moment
    from delkalakedb.progress import ProgressOption
    from delkalakedb.query import Attachment, Relation
    from delkalakedb.settings import Settings, SettingsDict
    from delkalakedb.write.engines.deltars import NewSchema


class Catalog(catalog.Catalog):
    """The tables of one SQL database; a context manager that closes its connections.

    `connect` opens a catalog. Its tables are found by name, as in a dictionary.

    Examples:
        >>> with dk.connect("deltasql://sqlite/meta.db") as catalog:
        ...     "sales" in catalog, len(catalog), list(catalog)
        (True, 1, ['sales'])
        >>> dk.connect("deltasql://sqlite/meta.db")["sales"].version()
        1
    """

    def open(
        self,
        name: str,
        version: "int | Moment | None" = None,
        *,
        storage_options: dict[str, str] | None = None,
    ) -> "DeltaTable":
        """Open a table as a `DeltaTable`.

        Args:
            name: the table.
            version: a number or a time; the latest version by default.
            storage_options: options of the table's object store.

        Returns:
            The table, on which all methods of deltalake's class work.

        Raises:
            TableNotFoundError: The catalog has no such table.
            VersionNotFoundError: The table has no such version.
            DeltaError: The name isn't a text.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> catalog.open("sales").count(), catalog.open("sales", version=0).count()
            (3, 2)
        """
        if not isinstance(name, str):
            raise DeltaError(f"a table is given by its name, not by {name!r}")
        # Here, because only this imports deltalake, which is slow.
        from delkalakedb.deltalake import DeltaTable

        return DeltaTable((self, name), version, storage_options)

    def __getitem__(self, name: str) -> "DeltaTable":
        """Return a table at its latest version as a `DeltaTable`."""
        return self.open(name)

    def __contains__(self, name: object) -> bool:
        """Return whether the catalog has a table of this name."""
        return name in self._names()

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the tables, sorted."""
        return iter(sorted(self._names()))

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self._names())

    def __bool__(self) -> bool:
        """Return True: a catalog without tables is a catalog, too."""
        return True

    def _names(self) -> Collection[str]:
        try:
            return self._versions().keys()
        except CatalogNotFoundError:
            # The first write creates the catalog.
            return ()

    def write(
        self,
        /,
        name: str,
        data: "Data",
        mode: Literal["error", "append", "overwrite", "ignore"] = "error",
        **options: Any,
    ) -> None:
        """Write to a table, which the first write creates.

        Args:
            name: the table.
            data: anything that gives Arrow data, of which streams are written as they
                come; a list of rows as dictionaries, or a dictionary of columns.
            mode: what to do where the table exists: fail, append, replace its rows, or
                nothing.
            options: the other options of `write_deltalake`.

        Raises:
            TableExistsError: The table exists, and the mode is `error`.
            SchemaMismatchError: The data doesn't match the table's schema.
            CommitFailedError: Other commits conflict with the write even after retries.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> more = pa.table({"id": [4], "city": ["Bern"], "amount": [40.0]})
            >>> catalog.write("sales", more, mode="append")
            >>> catalog["sales"].version()
            2
        """
        from delkalakedb.deltalake import write_deltalake

        write_deltalake((self, name), data, mode=mode, **options)

    def follow(
        self, name: str, since: int | None = None, *, poll: float = 1.0
    ) -> Iterator[Commit]:
        """Yield the commits of a table as they are made, without end.

        No commit is skipped, and none comes twice. A Postgres server tells of commits
        at once. Other databases, replicas and databases behind a pooler are asked.

        Args:
            name: the table.
            since: the version after which commits are wanted; by default the latest.
            poll: seconds between two looks.

        Returns:
            The commits, in the order of their versions.

        Raises:
            TableNotFoundError: The catalog has no such table, or it was dropped.
            VersionNotFoundError: The next version isn't kept any more.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> next(catalog.follow("sales", since=0)).version
            1
        """
        return iter(self._stream(name, since, poll))

    def sql(
        self,
        text: str,
        *,
        params: "Sequence[Any] | Mapping[str, Any] | None" = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "Relation":
        """Return the rows of a query over the catalog's tables, as `dk.sql` does.

        Args:
            text: the query, in DuckDB's SQL.
            params: values for the placeholders, in their order or by name.
            storage_options: of the tables' object stores.

        Returns:
            The query, which runs when its rows are read.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> query = "SELECT city FROM sales WHERE id > ?"
            >>> catalog.sql(query, params=[2]).fetchall()
            [('Kyiv',)]
        """
        from delkalakedb.query import Relation

        return Relation(self, text, params, storage_options)

    def attach(
        self,
        connection: Any,
        name: str = "lake",
        *,
        tables: Collection[str] | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> "Attachment":
        """Make the tables views of a DuckDB connection: `lake.sales` and so on.

        Each query reads the newest versions. `Attachment.refresh` adds tables that were
        created later, and `Attachment.detach` removes the views.

        Args:
            connection: the connection, or a cursor of one.
            name: the database in DuckDB that gets the views.
            tables: the names of the tables; all by default.
            storage_options: of the tables' object stores.

        Returns:
            The attachment; its `detach`, or the end of its `with` block, removes the
            views.

        Raises:
            QueryError: The connection has a database of this name.
            TableNotFoundError: The catalog has no table of a name in `tables`.

        Examples:
            >>> import duckdb
            >>> duck = duckdb.connect()
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> with catalog.attach(duck):
            ...     duck.sql("SELECT count(*) FROM lake.sales").fetchall()
            [(3,)]
        """
        from delkalakedb.query import Attachment

        return Attachment(
            self, connection, name, tables=tables, storage_options=storage_options
        )

    def create_table(
        self,
        name: str,
        schema: "NewSchema",
        *,
        location: str | None = None,
        partition_by: Sequence[str] | str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        description: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Table:
        """Create a table without rows, and publish it.

        Args:
            name: the table's name in the catalog.
            schema: a deltalake `Schema`, an Arrow schema, columns as text such as
                `id BIGINT NOT NULL, day DATE`, or Delta's schema as JSON.
            location: the table's storage location; by default the folder `name` below
                the catalog's data path.
            partition_by: the partition columns.
            configuration: the table properties.
            description: the table's description.
            storage_options: options of the table's object store.

        Returns:
            The new table.

        Raises:
            TableExistsError: Another table has the name or the location.
            DeltaError: The schema isn't valid, or there is no location for the table.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> schema = pa.schema([("day", pa.date32()), ("visits", pa.int64())])
            >>> catalog.create_table("visits", schema, partition_by="day").version
            0
        """
        # Here, because only creating a table imports deltalake, which is slow.
        from delkalakedb.write import create_table

        return create_table(
            self,
            name,
            schema,
            location=location,
            partition_by=partition_by,
            configuration=configuration,
            description=description,
            storage_options=storage_options,
        )

    def rename_table(self, old: str, new: str) -> None:
        """Rename a table; its location and its history stay as they are.

        A later commit under the old name fails with `TableNotFoundError`.

        Args:
            old: the table's name.
            new: the name that the table gets.

        Raises:
            TableNotFoundError: The catalog has no table `old`.
            TableExistsError: Another table has the name `new`.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> catalog.rename_table("sales", "orders")
            >>> list(catalog)
            ['orders']
        """
        from delkalakedb.catalog.admin import rename_table

        rename_table(self, old, new)

    def drop_table(
        self,
        name: str,
        *,
        with_data: bool = False,
        force: bool = False,
        storage_options: Mapping[str, str] | None = None,
        progress: "ProgressOption" = None,
    ) -> "Dropped":
        """Remove a table from the catalog; its files stay as a plain Delta table.

        Args:
            name: the table.
            with_data: also delete all files below the table's location.
            force: remove the table even if some of its versions can't be published;
                these versions are lost.
            storage_options: options of the table's object store.
            progress: called with a `Progress` of the files deleted; True draws a bar.

        Returns:
            The version that the table had, and the number and size of deleted files.

        Raises:
            TableNotFoundError: The catalog has no such table.
            MirrorError: Some versions can't be published, and `force` isn't set.
            DeltaError: With `with_data`, another table lies below the table's location.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> catalog.drop_table("sales").version, len(catalog)
            (1, 0)
        """
        from delkalakedb.migrate import drop_table

        return drop_table(
            self,
            name,
            with_data=with_data,
            force=force,
            storage_options=storage_options,
            progress=progress,
        )


def connect(
    uri: str | Uri,
    settings: "Settings | SettingsDict | None" = None,
    **sections: Unpack["SettingsDict"],
) -> Catalog:
    """Open the catalog that a `deltasql://` URI names.

    A catalog that doesn't exist is created by its first write, or by `init`.

    Args:
        uri: the catalog's URI; a table in the URI is ignored.
        settings: the settings; only the keys that were set in a `Settings` count.
        sections: sections of the settings, such as `pool={"size": 10}` or
            `pool=PoolSettings(size=10)`; they override `settings`.

    Returns:
        The catalog; a `with` statement closes it.

    Raises:
        UriError: The URI can't be parsed.
        ConfigError: A setting is unknown or has a value that isn't allowed.
        CatalogUnavailableError: The database can't be reached.
        CatalogSchemaError: The catalog is of a newer version of this package.

    Examples:
        >>> with dk.connect("deltasql://sqlite/meta.db", pool={"size": 2}) as catalog:
        ...     catalog.settings.pool.size
        2
    """
    return Catalog._of(uri, settings, **sections)


def close() -> None:
    """Close all open catalogs of the process and their connections.

    Versions that wait to be published in the background are published first, within a
    bounded time. A connection that another thread is using closes when the thread has
    finished. A database in memory is kept. A later `connect`, or a table opened by its
    URI, opens new connections.

    Examples:
        >>> catalog = dk.connect("deltasql://sqlite/meta.db")
        >>> dk.close()
        >>> catalog.closed
        True
    """
    drain_loaded()
    close_all()
