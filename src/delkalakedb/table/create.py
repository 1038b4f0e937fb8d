"""deltalake's functions that make a table at a URI, for tables of a catalog.

Names, order of arguments and results are those of deltalake's own, which calls them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deltalake
from arro3.core.types import ArrowSchemaExportable
from deltalake import _internal

from delkalakedb.catalog import Catalog
from delkalakedb.commits import new_location
from delkalakedb.errors import DeltaError, TableExistsError, TableNotFoundError
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.tables import Table
from delkalakedb.storage import ObjectMeta, Store, open_store
from delkalakedb.table.alters import IN_PRIVATE
from delkalakedb.table.commit_info import check_custom_metadata
from delkalakedb.table.files import local_folder
from delkalakedb.table.footers import bring_footers
from delkalakedb.table.opened import open_catalog
from delkalakedb.table.perform import perform
from delkalakedb.table.write import make_table, make_table_in
from delkalakedb.uri import parse_uri, require_table
from delkalakedb.workspace import Captured, Operation, split_properties
from delkalakedb.workspace.files import table_files

__all__ = [
    "NewSchema",
    "convert_to_deltalake",
    "create_deltalake",
    "create_table",
    "create_table_with_add_actions",
    "creation",
    "parse_new_schema",
]

NewSchema = deltalake.Schema | ArrowSchemaExportable | str

# delta-rs makes protocols of these that it can't read.
_VERSIONS = {"delta.minReaderVersion", "delta.minWriterVersion"}
_Options = Mapping[str, str] | None
_Properties = Mapping[str, str | None] | None
# On a folder, with the properties that delta-rs knows.
_Call = Callable[[str, dict[str, Any]], None]


def create_table(
    catalog: Catalog,
    name: str,
    schema: NewSchema,
    *,
    location: str | None,
    storage_options: _Options,
    **options: Any,
) -> Table:
    """Create a table without rows in an open catalog; `creation` has the options."""
    operation = creation(schema, **options)
    make_table_in(catalog, name, location, operation, storage_options)
    return catalog.snapshot(name, 0).table


def creation(
    schema: NewSchema,
    *,
    partition_by: Sequence[str] | str | None = None,
    configuration: _Properties = None,
    description: str | None = None,
) -> Operation[None]:
    """The operation that makes a table without rows."""
    properties, ours = split_properties(configuration)
    parse_properties(properties)
    if versions := sorted(properties.keys() & _VERSIONS):
        raise DeltaError(
            f"{', '.join(versions)} can't be given: the protocol follows from the "
            "other properties"
        )
    # delta-rs takes none but Delta's.
    own = [name for name in properties if not name.startswith("delta.")]
    ours |= {name: properties.pop(name) for name in own}
    fields = parse_new_schema(schema) if isinstance(schema, str) else schema
    columns = [partition_by] if isinstance(partition_by, str) else partition_by

    def create(folder: str) -> None:
        deltalake.DeltaTable.create(
            folder,
            fields,
            partition_by=list(columns or ()),
            configuration=properties,
            description=description,
            post_commithook_properties=IN_PRIVATE,
        )

    return Operation("create", create, properties=ours)


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
    check_custom_metadata(commit_properties)

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
    check_custom_metadata(options["commit_properties"])

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
    check_custom_metadata(options["commit_properties"])
    parsed = parse_uri(uri)
    name, catalog = require_table(parsed), open_catalog(parsed)
    with suppress(TableNotFoundError):
        catalog.table(name)
        raise TableExistsError(f"{name}: a table of this name exists already")
    location = new_location(catalog, name, parsed.location)
    store = open_store(location, storage_options)
    properties, ours = split_properties(configuration)

    def convert(folder: str) -> None:
        files = [file for file in store.list() if _is_data(file.path)]
        with _at_hand(store, files) as place:
            # As links: anything else would be taken for a new file of the table.
            same = {file.path: file.path for file in files}
            table_files(place).bring(same, Path(folder))
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
    name, catalog = require_table(uri), open_catalog(uri)
    properties, ours = split_properties(configuration)

    def create(folder: str) -> None:
        call(folder, properties)

    # What a mode means where there is a table, delta-rs knows.
    again = Operation[None](
        "create",
        lambda raw: create(raw.table_uri()),
        remove_all=mode == "overwrite",
        properties=ours,
    )

    def create_again(made: Captured[None] | None = None) -> bool:
        try:
            snapshot = catalog.snapshot(name)
        except TableNotFoundError:
            return False
        perform(catalog, snapshot, again, storage_options=storage_options)
        return True

    if not create_again():
        new = Operation("create", create, properties=ours)
        make_table(uri, new, storage_options, create_again)


def parse_new_schema(schema: str) -> deltalake.Schema:
    """A schema in Delta's JSON as deltalake takes it."""
    try:
        return deltalake.Schema.from_json(schema)
    except ValueError as error:
        raise DeltaError(f"not a schema in Delta's JSON: {error}") from error


@contextmanager
def _at_hand(store: Store, files: Sequence[ObjectMeta]) -> Iterator[str]:
    """A folder with the files as far as delta-rs reads them to convert them."""
    if local_folder(store.url) is not None:
        yield store.url
        return
    with TemporaryDirectory(prefix="delkalakedb-") as folder:
        bring_footers(store, files, Path(folder))
        yield Path(folder).as_uri()


def _is_data(path: str) -> bool:
    return path.endswith(".parquet") and not path.startswith("_delta_")
