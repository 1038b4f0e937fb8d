"""The contract of a database engine that holds a catalog.

A backend says how to connect, how rows go in and out in bulk, and what the errors of
its driver mean. All SQL is in `.sql` files. Code above this room uses a `Session`.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache, lru_cache
from importlib import import_module
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Union

import msgspec

from delkalakedb.errors import (
    CatalogError,
    CatalogNotFoundError,
    CatalogSchemaError,
    CatalogUnavailableError,
)
from delkalakedb.telemetry import STATEMENT, measured
from delkalakedb.waits import Bell, compute

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.catalog.engine.cache import Cache
    from delkalakedb.settings import CacheSettings, PoolSettings, Settings, Uri

# What drivers raise for a number or a text that doesn't fit into any column.
UNFIT = (OverflowError, UnicodeEncodeError)
R = TypeVar("R")
Row = tuple[Any, ...]
Params = Mapping[str, Any]
# The kind of a row, a named statement whose rows are of that kind, and its parameters.
Query = tuple[Callable[..., Any], str, Params]
# Known by name, because the registry of entry points has to be read from disk.
_BUILT_IN = {
    "duckdb": "DuckDBBackend",
    "postgres": "PostgresBackend",
    "sqlite": "SqliteBackend",
}
# rows of Arrow arrays that become Python objects at once
_LISTED = 1000


if TYPE_CHECKING:
    # The name and version of this package, as commits record it.
    CLIENT: str
else:

    def __getattr__(name: str) -> str:
        # On first use, because loading importlib.metadata would slow down opening.
        if name != "CLIENT":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import version

        return f"delkalakedb/{version('delkalakedb')}"


class Actor(msgspec.Struct, frozen=True):
    """The user, host and client that commit, for the audit trail."""

    db_user: str | None
    os_user: str | None
    host: str | None
    client: str


class Capabilities(msgspec.Struct, frozen=True):
    """The features in which engines differ."""

    # Writers of different tables run concurrently and lock their tables. Without table
    # locks one writer at a time holds the whole database.
    table_locks: bool
    # Plans use btrees over (class, hi). Without them a plan scans the column.
    interval_index: bool
    # The hash of one path finds a file faster than a list of hashes does.
    single_path_lookup: bool = False
    # The newest heads stay in memory, because no other process can write.
    keeps_heads: bool = False
    # The driver waits for the server without blocking an event loop.
    event_loops: bool = False


class Insert(msgspec.Struct, frozen=True):
    """Rows for a table, held by column because many rows are made faster that way.

    A column is a sequence or an Arrow array.
    """

    table: str
    columns: Mapping[str, "Sequence[Any] | pa.Array"]

    @classmethod
    def of_rows(cls, table: str, names: Sequence[str], rows: Sequence[Row]) -> "Insert":
        """Return the insert of `rows`, whose columns are `names`."""
        return cls(table, dict(zip(names, zip(*rows, strict=True), strict=True)))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self) -> Iterator[Row]:
        """Yield the rows one by one."""
        for start in range(0, len(self), _LISTED):
            some = (values[start : start + _LISTED] for values in self.columns.values())
            yield from zip(*map(listed, some), strict=True)

    def sql(self, mark: str) -> str:
        """Return the statement for one row, with `mark` for each value."""
        return _insertion(self.table, tuple(self.columns), 1, mark)

    def flat(self, mark: str) -> tuple[str, list[Any]]:
        """Return one statement for all rows, and the values of the rows.

        Use it for a few rows only. The statement for a single row omits columns that
        are NULL, because a NULL costs as much as a value.
        """
        columns = {name: listed(values) for name, values in self.columns.items()}
        size = len(self)
        if size == 1:
            columns = {n: one for n, one in columns.items() if one[0] is not None}
        text = _insertion(self.table, tuple(columns), size, mark)
        return text, [*chain.from_iterable(zip(*columns.values(), strict=True))]


@lru_cache(maxsize=256)
def _insertion(table: str, columns: tuple[str, ...], size: int, mark: str) -> str:
    """Return the statement that inserts `size` rows, with `mark` for each value."""
    row = f"({', '.join([mark] * len(columns))})"
    rows = ", ".join([row] * size)
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES {rows}"


def listed(values: "Sequence[Any] | pa.Array") -> Sequence[Any]:
    """Return the values of a column as Python objects."""
    return values.to_pylist() if hasattr(values, "to_pylist") else values


def columns_to_batch(
    columns: Sequence[Sequence[Any]], schema: "pa.Schema"
) -> "pa.RecordBatch":
    """Return `columns` as Arrow; numbers become booleans where `schema` says so."""
    import pyarrow as pa

    arrays = [
        pa.array(
            map(bool, values) if pa.types.is_boolean(field.type) else values, field.type
        )
        for values, field in zip(columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class Run(msgspec.Struct, frozen=True):
    """A named statement that changes rows."""

    name: str
    params: Params


Write = Union[Insert, Run]  # noqa: UP007


class Session(ABC):
    """One connection, in a transaction or for reads.

    Rows get their types here. Callers read statements by `rows`, `values` and
    `batch_sql`, and only test whether the answer of a `query` method is empty.
    """

    engine: ClassVar[str]
    # The engine's statements by name.
    statements: Mapping[str, str]
    # With `keeps_heads`, what `Backend.heads` holds once this transaction is committed.
    made: dict[Hashable, Any]

    def rows(self, kind: Callable[..., R], name: str, params: Params) -> list[R]:
        """Return the rows of a named statement, each made by `kind` of its columns."""
        return list(starmap(kind, self.query(name, params)))

    def values(self, name: str, params: Params) -> list[Any]:
        """Return the values of a named statement that selects one column."""
        return [value for (value,) in self.query(name, params)]

    def values_sql(self, sql: str, params: Params) -> list[Any]:
        """Return the values of a composed statement that selects one column."""
        return [value for (value,) in self.query_sql(sql, params)]

    def batch_sql(
        self, sql: str, params: Params, schema: "pa.Schema"
    ) -> "pa.RecordBatch":
        """Return the rows of a composed statement as Arrow, sorted by first column."""
        rows = self.query_sql(sql, params)

        def batch() -> "pa.RecordBatch":
            columns = list(zip(*sorted(rows), strict=True)) or [()] * len(schema)
            return columns_to_batch(columns, schema)

        return compute(len(rows), batch)

    def rows_many(self, queries: Sequence[Query]) -> list[list[Any]]:
        """Return the rows of several named statements, each with its own kind of row.

        The statements take one round trip where the engine allows it.
        """
        return self.typed(self.query_many, queries)

    def typed(
        self,
        send: Callable[[Sequence[tuple[str, Params]]], list[list[Row]]],
        queries: Sequence[Query],
    ) -> list[list[Any]]:
        """Return what `send` returns for `queries`, each row made by its kind."""
        asked = [(self.statements[name], params) for _, name, params in queries]
        with self._measured(*(name for _, name, _ in queries)):
            answers = zip(queries, send(asked), strict=True)
        return [list(starmap(kind, rows)) for (kind, *_), rows in answers]

    def query(self, name: str, params: Params) -> list[Row]:
        """Return the rows of a named statement."""
        with self._measured(name):
            return self.query_sql(self.statements[name], params)

    def _measured(self, *names: str) -> "AbstractContextManager[Any]":
        given = {"db.system.name": self.engine, "db.operation.name": " ".join(names)}
        return measured(STATEMENT, **given)

    @abstractmethod
    def query_sql(self, sql: str, params: Params) -> list[Row]:
        """Return the rows of a statement composed of named fragments."""

    def query_many(self, queries: Sequence[tuple[str, Params]]) -> list[list[Row]]:
        """Return the rows of several statements.

        The statements take one round trip where the engine allows it.
        """
        return [self.query_sql(sql, params) for sql, params in queries]

    @abstractmethod
    def apply(self, writes: Sequence[Write]) -> None:
        """Execute `writes` in order, in as few round trips as the engine allows."""

    @abstractmethod
    def script(self, statements: Iterable[str]) -> None:
        """Execute the statements of a migration."""


class Restore(msgspec.Struct, frozen=True):
    """A write transaction that can read the rows of a backup.

    Args:
        session: the transaction, in a catalog of any schema version.
        schema_version: the schema version of the backup.
        copy: writes the backup's rows of a table to the catalog's table, now empty.
    """

    session: Session
    schema_version: int
    copy: Callable[[str], None]


class Backend(ABC):
    """A catalog in a database of one engine, with the database's pool of connections.

    A database file has one catalog. The catalogs of a server's database share a pool.
    """

    engine: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    placeholder: ClassVar[str]
    statements: Mapping[str, str]

    # The catalog's URI, without credentials.
    name: str
    # The schema version that this package writes.
    schema_version: int = 0
    # The folder for the data of tables that were created without a location.
    default_data_path: str | None = None
    # With `keeps_heads`, the newest heads by name and version; any write drops them.
    heads: "Cache[Any]"
    # Identifies the database among all databases of the process.
    key: tuple[object, ...] = ()
    # How much of the catalog's tables is kept in memory.
    cache: "CacheSettings | None" = None
    # The settings of the pool, which the first catalog on the database has decided.
    pool_settings: "PoolSettings | None" = None
    # Whether a catalog was found in the database, or made there.
    has_catalog: bool = False
    # Whether the database is lost when it is closed. The process keeps such a database
    # open as long as the process lives.
    ephemeral: bool = False

    @classmethod
    @abstractmethod
    def identity(cls, uri: "Uri") -> tuple[object, ...]:
        """Return what distinguishes the catalog of `uri` from other catalogs."""

    @abstractmethod
    def __init__(self, uri: "Uri", settings: "Settings") -> None:
        """Prepare to connect; the first use opens the database."""

    def check_open(self) -> None:  # noqa: B027
        """Raise `CatalogUnavailableError` if the catalog was closed."""

    def is_absent(self) -> bool:
        """Return whether the database doesn't exist and can be created."""
        return False

    def make_database(self) -> None:  # noqa: B027
        """Create the database file if it doesn't exist; a server has its database."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Session]:
        """Return a session for reads; a statement sees what was committed before it.

        A database that doesn't exist is a `CatalogNotFoundError`, and isn't created.
        """

    @abstractmethod
    def writing(
        self, *, durable: bool = True, any_version: bool = False
    ) -> AbstractContextManager[Session]:
        """Return a transaction: committed at the end of the block, else rolled back.

        A catalog of a newer schema version than this package's is refused inside the
        transaction, because another client may have upgraded the catalog since it was
        opened.

        Args:
            durable: if false, a power cut may undo the transaction, as a whole.
            any_version: for transactions that create, upgrade or replace the catalog.
        """

    def at_once(self, queries: Sequence[Query]) -> list[list[Any]]:
        """Run statements as one transaction that isn't durable; return their rows.

        A crash may undo the statements, so none of them may change a table's head.
        """
        with self.writing(durable=False) as session:
            return session.rows_many(queries)

    def check_version(self, session: Session) -> None:
        """Refuse a catalog whose schema version is newer than this package's."""
        (found,) = session.values("load_schema_version", {})
        check_schema_version(
            f"{self.name}: the catalog", found or 0, self.schema_version
        )

    @abstractmethod
    def batches(
        self, sql: str, params: Params, schema: "pa.Schema"
    ) -> Iterator["pa.RecordBatch"]:
        """Stream the rows of a statement as Arrow."""

    def naming(self, statement: str, schema: "pa.Schema") -> str:
        """Return the named statement with the columns of `schema` filled in."""
        return self.statements[statement].replace("{columns}", ", ".join(schema.names))

    @abstractmethod
    def find_catalog(self, session: Session) -> bool:
        """Return whether the database has a catalog of any schema version."""

    def prepare(self, session: Session) -> None:  # noqa: B027
        """Make a transaction ready for migrations, and shut out other migrators.

        In an engine without table locks, every write transaction shuts out writers.
        """

    def db_user(self) -> str | None:
        """Return the name of the database role; None if the engine has no roles."""
        return None

    @abstractmethod
    def back_up(self, file: Path, tables: Sequence[str]) -> None:
        """Write one state of the catalog to a new file, without stopping writers."""

    @abstractmethod
    def restoring(self, file: Path) -> AbstractContextManager[Restore]:
        """Begin a transaction that restores what `back_up` wrote to `file`.

        A file that the engine finds damaged is a `CatalogError`.
        """

    def lock_tables(self, session: Session, tables: Sequence[str]) -> None:  # noqa: B027
        """Keep other writers out of `tables` until the transaction ends."""

    def warm_up(self) -> None:  # noqa: B027
        """Load the libraries of the first bulk read; most engines need none."""

    def listen(self, table_id: int, bell: Bell) -> None:  # noqa: B027
        """Ring a bell after each commit to a table, if the database tells of commits.

        The bell may ring more often. Calling this again does nothing.
        """

    def unlisten(self, bell: Bell) -> None:  # noqa: B027
        """Ring a bell no more."""

    def is_gone(self) -> bool:
        """Return whether the database was removed, or replaced by another one."""
        return False

    def is_replica(self) -> bool:
        """Return whether the database follows another one and may be behind it."""
        return False

    def start_anew(self) -> None:  # noqa: B027
        """Forget a database that was deleted, so that a new one can replace it."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection."""


