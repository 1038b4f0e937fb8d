"""Whether delta-rs can be used in this process, and its file system for pyarrow."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import deltalake
from deltalake.fs import DeltaStorageHandler

from delkalakedb.errors import DeltaError
from delkalakedb.storage.forks import Library

__all__ = ["StorageHandler", "check_delta_rs", "is_panic"]

# A mistake in delta-rs, which is no `Exception`; its class can't be imported.
_PANIC = "PanicException"


def is_panic(error: BaseException) -> bool:
    """Whether delta-rs panicked."""
    return type(error).__name__ == _PANIC


def check_delta_rs(what: str) -> None:
    """Refuse to use delta-rs in a child of a process that has used it."""
    _delta_rs.check(what)


class StorageHandler(DeltaStorageHandler):
    """deltalake's file system, which a forked child may not be able to use."""

    def open_input_file(self, path: str) -> Any:
        """A file to read from."""
        check_delta_rs(path)
        return super().open_input_file(path)

    def open_input_stream(self, path: str) -> Any:
        """A file to read from its beginning to its end."""
        check_delta_rs(path)
        return super().open_input_stream(path)

    def get_file_info(self, paths: list[str]) -> Any:
        """What there is at some paths."""
        check_delta_rs(", ".join(paths))
        return super().get_file_info(paths)


def _is_usable() -> bool:
    """Whether delta-rs, which looks first whose its threads are, does anything."""
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
    """Let nothing reach the standard error: delta-rs prints a panic there."""
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
