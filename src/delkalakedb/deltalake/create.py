"""deltalake's functions that create a table at a URI, for tables of a catalog.

They have the names, the order of arguments and the results of deltalake's own
functions, because deltalake's Python code calls these in their place.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deltalake
from deltalake import _internal

from delkalakedb.catalog import open_catalog
from delkalakedb.errors import DeltaError, TableExistsError
from delkalakedb.model.new_actions import check_custom_metadata
from delkalakedb.model.paths import LOG
from delkalakedb.model.records import Table
from delkalakedb.settings import format_uri, parse_uri, require_table
from delkalakedb.storage import (
    ObjectMeta,
    Store,
    canonical_location,
    local_folder,
    open_store,
)
from delkalakedb.write import (
    Operation,
    Staging,
    make_table,
    new_location,
    perform,
    table_files,
)
from delkalakedb.write.engines.deltars import (
    IN_PRIVATE,
    DeltaRs,
    parse_new_schema,
    split_properties,
)

# Files read at a time.
_AT_ONCE = 16
# Bytes read first; most footers are shorter, and need no second request.
_TAIL_BYTES = 64 * 1024
# Bytes behind a footer: its length, and `PAR1`.
_END_BYTES = 8


def bring_footers(store: Store, files: Iterable[ObjectMeta], folder: Path) -> None:
    """Create files of the store's sizes below a folder, empty up to their footers."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        # Consumed, so that the first failure is raised.
        list(pool.map(lambda file: _bring(store, file, folder / file.path), files))


def _bring(store: Store, file: ObjectMeta, target: Path) -> None:
    footer = read_footer(store, file)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        # A hole takes no space on the disk.
        out.seek(file.size_bytes - len(footer))
        out.write(footer)
    seconds = file.last_modified_ms / 1000
    os.utime(target, (seconds, seconds))


def read_footer(store: Store, file: ObjectMeta) -> bytes:
    """Return the last bytes of a Parquet file, which include the whole footer."""
    tail = _last_bytes(store, file, _TAIL_BYTES)
    length = int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES
    return tail if length <= len(tail) else _last_bytes(store, file, length)


def _last_bytes(store: Store, file: ObjectMeta, count: int) -> bytes:
    length = min(count, file.size_bytes)
    return store.get_range(file.path, file.size_bytes - length, length)


_Options = Mapping[str, str] | None
_Properties = Mapping[str, str | None] | None


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
    properties, ours = split_properties(configuration)

    def create(folder: str) -> None:
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

    _make(table_uri, create, mode, ours, storage_options)


def create_with_files(
    *,
    table_uri: str,
    mode: Any,
    configuration: _Properties,
    storage_options: _Options,
    post_commithook_properties: Any,
    **options: Any,
) -> None:
    """Create a table of data files that are at its location already."""
    check_custom_metadata(options["commit_properties"])
    properties, ours = split_properties(configuration)

    def create(folder: str) -> None:
        _internal.create_table_with_add_actions(
            table_uri=folder,
            mode=mode,
            configuration=properties,
            storage_options=None,
            post_commithook_properties=IN_PRIVATE,
            **options,
        )

    _make(table_uri, create, mode, ours, storage_options)


def convert_parquet(
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
    if catalog.find(name) is not None:
        raise TableExistsError(f"{name}: a table of this name exists already")
    location = new_location(catalog, name, parsed.location)
    store = open_store(location, storage_options)
    properties, ours = split_properties(configuration)

    def convert(folder: str) -> None:
        files = find_parquet(store)
        with _at_hand(store, files) as place:
            # As links, because delta-rs's commit would name copies as new files.
            same = {file.path: file.path for file in files}
            table_files(place).bring(same, Path(folder))
            _internal.convert_to_deltalake(
                uri=folder,
                configuration=properties,
                storage_options=None,
                post_commithook_properties=IN_PRIVATE,
                **options,
            )

    operation = Operation("convert", DeltaRs(convert, properties=ours))
    make_table(catalog, name, location, operation, storage_options)


def _make(
    table_uri: str,
    create: Callable[[str], None],
    mode: str,
    ours: Mapping[str, str],
    storage_options: _Options,
) -> None:
    uri = parse_uri(table_uri)
    name, catalog = require_table(uri), open_catalog(uri)
    # delta-rs itself applies the mode if the table exists.
    engine = DeltaRs(lambda raw: create(raw.table_uri()), properties=ours)
    again = Operation("create", engine, remove_all=mode == "overwrite")

    def create_again(made: Staging[None] | None = None) -> bool:
        if (snapshot := catalog.find(name)) is None:
            return False
        perform(catalog, snapshot, again, storage_options=storage_options)
        return True

    if not create_again():
        new = Operation("create", DeltaRs(create, properties=ours))
        make_table(catalog, name, uri.location, new, storage_options, create_again)


@contextmanager
def _at_hand(store: Store, files: Sequence[ObjectMeta]) -> Iterator[str]:
    """Yield the URL of a folder that has as much of the files as delta-rs reads."""
    if local_folder(store.url) is not None:
        yield store.url
        return
    with TemporaryDirectory(prefix="delkalakedb-") as folder:
        bring_footers(store, files, Path(folder))
        yield Path(folder).as_uri()


def find_parquet(store: Store) -> list[ObjectMeta]:
    """Return the Parquet files; refuse a linked folder, whose files aren't listed."""
    linked = (file.path for file in store.list_own() if file.is_link)
    for path in linked:
        if store.head(path) is None and not path.startswith(("_", ".")):
            raise DeltaError(
                f"{store.url}: {path} is a link to a folder, or to nothing; files "
                "behind such a link can't become part of a table. Move them here, or "
                "remove the link"
            )
    return [file for file in store.list() if _is_data(file.path)]


def _is_data(path: str) -> bool:
    return path.endswith(".parquet") and not path.startswith("_delta_")


def convert_folder(
    location: str,
    uri: str,
    *,
    partition_by: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Table:
    """Make a table of the Parquet files at a location; the files stay where they are.

    Args:
        location: the folder.
        uri: the URI that the table will have, with its name.
        partition_by: the columns of folders such as `day=2026-01-01`, in their order,
            and their Delta types.
        storage_options: of the object store, as deltalake takes them.
    """
    parsed, place = parse_uri(uri), canonical_location(location)
    if next(open_store(place, storage_options).list(LOG), None) is not None:
        raise DeltaError(f"{place}: there is a Delta table already; import it")
    placed = replace(parsed, options=(*parsed.options, ("location", place)))
    convert_parquet(
        uri=format_uri(placed),
        configuration=None,
        storage_options=dict(storage_options) if storage_options else None,
        post_commithook_properties=None,
        partition_schema=_schema(partition_by) if partition_by else None,
        partition_strategy="hive" if partition_by else None,
        name=None,
        description=None,
        collect_stats=True,
        commit_properties=None,
    )
    return open_catalog(parsed).table(require_table(parsed))


def _schema(columns: Mapping[str, str]) -> deltalake.Schema:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in columns.items()
    ]
    return parse_new_schema(json.dumps({"type": "struct", "fields": fields}))
