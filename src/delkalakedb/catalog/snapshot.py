"""Snapshots: a table at one version."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Union

import msgspec

from delkalakedb.catalog.engine import Backend
from delkalakedb.catalog.read import Head, Identity, SqlTxnLogReader
from delkalakedb.errors import DeltaError, did_you_mean
from delkalakedb.model.actions import DomainMetadata, Metadata, Protocol
from delkalakedb.settings import redact

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.catalog.read import CommitStream
    from delkalakedb.model.predicate.predicate import Predicate
    from delkalakedb.model.records import Commit, File, Table
    from delkalakedb.model.times import Moment

Filter = Union[str, Sequence[Any], "Predicate"]


# Filters that come again and again are parsed once: that takes half of a plan.
_SHORT = 1000


class Snapshot:
    """A table at one version, which never changes.

    `Catalog.snapshot` returns one.

    Examples:
        >>> catalog = dk.connect("deltasql://sqlite/meta.db")
        >>> snapshot = catalog.snapshot("sales")
        >>> snapshot.version, snapshot.num_files, snapshot.table.partition_columns
        (1, 2, ())
    """

    def __init__(self, backend: Backend, head: Head) -> None:
        self._backend = backend
        self._head = head

    def __repr__(self) -> str:
        return f"Snapshot({described(self)})"

    def _repr_html_(self) -> str:
        return html_of(self, f"Snapshot {self._head.name}", {})

    @property
    def _log(self) -> SqlTxnLogReader:
        return SqlTxnLogReader(self._backend, self._head.name, self._head.identity)

    @property
    def table(self) -> Table:
        """The table at this version."""
        return self._head.table()

    @property
    def location(self) -> str:
        """The table's location."""
        return self._head.location

    @property
    def num_files(self) -> int:
        """The number of files of this version."""
        return self._head.num_files

    @property
    def version(self) -> int:
        """The version."""
        return self._head.version

    @property
    def identity(self) -> Identity | None:
        """The identity, which distinguishes the table from all others of its name."""
        return self._head.identity

    def _check_ours(self) -> None:
        """Raise `ReadOnlyError` if other writers wrote the table at this version."""
        self._head.check_ours()

    @property
    def protocol(self) -> Protocol:
        """The protocol action in force."""
        return self._head.protocol

    @property
    def metadata(self) -> Metadata:
        """The metaData action in force."""
        return self._head.metadata

    def files(
        self, where: Filter | None = None, *, columns: Sequence[str] | None = None
    ) -> pa.RecordBatchReader:
        """Return the files as a stream of Arrow batches.

        Args:
            where: only files that may hold a row that matches.
            columns: the columns to load; all by default.

        Returns:
            The batches, which are loaded while they are read.

        Raises:
            PredicateError: The filter can't be parsed, or names an unknown column.
            DeltaError: Files have no such column.
            VersionNotFoundError: The version isn't kept any more.

        Examples:
            >>> snapshot = dk.connect("deltasql://sqlite/meta.db").snapshot("sales")
            >>> snapshot.files("id > 2", columns=["num_records"]).read_all().to_pylist()
            [{'num_records': 1}]
        """
        return self._files(where, _schema(columns))

    def paths(self) -> list[str]:
        """Return the files' paths as the log has them.

        Returns:
            The paths, those of the newest commit first.

        Raises:
            VersionNotFoundError: The version isn't kept any more.

        Examples:
            >>> snapshot = dk.connect("deltasql://sqlite/meta.db").snapshot("sales")
            >>> [path.endswith(".parquet") for path in snapshot.paths()]
            [True, True]
        """
        key = {"table_id": self._head.table_id, "version": self._head.version}
        with self._backend.reading() as session:
            paths = session.values("load_paths", key)
        superseded = self._head.version != self._head.current_version
        if superseded or len(paths) != self._head.num_files:
            self._check_kept()
        return paths

    def iter_files(self, where: Filter | None = None) -> Iterator[File]:
        """Yield the files one by one.

        Args:
            where: only files that may hold a row that matches.

        Returns:
            The files; none of them has a `removed_version`.

        Raises:
            PredicateError: The filter can't be parsed, or names an unknown column.
            VersionNotFoundError: The version isn't kept any more.

        Examples:
            >>> snapshot = dk.connect("deltasql://sqlite/meta.db").snapshot("sales")
            >>> [file.num_records for file in snapshot.iter_files("city = 'Kyiv'")]
            [1]
        """
        from dataclasses import fields

        from delkalakedb.model.records import File

        names = [field.name for field in fields(File)]
        names.remove("removed_version")
        return chain.from_iterable(map(_files_of, self.files(where, columns=names)))

    def add_actions(
        self, where: Filter | None = None, *, flatten: bool = False
    ) -> pa.RecordBatchReader:
        """Return the files with their statistics in typed columns, as deltalake does.

        Args:
            where: only files that may hold a row that matches.
            flatten: one column for each part of a struct, named `min.a` and so on.

        Returns:
            The batches, with the columns of deltalake's `get_add_actions`.

        Raises:
            PredicateError: The filter can't be parsed, or names an unknown column.
            VersionNotFoundError: The version isn't kept any more.

        Examples:
            >>> snapshot = dk.connect("deltasql://sqlite/meta.db").snapshot("sales")
            >>> actions = snapshot.add_actions("id > 2", flatten=True).read_all()
            >>> actions["max.amount"].to_pylist()
            [30.0]
        """
        from delkalakedb.model.stats.add_actions import ADD_ACTION_COLUMNS, add_actions

        files = self.files(where, columns=ADD_ACTION_COLUMNS)
        return add_actions(files, self.metadata, flatten=flatten)

    def history(
        self,
        limit: int | None = None,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        operation: str | None = None,
        actor: str | None = None,
        before: int | None = None,
    ) -> list[Commit]:
        """Return the commits up to this version, newest first.

        Args:
            limit: at most so many.
            since: none older than this time; without a zone it is in UTC.
            until: none newer than this time.
            since_ms: `since` in milliseconds since the epoch.
            until_ms: `until` in milliseconds since the epoch.
            operation: only this operation, such as `MERGE`.
            actor: only commits by this database user, OS user, host or client.
            before: only commits of versions before this one.

        Returns:
            The commits that the catalog keeps.

        Raises:
            DeltaError: A time can't be parsed.
            VersionNotFoundError: The version isn't kept any more.

        Examples:
            >>> snapshot = dk.connect("deltasql://sqlite/meta.db").snapshot("sales")
            >>> [(commit.version, commit.operation) for commit in snapshot.history()]
            [(1, 'WRITE'), (0, 'WRITE')]
            >>> snapshot.history(since="2999-01-31")
            []
        """
        from delkalakedb.model.times import moment_ms

        found = self._log.history(
            self._head,
            limit=limit,
            since_ms=since_ms if since is None else moment_ms(since),
            until_ms=until_ms if until is None else moment_ms(until),
            operation=operation,
            actor=actor,
            before=before,
        )
        if not found and before is None and self._head.version >= 0:
            self._check_kept()
        from delkalakedb.model.records import History

        return History(found)

    def _stream(self, since: int | None, poll_s: float) -> CommitStream:
        """Return the commits after a version, by default after this one.

        Args:
            since: the version.
            poll_s: seconds between two looks, for databases that don't tell of commits.
        """
        from delkalakedb.catalog.read import CommitStream

        after = self.version if since is None else since
        return CommitStream(self._backend, self._head, after, poll_s)

    def num_records(self) -> int | None:
        """Count the rows by the statistics of the files.

        Returns:
            The number of rows; None if a file has no row count.

        Examples:
            >>> dk.connect("deltasql://sqlite/meta.db").snapshot("sales").num_records()
            3
        """
        import pyarrow.compute as pc

        from delkalakedb.catalog.read import live_rows

        total = 0
        for batch in self.files(columns=["num_records", "deletion_vector"]):
            rows = live_rows(batch)
            if rows.null_count:
                return None
            total += pc.sum(rows).as_py() or 0
        return total

    def txn_version(self, app_id: str) -> int | None:
        """Return the newest version that an application recorded in a `txn` action.

        Args:
            app_id: the application's id.

        Returns:
            The application's own version; None if the application recorded none.

        Examples:
            >>> snapshot = dk.connect("deltasql://sqlite/meta.db").snapshot("sales")
            >>> print(snapshot.txn_version("loader"))
            None
        """
        return self._log.txn_version(self._head, app_id)

    def domains(self) -> dict[str, DomainMetadata]:
        """Return the live metadata domains.

        Returns:
            The `domainMetadata` actions by the names of their domains.

        Examples:
            >>> dk.connect("deltasql://sqlite/meta.db").snapshot("sales").domains()
            {}
        """
        return self._log.domains_at(self._head)

    def clustering_columns(self) -> list[str]:
        """Return the names of the columns that the table is clustered by.

        Returns:
            The names; none if the table isn't clustered.

        Examples:
            >>> snapshot = dk.connect("deltasql://sqlite/meta.db").snapshot("sales")
            >>> snapshot.clustering_columns()
            []
        """
        from delkalakedb.model.rules.clusters import clustering_columns
        from delkalakedb.model.rules.features import CLUSTERING
        from delkalakedb.model.rules.protocol import supported_features

        if CLUSTERING not in supported_features(self.protocol):
            return []
        return clustering_columns(self.domains(), self.metadata)

    def _files(self, where: Filter | None, schema: pa.Schema) -> pa.RecordBatchReader:
        # Now rather than when the first file is read.
        self._backend.check_open()
        import pyarrow as pa

        if where is None:
            from delkalakedb.catalog.read import list_files

            batches = list_files(self._backend, self._head, schema)
        else:
            from delkalakedb.catalog.read import plan

            predicate = self._predicate(where)
            batches = plan(self._backend, self._head, predicate, schema)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _check_kept(self) -> None:
        from delkalakedb.catalog.read import check_kept

        check_kept(self._backend, self._head)

    def _predicate(self, where: Filter) -> Predicate:
        """Return a filter as a predicate on the table's columns."""
        schema_string = self.metadata.schema_string
        if isinstance(where, str) and len(where) <= _SHORT:
            return _parse_short(where, schema_string)
        if isinstance(where, str | list | tuple):
            from delkalakedb.model.predicate.predicate import parse_predicate
            from delkalakedb.model.schema.schema import parse_schema

            schema = parse_schema(schema_string)
            return parse_predicate(where, schema, self.metadata.partition_columns)
        return where  # type: ignore[return-value]


