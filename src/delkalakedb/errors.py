"""Every error the package raises.

    DeltalakeDBError
    ├── UriError                    (also ValueError)
    ├── ConfigError                 (also ValueError)
    ├── PredicateError              (also ValueError)
    ├── QueryError                  (also ValueError)
    ├── CodecError                  (also ValueError)
    ├── TransactionError            (used after its end, nested, ...)
    ├── DeltaError                  (also deltalake's DeltaError)
    │   ├── TableNotFoundError      (also deltalake's)
    │   ├── TableExistsError
    │   ├── VersionNotFoundError
    │   ├── CommitPropertiesError   (also ValueError)
    │   ├── SchemaMismatchError     (also deltalake's)
    │   ├── ProtocolError           (also deltalake's DeltaProtocolError)
    │   ├── ReadOnlyError           (the table is followed, or was moved)
    │   │   └── ReadOnlyFeatureError (also ProtocolError: readable, but not writable)
    │   └── CommitFailedError       (also deltalake's)
    ├── CatalogError
    │   ├── CatalogUnavailableError (the database can't be reached or is closing)
    │   │   └── UnknownOutcomeError (lost during COMMIT: it may have happened or not)
    │   ├── CatalogBusyError        (someone else holds it longer than we may wait)
    │   ├── CatalogPermissionError  (the role lacks a right, or the server is a replica)
    │   └── CatalogSchemaError      (absent, or of another schema version)
    │       └── CatalogNotFoundError (absent; also TableNotFoundError)
    ├── StorageError
    └── MirrorError
        ├── DivergedError           (someone else writes to the log)
        └── MirrorBehindError       (too many versions wait to be published)

An unreachable database is never a `TableNotFoundError`: deltalake's writer reads
that one as "create the table".
"""

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
    "UnknownOutcomeError",
    "UriError",
    "VersionNotFoundError",
]


class DeltalakeDBError(Exception):
    """The root of every error raised by this package."""


class UriError(DeltalakeDBError, ValueError):
    """A `deltasql://` URI that can't be understood."""


class ConfigError(DeltalakeDBError, ValueError):
    """A setting that is missing or has a value that isn't allowed."""


class PredicateError(DeltalakeDBError, ValueError):
    """A filter that can't be parsed, or that names an unknown column."""


class QueryError(DeltalakeDBError, ValueError):
    """A query that can't be parsed, or that fails on the rows it reads."""


class CodecError(DeltalakeDBError, ValueError):
    """Bytes that aren't a Delta log entry."""


class TransactionError(DeltalakeDBError):
    """A transaction used in a way it doesn't allow."""


class DeltaError(DeltalakeDBError, _deltalake.DeltaError):
    """A Delta operation that failed; also a deltalake `DeltaError`."""


class TableNotFoundError(DeltaError, _deltalake.TableNotFoundError):
    """The catalog was asked and has no such table."""


class TableExistsError(DeltaError):
    """The name or the location is taken."""


class VersionNotFoundError(DeltaError):
    """A version or timestamp that the catalog doesn't hold."""


class CommitPropertiesError(DeltaError, ValueError):
    """Custom metadata of a commit that isn't JSON, or that has a reserved key."""


class SchemaMismatchError(DeltaError, _deltalake.SchemaMismatchError):
    """Data that doesn't fit the table's schema."""


class ProtocolError(DeltaError, _deltalake.DeltaProtocolError):
    """A table feature that can't be honoured, or an action that breaks the protocol."""


class ReadOnlyError(DeltaError):
    """A table that others write: it is followed here, or another catalog has it."""


class ReadOnlyFeatureError(ReadOnlyError, ProtocolError):
    """A table that can be read here, but has a feature that can't be written."""


class CommitFailedError(DeltaError, _deltalake.CommitFailedError):
    """A commit lost against another one and can't be rebased on it."""


class CatalogError(DeltalakeDBError):
    """The catalog database answered with an error."""


class CatalogUnavailableError(CatalogError):
    """The catalog database can't be reached."""


class UnknownOutcomeError(CatalogUnavailableError):
    """The connection was lost during COMMIT: it may have happened or not."""


class CatalogBusyError(CatalogError):
    """The catalog database is held by someone else for longer than we may wait."""


class CatalogPermissionError(CatalogError):
    """The database role lacks a right, or the server is a replica that only reads."""


class CatalogSchemaError(CatalogError):
    """The catalog's tables are absent, or of a version this package can't use."""


class CatalogNotFoundError(CatalogSchemaError, TableNotFoundError):
    """The database holds no catalog, and so no table; a first write makes it."""

    # Whether there is no database either.
    without_database = False


class StorageError(DeltalakeDBError):
    """The object store answered with an error."""


class MirrorError(DeltalakeDBError):
    """Publishing to `_delta_log` can't go on."""


class DivergedError(MirrorError):
    """The log has a commit that the catalog didn't ratify."""


class MirrorBehindError(MirrorError):
    """More versions wait to be published than `mirror.max_unpublished` allows."""
