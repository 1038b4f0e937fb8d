"""A table's head: what one round trip tells of it."""

from dataclasses import dataclass

from delkalakedb.catalog.backend import Row, Session
from delkalakedb.catalog.names import no_such_table
from delkalakedb.catalog.statcolumns import StatColumn, parse_columns
from delkalakedb.errors import (
    ProtocolError,
    ReadOnlyError,
    ReadOnlyFeatureError,
    TableNotFoundError,
    VersionNotFoundError,
)
from delkalakedb.model.actions import Metadata, Protocol, known
from delkalakedb.model.codec import decode_struct
from delkalakedb.model.protocol import check_writable
from delkalakedb.model.tables import Table

__all__ = [
    "FILES_PER_TABLE",
    "FOLLOWING",
    "Head",
    "Identity",
    "check_identity",
    "load_head",
    "parse_head",
]

Identity = tuple[int, int]
# No version that a database can hold is as great.
_MOST_VERSIONS = 2**63 - 1

# The hold of a table that others write by file.
FOLLOWING = "following"
# A file id carries its table in the bits above these.
FILES_PER_TABLE = 1 << 40


@dataclass(frozen=True, slots=True)
class Head:
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
    # Why nobody may commit to it here.
    hold: str | None = None

    @property
    def identity(self) -> Identity:
        """What tells the table from any other, in a database made anew as well."""
        return self.table_id, self.created_at_ms

    def check_ours(self) -> None:
        """Refuse to write to a table that only others may write, or can."""
        if self.hold in (None, FOLLOWING):
            self.check_writable()
        if self.hold is None:
            return
        advice = "Write to it there"
        if self.hold == FOLLOWING:
            advice = "Write where it is written, or take it over: dk.cut_over(uri)"
        raise ReadOnlyError(
            f"{self.name}: nothing was written: it is {self.hold}, and read-only here. "
            f"{advice}"
        )

    def check_writable(self) -> None:
        """Refuse to write to a table that can only be read here, and name the cause."""
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
        """Why the table is read-only here; None where it isn't."""
        try:
            self.check_ours()
        except ReadOnlyError as error:
            return str(error)
        return None

    def table(self) -> Table:
        """The public view of the table at this version."""
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
    """Refuse a table that has the name of another one that was seen before."""
    if asked not in (None, found):
        raise TableNotFoundError(
            f"{name}: the table was renamed or dropped, and another one has its name; "
            "open it again"
        )


def load_head(
    session: Session,
    name: str,
    version: int | None = None,
    identity: Identity | None = None,
) -> Head:
    """A table at a version, the latest by default.

    One round trip, or another one each where metadata or protocol changed since.
    """
    asked = version if version is None else min(version, _MOST_VERSIONS)
    rows = session.query("load_head", {"name": name, "version": asked})
    if not rows:
        raise no_such_table(name)
    row = rows[0]
    check_identity(name, (row[0], row[3]), identity)
    if row[7] is None:
        raise VersionNotFoundError(
            f"{name}: there is no version {version}; the catalog holds "
            f"{row[5]} to {row[4]}"
        )
    return parse_head(session, row)


def parse_head(session: Session, row: Row) -> Head:
    """The head in a row of `load_head` or its like."""
    *values, columns, metadata_at, metadata, protocol_at, protocol, hold = row
    *_, metadata_version, protocol_version = values
    table_id = row[0]
    if metadata_version != metadata_at:
        key = {"table_id": table_id, "version": metadata_version}
        ((metadata,),) = session.query("load_metadata_at", key)
    if protocol_version != protocol_at:
        key = {"table_id": table_id, "version": protocol_version}
        ((protocol,),) = session.query("load_protocol_at", key)
    state = (
        parse_columns(columns),
        decode_struct(metadata, Metadata),
        decode_struct(protocol, Protocol),
        hold,
    )
    return Head(*(*values, *state))
