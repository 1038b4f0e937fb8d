"""A table's files as a workspace needs them: brought in before, taken over after.

On a local disk they are linked and renamed; from an object store they are downloaded
and to it uploaded.
"""

import errno
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from delkalakedb.errors import StorageError
from delkalakedb.storage import Store, canonical_location, open_store
from delkalakedb.workspace.folder import ensure_own, own_path

__all__ = ["TableFiles", "table_files"]

_WORK = "_delta_work"
_TRANSFERS = 8
_CHUNK_BYTES = 16 * 1024 * 1024


class TableFiles(ABC):
    """The files at a table's location; paths are literal."""

    work: Path
    """Where workspaces are."""

    def ensure_work(self) -> Path:
        """The same, fit to be used."""
        self.work.mkdir(parents=True, exist_ok=True)
        return self.work

    @abstractmethod
    def bring(self, files: Mapping[str, str], folder: Path) -> None:
        """Make files of the table readable below a folder.

        Args:
            files: the table's paths by those that the files get below the folder.
            folder: a private one.
        """

    @abstractmethod
    def take(self, paths: Iterable[str], folder: Path) -> None:
        """Make files below a folder the table's."""

    @abstractmethod
    def put(self, files: Mapping[str, bytes]) -> None:
        """Make new files of the table."""

    @abstractmethod
    def discard(self, paths: Iterable[str]) -> None:
        """Remove files that no version names."""


def table_files(
    location: str, storage_options: Mapping[str, str] | None = None
) -> TableFiles:
    """The files at a location."""
    parts = urlsplit(canonical_location(location))
    if parts.scheme == "file":
        return _LocalFiles(Path(unquote(parts.path)))
    return _RemoteFiles(open_store(location, storage_options))


class _LocalFiles(TableFiles):
    def __init__(self, root: Path) -> None:
        self._root = root
        self.work = root / _WORK

    def bring(self, files: Mapping[str, str], folder: Path) -> None:
        root = self._root
        _each_in_its_folder(
            files, folder, lambda path: _link(root / files[path], folder / path)
        )

    def take(self, paths: Iterable[str], folder: Path) -> None:
        paths, root = [*paths], self._root
        self._make(paths, lambda path: _move(folder / path, root / path))

    def put(self, files: Mapping[str, bytes]) -> None:
        self._make(files, lambda path: _write(f"{self._root}/{path}", files[path]))

    def _make(self, paths: Collection[str], make: Callable[[str], None]) -> None:
        try:
            _each_in_its_folder(paths, self._root, make)
        except OSError:
            with suppress(OSError):
                self.discard(paths)
            raise

    def discard(self, paths: Iterable[str]) -> None:
        for path in paths:
            (self._root / path).unlink(missing_ok=True)


class _RemoteFiles(TableFiles):
    def __init__(self, store: Store) -> None:
        self._store = store
        self.work = own_path(_WORK)

    def ensure_work(self) -> Path:
        return ensure_own(self.work)

    def bring(self, files: Mapping[str, str], folder: Path) -> None:
        _at_once(files, lambda path: self._download(files[path], folder / path))

    def take(self, paths: Iterable[str], folder: Path) -> None:
        put = self._store.put_file
        self._make([*paths], lambda path: put(path, folder / path))

    def put(self, files: Mapping[str, bytes]) -> None:
        self._make(files, lambda path: self._store.put(path, files[path]))

    def _make(self, paths: Collection[str], make: Callable[[str], None]) -> None:
        try:
            _at_once(paths, make)
        except StorageError:
            # Where a table was to be made, no vacuum would find them.
            with suppress(StorageError):
                self.discard(paths)
            raise

    def discard(self, paths: Iterable[str]) -> None:
        self._store.delete_many(paths)

    def _download(self, path: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        meta = self._store.head(path)
        size_bytes = meta.size_bytes if meta else 0
        with target.open("wb") as file:
            for start in range(0, size_bytes, _CHUNK_BYTES):
                length = min(_CHUNK_BYTES, size_bytes - start)
                file.write(self._store.get_range(path, start, length))


def _each_in_its_folder(
    paths: Iterable[str], root: Path, put: Callable[[str], None]
) -> None:
    made = {""}
    for path in paths:
        parent = os.path.dirname(path)
        if parent not in made:
            (root / parent).mkdir(parents=True, exist_ok=True)
            made.add(parent)
        put(path)


def _link(source: Path, target: Path) -> None:
    try:
        os.symlink(source, target)
    except (AttributeError, NotImplementedError, OSError):
        # Not every file system has links, and on Windows not everybody may make them.
        shutil.copyfile(source, target)


def _move(source: Path, target: Path) -> None:
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # A partition's folder may be a link to another disk.
        shutil.copyfile(source, target)


def _write(path: str, data: bytes) -> None:
    with open(path, "xb") as file:
        file.write(data)


def _at_once(paths: Iterable[str], move: Callable[[str], None]) -> None:
    with ThreadPoolExecutor(_TRANSFERS) as pool:
        # Consumed, so that the first failure is raised.
        list(pool.map(move, paths))
