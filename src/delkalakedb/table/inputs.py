"""Files of a table's store, opened for pyarrow."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs

from delkalakedb.table.files import local_folder
from delkalakedb.workspace.deltars import StorageHandler, check_delta_rs
from delkalakedb.workspace.failures import explained

__all__ = ["open_filesystem", "open_input"]


def open_filesystem(
    what: str,
    location: str,
    storage_options: Mapping[str, str] | None,
    sizes: dict[str, int] | None = None,
) -> pa_fs.FileSystem:
    """The files below a location; `what` is read, for errors of a remote store."""
    options = None if storage_options is None else dict(storage_options)
    if local_folder(location) is not None:
        return pa_fs.PyFileSystem(StorageHandler(location, options, sizes))
    return pa_fs.PyFileSystem(_Remote(what, location, options, sizes))


def open_input(
    location: str,
    name: str,
    storage_options: Mapping[str, str],
    size_bytes: int | None = None,
) -> pa.NativeFile:
    """A file below a location, to be read anywhere in it."""
    folder = local_folder(location)
    if folder is not None:
        return pa.OSFile(f"{folder}/{name}")
    sizes = None if size_bytes is None else {name: size_bytes}
    filesystem = open_filesystem(location, location, storage_options, sizes)
    return filesystem.open_input_file(name)


class _Remote(StorageHandler):
    """deltalake's handler, with errors as the rest of the package has them."""

    def __init__(
        self,
        what: str,
        location: str,
        options: dict[str, str] | None,
        sizes: dict[str, int] | None,
    ) -> None:
        super().__init__(location, options, sizes)
        self._what = what
        self._location = location

    def explained(self) -> AbstractContextManager[None]:
        return explained(self._what, Path(self._location), self._location)

    def open_input_file(self, path: str) -> pa.PythonFile:
        check_delta_rs(path)
        with self.explained():
            file = self._handler.open_input_file(path)
        return pa.PythonFile(_RemoteFile(file, self), mode="r")

    open_input_stream = open_input_file


class _RemoteFile:
    def __init__(self, file: Any, handler: _Remote) -> None:
        self._file = file
        self._handler = handler

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read(self, *size: int) -> bytes:
        with self._handler.explained():
            return bytes(self._file.read(*size))
