"""`DeltaTable` for `deltasql://` URIs."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import deltalake
from deltalake.exceptions import TableNotFoundError as DeltaTableNotFoundError
from deltalake.table import (
    _DEFAULT_FALSE,
    _DEFAULT_NONE,
    _DEFAULT_TRUE,
    _merge_deprecated_filters,
)

from delkalakedb.catalog import (
    Catalog,
    answered,
    described,
    find_table,
    html_of,
    open_catalog,
)
from delkalakedb.deltalake.raw import SqlRawTable, is_ours
from delkalakedb.errors import (
    DeltaError,
    DeltalakeDBError,
    QueryError,
    UriError,
    did_you_mean,
)
from delkalakedb.model.markup import card
from delkalakedb.model.records import History
from delkalakedb.model.times import Moment, from_ms, moment_ms
from delkalakedb.progress import reporting
from delkalakedb.settings import Uri, is_deltasql, parse_uri, redact, require_table

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds
    import pyarrow.fs as pa_fs
    from arro3.core.types import ArrowSchemaExportable
    from deltalake import CommitProperties, PostCommitHookProperties
    from deltalake.table import FilePruningPredicateType, FilterType

    from delkalakedb.catalog.read import CommitStream
    from delkalakedb.deltalake.optimizer import Optimizer
    from delkalakedb.model.records import Commit
    from delkalakedb.progress import ProgressOption


_NOT_GIVEN = cast("list[int] | None", _DEFAULT_NONE)
_UNKNOWN = r"Unknown scheme: (.*?)\. Known schemes: (.*)"
# Prefix of schemes that are other names of known ones.
_ALIAS = "opendal+"
_EXAMPLE = "deltasql://sqlite/file.db?table=name"


@contextmanager
def naming_schemes() -> Iterator[None]:
    """Turn deltalake's error about an unknown scheme into one that names `deltasql`.

    deltalake raises `TableNotFoundError`, on which its own writer would create a table.
    """
    try:
        yield
    except DeltaTableNotFoundError as error:
        found = re.match(_UNKNOWN, str(error))
        if found is None:
            raise
        theirs = (name for name in found[2].split(",") if not name.startswith(_ALIAS))
        raise UriError(
            f"unsupported scheme {found[1]!r} or no '://' after it; give a path or a "
            f"URI such as {_EXAMPLE} with one of the schemes "
            f"{', '.join(sorted({'deltasql', *theirs}))}"
        ) from error


# Kept here, because `register` replaces it with a route to ours.
_to_pyarrow_table = deltalake.DeltaTable.to_pyarrow_table


class DeltaTable(deltalake.DeltaTable):
    """A deltalake `DeltaTable` whose metadata comes from the catalog.

    It has all methods of deltalake's class, which deltalake documents.

    Examples:
        >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
        >>> table.version(), table.count()
        (1, 3)
        >>> table.delete("id = 1")["num_deleted_rows"]
        1
    """

    _catalog_uri: Uri | None = None

    def __init__(
        self,
        table_uri: str | Path | os.PathLike[str] | Catalog | tuple[Catalog, str],
        version: int | Moment | None = None,
        storage_options: dict[str, str] | None = None,
        without_files: bool = False,
        log_buffer_size: int | None = None,
        skip_stats: bool = False,
    ) -> None:
        """Open a table at a version, the latest by default.

        Args:
            table_uri: a `deltasql://` URI of a table, a pair of a catalog and a name,
                or anything that deltalake takes. For a catalog alone, the second
                argument is the name.
            version: a number; for a table of a catalog also a time, in UTC if it has no
                zone.
            storage_options: of the table's object store.
            without_files: deprecated by deltalake, and ignored.
            log_buffer_size: deprecated by deltalake, and ignored.
            skip_stats: deprecated by deltalake, and ignored.

        Raises:
            TableNotFoundError: The catalog has no such table.
            VersionNotFoundError: The table has no such version.
            UriError: The URI can't be parsed, or names no table.
        """
        if isinstance(table_uri, Catalog) and isinstance(version, str):
            table_uri, version = (table_uri, version), None
        found = find_table(table_uri)
        if found is None:
            plain: Any = table_uri
            with naming_schemes():
                super().__init__(
                    plain,
                    cast("int | None", version),
                    storage_options,
                    without_files,
                    log_buffer_size,
                    skip_stats,
                )
            return
        _warn_ignored(
            without_files=without_files,
            log_buffer_size=log_buffer_size is not None,
            skip_stats=skip_stats,
        )
        at: Any = version
        number = at if hasattr(at, "__index__") else None
        self._storage_options = storage_options
        self._catalog_uri = found.uri
        self._table = SqlRawTable(  # type: ignore[assignment]
            found.catalog, found.name, number, storage_options
        )
        if at is not number:
            is_time = isinstance(at, str | date)
            self.load_as_version(from_ms(moment_ms(at)) if is_time else at)

    def __repr__(self) -> str:
        if not is_ours(self._table):
            return f"DeltaTable({redact(self.table_uri)}, version {self.version()})"
        try:
            return f"DeltaTable({described(self._table.snapshot)}, {self.catalog_uri})"
        except DeltalakeDBError as error:
            return f"DeltaTable({self.catalog_uri}, {type(error).__name__})"

    def _repr_html_(self) -> str:
        raw: Any = self._table
        if is_ours(raw):
            title, more = f"DeltaTable {raw.name}", {"catalog": self.catalog_uri}
            return answered(title, lambda: html_of(raw.snapshot, title, more))
        names = [field.name for field in self.schema().fields]
        fields = {
            "version": self.version(),
            "columns": ", ".join(names),
            "partitioned by": ", ".join(self.metadata().partition_columns) or "nothing",
            "location": self.table_uri,
        }
        return card("DeltaTable", fields)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the commits, newest first; a notebook shows the list as a table.

        Args:
            limit: at most so many.

        Returns:
            The commits as dictionaries, as deltalake has them.

        Examples:
            >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
            >>> table.history(limit=1)[0]["operation"]
            'WRITE'
        """
        return History(super().history(limit))

    @property
    def catalog_uri(self) -> str:
        """The `deltasql://` URI without credentials; a table by path has none."""
        if self._catalog_uri is None:
            raise AttributeError(f"{self.table_uri}: a table by path has no catalog")
        return str(self._catalog_uri)

    @classmethod
    def create(
        cls,
        table_uri: str | Path,
        schema: deltalake.Schema | ArrowSchemaExportable,
        mode: Literal["error", "append", "overwrite", "ignore"] = "error",
        partition_by: list[str] | str | None = None,
        name: str | None = None,
        description: str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        storage_options: dict[str, str] | None = None,
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
        raise_if_key_not_exists: bool = cast(bool, _DEFAULT_TRUE),
    ) -> Self:
        """Create a table without rows.

        Args:
            table_uri: the `deltasql://` URI of the table, or what deltalake takes.
            schema: the columns.
            mode: what to do where the table exists: fail (`error`, `append`), replace
                its schema and rows, or nothing.
            partition_by: the partition columns.
            name: the name in the table's metadata.
            description: the description of the table.
            configuration: the table properties.
            storage_options: options of the table's object store.
            args: the other options by position, which deltalake deprecates.
            commit_properties: of the commit.
            post_commithook_properties: as deltalake takes them; in a catalog the
                mirror's settings decide when checkpoints are made.
            raise_if_key_not_exists: whether an unknown table property is an error.

        Returns:
            The table.

        Raises:
            DeltaError: The table exists and the mode is `error` or `append`, a property
                is unknown, or there is no location for the table.

        Examples:
            >>> schema = pa.schema([("day", pa.date32()), ("visits", pa.int64())])
            >>> uri = "deltasql://sqlite/meta.db?table=visits"
            >>> dk.DeltaTable.create(uri, schema, partition_by="day").version()
            0
        """
        options: dict[str, Any] = {
            "commit_properties": commit_properties,
            "post_commithook_properties": post_commithook_properties,
            "raise_if_key_not_exists": raise_if_key_not_exists,
        }
        given = (mode, partition_by, name, description, configuration, storage_options)
        if not is_deltasql(table_uri):
            with naming_schemes():
                made: Any = super().create(table_uri, schema, *given, *args, **options)
            return cast(Self, made)
        from delkalakedb.deltalake.create import create_deltalake

        options = _with_positional(options, args)
        if not isinstance(schema, deltalake.Schema):
            schema = deltalake.Schema.from_arrow(schema)
        columns = [partition_by] if isinstance(partition_by, str) else partition_by
        create_deltalake(
            str(table_uri),
            schema,
            columns or [],
            mode,
            bool(options["raise_if_key_not_exists"]),
            name,
            description,
            configuration,
            storage_options,
            options["commit_properties"],
        )
        return cls(table_uri, storage_options=storage_options)

    @staticmethod
    def is_deltatable(
        table_uri: str | Path | os.PathLike[str],
        storage_options: dict[str, str] | None = None,
    ) -> bool:
        """Return whether a table exists.

        Args:
            table_uri: the `deltasql://` URI of the table, or what deltalake takes.
            storage_options: options of the table's object store.

        Returns:
            Whether the table exists.

        Raises:
            CatalogUnavailableError: The database can't be reached.

        Examples:
            >>> dk.DeltaTable.is_deltatable("deltasql://sqlite/meta.db?table=sales")
            True
        """
        if not is_deltasql(table_uri):
            return deltalake.DeltaTable.is_deltatable(table_uri, storage_options)
        uri = parse_uri(str(table_uri))
        name, catalog = require_table(uri), open_catalog(uri)
        return catalog.find(name) is not None

    def follow(
        self, since: int | None = None, *, poll: float = 1.0
    ) -> Iterator[Commit]:
        """Yield the commits of the table as they are made, as `Catalog.follow` does.

        Args:
            since: the version after which commits are wanted; by default the loaded
                version.
            poll: seconds between two looks, for databases that don't tell of commits.

        Returns:
            The commits, in the order of their versions.

        Raises:
            DeltaError: The table is a table by path.
            VersionNotFoundError: The next version isn't kept any more.

        Examples:
            >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
            >>> next(table.follow(since=0)).version
            1
        """
        return iter(self._stream(since, poll))

    def _stream(self, since: int | None, poll_s: float) -> CommitStream:
        """Return the commits of the table after a version, by default the loaded one.

        Args:
            since: the version.
            poll_s: seconds between two looks, for databases that don't tell of commits.
        """
        raw: Any = self._table
        if not is_ours(raw):
            raise DeltaError(f"{self.table_uri}: a table by path can't be followed")
        return raw.snapshot._stream(since, poll_s)

    @property
    def _loads_in_loop(self) -> bool:
        """Whether the database's driver can wait without blocking an event loop."""
        raw: Any = self._table
        return is_ours(raw) and raw.catalog._backend.capabilities.event_loops

    def count(self) -> int:
        """Count the rows by the statistics of the files.

        Returns:
            The number of rows.

        Examples:
            >>> dk.DeltaTable("deltasql://sqlite/meta.db?table=sales").count()
            3
        """
        raw: Any = self._table
        return raw.count() if is_ours(raw) else super().count()

    @property
    def optimize(self) -> Optimizer:
        """The operations that rewrite files and change no row."""
        from delkalakedb.deltalake.optimizer import Optimizer

        return Optimizer(self)

    def vacuum(
        self,
        retention_hours: int | None = None,
        dry_run: bool = True,
        enforce_retention_duration: bool = True,
        *args: Any,
        commit_properties: CommitProperties | None = None,
        post_commithook_properties: PostCommitHookProperties | None = None,
        full: bool = cast(bool, _DEFAULT_FALSE),
        keep_versions: list[int] | None = _NOT_GIVEN,
        progress: ProgressOption = None,
    ) -> list[str]:
        """Delete the files that no kept version needs; return their paths.

        Args:
            retention_hours: how long files are kept after their removal; the table's
                own period by default.
            dry_run: delete nothing.
            enforce_retention_duration: refuse a period shorter than the table's.
            args: deprecated by deltalake.
            commit_properties: of the commits.
            post_commithook_properties: as deltalake takes them.
            full: also delete files that belong to no version.
            keep_versions: versions of which every file stays.
            progress: called with a `Progress` of the files deleted; True draws a bar.

        Returns:
            The paths of the deleted files; with `dry_run`, those to delete.

        Raises:
            DeltaError: The period is shorter than the table's, and the duration is
                enforced.

        Examples:
            >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
            >>> metrics = table.delete("id = 1")
            >>> len(table.vacuum(retention_hours=0, enforce_retention_duration=False))
            1
        """
        with reporting(progress):
            return super().vacuum(
                retention_hours,
                dry_run,
                enforce_retention_duration,
                *args,
                commit_properties=commit_properties,
                post_commithook_properties=post_commithook_properties,
                full=full,
                keep_versions=keep_versions,
            )

    def to_pyarrow_dataset(
        self,
        partitions: FilterType | None = None,
        filesystem: str | pa_fs.FileSystem | None = None,
        parquet_read_options: ds.ParquetReadOptions | None = None,
        schema: pa.Schema | None = None,
        as_large_types: bool = False,
        file_pruning_predicate: FilePruningPredicateType | None = None,
    ) -> ds.Dataset:
        """Return the table as a `pyarrow.dataset.Dataset`.

        Args:
            partitions: deltalake's older name of `file_pruning_predicate`.
            filesystem: the filesystem that reads the files.
            parquet_read_options: of pyarrow's Parquet reader.
            schema: the schema of the dataset; by default that of the table.
            as_large_types: whether texts and lists have Arrow's large types.
            file_pruning_predicate: only files that match, as tuples such as `("id",
                ">", 2)`.

        Returns:
            The dataset, whose files the catalog planned.

        Examples:
            >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
            >>> table.to_pyarrow_dataset().count_rows()
            3
        """
        raw: Any = self._table
        if not is_ours(raw):
            return super().to_pyarrow_dataset(
                partitions,
                filesystem,
                parquet_read_options,
                schema,
                as_large_types,
                file_pruning_predicate,
            )
        import pyarrow as pa

        from delkalakedb.deltalake.dataset import make_dataset
        from delkalakedb.write.engines.deltars import open_filesystem

        predicate = self._encode_file_pruning_predicate(
            _merge_deprecated_filters("partitions", partitions, file_pruning_predicate)
        )
        if schema is None:
            schema = pa.schema(self.schema().to_arrow(as_large_types=as_large_types))
        if raw.odd_files():
            return raw.row_dataset(schema, predicate, parquet_read_options, filesystem)
        files = raw.load_files(predicate)
        if not filesystem:
            what = f"{files.snapshot.table.name}: read version {self.version()}"
            filesystem = open_filesystem(
                what, self.table_uri, self._storage_options, files.sizes()
            )
        return make_dataset(files, schema, filesystem, parquet_read_options)

    def to_pyarrow_table(
        self,
        partitions: FilterType | None = None,
        columns: list[str] | None = None,
        filesystem: str | pa_fs.FileSystem | None = None,
        filters: FilterType | ds.Expression | None = None,
    ) -> pa.Table:
        """Return the rows.

        Args:
            partitions: only these partitions, as tuples such as `("day", "=", "mon")`.
            columns: the columns to read; all by default.
            filesystem: the filesystem that reads the files.
            filters: only rows that match, as tuples or as an expression of pyarrow.

        Returns:
            The rows as an Arrow table.

        Raises:
            QueryError: A filter names an unknown column.

        Examples:
            >>> table = dk.DeltaTable("deltasql://sqlite/meta.db?table=sales")
            >>> rows = table.to_pyarrow_table(filters=[("amount", ">", 10)])
            >>> sorted(rows["id"].to_pylist())
            [2, 3]
        """
        raw: Any = self._table
        import pyarrow as pa

        try:
            if partitions or filesystem or not (is_ours(raw) and raw.needs_delta_rs()):
                return _to_pyarrow_table(self, partitions, columns, filesystem, filters)
            from delkalakedb.deltalake.dataset import scan_rows

            schema = pa.schema(self.schema().to_arrow())
            return scan_rows(raw, schema, columns, filters).to_table()
        except pa.ArrowInvalid as error:
            found = re.match(r"No match for FieldRef\.Name\((.*?)\) in", str(error))
            if found is None or not is_ours(raw):
                raise
            names = [field.name for field in self.schema().fields]
            raise QueryError(
                f"{raw.name}: no column {found[1]}{did_you_mean(found[1], names)}; the "
                f"table has {', '.join(names)}"
            ) from error


def _warn_ignored(**given: bool) -> None:
    for name in (name for name, used in given.items() if used):
        message = f"The '{name}' parameter is deprecated and ignored."
        warnings.warn(message, DeprecationWarning, stacklevel=3)


def _with_positional(options: dict[str, Any], args: Sequence[Any]) -> dict[str, Any]:
    """Return the options of `create`, with those that were given by position."""
    if args:
        message = "Options of create() by position are deprecated; give their names."
        warnings.warn(message, DeprecationWarning, stacklevel=3)
    if len(args) > len(options):
        raise TypeError("create() got unexpected positional arguments")
    by_position = dict(zip(options, args, strict=False))
    for name in by_position:
        if options[name] not in (None, _DEFAULT_TRUE):
            raise TypeError(f"create() got multiple values for '{name}'")
    return options | by_position
