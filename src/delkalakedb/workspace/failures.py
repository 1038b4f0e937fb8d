"""Errors of delta-rs as ours, saying which table, operation and version failed."""

from collections.abc import Iterator
from contextlib import contextmanager

from deltalake import exceptions

from delkalakedb.errors import (
    CommitFailedError,
    DeltaError,
    ProtocolError,
    SchemaMismatchError,
)

__all__ = ["explained"]

_OURS: dict[type[Exception], type[DeltaError]] = {
    exceptions.CommitFailedError: CommitFailedError,
    exceptions.DeltaError: DeltaError,
    exceptions.DeltaProtocolError: ProtocolError,
    exceptions.SchemaMismatchError: SchemaMismatchError,
    # Not ours of that name: deltalake reads it as "create the table".
    exceptions.TableNotFoundError: DeltaError,
}


@contextmanager
def explained(what: str, folder: str, location: str) -> Iterator[None]:
    """Say what failed, and name the table's location where delta-rs saw a folder."""
    try:
        yield
    except Exception as error:
        kind = _OURS.get(type(error))
        if kind is None:
            error.add_note(what)
            raise
        text = str(error).replace(f"file://{folder}", location)
        raise kind(f"{what}: {text.replace(folder, location)}") from error
