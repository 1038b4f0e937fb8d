"""The reading half of the stand-in for deltalake's `RawDeltaTable`: what SQL answers.

A handle of a process that only opens tables and asks for their names stays this half.
The rest, with Arrow and all that commits, is `SqlRawTable`, which takes several times
as long to import; a handle becomes one when it is first asked for more.
"""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeGuard

import deltalake
import msgspec

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.catalog.names import no_such_table
from delkalakedb.errors import (
    CatalogNotFoundError,
    DeltaError,
    VersionNotFoundError,
)
from delkalakedb.model.actions import known
from delkalakedb.model.paths import Inside, Outside, resolve_path
from delkalakedb.storage import canonical_location, local_folder

if TYPE_CHECKING:
    from delkalakedb.catalog.head import Identity
    from delkalakedb.catalog.reader import SqlTxnLogReader
    from delkalakedb.model.properties import TableProperties
    from delkalakedb.table.raw import SqlRawTable

__all__ = ["SqlRawReads", "file_places", "file_uris", "is_ours", "resolve_readable"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RFC_3339 = re.compile(
    r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
# files; rows of more would take hundreds of megabytes, of which Arrow needs a part
_MOST_PLAIN = 200_000


class SqlRawReads:
    """A handle on one version of a table; loading moves it."""

    _loaded: Snapshot
    _moved_to: int | None = None

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        version: int | None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._catalog = catalog
        self._name = name
        self._storage_options = storage_options
        self._identity: Identity | None = None
        self._snapshot = self._load(_unsigned(version))
        # From here on it is this table, whatever becomes of its name.
        self._identity = self._snapshot.identity

    def table_uri(self) -> str:
        """The storage location."""
        return f"{canonical_location(self._snapshot.table.location)}/"

    def version(self) -> int:
        """The loaded version."""
        return self._snapshot.version

    def get_latest_version(self) -> int:
        """The newest version."""
        return self._log.latest_version()

    def load_version(self, version: int) -> None:
        """Move to a version."""
        self._snapshot = self._load(_unsigned(version))

    def load_with_datetime(self, text: str) -> None:
        """Move to the version of a time; the oldest one where it is too old."""
        self.load_version(self._version_at(_parse_time_ms(text)))

    def update_incremental(self) -> None:
        """Move to the newest version."""
        self._snapshot = self._load(None)

    @property
    def schema(self) -> deltalake.Schema:
        """The loaded version's schema."""
        return deltalake.Schema.from_json(self._snapshot.metadata.schema_string)

    def metadata(self) -> Any:
        """The loaded version's metadata."""
        metadata = self._snapshot.metadata
        return SimpleNamespace(
            id=metadata.id,
            name=known(metadata.name),
            description=known(metadata.description),
            partition_columns=metadata.partition_columns,
            created_time=known(metadata.created_time),
            configuration=known(metadata.configuration) or {},
        )

    def protocol_versions(self) -> tuple[int, int, list[str] | None, list[str] | None]:
        """Reader and writer version, writer features, reader features."""
        protocol = self._snapshot.protocol
        return (
            protocol.min_reader_version,
            protocol.min_writer_version,
            known(protocol.writer_features) or None,
            known(protocol.reader_features) or None,
        )

    def table_config(self) -> tuple[bool, int, bool]:
        """What deltalake says of its own defaults."""
        return False, 4 * (os.cpu_count() or 1), False

    def get_num_index_cols(self) -> int:
        """How many columns have statistics."""
        return self._properties.data_skipping_num_indexed_cols

    def get_stats_columns(self) -> list[str] | None:
        """Which columns have statistics, where the table names them."""
        named = self._properties.data_skipping_stats_columns
        return None if named is None else [".".join(path) for path in named]

    def history(self, limit: int | None = None) -> tuple[int, list[str]]:
        """The newest commit's version, and commitInfo as JSON, newest first."""
        commits = self._snapshot.history(_unsigned(limit))
        infos = [msgspec.json.encode(c.commit_info).decode() for c in commits]
        return commits[0].version if commits else self.version(), infos

    def transaction_version(self, app_id: str) -> int | None:
        """The newest version that an application recorded."""
        return self._snapshot.txn_version(app_id)

    def files(self, predicate: Any = None) -> list[str]:
        """The files: where they are, or within the table where filtered."""
        if predicate is None:
            return self.file_uris()
        from delkalakedb.table.files import load_files

        return load_files(self._snapshot, predicate, ["path"]).paths()

    def file_uris(self, predicate: Any = None) -> list[str]:
        """Where the files are."""
        table = self._snapshot.table
        # With Arrow, the list is kept for the next one who asks.
        arrow = "pyarrow" in sys.modules or table.num_files > _MOST_PLAIN
        if predicate is None and not arrow:
            places = file_places(self._snapshot.paths(), table.location)
            return file_uris(table.location, places)
        from delkalakedb.table.files import load_files

        return load_files(self._snapshot, predicate, ["path"]).uris()

    @property
    def _snapshot(self) -> Snapshot:
        """The loaded version; one that was just made is loaded when it is asked for."""
        if self._moved_to is not None:
            self._snapshot = self._load(self._moved_to)
        return self._loaded

    @_snapshot.setter
    def _snapshot(self, snapshot: Snapshot) -> None:
        self._loaded, self._moved_to = snapshot, None

    @property
    def _log(self) -> SqlTxnLogReader:
        return self._catalog.log(self._name, self._identity)

    @property
    def _properties(self) -> TableProperties:
        from delkalakedb.model.properties import parse_properties

        return parse_properties(self._snapshot.metadata)

    def _version_at(self, timestamp_ms: int) -> int:
        try:
            return self._log.version_at(timestamp_ms)
        except VersionNotFoundError:
            return self._log.head().first_version

    def _load(self, version: int | None) -> Snapshot:
        try:
            return self._catalog.snapshot(self._name, version, identity=self._identity)
        except CatalogNotFoundError as error:
            error.args = (f"{no_such_table(self._name)}: {error}",)
            raise

    if not TYPE_CHECKING:  # a checker would take every name for one of ours

        def __getattr__(self, name: str) -> Any:
            from delkalakedb.table.raw import SqlRawTable

            if isinstance(self, SqlRawTable):
                kind = type(self).__name__
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            self.__class__ = SqlRawTable
            return getattr(self, name)


def is_ours(handle: object) -> TypeGuard[SqlRawTable]:
    """Whether a table's handle is ours; it then has all that `SqlRawTable` has."""
    return isinstance(handle, SqlRawReads)


def resolve_readable(path: str, location: str) -> Inside | Outside:
    """Return where a path in a table's log leads; raise where it mustn't be read.

    Only the absolute paths of a shallow clone lead out of the location.
    """
    place = resolve_path(path, location)
    if isinstance(place, Outside) and not place.absolute:
        raise DeltaError(
            f"{location}: the log's path {path} doesn't lead to a file below the "
            "table's location, so nothing is read; overwrite the table, or restore a "
            "version without the path"
        )
    return place


def file_places(paths: Iterable[str], location: str) -> list[str | Outside]:
    """Return the files' literal paths below the location, or where else they are."""
    places = (resolve_readable(path, location) for path in paths)
    return [place.path if isinstance(place, Inside) else place for place in places]


def file_uris(location: str, places: Iterable[str | Outside]) -> list[str]:
    """Return where the files of a table are; for those on a local disk a path."""
    root = local_folder(location) or canonical_location(location)
    return [
        f"{root}/{place}"
        if isinstance(place, str)
        else local_folder(place.url) or place.url
        for place in places
    ]


def _unsigned(number: int | None) -> int | None:
    """The number, as far as Rust and SQL both have it."""
    if number is None:
        return None
    number = int(operator.index(number))
    if number < 0:
        raise OverflowError("can't convert negative int to unsigned")
    if number >= 2**63:
        raise OverflowError("int too big to convert")
    return number


def _parse_time_ms(text: str) -> int:
    if not _RFC_3339.fullmatch(text):
        raise ValueError(
            f"Failed to parse datetime string: {text!r} is not like "
            "2026-01-31T12:30:00Z or 2026-01-31T12:30:00+02:00 (RFC 3339)"
        )
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError as error:
        raise ValueError(f"Failed to parse datetime string: {error}") from error
    return (moment - _EPOCH) // timedelta(milliseconds=1)
