"""A folder on a local disk, with what obstore's lacks: fsync and file times."""

import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import pyarrow as pa

from delkalakedb.storage.base import ObjectMeta, ObjectNotFoundError, Store

__all__ = ["LocalStore"]

_TEMPORARY = re.compile(r"\.dk-[0-9a-f]{32}\.tmp")
_CHUNK_BYTES = 1 << 20
_DAY_S = 24 * 60 * 60
_GONE = (FileNotFoundError, NotADirectoryError)


class LocalStore(Store):
    """The files below a folder; symbolic links are followed."""

    def __init__(self, url: str, root: Path) -> None:
        super().__init__(url)
        self._root = root
        self._folder = str(root)

    def get(self, path: str) -> bytes:
        """The file's bytes."""
        # Not by way of pathlib: it takes longer than to read a commit.
        with self._errors(path), open(f"{self._folder}/{path}", "rb", 0) as file:
            return file.read()

    def open(self, path: str) -> pa.NativeFile:
        """The file to read from."""
        with self._errors(path):
            return pa.OSFile(f"{self._folder}/{path}")

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Some of the file's bytes."""
        with self._errors(path), open(self._root / path, "rb") as file:
            file.seek(start)
            return file.read(length)

    def put_new(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        """Create the file unless there is one."""
        final, whole = self._root / path, BytesIO(data)
        with self._errors(path), _written(final, whole, durable) as temporary:
            try:
                os.link(temporary, final)
            except FileExistsError:
                return False
            return True

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the file, durably."""
        self._replace(path, BytesIO(data))

    def put_file(self, path: str, source: Path) -> None:
        """Create or replace the file with a copy of another, durably."""
        with source.open("rb") as file:
            self._replace(path, file)

    def _replace(self, path: str, source: BinaryIO) -> None:
        with self._errors(path), _written(self._root / path, source) as temporary:
            temporary.replace(self._root / path)

    def head(self, path: str) -> ObjectMeta | None:
        """The file's size and time."""
        with suppress(ObjectNotFoundError), self._errors(path):
            found = (self._root / path).stat()
            return _meta(path, found) if stat.S_ISREG(found.st_mode) else None
        return None

    def list(
        self, prefix: str = "", start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        """The files below a folder, without those half-written."""
        with self._errors(prefix):
            above = f"{prefix}/" if prefix else ""
            yield from _walk(self._root / prefix, above, start_after or "")

    def folders(self, prefix: str = "") -> Sequence[str]:
        """The folders in a folder; links are left out, since they may go in circles."""
        with self._errors(prefix), os.scandir(self._root / prefix) as entries:
            return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))

    def delete(self, path: str) -> None:
        """Remove the file."""
        with suppress(ObjectNotFoundError), self._errors(path):
            (self._root / path).unlink()

    def delete_leftovers(self, prefix: str) -> None:
        """Remove the hidden copies of processes that were killed a day ago."""
        with suppress(*_GONE), os.scandir(self._root / prefix) as entries:
            for entry in entries:
                if _TEMPORARY.fullmatch(entry.name):
                    with suppress(FileNotFoundError):
                        if time.time() - entry.stat().st_mtime > _DAY_S:
                            os.unlink(entry.path)

    def delete_remains(self) -> None:
        """Remove hidden copies, and empty folders, the location's own too."""
        for folder, _, names in os.walk(self._root, topdown=False):
            with suppress(OSError):
                for name in filter(_TEMPORARY.fullmatch, names):
                    os.unlink(os.path.join(folder, name))
                os.rmdir(folder)

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set the file's modification time."""
        with self._errors(path):
            os.utime(self._root / path, ns=(modified_ms * 1_000_000,) * 2)


def _meta(path: str, found: os.stat_result) -> ObjectMeta:
    return ObjectMeta(path, found.st_size, found.st_mtime_ns // 1_000_000)


def _walk(folder: Path, prefix: str, start_after: str) -> Iterator[ObjectMeta]:
    above = str(folder)
    for name in _names(folder):
        path = prefix + name
        # A path below this folder can still come after `start_after`.
        if name.endswith("/") and (path > start_after or start_after.startswith(path)):
            yield from _walk(folder / name, path, start_after)
        elif not name.endswith("/") and path > start_after:
            try:
                found = os.stat(f"{above}/{name}")
            except _GONE:
                # It went away between being named and being looked at.
                continue
            yield _meta(path, found)


def _names(folder: Path) -> list[str]:
    """What is in a folder, in the order of the paths that come of it."""
    with suppress(*_GONE), os.scandir(folder) as entries:
        return sorted(
            f"{entry.name}/" if entry.is_dir() else entry.name
            for entry in entries
            if entry.name[0] != "." or not _TEMPORARY.fullmatch(entry.name)
        )
    return []


@contextmanager
def _written(final: Path, source: BinaryIO, durable: bool = True) -> Iterator[Path]:
    """A hidden copy beside `final`; what is done with it is durable, if so asked."""
    _ensure_folder(final.parent)
    temporary = final.with_name(f".dk-{uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            shutil.copyfileobj(source, file, _CHUNK_BYTES)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)
    if durable:
        _sync(final.parent)


def _ensure_folder(folder: Path) -> None:
    if not folder.is_dir():
        _ensure_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _sync(folder: Path) -> None:
    if not hasattr(os, "O_DIRECTORY"):  # Windows can't open folders.
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
