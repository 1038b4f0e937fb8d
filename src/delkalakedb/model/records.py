"""Tables, files and commits as the catalog returns them to its users."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from delkalakedb.errors import CodecError
from delkalakedb.model.display import format_minute
from delkalakedb.model.markup import Listing
from delkalakedb.model.times import from_ms

if TYPE_CHECKING:
    from delkalakedb.model.schema.schema import Schema

Strings = dict[str, str | None]
_T = TypeVar("_T")


class _Record:
    """A record that converts to and from a dictionary of JSON values."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the record as a dictionary of JSON values.

        Returns:
            The fields by name; tuples are lists.

        Examples:
            >>> table = dk.connect("deltasql://sqlite/meta.db").table("sales")
            >>> table.to_dict()["version"]
            1
        """
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the record of a dictionary that `to_dict` returned.

        Args:
            values: the fields by name; a field with a default may be missing.

        Returns:
            The record.

        Raises:
            CodecError: A key is unknown, or a value has another type than its field.

        Examples:
            >>> table = dk.connect("deltasql://sqlite/meta.db").table("sales")
            >>> dk.Table.from_dict(table.to_dict()) == table
            True
        """
        known = {item.name for item in fields(cls)}  # type: ignore[arg-type]
        if unknown := sorted(values.keys() - known):
            raise CodecError(f"not a {cls.__name__}: unknown key {', '.join(unknown)}")
        try:
            return msgspec.convert(dict(values), cls)
        except msgspec.ValidationError as error:
            raise CodecError(f"not a {cls.__name__}: {error}") from error


class History(Listing[_T]):
    """The commits of a table, newest first: a list that a notebook shows as a table.

    The items are `Commit` objects, or the dictionaries of deltalake's `history`.
    """

    @staticmethod
    def _row(item: _T) -> Mapping[str, object]:
        known = item.to_dict() if isinstance(item, Commit) else item
        fields: Mapping[str, Any] = known if isinstance(known, Mapping) else {}
        time_ms = fields.get("timestamp_ms", fields.get("timestamp"))
        parameters = fields.get("operation_parameters") or fields.get(
            "operationParameters"
        )
        given = (parameters or {}).items()
        author = ("db_user", "os_user", "userName", "client", "engineInfo")
        return {
            "version": fields.get("version"),
            "time (UTC)": format_minute(time_ms) if isinstance(time_ms, int) else None,
            "operation": fields.get("operation"),
            "parameters": ", ".join(f"{name}: {value}" for name, value in given),
            "by": next(filter(None, map(fields.get, author)), None),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Table(_Record):
    """A table at one version.

    Args:
        name: the name in the catalog.
        id: the id in the table's metaData action.
        location: the URL of the folder with the table's files.
        version: the version.
        timestamp_ms: the time of the version, in milliseconds since the epoch.
        schema_string: the schema, as JSON.
        partition_columns: the names of the partition columns.
        configuration: the table properties.
        description: the description.
        min_reader_version: the protocol's version for readers.
        min_writer_version: the protocol's version for writers.
        reader_features: the features that a reader must support.
        writer_features: the features that a writer must support.
        created_time_ms: the time in the metaData action, in milliseconds since the
            epoch.
        num_files: the number of files.
        size_bytes: the size of all files.

    Examples:
        >>> table = dk.connect("deltasql://sqlite/meta.db").table("sales")
        >>> table.name, table.num_files, table.timestamp.tzname()
        ('sales', 2, 'UTC')
    """

    name: str
    id: str
    location: str
    version: int
    timestamp_ms: int
    schema_string: str
    partition_columns: tuple[str, ...] = ()
    configuration: Strings = field(default_factory=dict, hash=False)
    description: str | None = None
    min_reader_version: int = 1
    min_writer_version: int = 2
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] = ()
    created_time_ms: int | None = None
    num_files: int = 0
    size_bytes: int = 0

    @property
    def timestamp(self) -> datetime:
        """The time of the version, in UTC."""
        return from_ms(self.timestamp_ms)

    @property
    def created_time(self) -> datetime | None:
        """The time when the table was created, in UTC, if its metadata has it."""
        return None if self.created_time_ms is None else from_ms(self.created_time_ms)

    @property
    def schema(self) -> "Schema":
        """The parsed schema."""
        from delkalakedb.model.schema.schema import parse_schema

        return parse_schema(self.schema_string)


