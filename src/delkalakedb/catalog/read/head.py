"""A table's head, which one round trip loads, and the names that tables may have.

The head also says which columns have their bounds indexed. The choice is made when the
metadata changes, so a writer with other settings still writes index rows for the
columns that were chosen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from delkalakedb.catalog.engine import Backend, HeadRow, Session
from delkalakedb.errors import (
    CatalogError,
    DeltaError,
    ProtocolError,
    ReadOnlyError,
    ReadOnlyFeatureError,
    TableNotFoundError,
    VersionNotFoundError,
    did_you_mean,
)
from delkalakedb.model.actions import Metadata, Protocol, decode_struct, known
from delkalakedb.telemetry import OPEN, measured
from delkalakedb.waits import calls, running

if TYPE_CHECKING:
    from delkalakedb.model.records import Table
    from delkalakedb.model.stats.values import Kind


_MAX_NAME_BYTES = 255
_UNPRINTABLE = r"[\x00-\x1f\x7f]"
# `scheme://` anywhere, and `scheme:/` or `deltasql:` at the beginning
_URI = r"(?i)://|^\s*(?:[a-z][a-z0-9+.-]*:/|deltasql:)"
_MAX_LOCATION_BYTES = 2000


def check_name(name: str) -> None:
    """Refuse a name that no URI can have, that looks like a URI, or that is too long.

    A URI isn't shown, because it may hold a password.
    """
    if re.search(_URI, name):
        raise DeltaError(
            "a table can't have a URI as its name; give the name alone, such as 'sales'"
        )
    if not name or re.search(_UNPRINTABLE, name):
        raise DeltaError(f"{name!r}: a table can't have this name")
    _check_size("name", name, _MAX_NAME_BYTES)


def check_place(name: str, location: str) -> None:
    """Raise `DeltaError` if a name or a location is invalid or too long.

    The location is a canonical URL. Delta-rs can open no folder whose name isn't UTF-8.
    """
    check_name(name)
    _check_size("location", location, _MAX_LOCATION_BYTES)
    try:
        unquote(location, errors="strict")
    except UnicodeDecodeError as error:
        raise DeltaError(
            f"{name}: the location {location} has a folder whose name isn't valid "
            "UTF-8; rename the folder, or choose another location"
        ) from error


def no_such_table(name: str, session: Session | None = None) -> TableNotFoundError:
    """Return the error for a table that isn't in the catalog.

    A URI isn't shown, because it may hold a password.

    Args:
        name: the table.
        session: a session that looks for tables with names near `name`; without one,
            the error suggests none.
    """
    if re.search(_URI, name):
        return TableNotFoundError(
            "the catalog has no table with a URI as its name; give the name alone"
        )
    near = did_you_mean(name, _near_names(session, name)) if session else ""
    error = TableNotFoundError(f"{name}: the catalog has no such table{near}")
    error.table = name
    return error


def _near_names(session: Session, name: str) -> Sequence[str]:
    # A name that is shorter or longer is never near.
    lengths = {"shortest": len(name) * 2 // 5, "longest": len(name) * 5 // 2}
    near = {**lengths, "first": name[:1].lower()}
    # The error matters more than a failed search.
    with suppress(CatalogError):
        return session.values("find_near_tables", near)
    return ()


def _check_size(what: str, text: str, limit: int) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > limit:
        raise DeltaError(f"a table's {what} can't be longer than {limit} bytes")


Identity = tuple[int, int]
# No version that a database can hold is as great.
_MOST_VERSIONS = 2**63 - 1

# The hold of a table that others write by file.
FOLLOWING = "following"
# A file id carries its table in the bits above these.
FILES_PER_TABLE = 1 << 40


class Head(msgspec.Struct, frozen=True):
    """A table, and one of its versions."""

    table_id: int
    name: str
    location: str
    created_at_ms: int
    current_version: int
    first_version: int
    next_file: int
    version: int
    timestamp_ms: int
    num_files: int
    size_bytes: int
    metadata_version: int
    protocol_version: int
    stat_columns: tuple[StatColumn, ...]
    metadata: Metadata
    protocol: Protocol
    # Why this catalog may not commit to the table.
    hold: str | None = None

    @property
    def identity(self) -> Identity:
        """The table's identity, which stays unique if the database is recreated."""
        return self.table_id, self.created_at_ms

    def check_ours(self) -> None:
        """Raise `ReadOnlyError` if this catalog can't or may not write to the table."""
        if self.hold in (None, FOLLOWING):
            self.check_writable()
        if self.hold is None:
            return
        advice = "Write to the table there"
        if self.hold == FOLLOWING:
            advice = (
                "Write with the table's own writers, or take the table over with "
                "dk.cut_over(uri)"
            )
        raise ReadOnlyError(
            f"{self.name}: nothing was written, because the table is read-only here "
            f"({self.hold}). {advice}"
        )

    def check_writable(self) -> None:
        """Raise `ReadOnlyFeatureError` if a feature prevents writes to the table."""
        from delkalakedb.model.rules.protocol import check_writable

        try:
            check_writable(self.protocol, self.metadata)
        except ProtocolError as error:
            raise ReadOnlyFeatureError(
                f"{self.name}: nothing was written, because the table is read-only "
                f"here: {error}. Write to it with an engine that supports this, or "
                "drop the feature there; dk.sync(uri) takes in what was written"
            ) from error

    @property
    def read_only(self) -> str | None:
        """Why the table is read-only here; None if it is writable."""
        try:
            self.check_ours()
        except ReadOnlyError as error:
            return str(error)
        return None

    def table(self) -> Table:
        """Return the public view of the table at this version."""
        from delkalakedb.model.records import Table

        return Table(
            name=self.name,
            id=self.metadata.id,
            location=self.location,
            version=self.version,
            timestamp_ms=self.timestamp_ms,
            schema_string=self.metadata.schema_string,
            partition_columns=tuple(self.metadata.partition_columns),
            configuration=dict(known(self.metadata.configuration) or {}),
            description=known(self.metadata.description),
            min_reader_version=self.protocol.min_reader_version,
            min_writer_version=self.protocol.min_writer_version,
            reader_features=tuple(known(self.protocol.reader_features) or ()),
            writer_features=tuple(known(self.protocol.writer_features) or ()),
            created_time_ms=known(self.metadata.created_time),
            num_files=self.num_files,
            size_bytes=self.size_bytes,
        )


