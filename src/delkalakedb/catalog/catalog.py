"""A catalog: the tables of one SQL database.

What plans, lists files as Arrow, or commits is imported where it is used, because a
process that opens a table and asks for its names needs none of it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from datetime import timedelta
from functools import cached_property, lru_cache
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Union, Unpack, cast

import msgspec

from delkalakedb.catalog.backend import Backend, no_catalog
from delkalakedb.catalog.defaults import PlainSettings, plain_settings
from delkalakedb.catalog.head import Head, Identity, parse_head
from delkalakedb.catalog.migrations import ensure_schema, find_schema_version
from delkalakedb.catalog.reader import SqlTxnLogReader
from delkalakedb.catalog.registry import Share
from delkalakedb.errors import CommitFailedError, DeltaError
from delkalakedb.model.actions import DomainMetadata, Metadata, Protocol
from delkalakedb.model.tables import Commit, File, Table
from delkalakedb.uri import Uri, parse_uri

if TYPE_CHECKING:
    import pyarrow as pa

    from delkalakedb.catalog.outbox import Lease
    from delkalakedb.catalog.ratify import SqlTxnLogWriter
    from delkalakedb.catalog.retention import Expired
    from delkalakedb.config import Settings
    from delkalakedb.model.predicate import Predicate
    from delkalakedb.model.txnlog import Committed, Conflicted, Skipped, Staged
    from delkalakedb.settings import SettingsDict

__all__ = ["Catalog", "Snapshot", "connect"]

Filter = Union[str, Sequence[Any], "Predicate"]
# Filters that come again and again are parsed once: that takes half of a plan.
_SHORT = 1000
# delta-rs takes a folder called %41 for one called A.
_ODD = re.compile(r"[^\w .-]|^\.")


class Snapshot:
    """A table at one version. What it says never changes."""

    def __init__(self, backend: Backend, head: Head) -> None:
        self._backend = backend
        self._log = SqlTxnLogReader(backend, head.name, head.identity)
        self._head = head

    @property
    def table(self) -> Table:
        """The table as this version has it."""
        return self._head.table()

    @property
    def version(self) -> int:
        """The version."""
        return self._head.version

    @property
    def identity(self) -> Identity | None:
        """What tells the table from any other that ever has its name."""
        return self._head.identity

    def check_ours(self) -> None:
        """Refuse to write to a table that others wrote when this was read."""
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
        """The files, streamed as Arrow.

        Args:
            where: only files that may hold a row that matches.
            columns: only these of the columns; no others are loaded.
        """
        return self._files(where, _schema(columns))

    def paths(self) -> list[str]:
        """The files' paths as the log has them, newest commit first, without Arrow."""
        key = {"table_id": self._head.table_id, "version": self._head.version}
        with self._backend.reading() as session:
            rows = session.query("load_paths", key)
        superseded = self._head.version != self._head.current_version
        if superseded or len(rows) != self._head.num_files:
            self._check_kept()
        return [path for (path,) in rows]

    def iter_files(self, where: Filter | None = None) -> Iterator[File]:
        """The files, one by one; being live here, they have no `removed_version`.

        Args:
            where: only files that may hold a row that matches.
        """
        names = [field.name for field in fields(File)]
        names.remove("removed_version")
        return chain.from_iterable(map(_files_of, self.files(where, columns=names)))

    def add_actions(
        self, where: Filter | None = None, *, flatten: bool = False
    ) -> pa.RecordBatchReader:
        """The files with their statistics in typed columns, as deltalake gives them.

        Args:
            where: only files that may hold a row that matches.
            flatten: one column for each part of a struct, named `min.a` and so on.
        """
        from delkalakedb.model.addactions import ADD_ACTION_COLUMNS, add_actions

        files = self.files(where, columns=ADD_ACTION_COLUMNS)
        return add_actions(files, self.metadata, flatten=flatten)

    def history(
        self,
        limit: int | None = None,
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
        operation: str | None = None,
        actor: str | None = None,
    ) -> list[Commit]:
        """The commits up to this version, newest first.

        Args:
            limit: at most so many.
            since_ms: none older than this time.
            until_ms: none newer than this time.
            operation: only this operation, such as `MERGE`.
            actor: only commits by this database user, OS user, host or client.
        """
        found = self._log.history(
            self._head,
            limit=limit,
            since_ms=since_ms,
            until_ms=until_ms,
            operation=operation,
            actor=actor,
        )
        if not found and self._head.version >= 0:
            self._check_kept()
        return found

    def num_records(self) -> int | None:
        """How many rows there are; None where the statistics of a file don't say."""
        import pyarrow.compute as pc

        total = 0
        for batch in self.files(columns=["num_records", "deletion_vector"]):
            if batch["num_records"].null_count:
                return None
            vectors = batch["deletion_vector"].drop_null().to_pylist()
            deleted = (msgspec.json.decode(vector)["cardinality"] for vector in vectors)
            total += (pc.sum(batch["num_records"]).as_py() or 0) - sum(deleted)
        return total

    def txn_version(self, app_id: str) -> int | None:
        """The newest version that an application recorded."""
        return self._log.txn_version(self._head, app_id)

    def domains(self) -> dict[str, DomainMetadata]:
        """The live metadata domains."""
        return self._log.domains_at(self._head)

    def _files(self, where: Filter | None, schema: pa.Schema) -> pa.RecordBatchReader:
        # Now rather than when the first file is read.
        self._backend.check_open()
        import pyarrow as pa

        if where is None:
            from delkalakedb.catalog.listing import list_files

            batches = list_files(self._backend, self._head, schema)
        else:
            from delkalakedb.catalog.plan import plan

            predicate = self._predicate(where)
            batches = plan(self._backend, self._head, predicate, schema)
        return pa.RecordBatchReader.from_batches(schema, batches)

    def _check_kept(self) -> None:
        from delkalakedb.catalog.retention import check_kept

        check_kept(self._backend, self._head)

    def _predicate(self, where: Filter) -> Predicate:
        schema_string = self.metadata.schema_string
        if isinstance(where, str) and len(where) <= _SHORT:
            return _parse_short(where, schema_string)
        if isinstance(where, str | list | tuple):
            from delkalakedb.model.predicate import parse_predicate
            from delkalakedb.model.schema import parse_schema

            schema = parse_schema(schema_string)
            return parse_predicate(where, schema, self.metadata.partition_columns)
        return where  # type: ignore[return-value]


