"""delta-rs in this process: whether it is usable, its errors, its file systems."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import deltalake
import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import PostCommitHookProperties, exceptions
from deltalake.fs import DeltaStorageHandler

from delkalakedb.errors import (
    CommitFailedError,
    DeltaError,
    ProtocolError,
    SchemaMismatchError,
    StorageError,
)
from delkalakedb.forks import Library
from delkalakedb.settings import redact
from delkalakedb.storage import (
    ObjectNotFoundError,
    is_of_store,
    lacks_place,
    local_folder,
    plain_words,
)

# A bug in delta-rs, which isn't an `Exception`; its class can't be imported.
_PANIC = "PanicException"


def is_panic(error: BaseException) -> bool:
    """Return whether `error` is a panic of delta-rs."""
    return type(error).__name__ == _PANIC


def check_delta_rs(what: str) -> None:
    """Refuse to use delta-rs in a child of a process that has used it."""
    _delta_rs.check(what)


class StorageHandler(DeltaStorageHandler):
    """deltalake's file system, which a forked child may not be able to use."""

    def __init__(
        self,
        what: str,
        location: str,
        options: dict[str, str] | None,
        sizes: dict[str, int] | None,
    ) -> None:
        super().__init__(location, options, sizes)
        self._what = what
        self._location = location.rstrip("/")

    def errors(self, path: str) -> AbstractContextManager[None]:
        """Return a context that turns errors of reading a file into ours."""
        return _finding(f"{self._location}/{path}", self._what)

    def open_input_file(self, path: str) -> Any:
        """Open a file for random access."""
        check_delta_rs(path)
        errors = partial(self.errors, path)
        with errors():
            file = self._handler.open_input_file(path)
        return pa.PythonFile(_File(file, errors), mode="r")

    open_input_stream = open_input_file

    def get_file_info(self, paths: list[str]) -> Any:
        """Return what exists at each path."""
        check_delta_rs(", ".join(paths))
        return super().get_file_info(paths)


def _is_usable() -> bool:
    """Return whether delta-rs works in this process, or panics because of a fork."""
    with _silenced():
        try:
            deltalake.DeltaTable.is_deltatable(os.devnull)
        except BaseException as error:
            if not is_panic(error):
                raise
            return False
    return True


@contextmanager
def _silenced() -> Iterator[None]:
    """Discard standard error, where delta-rs prints a panic."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


_delta_rs = Library("delta-rs", _is_usable, DeltaError)


_Ours = type[DeltaError | StorageError]
_OURS: dict[type[BaseException], _Ours] = {
    exceptions.CommitFailedError: CommitFailedError,
    exceptions.DeltaError: DeltaError,
    exceptions.DeltaProtocolError: ProtocolError,
    exceptions.SchemaMismatchError: SchemaMismatchError,
    # Not our TableNotFoundError: deltalake would create the table.
    exceptions.TableNotFoundError: DeltaError,
}


@contextmanager
def explained(what: str, private: Path, location: str) -> Iterator[None]:
    """Name the operation in errors, and the table's location for a private folder.

    Args:
        what: the table, the operation and the version.
        private: the folder that replaces the location, or the folder of all workspaces.
        location: the table's location.
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


@contextmanager
def _finding(file: str, what: str = "") -> Iterator[None]:
    """Raise `ObjectNotFoundError` that names a data file if the store lacks the file.

    Args:
        file: the file's URL.
        what: the table and the operation, unless `explained` names them.
    """
    try:
        yield
    except FileNotFoundError as error:
        if lacks_place(str(error)):
            raise
        # A traceback shows the cause, in which delta-rs has colours.
        error.args = (plain_words(str(error), file),)
        begin = f"{what}: " if what else ""
        raise ObjectNotFoundError(
            f"{begin}there is no file {file}; bring it back, restore the table to a "
            "version without it, or remove it from the table with DeltaTable.repair()"
        ) from error


def _kind(error: BaseException) -> _Ours | None:
    if isinstance(error, DeltaError | StorageError):
        return type(error)
    # A full disk, a folder without permission: delta-rs says DeltaError to that.
    if isinstance(error, OSError) or not isinstance(error, Exception):
        return DeltaError
    return _OURS.get(type(error))


def _pattern(private: Path) -> re.Pattern[str]:
    """Return a pattern for the folder as a path, a cut-off path, or a URL."""
    path = str(private).lstrip("/")
    either = "|".join(map(re.escape, (path, quote(path))))
    return re.compile(rf"(file://)?/?\b({either})(/[0-9a-f]{{32}})?(?=\W|$)")


def open_filesystem(
    what: str,
    location: str,
    storage_options: Mapping[str, str] | None,
    sizes: dict[str, int] | None = None,
) -> pa_fs.FileSystem:
    """Open the files below a location; errors of a remote store name `what`."""
    options = None if storage_options is None else dict(storage_options)
    if local_folder(location) is not None:
        return pa_fs.PyFileSystem(StorageHandler(what, location, options, sizes))
    return pa_fs.PyFileSystem(_Remote(what, location, options, sizes))


def open_input(
    location: str,
    name: str,
    storage_options: Mapping[str, str],
    size_bytes: int | None = None,
) -> pa.NativeFile:
    """Open a file below a location for random access."""
    folder = local_folder(location)
    if folder is not None:
        return pa.OSFile(f"{folder}/{name}")
    sizes = None if size_bytes is None else {name: size_bytes}
    filesystem = open_filesystem(location, location, storage_options, sizes)
    return filesystem.open_input_file(name)


class _Remote(StorageHandler):
    """deltalake's handler, with errors as the rest of the package has them."""

    @contextmanager
    def errors(self, path: str) -> Iterator[None]:
        with (
            explained(self._what, Path(self._location), self._location),
            _finding(f"{self._location}/{path}"),
        ):
            yield


class _File:
    """A file of delta-rs, which finds only when it is read that it doesn't exist."""

    def __init__(
        self, file: Any, errors: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._file = file
        self._errors = errors

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, *size: int) -> bytes:
        with self._errors():
            return bytes(self._file.read(*size))


# The mirror makes checkpoints; a workspace's checkpoint would never be read.
IN_PRIVATE = PostCommitHookProperties(
    create_checkpoint=False, cleanup_expired_logs=False
)
