"""What a database engine must do to hold a catalog.

A backend says how to connect, how rows go in and out in bulk, and what its driver's
errors mean. All SQL is in `.sql` files; everything above speaks to a `Session`.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Union

from delkalakedb.errors import (
    CatalogError,
    CatalogNotFoundError,
    CatalogSchemaError,
    CatalogUnavailableError,
)

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from delkalakedb.catalog.cache import Cache
    from delkalakedb.catalog.head import Head
    from delkalakedb.config import Settings
    from delkalakedb.settings import CacheSettings
    from delkalakedb.uri import Uri

__all__ = [
    "UNFIT",
    "Backend",
    "Capabilities",
    "Insert",
    "Row",
    "Run",
    "Session",
    "StoredRows",
    "Write",
    "find_inode",
    "is_empty",
    "lacks_file",
    "listed",
    "load_backend",
    "newer_version",
    "no_catalog",
    "unfit",
]

# What drivers raise for a number or a text that no column can have.
UNFIT = (OverflowError, UnicodeEncodeError)
Row = tuple[Any, ...]
Params = Mapping[str, Any]
# Known without a look at the registry of entry points, which is read from disk.
_BUILT_IN = {
    "duckdb": "DuckDBBackend",
    "postgres": "PostgresBackend",
    "sqlite": "SqliteBackend",
}
# Rows of Arrow arrays that are made Python's at once.
_LISTED = 1000


class MovedOnError(Exception):
    """A table isn't as it was seen any more: nothing was written."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What callers may rely on beyond the common ground."""

    # Writers of different tables work side by side and lock their tables; without
    # that, one writer at a time holds the whole database.
    table_locks: bool
    # Btrees over (class, hi); without them a scan of the column does.
    interval_index: bool


@dataclass(frozen=True, slots=True)
class Insert:
    """Rows for a table, by column: that is how many of them are made quickly.

    A column is a sequence or an Arrow array.
    """

    table: str
    columns: Mapping[str, "Sequence[Any] | pa.Array"]

    @classmethod
    def of_rows(cls, table: str, names: Sequence[str], rows: Sequence[Row]) -> "Insert":
        """The same from rows."""
        return cls(table, dict(zip(names, zip(*rows, strict=True), strict=True)))

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def rows(self) -> Iterator[Row]:
        """Row by row."""
        for start in range(0, len(self), _LISTED):
            some = (values[start : start + _LISTED] for values in self.columns.values())
            yield from zip(*map(listed, some), strict=True)

    def sql(self, mark: str) -> str:
        """The statement for one row, with `mark` for each value."""
        columns = ", ".join(self.columns)
        marks = ", ".join([mark] * len(self.columns))
        return f"INSERT INTO {self.table} ({columns}) VALUES ({marks})"

    def flat(self, mark: str) -> tuple[str, list[Any]]:
        """One statement for all rows, and their values; for a few rows.

        Nulls are left out where one row allows it: each costs as much as a value.
        """
        if len(self) == 1:
            (row,) = self.rows()
            given = dict(zip(self.columns, row, strict=True))
            kept = {n: (value,) for n, value in given.items() if value is not None}
            values = [value for (value,) in kept.values()]
            return Insert(self.table, kept).sql(mark), values
        first = self.sql(mark)
        more = f",{first[first.index('VALUES') + 6 :]}" * (len(self) - 1)
        return first + more, [value for row in self.rows() for value in row]


def listed(values: "Sequence[Any] | pa.Array") -> Sequence[Any]:
    """Python's values of a column."""
    return values.to_pylist() if hasattr(values, "to_pylist") else values


@dataclass(frozen=True, slots=True)
class Run:
    """A named statement that changes rows."""

    name: str
    params: Params


Write = Union[Insert, Run]  # noqa: UP007