class Catalog:
    """The tables of one SQL database; a context manager that closes its pool."""

    def __init__(self, uri: Uri, settings: Settings) -> None:
        self.uri = uri
        self._settings = settings
        self._share = Share(uri, settings)
        # For what is made from the catalog: a backend that is closed with it.
        self._own = cast(Backend, self._share)
        try:
            self._find()
        except BaseException:
            self.close()
            raise

    def _find(self) -> None:
        """Look for the catalog in its database; one that is outdated is upgraded."""
        creates = self._settings.sql.schema_policy == "create_if_missing"
        if version := find_schema_version(self.backend):
            self._ensure(version, create=creates)
            return
        # It may have been there before.
        self.backend.has_catalog = False
        if not creates:
            raise no_catalog(self.backend, str(self.uri), writes_create=False)

    def _ensure(self, version: int, *, create: bool) -> None:
        ensure_schema(self.backend, str(self.uri), version, create=create)
        self.backend.has_catalog = True

    @cached_property
    def settings(self) -> Settings:
        """The settings that the catalog was opened with."""
        settings = self._settings
        return settings.full() if isinstance(settings, PlainSettings) else settings

    @cached_property
    def _writer(self) -> SqlTxnLogWriter:
        from delkalakedb.catalog.ratify import SqlTxnLogWriter

        return SqlTxnLogWriter(self.backend, self.settings)

    @property
    def backend(self) -> Backend:
        """The process's backend for the database, while the catalog is open."""
        self._share.check_open()
        return self._share.shared

    @property
    def closed(self) -> bool:
        """Whether the catalog was closed."""
        return self._share.closed

    def init(self) -> bool:
        """Create the catalog in its database, unless it is there; whether it was done.

        A first write does the same, unless `sql.schema` is `error`.
        """
        if not self.backend.has_catalog:
            self._find()
        if self.backend.has_catalog:
            return False
        self._ensure(0, create=True)
        return True

    def tables(self) -> list[Table]:
        """Every table at its latest version, by name."""
        with self.backend.reading() as session:
            rows = session.query("load_heads", {})
            return [parse_head(session, row).table() for row in rows]

    def versions(self) -> dict[str, tuple[int, Identity]]:
        """The latest version of every table by name, and what the table is known by."""
        with self.backend.reading() as session:
            rows = session.query("load_table_versions", {})
        return {name: (version, (id_, made)) for name, version, id_, made in rows}

    def table(self, name: str) -> Table:
        """One table at its latest version."""
        return self.snapshot(name).table

    def snapshot(
        self,
        name: str,
        version: int | None = None,
        *,
        timestamp_ms: int | None = None,
        identity: Identity | None = None,
    ) -> Snapshot:
        """A table at its latest version, at a version, or at a time.

        With an identity, it is an error if another table has the name by now.
        """
        log = self.log(name, identity)
        if timestamp_ms is not None:
            if version is not None:
                raise DeltaError(f"{name}: give a version or a timestamp, not both")
            version = log.version_at(timestamp_ms)
        return Snapshot(self._own, log.head(version))

    def log(self, name: str, identity: Identity | None = None) -> SqlTxnLogReader:
        """A table's transaction log, as the catalog has it."""
        self._share.check_open()
        return SqlTxnLogReader(self._own, name, identity)

    def ratify(
        self,
        *staged: Staged,
        leases: list[Lease] | None = None,
        seen: Snapshot | None = None,
    ) -> tuple[Committed | Skipped, ...] | Conflicted:
        """Make all of the staged commits true, or none; a conflict is a value.

        Args:
            staged: the commits.
            leases: where given, gets the lease of the one table that was committed to,
                if it was free: for a caller that publishes it right away.
            seen: the table as the caller saw it. An append to a table that is still so
                takes one round trip where asking would take another.
        """
        self._share.check_open()
        if any(commit.location is not None for commit in staged):
            self.init()
        head = None if seen is None else seen._head
        return self._writer.ratify(staged, leases, head)

    def commit(
        self, *staged: Staged, leases: list[Lease] | None = None
    ) -> tuple[Committed | Skipped, ...]:
        """Like `ratify`, but a conflict is a `CommitFailedError`."""
        from delkalakedb.model.txnlog import Conflicted

        outcome = self.ratify(*staged, leases=leases)
        if isinstance(outcome, Conflicted):
            raise CommitFailedError(
                f"{outcome.table}: version {outcome.winner_version} was taken by "
                f"{outcome.winner_operation}: {outcome.detail}; reload and retry "
                f"({outcome.rule})"
            )
        return outcome

    def expire(
        self,
        name: str,
        retention: timedelta | None = None,
        *,
        before_version: int | None = None,
        dry_run: bool = False,
    ) -> Expired:
        """Drop what only versions need that nobody is promised any more.

        Args:
            name: the table.
            retention: how long versions are kept; `delta.logRetentionDuration` by
                default, and never less.
            before_version: keep this version and all after it, if not more.
            dry_run: only say what would be dropped.
        """
        from delkalakedb.catalog.retention import expire_versions

        millisecond = timedelta(milliseconds=1)
        return expire_versions(
            self.backend,
            name,
            before_version=before_version,
            older_than_ms=None if retention is None else retention // millisecond,
            now_ms=int(time.time() * 1000),
            dry_run=dry_run,
        )

    def mirror_state(self, name: str) -> tuple[int, int, str]:
        """The newest published version, the newest ratified one, and the location."""
        from delkalakedb.catalog.outbox import Outbox

        mirror = Outbox(self.backend).load(name)
        return mirror.published_version, mirror.ratified_version, mirror.location

    def default_location(self, name: str) -> str:
        """Where a table is created that was given no location."""
        folder = self.backend.default_data_path
        folder = self.settings.data_path or folder
        if folder is None:
            raise DeltaError(
                f"{name}: no location for a new table; add ?location=... (its "
                "folder) or ?data_path=... (the folder of all tables) to the URI"
            )
        return f"{folder.rstrip('/')}/{_folder_name(name)}"

    def close(self) -> None:
        """Let go of the database; the last one out closes its connections.

        The catalog, and what was made from it, refuses all use from then on.
        """
        self._share.close()

    def __enter__(self) -> Self:
        self._share.check_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @classmethod
    def of(
        cls,
        uri: str | Uri,
        settings: Settings | SettingsDict | None = None,
        **sections: Unpack[SettingsDict],
    ) -> Self:
        """The catalog that `connect` opens."""
        parsed = (parse_uri(uri) if isinstance(uri, str) else uri).catalog
        plain = plain_settings(parsed, sections) if settings is None else None
        if plain is not None:
            return cls(parsed, cast("Settings", plain))
        from delkalakedb.config import load_settings

        return cls(parsed, load_settings(uri=parsed, settings=settings, **sections))

    def __repr__(self) -> str:
        return f"Catalog({str(self.uri)!r})"