def check_identity(name: str, found: Identity, asked: Identity | None) -> None:
    """Raise an error if another table has taken the name of the table that was read."""
    if asked not in (None, found):
        raise TableNotFoundError(
            f"{name}: the table was renamed or dropped, and another one has its name; "
            "open it again"
        )


def find_head(
    backend: Backend,
    name: str,
    version: int | None = None,
    identity: Identity | None = None,
    *,
    near: bool = True,
) -> Head:
    """Return a table at a version, the latest by default, in one round trip.

    A head in the backend's memory takes no round trip.

    Args:
        backend: the catalog's database.
        name: the table.
        version: the version.
        identity: raise an error if another table has the name.
        near: name tables with near names in the error for a table that doesn't exist.
    """

    def load() -> Head:
        opened = measured(OPEN, engine=backend.engine, table=name)
        # A name that isn't printable may be one that the driver refuses.
        together = calls and version is None and name.isprintable()
        if together and (call := running()) is not None:
            from delkalakedb.catalog.read.head_batch import find_latest

            with opened:
                return find_latest(call, backend, name, identity)
        with opened, backend.reading() as session:
            return load_head(session, name, version, identity, near=near)

    if not backend.capabilities.keeps_heads or backend.is_gone():
        return load()
    head: Head = backend.heads.get((name, version), load)
    check_identity(name, head.identity, identity)
    return head


def find_kept(backend: Backend, name: str, version: int | None = None) -> Head | None:
    """Return the head that the backend keeps of a table at a version, if there is one.

    The head of the latest version is kept under None.
    """
    if not backend.capabilities.keeps_heads:
        return None
    return backend.heads.find((name, version))


def load_head(
    session: Session,
    name: str,
    version: int | None = None,
    identity: Identity | None = None,
    *,
    near: bool = True,
) -> Head:
    """Load a table at a version, the latest by default.

    This takes one round trip, and another one each for metadata and protocol if they
    changed after the version.
    """
    asked = version if version is None else min(version, _MOST_VERSIONS)
    rows = session.rows(HeadRow, "load_head", {"name": name, "version": asked})
    return checked_head(session, rows, name, identity, version, near=near)


def checked_head(
    session: Session,
    rows: list[HeadRow],
    name: str,
    identity: Identity | None = None,
    version: int | None = None,
    *,
    near: bool = True,
) -> Head:
    """Return the head in what `load_head` found; raise an error if it found none."""
    if not rows:
        raise no_such_table(name, session if near else None)
    (row,) = rows
    check_identity(name, (row.table_id, row.created_at_ms), identity)
    if row.version is None:
        raise VersionNotFoundError(
            f"{name}: there is no version {version}; the catalog holds "
            f"{row.first_version} to {row.current_version}"
        )
    return parse_head(session, row)


def parse_head(session: Session, row: HeadRow) -> Head:
    """Parse the head in a row whose version is in the catalog."""
    assert row.version is not None
    metadata, protocol = row.metadata, row.protocol
    if row.metadata_version != row.latest_metadata_version:
        key = {"table_id": row.table_id, "version": row.metadata_version}
        (metadata,) = session.values("load_metadata_at", key)
    if row.protocol_version != row.latest_protocol_version:
        key = {"table_id": row.table_id, "version": row.protocol_version}
        (protocol,) = session.values("load_protocol_at", key)
    return Head(
        table_id=row.table_id,
        name=row.name,
        location=row.location,
        created_at_ms=row.created_at_ms,
        current_version=row.current_version,
        first_version=row.first_version,
        next_file=row.next_file,
        version=row.version,
        timestamp_ms=row.timestamp_ms,
        num_files=row.num_files,
        size_bytes=row.size_bytes,
        metadata_version=row.metadata_version,
        protocol_version=row.protocol_version,
        stat_columns=parse_columns(row.stat_columns),
        metadata=decode_struct(metadata, Metadata),
        protocol=decode_struct(protocol, Protocol),
        hold=row.hold,
    )


class StatColumn(msgspec.Struct, frozen=True, array_like=True):
    """A column whose bounds are indexed for files added from `since` on.

    `until` is the version from which they aren't any more; `classes` are the width
    classes that its intervals have fallen into.
    """

    column_id: int
    physical: tuple[str, ...]
    unit: str
    since: int
    until: int | None = None
    classes: frozenset[int] = frozenset()

    @property
    def kind(self) -> Kind:
        """The table of statistics that holds the column's rows."""
        from delkalakedb.model.stats.values import Kind

        return Kind.TEXT if self.unit == Kind.TEXT else Kind.NUMBER


_decoder = msgspec.json.Decoder(tuple[StatColumn, ...])


def parse_columns(text: str) -> tuple[StatColumn, ...]:
    """Parse the columns as a head row stores them."""
    return _decoder.decode(text)
