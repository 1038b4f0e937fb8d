"""Every error the package raises.

    DeltalakeDBError
    ├── UriError                    (also ValueError)
    ├── ConfigError                 (also ValueError)
    ├── PredicateError              (also ValueError)
    ├── QueryError                  (also ValueError)
    ├── CodecError                  (also ValueError)
    ├── TransactionError            (used after its end, nested, ...)
    ├── FinishedError               (the cause of a `CancelledError`: it was too late)
    ├── DeltaError                  (also deltalake's DeltaError)
    │   ├── TableNotFoundError      (also deltalake's)
    │   ├── TableExistsError
    │   ├── VersionNotFoundError
    │   ├── CommitPropertiesError   (also ValueError)
    │   ├── SchemaMismatchError     (also deltalake's)
    │   ├── UnknownColumnError      (also PredicateError)
    │   ├── ProtocolError           (also deltalake's DeltaProtocolError)
    │   ├── ReadOnlyError           (the table is followed, or was moved)
    │   │   └── ReadOnlyFeatureError (also ProtocolError: readable, but not writable)
    │   └── CommitFailedError       (also deltalake's)
    ├── CatalogError
    │   ├── CatalogUnavailableError (the database can't be reached or is closing)
    │   │   └── UnknownOutcomeError (lost during COMMIT; the outcome is unknown)
    │   ├── CatalogBusyError        (locked by another process for too long)
    │   ├── CatalogPermissionError  (a right is missing, or the server is a replica)
    │   └── CatalogSchemaError      (absent, or of another schema version)
    │       └── CatalogNotFoundError (absent; also TableNotFoundError)
    ├── StorageError
    └── MirrorError
        ├── DivergedError           (the log has a foreign commit)
        └── MirrorBehindError       (too many versions wait to be published)

An unreachable database never raises `TableNotFoundError`, because deltalake's writer
would create the table.
"""

from collections.abc import Iterable
from typing import Any

from deltalake import exceptions as _deltalake

__all__ = [
    "CatalogBusyError",
    "CatalogError",
    "CatalogNotFoundError",
    "CatalogPermissionError",
    "CatalogSchemaError",
    "CatalogUnavailableError",
    "CodecError",
    "CommitFailedError",
    "CommitPropertiesError",
    "ConfigError",
    "DeltaError",
    "DeltalakeDBError",
    "DivergedError",
    "FinishedError",
    "MirrorBehindError",
    "MirrorError",
    "PredicateError",
    "ProtocolError",
    "QueryError",
    "ReadOnlyError",
    "ReadOnlyFeatureError",
    "SchemaMismatchError",
    "StorageError",
    "TableExistsError",
    "TableNotFoundError",
    "TransactionError",
    "UnknownColumnError",
    "UnknownOutcomeError",
    "UriError",
    "VersionNotFoundError",
]


class DeltalakeDBError(Exception):
    """The root of every error raised by this package."""


class UriError(DeltalakeDBError, ValueError):
    """A `deltasql://` URI that can't be parsed."""


class ConfigError(DeltalakeDBError, ValueError):
    """A setting that is missing or has a value that isn't allowed."""


class PredicateError(DeltalakeDBError, ValueError):
    """A filter that can't be parsed, or that names an unknown column."""


class QueryError(DeltalakeDBError, ValueError):
    """A query that can't be parsed, or that fails while it reads rows."""


class CodecError(DeltalakeDBError, ValueError):
    """Bytes that aren't a Delta log entry."""


class TransactionError(DeltalakeDBError):
    """A transaction is used after its end, or inside another one."""


class FinishedError(DeltalakeDBError):
    """A call that was cancelled had an effect already, and ran to its end.

    It is the cause of the `CancelledError`. `result` is what the call would have
    returned.
    """

    def __init__(self, result: Any) -> None:
        super().__init__("the call was cancelled too late; it has ended")
        self.result = result


class DeltaError(DeltalakeDBError, _deltalake.DeltaError):
    """A Delta operation that failed; also a deltalake `DeltaError`."""


class TableNotFoundError(DeltaError, _deltalake.TableNotFoundError):
    """The catalog has no table of this name.

    `table` is the name, unless it may hold a credential.
    """

    table: str | None = None


class TableExistsError(DeltaError):
    """Another table has the name or the location."""


class VersionNotFoundError(DeltaError):
    """The catalog has no such version, or no version as old as a timestamp."""


class CommitPropertiesError(DeltaError, ValueError):
    """Custom metadata of a commit that isn't JSON, or that has a reserved key."""


class SchemaMismatchError(DeltaError, _deltalake.SchemaMismatchError):
    """Data that doesn't match the table's schema."""


class UnknownColumnError(DeltaError, PredicateError):
    """An operation on a column that the table doesn't have."""


class ProtocolError(DeltaError, _deltalake.DeltaProtocolError):
    """A table feature that isn't supported, or an action that breaks the protocol."""


class ReadOnlyError(DeltaError):
    """A table that only other writers may change: it is followed, or was moved."""


class ReadOnlyFeatureError(ReadOnlyError, ProtocolError):
    """A table with a feature that can be read, but not written."""


class CommitFailedError(DeltaError, _deltalake.CommitFailedError):
    """A commit conflicts with another one and can't be rebased on it.

    `rule` names the broken rule of docs/conflicts.md, if one was broken.
    """

    def __init__(self, message: str = "", rule: str | None = None) -> None:
        super().__init__(message)
        self.rule = rule


class CatalogError(DeltalakeDBError):
    """An error of the catalog database."""


class CatalogUnavailableError(CatalogError):
    """The catalog database can't be reached."""


class UnknownOutcomeError(CatalogUnavailableError):
    """The connection was lost during COMMIT, and the outcome is unknown."""


class CatalogBusyError(CatalogError):
    """Another process locks the catalog database for longer than the timeout."""


class CatalogPermissionError(CatalogError):
    """The database role lacks a right, or the server is a replica that only reads."""


class CatalogSchemaError(CatalogError):
    """The catalog's tables are missing, or of a schema version that isn't known."""


class CatalogNotFoundError(CatalogSchemaError, TableNotFoundError):
    """The database has no catalog, hence no table; a first write creates it."""

    # Whether the database is missing, too.
    without_database = False


class StorageError(DeltalakeDBError):
    """A failed request to an object store, or a location or file it can't use."""


class MirrorError(DeltalakeDBError):
    """Publishing to `_delta_log` can't continue."""


class DivergedError(MirrorError):
    """The log has a commit that the catalog didn't ratify."""


class MirrorBehindError(MirrorError):
    """More versions wait to be published than `mirror.max_unpublished` allows."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean ...?` with names in `known` near `name`, or an empty text.

    Names that differ only in case are near.
    """
    from difflib import get_close_matches

    by_lower = {one.lower(): one for one in known}
    near = [by_lower[one] for one in get_close_matches(name.lower(), by_lower, n=3)]
    return f"; did you mean {' or '.join(near)}?" if near else ""
