"""A catalog: the tables of one SQL database.

Modules that plan, list files as Arrow, or commit are imported on first use, because a
process that only opens a table needs none of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, cast

from delkalakedb.catalog.engine import (
    Backend,
    HeadRow,
    Share,
    TableRow,
    ensure_schema,
    find_schema_version,
    load_backend,
    no_catalog,
)
from delkalakedb.catalog.read import Identity, SqlTxnLogReader, find_head, parse_head
from delkalakedb.catalog.snapshot import Snapshot
from delkalakedb.clock import now_ms
from delkalakedb.errors import (
    DeltaError,
    TableNotFoundError,
    TransactionError,
    UriError,
)
from delkalakedb.settings import (
    PlainSettings,
    Uri,
    is_deltasql,
    parse_uri,
    plain_settings,
    redact,
    require_table,
)

if TYPE_CHECKING:
    from delkalakedb.catalog.commit import (
        Committed,
        Conflicted,
        Skipped,
        SqlTxnLogWriter,
    )
    from delkalakedb.catalog.read import CommitStream, Expired
    from delkalakedb.model.log import Staged
    from delkalakedb.model.records import Table
    from delkalakedb.model.times import Moment
    from delkalakedb.settings import Settings, SettingsDict


# delta-rs takes a folder called %41 for one called A.
_ODD = re.compile(r"[^\w .-]|^\.")


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
        """Look for the catalog in its database, and upgrade an outdated catalog."""
        creates = self._settings.sql.schema_policy == "create_if_missing"
        if version := find_schema_version(self._backend):
            self._ensure(version, create=creates)
            return
        # It may have been there before.
        self._backend.has_catalog = False
        if not creates:
            raise no_catalog(self._backend, str(self.uri), writes_create=False)

    def _ensure(self, version: int, *, create: bool) -> None:
        ensure_schema(self._backend, str(self.uri), version, create=create)
        self._backend.has_catalog = True

    @cached_property
    def settings(self) -> Settings:
        """The settings that the catalog was opened with."""
        settings = self._settings
        return settings.full() if isinstance(settings, PlainSettings) else settings

    @cached_property
    def _writer(self) -> SqlTxnLogWriter:
        from delkalakedb.catalog.commit import SqlTxnLogWriter

        return SqlTxnLogWriter(self._backend, self.settings)

    @property
    def _backend(self) -> Backend:
        """The process's backend for the database, while the catalog is open."""
        self._share.check_open()
        return self._share.shared

    @property
    def closed(self) -> bool:
        """Whether the catalog was closed."""
        return self._share.closed

    def init(self) -> bool:
        """Create the catalog if it doesn't exist.

        The first write also creates the catalog, unless `sql.schema` is `error`.

        Returns:
            Whether the catalog was created.

        Raises:
            CatalogUnavailableError: The database can't be reached.
            CatalogPermissionError: The database role may not create tables.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/other.db")
            >>> catalog.init(), catalog.init()
            (True, False)
        """
        if not self._backend.has_catalog:
            self._find()
        if self._backend.has_catalog:
            return False
        self._ensure(0, create=True)
        return True

    def tables(self) -> list[Table]:
        """Return all tables at their latest versions.

        Returns:
            The tables, sorted by name.

        Raises:
            CatalogNotFoundError: The database has no catalog.
            CatalogUnavailableError: The database can't be reached.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> [(table.name, table.version) for table in catalog.tables()]
            [('sales', 1)]
        """
        with self._backend.reading() as session:
            rows = session.rows(HeadRow, "load_heads", {})
            return [parse_head(session, row).table() for row in rows]

    def _versions(self) -> dict[str, tuple[int, Identity]]:
        """Return the latest version and the identity of every table, by name."""
        with self._backend.reading() as session:
            rows = session.rows(TableRow, "load_table_versions", {})
        return {
            r.name: (r.current_version, (r.table_id, r.created_at_ms)) for r in rows
        }

    def table(self, name: str) -> Table:
        """Return one table at its latest version.

        Args:
            name: the table.

        Returns:
            The table's metadata, version and totals.

        Raises:
            TableNotFoundError: The catalog has no such table.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> catalog.table("sales").num_files
            2
        """
        return self.snapshot(name).table

    def snapshot(
        self,
        name: str,
        version: int | None = None,
        *,
        timestamp: Moment | None = None,
        timestamp_ms: int | None = None,
        identity: Identity | None = None,
    ) -> Snapshot:
        """Return a table at its latest version, at a version, or at a time.

        Args:
            name: the table.
            version: the number of the version.
            timestamp: the time; without a zone it is in UTC.
            timestamp_ms: the time in milliseconds since the epoch, instead.
            identity: raise an error if another table has the name now.

        Returns:
            The snapshot, which stays at its version.

        Raises:
            TableNotFoundError: The catalog has no such table.
            VersionNotFoundError: The table has no such version, or none as old as the
                time.
            DeltaError: The version isn't a number, the time can't be parsed, or both a
                version and a time are given.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> catalog.snapshot("sales", 0).num_records()
            2
            >>> commit = catalog.snapshot("sales").history()[0]
            >>> catalog.snapshot("sales", timestamp=commit.timestamp).version
            1
        """
        self._share.check_open()
        if version is not None and not hasattr(version, "__index__"):
            raise DeltaError(
                f"{name}: a version is a number, not {version!r}; give a time as "
                "timestamp=..."
            )
        if (version, timestamp, timestamp_ms).count(None) < 2:
            raise DeltaError(f"{name}: give a version or a timestamp, not both")
        if timestamp is not None:
            from delkalakedb.model.times import moment_ms

            timestamp_ms = moment_ms(timestamp)
        if timestamp_ms is not None:
            version = self.log(name, identity).version_at(timestamp_ms)
        return Snapshot(self._own, find_head(self._own, name, version, identity))

    def find(self, name: str) -> Snapshot | None:
        """Return a table at its latest version, if the catalog has such a table.

        Args:
            name: the table.

        Returns:
            The snapshot; None if there is no such table.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> catalog.find("sales").version, catalog.find("orders")
            (1, None)
        """
        self._share.check_open()
        try:
            return Snapshot(self._own, find_head(self._own, name, near=False))
        except TableNotFoundError:
            return None

    def log(self, name: str, identity: Identity | None = None) -> SqlTxnLogReader:
        """Return a table's transaction log, as the catalog stores it.

        Args:
            name: the table.
            identity: raise an error if another table has the name now.

        Returns:
            A reader of the log, which asks the catalog anew with each call.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> catalog.log("sales").head().version
            1
        """
        self._share.check_open()
        return SqlTxnLogReader(self._own, name, identity)

    def _stream(self, name: str, since: int | None, poll_s: float) -> CommitStream:
        """Return the commits of a table after a version, by default the latest.

        Args:
            name: the table.
            since: the version.
            poll_s: seconds between two looks, for databases that don't tell of commits.
        """
        return self.snapshot(name)._stream(since, poll_s)

    def commit(self, *staged: Staged) -> tuple[Committed | Skipped, ...]:
        """Commit all of `staged`, or none of it, without publishing.

        Args:
            staged: the actions for each table, and what the writer read.

        Returns:
            For each of `staged`, the version that it made, or the version that has its
            `txn` action already.

        Raises:
            CommitFailedError: Another commit conflicts with one of `staged`.
            TableNotFoundError: The catalog has no such table.
            ProtocolError: An action breaks the protocol, or needs an unknown feature.
            UnknownOutcomeError: The connection was lost during COMMIT.

        Examples:
            >>> from delkalakedb.model.actions import Txn
            >>> from delkalakedb.model.log import Reads, Staged
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> actions = [Txn(app_id="loader", version=7)]
            >>> catalog.commit(Staged("sales", actions, Reads(version=1)))[0].version
            2
        """
        from delkalakedb.catalog.commit import Committed, Conflicted

        outcome = self._try_commit(*staged)
        if isinstance(outcome, Conflicted):
            raise outcome.error()
        return tuple(summary(o) if isinstance(o, Committed) else o for o in outcome)

    def _try_commit(
        self, *staged: Staged, lease_s: float | None = None
    ) -> tuple[Committed | Skipped, ...] | Conflicted:
        """Commit all of `staged`, or none of it, and return a conflict as a value.

        Each `Committed` carries what its publisher needs, such as the actions.

        Args:
            staged: the commits.
            lease_s: the term, in seconds, of the lease to take on publishing, if all of
                `staged` is for one table and its lease is free; None takes no lease.
        """
        self._share.check_open()
        if any(commit.location is not None for commit in staged):
            self.init()
        return self._writer.ratify(staged, lease_s)

    def expire(
        self,
        name: str,
        retention: timedelta | None = None,
        *,
        before_version: int | None = None,
        dry_run: bool = False,
    ) -> Expired:
        """Drop the versions of a table that its retention doesn't keep.

        Args:
            name: the table.
            retention: how long versions are kept; `delta.logRetentionDuration` by
                default, and never less.
            before_version: keep at least this version and all later ones.
            dry_run: return what would be dropped, and drop nothing.

        Returns:
            The oldest version that is left, and how much was dropped or would be.

        Raises:
            TableNotFoundError: The catalog has no such table.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> catalog.expire("sales", before_version=1, dry_run=True).versions
            0
        """
        from delkalakedb.catalog.read import expire_versions
        from delkalakedb.model.times import duration_ms

        return expire_versions(
            self._backend,
            name,
            before_version=before_version,
            older_than_ms=None if retention is None else duration_ms(retention),
            now_ms=now_ms(),
            dry_run=dry_run,
        )

    def _mirror_state(self, name: str) -> tuple[int, int, str]:
        """Return the newest published version, the newest version and the location."""
        from delkalakedb.catalog.commit import Outbox

        mirror = Outbox(self._backend).load(name)
        return mirror.published_version, mirror.ratified_version, mirror.location

    def _default_location(self, name: str) -> str:
        """Return the location of a new table for which the caller gave none."""
        folder = self._backend.default_data_path
        folder = self.settings.data_path or folder
        if folder is None:
            raise DeltaError(
                f"{name}: no location for a new table; add ?location=... (its "
                "folder) or ?data_path=... (the folder of all tables) to the URI"
            )
        return f"{folder.rstrip('/')}/{_folder_name(name)}"

    def close(self) -> None:
        """Close the catalog, and the connections if no other catalog uses them.

        Every later use of the catalog, its snapshots and its logs raises an error. A
        `with` block closes its catalog.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> catalog.close()
            >>> catalog.closed
            True
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
    def _of(
        cls,
        uri: str | Uri,
        settings: Settings | SettingsDict | None = None,
        **sections: Unpack[SettingsDict],
    ) -> Self:
        """Return the catalog that `connect` opens."""
        parsed = uri_of(uri).catalog
        plain = plain_settings(parsed, sections) if settings is None else None
        if plain is not None:
            return cls(parsed, cast("Settings", plain))
        from delkalakedb.settings import load_settings

        return cls(parsed, load_settings(uri=parsed, settings=settings, **sections))

    def __repr__(self) -> str:
        return f"Catalog({str(self.uri)!r})"

    def _repr_html_(self) -> str:
        from delkalakedb.catalog.cards import answered, catalog_card

        uri = str(self.uri)
        return answered("Catalog", lambda: catalog_card("Catalog", uri, self._backend))


def _folder_name(table: str) -> str:
    """Return a table's name without characters that are special in a path or URL."""
    return _ODD.sub(
        lambda odd: "".join(f"~{byte:02x}" for byte in odd[0].encode()), table
    )


