"""Files of a table's store, opened for pyarrow."""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.fs as pa_fs

from delkalakedb.table.files import local_folder
from delkalakedb.workspace.deltars import StorageHandler

__all__ = ["open_input"]


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
    handler = StorageHandler(location, dict(storage_options), sizes)
    return pa_fs.PyFileSystem(handler).open_input_file(name)