def _files_of(batch: pa.RecordBatch) -> Iterator[File]:
    from delkalakedb.model.records import File

    for row in batch.to_pylist():
        for name in ("partition_values", "tags", "deletion_vector"):
            row[name] = row[name] and msgspec.json.decode(row[name])
        yield File(**row)


@lru_cache(maxsize=256)
def _parse_short(where: str, schema_string: str) -> Predicate:
    from delkalakedb.model.predicate.predicate import parse_predicate
    from delkalakedb.model.schema.schema import parse_schema

    return parse_predicate(where, parse_schema(schema_string))


def _schema(columns: Iterable[str] | None) -> pa.Schema:
    import pyarrow as pa

    from delkalakedb.catalog.read import FILES_SCHEMA

    if columns is None:
        return FILES_SCHEMA
    columns = list(dict.fromkeys(columns))
    if unknown := sorted(set(columns) - set(FILES_SCHEMA.names)):
        near = did_you_mean(unknown[0], FILES_SCHEMA.names)
        raise DeltaError(
            f"files have no column {', '.join(unknown)}{near}; they have "
            f"{', '.join(FILES_SCHEMA.names)}"
        )
    return pa.schema([FILES_SCHEMA.field(name) for name in columns])


# files; the rows of more would take long to count
_COUNTED_FILES = 10_000


def html_of(snapshot: Snapshot, title: str, more: Mapping[str, object]) -> str:
    """Return what a notebook shows of a snapshot.

    Args:
        snapshot: the snapshot.
        title: the title.
        more: other fields.
    """
    from delkalakedb.catalog.cards import answered, mirror_state, table_card

    def make() -> str:
        table, rows = snapshot.table, None
        if table.num_files <= _COUNTED_FILES:
            rows = snapshot.num_records()
        counted = "not counted" if rows is None else f"{rows:,}"
        state = mirror_state(snapshot._backend, table.name)
        return table_card(title, table, {"rows": counted, "mirror": state, **more})

    return answered(title, make)


def described(snapshot: Snapshot) -> str:
    """Return a snapshot in words, such as `sales, version 7, 12 files, 3.1 MB`."""
    from delkalakedb.model.display import count_of, format_size

    table = snapshot.table
    files = count_of(table.num_files, "file")
    size = format_size(table.size_bytes)
    return f"{redact(table.name)}, version {table.version}, {files}, {size}"