@dataclass(frozen=True, kw_only=True, slots=True)
class File(_Record):
    """A data file, with the versions that added it and removed it.

    Args:
        path: the path in the log: relative to the table's location, or a URL.
        size_bytes: the size of the file.
        partition_values: the values of the partition columns, as text.
        modification_time_ms: the time of writing, in milliseconds since the epoch.
        data_change: whether the commit that added the file changed rows.
        stats: the statistics, as JSON.
        num_records: the number of rows with the deleted ones, if the statistics have
            it.
        tags: the tags of the add action.
        deletion_vector: the descriptor of the file's deletion vector.
        base_row_id: the id of the first row, if the table tracks rows.
        default_row_commit_version: the version of the file's rows, if the table tracks
            rows.
        added_version: the version that added the file.
        removed_version: the version that removed the file. A file of a snapshot has
            none, even if a later version removed the file.

    Examples:
        >>> snapshot = dk.connect("deltasql://sqlite/meta.db").snapshot("sales")
        >>> files = snapshot.iter_files()
        >>> sorted((file.added_version, file.num_records) for file in files)
        [(0, 2), (1, 1)]
    """

    path: str
    size_bytes: int
    partition_values: Strings = field(default_factory=dict, hash=False)
    modification_time_ms: int
    data_change: bool = True
    stats: str | None = None
    num_records: int | None = None
    tags: Strings | None = field(default=None, hash=False)
    deletion_vector: dict[str, Any] | None = field(default=None, hash=False)
    base_row_id: int | None = None
    default_row_commit_version: int | None = None
    added_version: int
    removed_version: int | None = None

    @property
    def modification_time(self) -> datetime:
        """The time when the file was written, in UTC."""
        return from_ms(self.modification_time_ms)


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit(_Record):
    """One version of a table: its operation, its author and the size of the change.

    Args:
        version: the version.
        timestamp_ms: the time of the commit, in milliseconds since the epoch.
        operation: the operation, such as `WRITE`.
        operation_parameters: the operation's parameters.
        operation_metrics: the operation's metrics.
        user_metadata: the text that the writer gave.
        engine_info: the program that wrote the version.
        read_version: the version that the writer read.
        isolation_level: the isolation level in commitInfo.
        is_blind_append: whether the writer read nothing of the table.
        transaction_id: the id that recognises the commit in the log.
        db_user: the writer's user in the database.
        os_user: the writer's user in the operating system.
        host: the writer's machine.
        client: the writer's version of this package.
        num_added_files: the number of files that the version added.
        num_removed_files: the number of files that the version removed.
        added_bytes: the size of the added files.
        removed_bytes: the size of the removed files.
        commit_info: all of the commitInfo action.

    Examples:
        >>> snapshot = dk.connect("deltasql://sqlite/meta.db").snapshot("sales")
        >>> (commit,) = snapshot.history(limit=1)
        >>> commit.version, commit.operation, commit.num_added_files
        (1, 'WRITE', 1)
    """

    version: int
    timestamp_ms: int
    operation: str | None = None
    operation_parameters: dict[str, Any] = field(default_factory=dict, hash=False)
    operation_metrics: dict[str, Any] = field(default_factory=dict, hash=False)
    user_metadata: str | None = None
    engine_info: str | None = None
    read_version: int | None = None
    isolation_level: str | None = None
    is_blind_append: bool | None = None
    transaction_id: str | None = None
    db_user: str | None = None
    os_user: str | None = None
    host: str | None = None
    client: str | None = None
    num_added_files: int = 0
    num_removed_files: int = 0
    added_bytes: int = 0
    removed_bytes: int = 0
    commit_info: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def timestamp(self) -> datetime:
        """The time of the commit, in UTC."""
        return from_ms(self.timestamp_ms)
