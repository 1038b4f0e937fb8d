"""Delta actions as frozen structs.

A field that is absent is `UNSET`, one that is written as `null` is `None`, and a
field this version doesn't know is kept in `extra`: what was read can be written
again without loss. Field order here is the order on disk.
"""

from typing import Any, TypeVar, Union

import msgspec
from msgspec import UNSET, UnsetType

__all__ = [
    "NO_SCHEMA",
    "UNSET",
    "Action",
    "Add",
    "Cdc",
    "CheckpointMetadata",
    "CommitInfo",
    "DeletionVector",
    "DomainMetadata",
    "Format",
    "Metadata",
    "Protocol",
    "Remove",
    "Sidecar",
    "Txn",
    "UnknownAction",
    "dv_id",
    "known",
]

T = TypeVar("T")
# Absent | null | value.
Maybe = Union[T, UnsetType, None]  # noqa: UP007
Strings = dict[str, str | None]
EXTRA = "$extra"
# What a `metaData` without a `schemaString` has in memory, where it is no column. No
# writer begins with a space, so that it can't be taken for one that is on disk.
NO_SCHEMA = ' {"type":"struct","fields":[]}'


class _Action(
    msgspec.Struct,
    frozen=True,
    # They hold plain values: no cycle for the collector to look for.
    gc=False,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """What all actions have: camelCase names on disk and room for unknown fields."""

    extra: dict[str, Any] = msgspec.field(default_factory=dict, name=EXTRA)


class DeletionVector(_Action, frozen=True, kw_only=True):
    """Which rows of a file are gone."""

    storage_type: str
    path_or_inline_dv: str
    offset: Maybe[int] = UNSET
    size_in_bytes: int
    cardinality: int
    max_row_index: Maybe[int] = UNSET

    @property
    def unique_id(self) -> str:
        """The id that, with the path, identifies a logical file."""
        base = f"{self.storage_type}{self.path_or_inline_dv}"
        return base if self.offset in (None, UNSET) else f"{base}@{self.offset}"


class Add(_Action, frozen=True, kw_only=True):
    """A file that belongs to the table from this version on."""

    path: str
    partition_values: Strings
    size: int
    modification_time: int
    data_change: bool
    stats: Maybe[str] = UNSET
    tags: Maybe[Strings] = UNSET
    deletion_vector: Maybe[DeletionVector] = UNSET
    base_row_id: Maybe[int] = UNSET
    default_row_commit_version: Maybe[int] = UNSET
    clustering_provider: Maybe[str] = UNSET


class Remove(_Action, frozen=True, kw_only=True):
    """A file that belongs to the table no longer: a tombstone."""

    path: str
    data_change: bool
    deletion_timestamp: Maybe[int] = UNSET
    extended_file_metadata: Maybe[bool] = UNSET
    partition_values: Maybe[Strings] = UNSET
    size: Maybe[int] = UNSET
    stats: Maybe[str] = UNSET
    tags: Maybe[Strings] = UNSET
    deletion_vector: Maybe[DeletionVector] = UNSET
    base_row_id: Maybe[int] = UNSET
    default_row_commit_version: Maybe[int] = UNSET


class Cdc(_Action, frozen=True, kw_only=True):
    """A file of change data: CDF readers see it instead of its version's adds."""

    path: str
    size: int
    partition_values: Strings
    data_change: bool
    tags: Maybe[Strings] = UNSET


class Format(_Action, frozen=True, kw_only=True):
    """The storage format of the data files."""

    provider: str
    options: Maybe[Strings] = UNSET


class Metadata(_Action, frozen=True, kw_only=True):
    """The table's schema, partitioning and properties (`metaData`)."""

    id: str
    name: Maybe[str] = UNSET
    description: Maybe[str] = UNSET
    format: Format
    schema_string: str = NO_SCHEMA
    partition_columns: list[str]
    created_time: Maybe[int] = UNSET
    configuration: Maybe[Strings] = UNSET


class Protocol(_Action, frozen=True, kw_only=True):
    """What a client must support to read or write the table."""

    min_reader_version: int
    min_writer_version: int
    reader_features: Maybe[list[str]] = UNSET
    writer_features: Maybe[list[str]] = UNSET


class Txn(_Action, frozen=True, kw_only=True):
    """An application's own version, for idempotent writes."""

    app_id: str
    version: int
    last_updated: Maybe[int] = UNSET


class DomainMetadata(_Action, frozen=True, kw_only=True):
    """Configuration of a named domain; `removed` is its tombstone."""

    domain: str
    configuration: str
    removed: bool


class CheckpointMetadata(_Action, frozen=True, kw_only=True):
    """The version a V2 checkpoint is of."""

    version: int
    tags: Maybe[Strings] = UNSET


class Sidecar(_Action, frozen=True, kw_only=True):
    """A file with the file actions of a V2 checkpoint."""

    path: str
    size_in_bytes: int
    modification_time: int
    tags: Maybe[Strings] = UNSET


class CommitInfo(msgspec.Struct, frozen=True, gc=False):
    """Provenance of a commit: free JSON, kept as it came."""

    fields: dict[str, Any]


class UnknownAction(msgspec.Struct, frozen=True):
    """An action of a kind that this version doesn't know."""

    kind: str
    body: Any


Action = (
    Add
    | Remove
    | Cdc
    | Metadata
    | Protocol
    | Txn
    | DomainMetadata
    | CommitInfo
    | CheckpointMetadata
    | Sidecar
    | UnknownAction
)


def known(value: Maybe[T]) -> T | None:
    """The value, with absent and null taken as the same."""
    return None if value is UNSET else value


def dv_id(action: Add | Remove) -> str:
    """The unique id of the action's deletion vector, or the empty string."""
    vector = known(action.deletion_vector)
    return vector.unique_id if vector is not None else ""
