"""Registration: make plain deltalake code accept `deltasql://` URIs."""

import threading
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import deltalake
from arro3.core import RecordBatchReader
from deltalake import query, table, transaction
from deltalake.fs import _base_handler
from deltalake.writer import convert_to, writer

from delkalakedb.catalog import open_catalog
from delkalakedb.deltalake import check_deltalake
from delkalakedb.deltalake.create import (
    convert_parquet,
    create_deltalake,
    create_with_files,
)
from delkalakedb.deltalake.raw import is_ours
from delkalakedb.deltalake.scan import Real
from delkalakedb.deltalake.table import DeltaTable
from delkalakedb.deltalake.write import write_deltalake
from delkalakedb.errors import TableNotFoundError
from delkalakedb.settings import is_deltasql, parse_uri, require_table
from delkalakedb.storage import local_folder
from delkalakedb.write import new_location
from delkalakedb.write.engines.deltars import check_delta_rs

_Route = Callable[[Any], Any]

_LOCK = threading.Lock()
_ORIGINALS: dict[tuple[object, str], Any] = {}


def register() -> None:
    """Make plain deltalake, and libraries built on it, accept `deltasql://` URIs.

    Raises:
        DeltaError: the installed deltalake isn't a supported version.

    Examples:
        >>> import deltalake
        >>> dk.register()
        >>> deltalake.DeltaTable("deltasql://sqlite/meta.db?table=sales").version()
        1
    """
    check_deltalake()
    with _LOCK:
        if _ORIGINALS:
            return
        for (owner, name), route in _ROUTES.items():
            original = getattr(owner, name)
            _ORIGINALS[owner, name] = original
            setattr(owner, name, route(original))


def unregister() -> None:
    """Restore what `register` replaced in deltalake.

    Examples:
        >>> import deltalake
        >>> original = deltalake.DeltaTable.count
        >>> dk.register()
        >>> dk.unregister()
        >>> deltalake.DeltaTable.count is original
        True
    """
    with _LOCK:
        while _ORIGINALS:
            (owner, name), original = _ORIGINALS.popitem()
            setattr(owner, name, original)


class _Class:
    """A stand-in for one of deltalake's Rust classes that delegates to the class."""

    def __init__(self, original: Any) -> None:
        self._original = original

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._original(*args, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, self._original)


class _RawDeltaTable(_Class):
    def __call__(self, table_uri: Any, *args: Any, **options: Any) -> Any:
        if is_deltasql(table_uri):
            return DeltaTable(table_uri, *args, **options)._table
        return self._original(table_uri, *args, **options)

    def is_deltatable(self, table_uri: Any, *args: Any) -> bool:
        if is_deltasql(table_uri):
            return DeltaTable.is_deltatable(table_uri, *args)
        return bool(self._original.is_deltatable(table_uri, *args))


class _FileSystemHandler(_Class):
    def __call__(self, table_uri: Any, *args: Any, **options: Any) -> Any:
        if is_deltasql(table_uri):
            table_uri = _folder(table_uri)
        return self._original(table_uri, *args, **options)

    def from_table(self, raw: Any, *args: Any) -> Any:
        if is_ours(raw):
            return self._original(raw.table_uri(), *args)
        return self._original.from_table(raw, *args)


class _QueryBuilders(_Class):
    def __call__(self, *args: Any, **options: Any) -> Any:
        return _QueryBuilder(self._original(*args, **options))


class _QueryBuilder:
    """A `PyQueryBuilder` that takes tables of a catalog as well."""

    def __init__(self, original: Any) -> None:
        self._original = original
        self._reals: list[Real] = []

    def register(self, table_name: str, delta_table: Any) -> None:
        if is_ours(delta_table):
            self._reals.append(delta_table.real())
            delta_table = self._reals[-1].raw
        self._original.register(table_name=table_name, delta_table=delta_table)

    def execute(self, sql: str) -> Any:
        reader = self._original.execute(sql)
        for real in self._reals:
            reader = real.keeping(reader)
        return reader


def _method(name: str) -> _Route:
    """Return the route of a `DeltaTable` method, to ours for tables of a catalog."""
    ours = getattr(DeltaTable, name)

    def routed(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def route(self: Any, *args: Any, **options: Any) -> Any:
            method = ours if is_ours(self._table) else original
            return method(self, *args, **options)

        return route

    return routed


def _function(ours: Callable[..., Any], argument: str) -> _Route:
    def routed(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def route(*args: Any, **options: Any) -> Any:
            uri = args[0] if args else options[argument]
            return (ours if is_deltasql(uri) else original)(*args, **options)

        return route

    return routed


def _first_write(*, table_uri: str, batch_schema: Any, **options: Any) -> None:
    write_deltalake(table_uri, **options)


def _folder(table_uri: str) -> str:
    """Return the location of a table; a new table's folder is created."""
    uri = parse_uri(table_uri)
    name, catalog = require_table(uri), open_catalog(uri)
    try:
        return catalog.table(name).location
    except TableNotFoundError:
        location = new_location(catalog, name, uri.location)
    if (folder := local_folder(location)) is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    return location


_ROUTES: dict[tuple[object, str], _Route] = {
    (table, "RawDeltaTable"): _RawDeltaTable,
    (table.DeltaTable, "count"): _method("count"),
    (table.DeltaTable, "to_pyarrow_dataset"): _method("to_pyarrow_dataset"),
    (table.DeltaTable, "to_pyarrow_table"): _method("to_pyarrow_table"),
    (table, "_create_deltalake"): _function(create_deltalake, "table_uri"),
    (writer, "write_deltalake_rust"): _function(_first_write, "table_uri"),
    (convert_to, "_convert_to_deltalake"): _function(convert_parquet, "uri"),
    (transaction, "_create_table_with_add_actions"): _function(
        create_with_files, "table_uri"
    ),
    (query, "PyQueryBuilder"): _QueryBuilders,
    (_base_handler, "DeltaFileSystemHandler"): _FileSystemHandler,
}


class QueryBuilder(deltalake.QueryBuilder):
    """deltalake's `QueryBuilder`, which takes tables of a catalog as well.

    Args:
        session_config: settings of DataFusion.

    Examples:
        >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
        >>> builder = dk.QueryBuilder().register("sales", table)
        >>> pa.table(builder.execute("SELECT count(*) AS n FROM sales")).to_pylist()
        [{'n': 3}]
    """

    def __init__(self, session_config: dict[str, str] | None = None) -> None:
        super().__init__(session_config)
        self._query_builder: Any = _QueryBuilder(self._query_builder)

    def execute(self, sql: str) -> RecordBatchReader:
        """Run a query; its rows are computed while they are read.

        Args:
            sql: the query, in DataFusion's SQL.

        Returns:
            The rows as a stream of Arrow batches.

        Examples:
            >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
            >>> builder = dk.QueryBuilder().register("sales", table)
            >>> pa.table(builder.execute("SELECT max(id) AS id FROM sales")).to_pylist()
            [{'id': 3}]
        """
        check_delta_rs("the query")
        return super().execute(sql)
