"""`write_deltalake` for tables of a catalog, including tables that it creates."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import deltalake
import pyarrow as pa
from arro3.core import RecordBatchReader
from arro3.core.types import ArrowArrayExportable, ArrowStreamExportable
from deltalake import CommitProperties, PostCommitHookProperties, WriterProperties
from deltalake.transaction import (
    AddAction,
    create_table_with_add_actions as create_at_path,
)

from delkalakedb.catalog import Catalog, NamedTable, find_table
from delkalakedb.deltalake.create import convert_parquet, create_with_files
from delkalakedb.deltalake.raw import SqlRawTable
from delkalakedb.deltalake.table import DeltaTable, naming_schemes
from delkalakedb.errors import DeltaError, did_you_mean
from delkalakedb.model.display import listed
from delkalakedb.model.new_actions import check_custom_metadata
from delkalakedb.settings import is_deltasql
from delkalakedb.write import (
    Operation,
    Staging,
    make_table,
    private_folder,
    suggesting,
)
from delkalakedb.write.engines.deltars import (
    IN_PRIVATE,
    DeltaRs,
    open_private,
    split_properties,
)

Data = (
    ArrowStreamExportable
    | ArrowArrayExportable
    | Sequence[ArrowArrayExportable]
    | Sequence[Mapping[str, Any]]
    | Mapping[str, Sequence[Any]]
)


Mode = Literal["error", "append", "overwrite", "ignore"]


@contextmanager
def read_back(made: Staging[None]) -> Iterator[RecordBatchReader]:
    """Read the rows of a new, unlisted table, because their source may be consumed."""
    (actions,) = made.commits
    files = made.target.files
    with private_folder(files.ensure_work()) as folder:
        files.bring({path: path for path in made.new_paths}, folder)
        yield open_private(folder, {0: actions}).scan()


def arrow_data(data: Any) -> Any:
    """Return data as deltalake takes it: rows and columns of Python become Arrow.

    Args:
        data: a list of rows as dictionaries, a dictionary of columns as lists, or
            anything that gives Arrow data.
    """
    if isinstance(data, list | tuple) and data and isinstance(data[0], Mapping):
        # All rows are looked at, because a row may lack columns that others have.
        names = dict.fromkeys(name for row in data for name in row)
        data = {name: [row.get(name) for row in data] for name in names}
    if isinstance(data, Mapping):
        try:
            return pa.table(dict(data))
        except (pa.ArrowException, TypeError) as error:
            raise DeltaError(
                f"the data isn't columns of equal length: {error}; give a dictionary "
                "of lists, or a list of dictionaries"
            ) from error
    batches = data if isinstance(data, list | tuple) else [data]
    if not batches or not all(map(_is_arrow, batches)):
        kinds = {type(one).__name__ for one in batches} or {"an empty list"}
        raise DeltaError(
            f"data can't be {listed(sorted(kinds))}; give Arrow data such as a "
            "DataFrame or a pyarrow Table, a list of dictionaries, or a dictionary of "
            "lists"
        )
    return data


def _is_arrow(data: object) -> bool:
    return any(map(partial(hasattr, data), ("__arrow_c_stream__", "__arrow_c_array__")))


def write_deltalake(
    table_or_uri: str | Path | deltalake.DeltaTable | tuple[Catalog, str],
    data: Data,
    *,
    partition_by: list[str] | str | None = None,
    mode: Mode = "error",
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
        table_or_uri: a `DeltaTable`, a `deltasql://` URI, a pair of a catalog and a
            name, or what deltalake takes.
        data: anything that gives Arrow data, of which streams are written as they come;
            a list of rows as dictionaries, or a dictionary of columns as lists.
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
        post_commithook_properties: as deltalake takes them; in a catalog the mirror's
            settings decide when checkpoints are made.

    Raises:
        TableExistsError: The table exists, and the mode is `error`.
        SchemaMismatchError: The data doesn't match the table's schema.
        DeltaError: The mode is unknown, or the data can't be made columns.
        CommitFailedError: Other commits conflict with the write even after retries.
        UriError: The URI can't be parsed, or names no table.

    Examples:
        >>> uri = "deltasql://sqlite/meta.db?table=sales"
        >>> more = pa.table({"id": [4], "city": ["Bern"], "amount": [40.0]})
        >>> dk.write_deltalake(uri, more, mode="append")
        >>> dk.DeltaTable(uri).count()
        4
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
    rows, table = arrow_data(data), find_table(table_or_uri)
    if mode not in get_args(Mode):
        known = ", ".join(get_args(Mode))
        raise DeltaError(
            f"there is no mode {mode!r}{did_you_mean(mode, get_args(Mode))}; the modes "
            f"are {known}"
        )
    if table is None:
        plain: Any = table_or_uri
        with naming_schemes():
            deltalake.write_deltalake(plain, rows, **options)
    elif (opened := _open(table, storage_options)) is None:
        _first_write(table, rows, options)
    else:
        deltalake.write_deltalake(opened, rows, **options)


def convert_to_deltalake(
    uri: str | Path,
    mode: Literal["error", "ignore"] = "error",
    partition_by: deltalake.Schema | None = None,
    partition_strategy: Literal["hive", "directory"] | None = None,
    name: str | None = None,
    description: str | None = None,
    configuration: Mapping[str, str | None] | None = None,
    storage_options: dict[str, str] | None = None,
    *,
    collect_stats: bool = True,
    commit_properties: CommitProperties | None = None,
    post_commithook_properties: PostCommitHookProperties | None = None,
) -> None:
    """Create a table of the Parquet files at a location; the files stay there.

    Args:
        uri: a `deltasql://` URI of the new table, whose location has the files, or what
            deltalake takes.
        mode: what to do where the table exists: fail, or nothing.
        partition_by: the columns whose values are in the names of folders.
        partition_strategy: `hive` for folders such as `day=1`, `directory` for `1`.
        name: the name in the table's metadata.
        description: the description of the table.
        configuration: the properties of the table.
        storage_options: of the table's object store.
        collect_stats: read the statistics of the files.
        commit_properties: of the commit.
        post_commithook_properties: as deltalake takes them; in a catalog the mirror's
            settings decide when checkpoints are made.

    Raises:
        TableExistsError: The table exists, and the mode is `error`.
        ValueError: `partition_by` is given without a `partition_strategy`.

    Examples:
        >>> import os, pyarrow.parquet as pq
        >>> os.mkdir("orders")
        >>> pq.write_table(pa.table({"id": [1, 2]}), "orders/part.parquet")
        >>> uri = "deltasql://sqlite/meta.db?table=orders&location=orders"
        >>> dk.convert_to_deltalake(uri)
        >>> dk.DeltaTable(uri).count()
        2
    """
    options: dict[str, Any] = {
        "partition_strategy": partition_strategy,
        "name": name,
        "description": description,
        "configuration": configuration,
        "storage_options": storage_options,
        "collect_stats": collect_stats,
        "commit_properties": commit_properties,
        "post_commithook_properties": post_commithook_properties,
    }
    if not is_deltasql(uri):
        options["partition_by"] = partition_by
        deltalake.convert_to_deltalake(uri, mode, **options)
        return
    if partition_by is not None and partition_strategy not in ("hive", "directory"):
        raise ValueError("partition_by needs a partition_strategy, hive or directory")
    if mode == "ignore" and DeltaTable.is_deltatable(uri):
        return
    convert_parquet(uri=str(uri), partition_schema=partition_by, **options)


def create_table_with_add_actions(
    table_uri: str,
    schema: deltalake.Schema,
    add_actions: list[AddAction],
    mode: Literal["error", "append", "overwrite", "ignore"] = "error",
    partition_by: list[str] | str | None = None,
    name: str | None = None,
    description: str | None = None,
    configuration: Mapping[str, str | None] | None = None,
    storage_options: dict[str, str] | None = None,
    *,
    commit_properties: CommitProperties | None = None,
    post_commithook_properties: PostCommitHookProperties | None = None,
) -> None:
    """Create a table of data files that are at its location already.

    Args:
        table_uri: the `deltasql://` URI of the new table, or what deltalake takes.
        schema: the columns.
        add_actions: the files, as deltalake's `AddAction`; no file is read.
        mode: what to do where the table exists: fail (`error`, `append`), replace the
            table's files, or nothing.
        partition_by: the partition columns.
        name: the name in the table's metadata.
        description: the description of the table.
        configuration: the properties of the table.
        storage_options: of the table's object store.
        commit_properties: of the commit.
        post_commithook_properties: as deltalake takes them; in a catalog the mirror's
            settings decide when checkpoints are made.

    Raises:
        DeltaError: The table exists, and the mode is `error` or `append`.
        ProtocolError: A file isn't below the table's location.

    Examples:
        >>> from deltalake.transaction import AddAction
        >>> sales = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
        >>> file = AddAction("part.parquet", 900, {}, 0, True, "{}")
        >>> uri = "deltasql://sqlite/meta.db?table=orders"
        >>> dk.create_table_with_add_actions(uri, sales.schema(), [file])
        >>> dk.connect("deltasql://sqlite/meta.db").table("orders").num_files
        1
    """
    ours = is_deltasql(table_uri)
    create: Any = create_with_files if ours else create_at_path
    columns = [partition_by] if isinstance(partition_by, str) else partition_by
    create(
        table_uri=table_uri,
        schema=schema,
        add_actions=add_actions,
        mode=mode,
        partition_by=columns or [],
        name=name,
        description=description,
        configuration=configuration,
        storage_options=storage_options,
        commit_properties=commit_properties,
        post_commithook_properties=post_commithook_properties,
    )


class _Handle(deltalake.DeltaTable):
    """A table of the catalog as deltalake's writer takes it."""

    def __init__(
        self, raw: SqlRawTable, storage_options: dict[str, str] | None
    ) -> None:
        self._table = raw  # type: ignore[assignment]
        self._storage_options = storage_options


def _open(table: NamedTable, storage_options: dict[str, str] | None) -> _Handle | None:
    if (found := table.catalog.find(table.name)) is None:
        return None
    raw = SqlRawTable(table.catalog, table.name, found, storage_options)
    return _Handle(raw, storage_options)


def _first_write(table: NamedTable, data: Any, options: dict[str, Any]) -> None:
    check_custom_metadata(options["commit_properties"])
    configuration, ours = split_properties(options["configuration"])
    private = options | {
        "configuration": configuration,
        "storage_options": None,
        "post_commithook_properties": IN_PRIVATE,
    }

    def write(folder: str) -> None:
        deltalake.write_deltalake(folder, data, **private)

    def write_again(made: Staging[None]) -> bool:
        if (opened := _open(table, options["storage_options"])) is None:
            return False
        with read_back(made) as rows:
            deltalake.write_deltalake(opened, rows, **options)
        return True

    operation = Operation("write", DeltaRs(write, properties=ours))
    place, storage_options = table.uri.location, options["storage_options"]
    columns: Any = getattr(data, "column_names", None) or getattr(data, "columns", ())
    with suggesting(lambda: columns):
        make_table(
            table.catalog, table.name, place, operation, storage_options, write_again
        )
