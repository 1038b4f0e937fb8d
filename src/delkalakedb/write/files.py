"""Files of an operation: brought into a private folder, and moved to the table."""

import errno
import os
import shutil
import stat
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any
from weakref import finalize

import pyarrow as pa

from delkalakedb.errors import StorageError
from delkalakedb.model.times import DAY_S
from delkalakedb.storage import Store, local_folder, open_store

try:
    import fcntl
except ImportError:  # Windows has no such locks.
    fcntl = None  # type: ignore[assignment]


def own_path(name: str) -> Path:
    """Return the path of this user's folder of a name among the temporary ones."""
    # On Windows each user has their own temporary folders.
    user = f"-{os.geteuid()}" if hasattr(os, "geteuid") else ""
    return Path(gettempdir()) / f"{name}{user}"


def ensure_own(folder: Path) -> Path:
    """Create a folder that only this user can use; raise `StorageError` if it isn't."""
    folder.mkdir(mode=0o700, exist_ok=True)
    if not hasattr(os, "geteuid"):
        return folder
    found = folder.lstat()
    if found.st_uid != os.geteuid() or found.st_mode != stat.S_IFDIR | 0o700:
        raise StorageError(
            f"{folder} must be a folder that only its owner can use; remove it, or set "
            "TMPDIR to another place"
        )
    return folder


@contextmanager
def private_folder(work: Path) -> Iterator[Path]:
    """Yield a new folder below `work`, and delete it at the end.

    Folders of dead owners are deleted at the beginning.
    """
    work.mkdir(parents=True, exist_ok=True)
    remove_leftovers(work)
    folder, lock = _locked_folder(work)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _unlock(lock)


def folder_of(owner: object, name: str) -> Path:
    """Return a private temporary folder that is deleted together with `owner`."""
    stack = ExitStack()
    folder = stack.enter_context(private_folder(ensure_own(own_path(name))))
    finalize(owner, _close, stack, os.getpid())
    return folder


def _close(stack: ExitStack, pid: int) -> None:
    # A forked child doesn't own the folder.
    if pid == os.getpid():
        stack.close()


def _locked_folder(work: Path) -> tuple[Path, int | None]:
    while True:
        folder = work / uuid.uuid4().hex
        folder.mkdir()
        with suppress(FileNotFoundError):
            lock = _lock(folder)
            # Before it was locked, another process may have taken it for a leftover.
            if lock is None or os.fstat(lock).st_nlink:
                return folder, lock
            _unlock(lock)


def remove_leftovers(work: Path) -> None:
    """Delete the folders below `work` whose owners are dead."""
    if work.is_symlink():
        # The target of a link may belong to anybody.
        return
    for entry in os.scandir(work):
        with suppress(FileNotFoundError, BlockingIOError):
            lock = _lock(Path(entry.path), wait=False)
            try:
                old = time.time() - entry.stat().st_mtime > DAY_S
                if lock is not None or old:
                    shutil.rmtree(entry.path, ignore_errors=True)
            finally:
                _unlock(lock)


def find_leftovers(work: Path) -> list[Path]:
    """Return the folders below `work` whose owners are dead.

    The next operation deletes them.
    """
    found = []
    with suppress(FileNotFoundError):
        for entry in os.scandir(work):
            with suppress(FileNotFoundError, BlockingIOError):
                _unlock(_lock(Path(entry.path), wait=False))
                found.append(Path(entry.path))
    return found


def _lock(folder: Path, *, wait: bool = True) -> int | None:
    """Return a lock on the folder, None if the file system has no locks."""
    if fcntl is None:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


_WORK = "_delta_work"
# Files transferred at a time.
_TRANSFERS = 8
_CHUNK_BYTES = 16 * 1024 * 1024


class TableFiles(ABC):
    """The files at a table's location; paths are literal, not escaped."""

    work: Path
    """The folder of workspaces."""

    def ensure_work(self) -> Path:
        """Create the folder of workspaces, and return it."""
        self.work.mkdir(parents=True, exist_ok=True)
        return self.work

    @abstractmethod
    def bring(self, files: Mapping[str, str], folder: Path) -> None:
        """Make files of the table readable below a folder.

        Args:
            files: the table's paths, by the paths that the files get below the folder.
            folder: a private folder.
        """

    @abstractmethod
    def take(self, paths: Iterable[str], folder: Path) -> None:
        """Move files below a folder to the table's location."""

    @abstractmethod
    def put(self, files: Mapping[str, bytes]) -> None:
        """Write new files at the table's location."""

    @abstractmethod
    def discard(self, paths: Iterable[str]) -> None:
        """Delete files that no version names."""


def table_files(
    location: str, storage_options: Mapping[str, str] | None = None
) -> TableFiles:
    """Return the files at a location."""
    if (folder := local_folder(location)) is not None:
        return _LocalFiles(Path(folder))
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
            # If the table was to be created, no vacuum would find these files.
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
        # Not every file system has links, and not every user of Windows may create
        # them.
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


# Larger spools go to disk.
_IN_MEMORY_BYTES = 64 * 1024 * 1024


class Spool:
    """A one-shot stream that can be read again: kept in memory, or on disk if large."""

    def __init__(self, data: Any) -> None:
        self._source = pa.RecordBatchReader.from_stream(data)
        self._file = SpooledTemporaryFile(max_size=_IN_MEMORY_BYTES)  # noqa: SIM115
        self._writer: Any = None

    @property
    def schema(self) -> pa.Schema:
        """The schema of the batches."""
        return self._source.schema

    def reader(self) -> pa.RecordBatchReader:
        """Return a reader of all batches, from the first on."""
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._file, self.schema)
            return pa.RecordBatchReader.from_batches(self.schema, self._rest())
        for _ in self._rest():
            pass
        self._writer.close()
        self._file.seek(0)
        return pa.ipc.open_stream(self._file)

    def close(self) -> None:
        """Delete the kept batches."""
        self._file.close()

    def _rest(self) -> Iterator[pa.RecordBatch]:
        for batch in self._source:
            self._writer.write_batch(batch)
            yield batch
