"""`write_deltalake` for tables of a catalog, those that aren't there yet among them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import deltalake
from arro3.core.types import ArrowArrayExportable, ArrowStreamExportable
from deltalake import CommitProperties, PostCommitHookProperties, WriterProperties

from delkalakedb.catalog import Catalog
from delkalakedb.commits import commit, is_certain, new_location
from delkalakedb.errors import (
    DeltalakeDBError,
    TableExistsError,
    TableNotFoundError,
)
from delkalakedb.model.txnlog import Staged
from delkalakedb.table.again import read_back
from delkalakedb.table.alters import IN_PRIVATE
from delkalakedb.table.commit_info import check_custom_metadata
from delkalakedb.table.opened import open_catalog
from delkalakedb.table.raw import SqlRawTable
from delkalakedb.table.schemes import naming_schemes
from delkalakedb.uri import Uri, is_deltasql, parse_uri, require_table
from delkalakedb.workspace import (
    Captured,
    Operation,
    StageNew,
    run_new,
    split_properties,
)

__all__ = ["make_table", "make_table_in", "write_deltalake"]


def write_deltalake(
    table_or_uri: str | Path | deltalake.DeltaTable,
    data: ArrowStreamExportable | ArrowArrayExportable | Sequence[ArrowArrayExportable],
    *,
    partition_by: list[str] | str | None = None,
    mode: Literal["error", "append", "overwrite", "ignore"] = "error",
    name: str | None = None,
    description: str | None = None,
    configuration: Mapping[str, str | None] | None = None,
    schema_mode: Literal["merge", "overwrite"] | None = None,
    storage_options: dict[str, str] | None = None,
    predicate: str | None = None,
    target_file_size: int | None = None,
    writer_properties: WriterProperties | None = None,
    commit_properties: CommitProperties | None = None,
    post_commithook_properties: PostCommitHookProperties | None = None,
) -> None:
    """Write to a table, which the first write creates.

    Args:
        table_or_uri: a `DeltaTable`, a `deltasql://` URI, or what deltalake takes.
        data: anything that gives Arrow data; streams are written as they come.
        partition_by: the columns that a new table is partitioned by.
        mode: what to do where the table exists: fail, append, replace its rows, or
            nothing.
        name: the name in a new table's metadata.
        description: the description of a new table.
        configuration: the properties of a new table.
        schema_mode: with "merge" new columns are added, with "overwrite" the schema is
            replaced.
        storage_options: of the table's object store.
        predicate: with mode "overwrite", replace only rows for which it holds.
        target_file_size: about how large files become, in bytes.
        writer_properties: of the Parquet writer.
        commit_properties: of the commit.
        post_commithook_properties: taken as deltalake has it; checkpoints are made by
            the mirror's own settings.
    """
    options: dict[str, Any] = {
        "partition_by": partition_by,
        "mode": mode,
        "name": name,
        "description": description,
        "configuration": configuration,
        "schema_mode": schema_mode,
        "storage_options": storage_options,
        "predicate": predicate,
        "target_file_size": target_file_size,
        "writer_properties": writer_properties,
        "commit_properties": commit_properties,
        "post_commithook_properties": post_commithook_properties,
    }
    target: Any = table_or_uri
    if is_deltasql(table_or_uri):
        uri = parse_uri(str(table_or_uri))
        opened = _open(uri, storage_options)
        if opened is None:
            _first_write(uri, data, options)
            return
        target = opened
    with naming_schemes():
        deltalake.write_deltalake(target, data, **options)


def make_table(
    uri: Uri,
    operation: Operation[None],
    storage_options: Mapping[str, str] | None = None,
    instead: Callable[[Captured[None]], bool] = lambda made: False,
) -> None:
    """Create the table that a URI names by an operation on an empty folder.

    Where somebody else was faster, `instead` may make something of what it wrote; it
    says whether it did.
    """
    name, catalog = require_table(uri), open_catalog(uri)
    make_table_in(catalog, name, uri.location, operation, storage_options, instead)


def make_table_in(
    catalog: Catalog,
    name: str,
    location: str | None,
    operation: Operation[None],
    storage_options: Mapping[str, str] | None = None,
    instead: Callable[[Captured[None]], bool] = lambda made: False,
    stage: StageNew = run_new,
) -> None:
    """The same in an open catalog, at a location or where it has its tables."""
    # Before files are written for it.
    catalog.backend.check_open()
    location = new_location(catalog, name, location)
    made = stage(name, location, operation, storage_options)
    (actions,) = made.commits
    staged = Staged(name, actions, location=location)
    try:
        commit(catalog, staged, storage_options=storage_options)
    except DeltalakeDBError as error:
        if not is_certain(error):
            raise
        try:
            if not isinstance(error, TableExistsError) or not instead(made):
                raise
        finally:
            made.discard()


class _Handle(deltalake.DeltaTable):
    """A table of the catalog as deltalake's writer takes it."""

    def __init__(
        self, raw: SqlRawTable, storage_options: dict[str, str] | None
    ) -> None:
        self._table = raw  # type: ignore[assignment]
        self._storage_options = storage_options


def _open(uri: Uri, storage_options: dict[str, str] | None) -> _Handle | None:
    name, catalog = require_table(uri), open_catalog(uri)
    try:
        raw = SqlRawTable(catalog, name, None, storage_options)
    except TableNotFoundError:
        return None
    return _Handle(raw, storage_options)


def _first_write(uri: Uri, data: Any, options: dict[str, Any]) -> None:
    check_custom_metadata(options["commit_properties"])
    configuration, ours = split_properties(options["configuration"])
    private = options | {
        "configuration": configuration,
        "storage_options": None,
        "post_commithook_properties": IN_PRIVATE,
    }
    write: Callable[[Any], None] = lambda folder: deltalake.write_deltalake(  # noqa: E731
        folder, data, **private
    )

    def write_again(made: Captured[None]) -> bool:
        if (opened := _open(uri, options["storage_options"])) is None:
            return False
        with read_back(made) as rows:
            deltalake.write_deltalake(opened, rows, **options)
        return True

    operation = Operation("write", write, properties=ours)
    make_table(uri, operation, options["storage_options"], write_again)