class UndoneError(Exception):
    """Raised in a write transaction to roll back what was only tried."""


class FileBackend(Backend):
    """A backend whose database is one file, or in memory."""

    @classmethod
    def identity(cls, uri: "Uri") -> tuple[object, ...]:
        """Return the real path of the file."""
        memory = uri.database == ":memory:"
        return (uri.database if memory else os.path.realpath(uri.database),)

    def __init__(self, uri: "Uri", settings: "Settings") -> None:
        """Prepare to connect; the first use opens the database."""
        self.name = str(uri)
        self._path = Path(uri.database)
        self.ephemeral = uri.database == ":memory:"
        if not self.ephemeral:
            self._path = self._path.absolute()
            self.default_data_path = f"{self._path.with_suffix('')}_tables"
        # Of the file that was opened. While a process has a file open, no other file at
        # its path has the same inode.
        self._inode: int | None = None
        self._lock_timeout_s = settings.pool.lock_timeout

    def is_absent(self) -> bool:
        """Return whether the folder of the file exists without the file.

        Raise `CatalogUnavailableError` if the folder can't be read.
        """
        if self.ephemeral:
            return False
        try:
            try:
                os.stat(self._path)
            except FileNotFoundError:
                os.stat(os.path.dirname(os.path.realpath(self._path)))
                return True
        except OSError as error:
            raise unreachable(self.name, str(error.filename), error) from error
        return False

    def is_gone(self) -> bool:
        """Return whether the open file was removed, or replaced by another one."""
        return self._inode is not None and self._find_inode() != self._inode

    def _find_inode(self) -> int | None:
        with suppress(OSError):
            return os.stat(self._path).st_ino
        return None

    def _lacks_database(self) -> bool:
        """Return whether there is no file, or a file without bytes."""
        if self.ephemeral or self.is_absent():
            return not self.ephemeral
        with suppress(OSError):
            return self._path.stat().st_size == 0
        return False


