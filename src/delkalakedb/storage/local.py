"""The store of a folder on a local disk; unlike obstore's it syncs and sets times."""

import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

import pyarrow as pa

from delkalakedb.model.times import DAY_S
from delkalakedb.storage.base import ObjectMeta, ObjectNotFoundError, Store

_TEMPORARY = re.compile(r"\.dk-[0-9a-f]{32}\.tmp")
_CHUNK_BYTES = 1 << 20
_GONE = (FileNotFoundError, NotADirectoryError)
# Errors of the system that mean that no file has this name.
_NO_FILE = frozenset(
    {errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR}
)
_FOLDER = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)


class LocalStore(Store):
    """The files below a folder.

    Methods that take the path of one file follow symbolic links. `list` follows a link
    to a file, but no link to a folder, which may lead anywhere and round in a circle.
    `list_own`, `delete_own` and `delete_remains` follow no link. The folder itself may
    be a link.
    """

    def __init__(self, url: str, root: Path) -> None:
        super().__init__(url)
        self._root = root
        self._folder = str(root)

    def get(self, path: str) -> bytes:
        """Return the file's bytes."""
        # Without pathlib, which takes longer than reading a commit.
        with self._errors(path), open(f"{self._folder}/{path}", "rb", 0) as file:
            return file.read()

    def open(self, path: str) -> pa.NativeFile:
        """Open the file for reading."""
        with self._errors(path):
            return pa.OSFile(f"{self._folder}/{path}")

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes of the file from offset `start`."""
        with self._errors(path), open(self._root / path, "rb") as file:
            file.seek(start)
            return file.read(length)

    def put_new(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        """Create the file unless one exists."""
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
        """Return the file's size and time."""
        with self._errors(path):
            try:
                found = (self._root / path).stat()
            except OSError as error:
                if error.errno not in _NO_FILE:
                    raise
                return None
            return _meta(path, found) if stat.S_ISREG(found.st_mode) else None

    def list(
        self, prefix: str = "", start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        """Yield the files below a folder, without temporary ones."""
        with self._errors(prefix):
            above = f"{prefix}/" if prefix else ""
            yield from _walk(self._root / prefix, above, start_after or "")

    def head_linked(self, path: str) -> ObjectMeta | None:
        """Return the size and time of a file that `list` may not have listed."""
        return self.head(path)

    def list_own(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """Yield the files and links below `prefix`, but nothing behind a link."""
        with self._errors(prefix):
            above = f"{prefix}/" if prefix else ""
            yield from _walk(self._root / prefix, above, "", follow=False)

    def behind_links(self, paths: Iterable[str]) -> Iterator[str]:
        """Yield the real path, if below the folder, of each path through a link."""
        if not _has_link(self._folder):
            return
        root = os.path.realpath(self._root)
        for path in paths:
            real = os.path.relpath(os.path.realpath(f"{self._folder}/{path}"), root)
            if real != path and not f"{real}/".startswith("../"):
                yield real

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Return the folders in a folder, without links, because links may loop."""
        with self._errors(prefix), os.scandir(self._root / prefix) as entries:
            return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))

    def delete(self, path: str) -> None:
        """Delete the file."""
        with suppress(ObjectNotFoundError), self._errors(path):
            (self._root / path).unlink()

    def delete_own(self, paths: Iterable[str]) -> Sequence[str]:
        """Delete the files and links; return the paths that lead through a link."""
        left = []
        for path in paths:
            with self._errors(path):
                if not _unlink_below(self._root, path):
                    left.append(path)
        return left

    def delete_leftovers(self, prefix: str) -> None:
        """Delete the temporary files of processes that were killed a day ago."""
        with suppress(*_GONE), os.scandir(self._root / prefix) as entries:
            for entry in entries:
                if _TEMPORARY.fullmatch(entry.name):
                    with suppress(FileNotFoundError):
                        if time.time() - entry.stat().st_mtime > DAY_S:
                            os.unlink(entry.path)

    def delete_remains(self) -> None:
        """Delete temporary files and empty folders, the location itself included."""
        # By descriptors, so that a link that replaces a folder isn't followed. Only the
        # location itself may be a link, which the dot resolves.
        for _, folders, names, here in os.fwalk(f"{self._folder}/.", topdown=False):
            for name in filter(_TEMPORARY.fullmatch, names):
                with suppress(OSError):
                    os.unlink(name, dir_fd=here)
            for name in folders:
                with suppress(OSError):
                    os.rmdir(name, dir_fd=here)
        with suppress(OSError):
            os.rmdir(self._root)

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set the file's modification time."""
        with self._errors(path):
            os.utime(self._root / path, ns=(modified_ms * 1_000_000,) * 2)


def _unlink_below(root: Path, path: str) -> bool:
    """Delete the file or link at a path; return False if the path leads through a link.

    By descriptors, so that a link that replaces a folder meanwhile isn't followed.
    """
    *folders, name = path.split("/")
    here = os.open(root, _FOLDER)
    try:
        for folder in folders:
            if stat.S_ISLNK(
                os.stat(folder, dir_fd=here, follow_symlinks=False).st_mode
            ):
                return False
            there = os.open(folder, _FOLDER | _NO_FOLLOW, dir_fd=here)
            os.close(here)
            here = there
        os.unlink(name, dir_fd=here)
    except OSError as error:
        if error.errno not in _NO_FILE:
            raise
    finally:
        os.close(here)
    return True


def _has_link(folder: str) -> bool:
    with suppress(*_GONE), os.scandir(folder) as entries:
        return any(
            entry.is_symlink()
            or (entry.is_dir(follow_symlinks=False) and _has_link(entry.path))
            for entry in entries
        )
    return False


def _meta(path: str, found: os.stat_result) -> ObjectMeta:
    modified_ms = found.st_mtime_ns // 1_000_000
    return ObjectMeta(path, found.st_size, modified_ms, stat.S_ISLNK(found.st_mode))


def _walk(
    folder: Path, prefix: str, start_after: str, *, follow: bool = True
) -> Iterator[ObjectMeta]:
    above = str(folder)
    for name in _names(folder):
        path = prefix + name
        # A path below this folder can still come after `start_after`.
        if name.endswith("/") and (path > start_after or start_after.startswith(path)):
            yield from _walk(folder / name, path, start_after, follow=follow)
        elif not name.endswith("/") and path > start_after:
            try:
                found = os.stat(f"{above}/{name}", follow_symlinks=follow)
            except OSError as error:
                if error.errno not in _NO_FILE:
                    raise
                # A link that leads nowhere, or deleted since the folder was listed.
                continue
            if not stat.S_ISDIR(found.st_mode):
                yield _meta(path, found)


def _names(folder: Path) -> list[str]:
    """Return the names in a folder in the order of their paths.

    Folders end in `/`, but links to folders don't.
    """
    with suppress(*_GONE), os.scandir(folder) as entries:
        return sorted(
            f"{e.name}/" if e.is_dir(follow_symlinks=False) else e.name
            for e in entries
            if e.name[0] != "." or not _TEMPORARY.fullmatch(e.name)
        )
    return []


@contextmanager
def _written(final: Path, source: BinaryIO, durable: bool = True) -> Iterator[Path]:
    """Write a temporary file beside `final`, yield it, and delete it.

    With `durable`, the file is synced before the caller links or renames it, and its
    folder after.
    """
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
        sync_path(final.parent)


def _ensure_folder(folder: Path) -> None:
    if not folder.is_dir():
        _ensure_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_path(folder.parent)


def sync_path(path: Path) -> None:
    """Write a file, or the names in a folder, through to the disk."""
    if not hasattr(os, "O_DIRECTORY") and path.is_dir():
        return  # Windows can't open folders
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