def _files_of(batch: pa.RecordBatch) -> Iterator[File]:
    for row in batch.to_pylist():
        for name in ("partition_values", "tags", "deletion_vector"):
            row[name] = row[name] and msgspec.json.decode(row[name])
        yield File(**row)


@lru_cache(maxsize=256)
def _parse_short(where: str, schema_string: str) -> Predicate:
    from delkalakedb.model.predicate import parse_predicate
    from delkalakedb.model.schema import parse_schema

    return parse_predicate(where, parse_schema(schema_string))


def _schema(columns: Iterable[str] | None) -> pa.Schema:
    import pyarrow as pa

    from delkalakedb.catalog.rows import FILES_SCHEMA

    if columns is None:
        return FILES_SCHEMA
    columns = list(dict.fromkeys(columns))
    if unknown := sorted(set(columns) - set(FILES_SCHEMA.names)):
        raise DeltaError(
            f"files have no column {', '.join(unknown)}; they have "
            f"{', '.join(FILES_SCHEMA.names)}"
        )
    return pa.schema([FILES_SCHEMA.field(name) for name in columns])


def _folder_name(table: str) -> str:
    """A table's name, without what means something in a path or a URL."""
    return _ODD.sub(
        lambda odd: "".join(f"~{byte:02x}" for byte in odd[0].encode()), table
    )


def connect(
    uri: str | Uri,
    settings: Settings | SettingsDict | None = None,
    **sections: Unpack[SettingsDict],
) -> Catalog:
    """Open the catalog that a `deltasql://` URI names.

    A catalog that isn't there yet is made by its first write, or by `init`.

    Args:
        uri: a URI without a table; one with a table names its catalog.
        settings: a `Settings`, of which counts what was set in it.
        sections: sections of the configuration, such as `pool={"size": 10}` or
            `pool=PoolSettings(size=10)`; they come before `settings`.
    """
    return Catalog.of(uri, settings, **sections)
