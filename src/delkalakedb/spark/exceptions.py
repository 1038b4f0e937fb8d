"""Errors of Spark's API: delta-spark's types, which are also this package's errors."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import AnalysisException, UnsupportedOperationException
from pyspark.errors.exceptions.base import PySparkException

from delkalakedb.errors import (
    CatalogNotFoundError,
    CommitFailedError,
    DeltaError,
    TableExistsError,
    TableNotFoundError,
    VersionNotFoundError,
)
from delkalakedb.model.rules.conflicts import Rule


class DeltaConcurrentModificationException(PySparkException):
    """A commit that another commit prevents."""


class ConcurrentWriteException(DeltaConcurrentModificationException):
    """Another commit has changed the table in a way that has no error of its own."""


class MetadataChangedException(DeltaConcurrentModificationException):
    """Another commit has changed the table's metadata."""


class ProtocolChangedException(DeltaConcurrentModificationException):
    """Another commit has changed the table's protocol."""


class ConcurrentAppendException(DeltaConcurrentModificationException):
    """Another commit has added files that the operation would have read."""


class ConcurrentDeleteReadException(DeltaConcurrentModificationException):
    """Another commit has removed a file that the operation has read."""


class ConcurrentDeleteDeleteException(DeltaConcurrentModificationException):
    """Another commit has removed a file that the operation removes, too."""


class ConcurrentTransactionException(DeltaConcurrentModificationException):
    """Another commit has recorded a version of the same application."""


_CONFLICTS: dict[str, type[PySparkException]] = {
    Rule.PROTOCOL_CHANGED: ProtocolChangedException,
    Rule.METADATA_CHANGED: MetadataChangedException,
    Rule.CONCURRENT_DOMAIN: ConcurrentTransactionException,
    Rule.CONCURRENT_TRANSACTION: ConcurrentTransactionException,
    Rule.CONCURRENT_APPEND: ConcurrentAppendException,
    Rule.CONCURRENT_DELETE_READ: ConcurrentDeleteReadException,
    Rule.CONCURRENT_DELETE_DELETE: ConcurrentDeleteDeleteException,
    Rule.REMOVE_NOT_LIVE: ConcurrentDeleteDeleteException,
}


@contextmanager
def delta_spark_errors() -> Iterator[None]:
    """Raise this package's errors as delta-spark's, too."""
    try:
        yield
    except PySparkException:
        raise
    except CommitFailedError as error:
        kind = _CONFLICTS.get(error.rule or "", ConcurrentWriteException)
        raise _both(error, kind, str(error)) from error
    except CatalogNotFoundError:
        raise
    except TableNotFoundError as error:
        text = f"the table cannot be found: {error}"
        raise _both(error, AnalysisException, text) from error
    except (TableExistsError, VersionNotFoundError) as error:
        raise _both(error, AnalysisException, str(error)) from error


def _both(error: DeltaError, kind: type[PySparkException], text: str) -> Exception:
    """Return an error with `text` that is of the type of `error` and of `kind`."""

    class Both(type(error), kind):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            kind.__init__(self, text)
            self.args, self.rule = (text,), getattr(error, "rule", None)

    Both.__name__ = Both.__qualname__ = kind.__name__
    return Both()


def unsupported_operation(text: str) -> Exception:
    """Return a `DeltaError` that is Spark's `UnsupportedOperationException`, too."""
    return _both(DeltaError(text), UnsupportedOperationException, text)