def summary(committed: Committed) -> Committed:
    """Return a commit without its actions and its lease, for callers to keep."""
    return replace(committed, ratified=None, lease=None)


def connect(
    uri: str | Uri,
    settings: Settings | SettingsDict | None = None,
    **sections: Unpack[SettingsDict],
) -> Catalog:
    """Open the catalog that a `deltasql://` URI names.

    A catalog that doesn't exist is created by its first write, or by `init`.

    Args:
        uri: a URI without a table; one with a table names its catalog.
        settings: the settings; only the keys that were set in a `Settings` count.
        sections: sections of the configuration, such as `pool={"size": 10}` or
            `pool=PoolSettings(size=10)`; they override `settings`.
    """
    return Catalog._of(uri, settings, **sections)


CatalogOrUri = Catalog | str | Uri


def uri_of(given: CatalogOrUri) -> Uri:
    """Return the URI of a catalog, or a URI that is given as text or parsed."""
    if isinstance(given, Catalog):
        return given.uri
    if isinstance(given, str):
        return parse_uri(given)
    if isinstance(given, Uri):
        return given
    if isinstance(given, PathLike):
        path = redact(os.fspath(given))
        raise UriError(
            f"a path doesn't say which database is at {path}; give the URI "
            f"deltasql://sqlite/{path} or deltasql://duckdb/{path}"
        )
    raise UriError(
        f"a catalog is given by a URI such as deltasql://sqlite/meta.db, not by "
        f"{type(given).__name__}"
    )