def check_schema_version(what: str, found: int, known: int) -> None:
    """Raise `CatalogSchemaError` if a schema version is newer than this package's."""
    if found > known:
        raise CatalogSchemaError(
            f"{what} has schema version {found}, and this version of delkalakedb "
            f"knows {known}; upgrade delkalakedb"
        )


def unreachable(name: str, place: str, error: OSError) -> CatalogUnavailableError:
    """Return the error for a place where no database file can be opened or created."""
    if isinstance(error, FileNotFoundError):
        return CatalogUnavailableError(
            f"{name}: the folder {place} doesn't exist; create the folder, or correct "
            "the path in the URI"
        )
    return CatalogUnavailableError(
        f"{name}: can't open or create a file at {place}: {error.strerror}"
    )


def unfit(name: str, error: Exception) -> CatalogError:
    """Return the error for a value that the driver refused with one of `UNFIT`."""
    return CatalogError(f"{name}: the database can't hold a value: {error}")


def no_catalog(
    backend: Backend, name: str, reason: str = "", *, writes_create: bool = True
) -> CatalogNotFoundError:
    """Return the error for a database without a catalog, with advice to make one."""
    how = "make it with `deltasql init`"
    if writes_create:
        how += ", or by writing a first table"
    told = f" ({reason})" if reason else ""
    error = CatalogNotFoundError(f"there is no catalog at {name}{told}; {how}")
    error.without_database = backend.is_absent()
    return error


@cache
def load_backend(engine: str) -> type[Backend]:
    """Return the backend that is registered for an engine."""
    loaded: type[Backend]
    try:
        if engine in _BUILT_IN:
            module = import_module(f"delkalakedb.catalog.engine.{engine}")
            loaded = getattr(module, _BUILT_IN[engine])
            return loaded
        from importlib.metadata import entry_points

        for entry in entry_points(group="delkalakedb.backends", name=engine):
            loaded = entry.load()
            return loaded
    except ImportError as error:
        raise CatalogError(
            f"the {engine} backend needs a package that isn't installed "
            f"({error.name}): pip install 'delkalakedb[{engine}]'"
        ) from error
    raise CatalogError(f"no backend is registered for {engine}")
