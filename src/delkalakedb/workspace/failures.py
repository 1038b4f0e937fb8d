"""Errors of delta-rs as ours, saying which table, operation and version failed."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from deltalake import exceptions

from delkalakedb.errors import (
    CommitFailedError,
    DeltaError,
    ProtocolError,
    SchemaMismatchError,
    StorageError,
)
from delkalakedb.redaction import redact
from delkalakedb.storage.base import is_of_store, plain_words
from delkalakedb.workspace.deltars import is_panic

__all__ = ["explained"]

_Ours = type[DeltaError | StorageError]
_OURS: dict[type[BaseException], _Ours] = {
    exceptions.CommitFailedError: CommitFailedError,
    exceptions.DeltaError: DeltaError,
    exceptions.DeltaProtocolError: ProtocolError,
    exceptions.SchemaMismatchError: SchemaMismatchError,
    # Not ours of that name: deltalake reads it as "create the table".
    exceptions.TableNotFoundError: DeltaError,
}


@contextmanager
def explained(what: str, private: Path, location: str) -> Iterator[None]:
    """Say what failed, and name the table's location where delta-rs saw a folder.

    Args:
        what: the table, the operation and the version.
        private: the folder that stands for the location, or the one of all workspaces.
        location: where the table is.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        kind = _kind(error)
        if kind is None:
            error.add_note(what)
            raise
        text = _pattern(private).sub(lambda _: location, str(error))
        if not isinstance(error, DeltaError | StorageError) and is_of_store(text):
            kind, text = StorageError, plain_words(text, location)
            # A traceback shows the cause, and servers tell the key that they refuse.
            error.args = (redact(text),)
        raise kind(f"{what}: {redact(text)}") from error


def _kind(error: BaseException) -> _Ours | None:
    if isinstance(error, DeltaError | StorageError):
        return type(error)
    # A full disk, a folder without permission: delta-rs says DeltaError to that.
    if isinstance(error, OSError) or not isinstance(error, Exception):
        return DeltaError
    return _OURS.get(type(error))


def _pattern(private: Path) -> re.Pattern[str]:
    """The folder as delta-rs writes it: as a path, cut at the left, or as a URL."""
    path = str(private).lstrip("/")
    either = "|".join(map(re.escape, (path, quote(path))))
    return re.compile(rf"(file://)?/?\b({either})(/[0-9a-f]{{32}})?(?=\W|$)")