@contextmanager
def using_catalog(given: CatalogOrUri) -> Iterator[Catalog]:
    """Yield an open catalog, or open the catalog of a URI for the `with` block."""
    if isinstance(given, Catalog):
        yield given
    else:
        with connect(given) as catalog:
            yield catalog


@contextmanager
def using_table(
    given: CatalogOrUri, table: str | None = None
) -> Iterator[tuple[Catalog, str]]:
    """Yield the catalog and the name of a table.

    Args:
        given: an open catalog, or a URI.
        table: the table's name; by default the URI has it.
    """
    name = table or require_table(uri_of(given))
    with using_catalog(given) as catalog:
        yield catalog, name


_opened: dict[tuple[Uri, tuple[object, ...]], Catalog] = {}


def open_catalog(uri: Uri) -> Catalog:
    """Return the process's one catalog for a URI."""
    # A relative path names another database in another working directory.
    key = uri.catalog, load_backend(uri.engine).identity(uri.catalog)
    catalog = _opened.get(key)
    if catalog is not None and (catalog.closed or catalog._backend.is_gone()):
        _opened.pop(key, None)
        catalog.close()
        catalog = None
    if catalog is None:
        made = connect(uri.catalog)
        catalog = _opened.setdefault(key, made)
        if catalog is not made:
            made.close()
    return catalog


