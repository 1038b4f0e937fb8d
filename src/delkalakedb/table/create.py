"""deltalake's functions that make a table at a URI, for tables of a catalog.

Names, order of arguments and results are those of deltalake's own, which calls them.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deltalake import _internal

from delkalakedb.errors import DeltaError, TableExistsError, TableNotFoundError
from delkalakedb.storage import canonical_location, open_store
from delkalakedb.table.alters import IN_PRIVATE
from delkalakedb.table.opened import open_catalog
from delkalakedb.table.perform import perform
from delkalakedb.table.write import make_table
from delkalakedb.uri import parse_uri, require_table
from delkalakedb.workspace import Operation, split_properties
from delkalakedb.workspace.files import table_files

__all__ = ["convert_to_deltalake", "create_deltalake", "create_table_with_add_actions"]

_Options = Mapping[str, str] | None
_Properties = Mapping[str, str | None] | None
# On a folder, with the properties that delta-rs knows.
_Call = Callable[[str, dict[str, Any]], None]


def create_deltalake(
    table_uri: str,
    schema: Any,
    partition_by: list[str],
    mode: str,
    raise_if_key_not_exists: bool,
    name: str | None = None,
    description: str | None = None,
    configuration: _Properties = None,
    storage_options: _Options = None,
    commit_properties: Any = None,
    post_commithook_properties: Any = None,
) -> None:
    """Create a table without rows, or replace one."""

    def create(folder: str, properties: dict[str, Any]) -> None:
        _internal.create_deltalake(
            folder,
            schema,
            partition_by,
            mode,
            raise_if_key_not_exists,
            name,
            description,
            properties,
            None,
            commit_properties,
            IN_PRIVATE,
        )

    _make(table_uri, create, mode, configuration, storage_options)


def create_table_with_add_actions(
    *,
    table_uri: str,
    mode: Any,
    configuration: _Properties,
    storage_options: _Options,
    post_commithook_properties: Any,
    **options: Any,
) -> None:
    """Create a table of files that are in their place already."""

    def create(folder: str, properties: dict[str, Any]) -> None:
        _internal.create_table_with_add_actions(
            table_uri=folder,
            mode=mode,
            configuration=properties,
            storage_options=None,
            post_commithook_properties=IN_PRIVATE,
            **options,
        )

    _make(table_uri, create, mode, configuration, storage_options)


def convert_to_deltalake(
    *,
    uri: str,
    configuration: _Properties,
    storage_options: _Options,
    post_commithook_properties: Any,
    **options: Any,
) -> None:
    """Create a table of the Parquet files at its location."""
    parsed = parse_uri(uri)
    catalog, name = open_catalog(parsed), require_table(parsed)
    if name in {table.name for table in catalog.tables()}:
        raise TableExistsError(f"{name}: a table of this name exists already")
    location = canonical_location(parsed.location or catalog.default_location(name))
    if urlsplit(location).scheme != "file":
        # Here files would be copied, taken for new ones, and discarded on a failure.
        raise DeltaError(f"{name}: only files on a local disk can be converted so far")
    properties, ours = split_properties(configuration)

    def convert(folder: str) -> None:
        table_files(location).bring(_parquet_files(location), Path(folder))
        _internal.convert_to_deltalake(
            uri=folder,
            configuration=properties,
            storage_options=None,
            post_commithook_properties=IN_PRIVATE,
            **options,
        )

    make_table(parsed, Operation("convert", convert, properties=ours), storage_options)


def _make(
    table_uri: str,
    call: _Call,
    mode: str,
    configuration: _Properties,
    storage_options: _Options,
) -> None:
    uri = parse_uri(table_uri)
    catalog, name = open_catalog(uri), require_table(uri)
    properties, ours = split_properties(configuration)

    def create(folder: str) -> None:
        call(folder, properties)

    try:
        snapshot = catalog.snapshot(name)
    except TableNotFoundError:
        new = Operation("create", create, properties=ours)
        make_table(uri, new, storage_options)
        return
    # What a mode means where there is a table, delta-rs knows.
    again = Operation[None](
        "create",
        lambda raw: create(raw.table_uri()),
        remove_all=mode == "overwrite",
        properties=ours,
    )
    perform(catalog, snapshot, again, storage_options=storage_options)


def _parquet_files(location: str) -> Iterator[str]:
    for file in open_store(location).list():
        if file.path.endswith(".parquet") and not file.path.startswith("_delta_"):
            yield file.path