class Session(ABC):
    """One connection, inside a transaction or reading."""

    @abstractmethod
    def query(self, name: str, params: Params) -> list[Row]:
        """All rows of a named statement."""

    @abstractmethod
    def query_sql(self, sql: str, params: Params) -> list[Row]:
        """All rows of a statement composed of named fragments."""

    def query_many(self, queries: Sequence[tuple[str, Params]]) -> list[list[Row]]:
        """The rows of several statements, in one round trip where that can be."""
        return [self.query_sql(sql, params) for sql, params in queries]

    def hold_back(self, queries: Sequence[tuple[str, Params]]) -> list[list[Row]]:
        """Ask before the first write, in its round trip; the rows come with it.

        Of all that is held back, a `check_seen` that fails is a `MovedOnError`.
        """
        raise NotImplementedError

    @abstractmethod
    def apply(self, writes: Sequence[Write]) -> None:
        """Carry out writes in order, in as few round trips as the engine allows."""

    @abstractmethod
    def script(self, statements: Iterable[str]) -> None:
        """Carry out the statements of a migration."""

    def find_head(self, name: str) -> "Head | None":
        """A table's head, if it is known without a question."""
        return None

    def made_head(self, head: "Head") -> None:  # noqa: B027
        """What a table's head is once this transaction is committed."""


class StoredRows(ABC):
    """The rows of a backup of a catalog, whose schema version it tells."""

    def __init__(self, file: "Path", schema_version: int) -> None:
        self.file = file
        self.schema_version = schema_version

    @abstractmethod
    def copy(self, session: Session, table: str) -> None:
        """Write all rows of a table into the catalog's own, which is empty."""


class Backend(ABC):
    """One database of one engine, with its pool of connections."""

    engine: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    placeholder: ClassVar[str]
    statements: Mapping[str, str]

    # The catalog's URI, without credentials.
    name: str
    # The schema version that this package writes.
    schema_version: int = 0
    # The folder for the data of tables that were given no location.
    default_data_path: str | None = None
    # Where nobody else can write to the database.
    heads: "Cache[Head] | None" = None
    # What tells its database from others, and how much of its tables may be kept.
    key: tuple[object, ...] = ()
    cache: "CacheSettings | None" = None
    # Those of the first catalog that the process opened on the database.
    settings: "Settings | None" = None
    # Whether a catalog was found in the database, or made there.
    has_catalog: bool = False
    # Gone when closed: kept open for the life of the process.
    ephemeral: bool = False

    @classmethod
    @abstractmethod
    def identity(cls, uri: "Uri") -> tuple[object, ...]:
        """What tells one database from another."""

    @abstractmethod
    def __init__(self, uri: "Uri", settings: "Settings") -> None:
        """Prepare to connect; the database is reached on first use."""

    def check_open(self) -> None:  # noqa: B027
        """Refuse use after the end, where nothing else would notice it."""

    def is_absent(self) -> bool:
        """Whether the database isn't there, and can be made."""
        return False

    def make_database(self) -> None:  # noqa: B027
        """Create the database if there is none; nothing where a server has it."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[Session]:
        """A session for reads; each statement sees what was ratified before it.

        A database that isn't there is a `CatalogNotFoundError`, and isn't created.
        """

    @abstractmethod
    def writing(
        self, *, durable: bool = True, any_version: bool = False
    ) -> AbstractContextManager[Session]:
        """A transaction: committed at the end of the block, else rolled back.

        A catalog of a newer schema version than this package's is refused inside the
        transaction, because another client may have upgraded the catalog since it was
        opened.

        Args:
            durable: if false, a power cut may undo the transaction, as a whole.
            any_version: for transactions that create, upgrade or replace the catalog.
        """

    def at_once(self, queries: Sequence[tuple[str, Params]]) -> list[list[Row]]:
        """The rows of statements that are a transaction, and needn't be durable.

        They change nothing that is part of a head.
        """
        with self.writing(durable=False) as session:
            return session.query_many(queries)

    def check_version(self, session: Session) -> None:
        """Refuse a catalog whose schema version is newer than this package's."""
        ((found,),) = session.query("load_schema_version", {})
        if int(found or 0) > self.schema_version:
            raise newer_version(self.name, int(found), self.schema_version)

    @abstractmethod
    def batches(
        self, sql: str, params: Params, schema: "pa.Schema"
    ) -> Iterator["pa.RecordBatch"]:
        """The rows of a statement as Arrow, streamed."""

    def files(self, params: Params, schema: "pa.Schema") -> Iterator["pa.RecordBatch"]:
        """The live files of a table at a version, streamed."""
        return self.batches(self.naming("files", schema), params, schema)

    def naming(self, statement: str, schema: "pa.Schema") -> str:
        """A statement that gives the columns of a schema."""
        return self.statements[statement].replace("{columns}", ", ".join(schema.names))

    @abstractmethod
    def find_catalog(self, session: Session) -> bool:
        """Whether there is a catalog of any schema version."""

    @abstractmethod
    def prepare(self, session: Session) -> None:
        """Inside a write: keep rivals out and make room for the first migration."""

    @abstractmethod
    def db_user(self) -> str | None:
        """Who the database takes us for."""

    def back_up(self, file: "Path", tables: Sequence[str]) -> None:
        """Write the catalog as it is now to a new file; writers go on."""
        raise CatalogError(f"{self.engine} catalogs are backed up by other means")

    def open_backup(self, file: "Path") -> AbstractContextManager[StoredRows]:
        """What `back_up` wrote, checked as far as the engine can."""
        raise CatalogError(f"{self.engine} catalogs are restored by other means")

    def lock_tables(self, session: Session, tables: Sequence[str]) -> None:  # noqa: B027
        """Inside a write: let nobody else write until it ends."""

    def warm_up(self) -> None:  # noqa: B027
        """Load what would hold up the first bulk read; nothing for most engines."""

    def is_gone(self) -> bool:
        """Whether the database was removed, or replaced by another."""
        return False

    def is_replica(self) -> bool:
        """Return whether the database follows another one and may be behind it."""
        return False

    def start_anew(self) -> None:  # noqa: B027
        """Forget a database that is gone; another one may be made in its place."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection."""