def name_in(catalog: Catalog, table: str) -> tuple[str, str | None]:
    """Return the name and the location in `table`, a name or a URI of this catalog."""
    if not is_deltasql(table):
        return table, None
    uri = parse_uri(table)
    if not _is_of(catalog, uri):
        raise TransactionError(
            f"{uri} is of another catalog; a table of {catalog.uri} is needed"
        )
    return require_table(uri), uri.location


def _is_of(catalog: Catalog, uri: Uri) -> bool:
    """Return whether a URI is of this catalog, with any user and options."""
    if uri.engine != catalog.uri.engine:
        return False
    if uri.host is None:
        # the path as it was opened, because the working directory may have changed
        (path,) = load_backend(uri.engine).identity(uri)
        return path in catalog._backend.key
    return _place(uri) == _place(catalog.uri)


def _place(uri: Uri) -> tuple[object, ...]:
    return uri.host, uri.port, uri.database, uri.schema


@dataclass(frozen=True)
class NamedTable:
    """A table of a catalog, which may not exist yet.

    Args:
        catalog: the catalog.
        name: the table's name.
        uri: the table's URI.
    """

    catalog: Catalog
    name: str
    uri: Uri


def find_table(given: object) -> NamedTable | None:
    """Return the table that a `deltasql://` URI or a pair of a catalog and a name is.

    Return None for anything else, such as a path.
    """
    if is_deltasql(given):
        uri = parse_uri(str(given))
        # The name first: a URI without one is refused before anything is opened.
        name = require_table(uri)
        return NamedTable(open_catalog(uri), name, uri)
    if isinstance(given, Catalog):
        raise DeltaError(
            f"{given.uri} is a catalog; name one of its tables, as in catalog['sales']"
        )
    if not (isinstance(given, tuple) and given and isinstance(given[0], Catalog)):
        return None
    if len(given) != 2 or not isinstance(given[1], str):
        raise DeltaError(
            "a table is given by a pair of a catalog and the table's name, such as "
            "(catalog, 'sales')"
        )
    name, location = name_in(*given)
    uri = given[0].uri.with_table(name)
    if location is not None:
        uri = replace(uri, options=(*uri.options, ("location", location)))
    return NamedTable(given[0], name, uri)
