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
        """Return the record as a dictionary of JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the record of a dictionary; raise `CodecError` for an unknown key."""
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
    """A table at one version."""

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

    A file of a snapshot has no `removed_version`, even if a later version removed it.
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
    """One version of a table: its operation, its author and the size of the change."""

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
