"""A table's head: what one round trip tells of it."""

from dataclasses import dataclass

from delkalakedb.catalog.backend import Row
from delkalakedb.model.actions import Metadata, Protocol, known
from delkalakedb.model.codec import decode_struct
from delkalakedb.model.tables import Table

__all__ = ["FILES_PER_TABLE", "Head"]

# A file id carries its table in the bits above these.
FILES_PER_TABLE = 1 << 40


@dataclass(frozen=True, slots=True)
class Head:
    """A row of `load_state`: the table, and one of its versions."""

    table_id: int
    name: str
    location: str
    created_at_ms: int
    current_version: int
    first_version: int
    next_file: int
    next_column: int
    version: int
    timestamp_ms: int
    num_files: int
    size_bytes: int
    metadata_version: int
    protocol_version: int
    metadata: Metadata
    protocol: Protocol

    @classmethod
    def from_row(cls, row: Row) -> "Head":
        """The head that a complete row holds."""
        *values, metadata, protocol = row
        state = (decode_struct(metadata, Metadata), decode_struct(protocol, Protocol))
        return cls(*(*values, *state))

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