def newer_version(name: str, found: int, known: int) -> CatalogSchemaError:
    """Return the error for a catalog of a newer schema version than this package's."""
    return CatalogSchemaError(
        f"{name}: the catalog has schema version {found}, and this version of "
        f"delkalakedb knows {known}; upgrade delkalakedb"
    )


def unfit(name: str, error: Exception) -> CatalogError:
    """What to say of a value that a driver didn't take."""
    return CatalogError(f"{name}: the database can't hold a value: {error}")


def no_catalog(
    backend: Backend, name: str, reason: str = "", *, writes_create: bool = True
) -> CatalogNotFoundError:
    """Return the error for a database without a catalog; it says how to make one."""
    how = "make it with `deltasql init`, or by writing a first table"
    if not writes_create:
        how = "make it with `deltasql init`; a write doesn't, with sql.schema = error"
    told = f" ({reason})" if reason else ""
    error = CatalogNotFoundError(f"there is no catalog at {name}{told}; {how}")
    error.without_database = backend.is_absent()
    return error


def lacks_file(name: str, path: "str | Path") -> bool:
    """Whether a database file isn't in its folder.

    Where that can't be told, because the folder can't be looked into, the catalog is
    unavailable.
    """
    try:
        try:
            os.stat(path)
        except FileNotFoundError:
            os.stat(os.path.dirname(os.path.realpath(path)))
            return True
    except OSError as error:
        raise CatalogUnavailableError(
            f"{name}: {error.strerror}: unable to open database file, because of "
            f"{error.filename}"
        ) from error
    return False


def is_empty(path: "str | Path") -> bool:
    """Whether a database file has nothing in it yet."""
    with suppress(OSError):
        return os.stat(path).st_size == 0
    return False


def find_inode(path: "str | Path") -> int | None:
    """What tells a file from others that are ever at its path while it is open."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return None


@cache
def load_backend(engine: str) -> type[Backend]:
    """The backend registered for an engine."""
    try:
        loaded: type[Backend] = _load_registered(engine)
    except ImportError as error:
        raise CatalogError(
            f"the {engine} backend needs a package that isn't installed "
            f"({error.name}): pip install 'delkalakedb[{engine}]'"
        ) from error
    return loaded


def _load_registered(engine: str) -> Any:
    if engine in _BUILT_IN:
        module = import_module(f"delkalakedb.catalog.{engine}")
        return getattr(module, _BUILT_IN[engine])
    from importlib.metadata import entry_points

    for entry in entry_points(group="delkalakedb.backends", name=engine):
        return entry.load()
    raise CatalogError(f"no backend is registered for {engine}")
