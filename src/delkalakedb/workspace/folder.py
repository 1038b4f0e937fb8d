"""The private folder of one operation, and what crashed ones left behind.

An owner holds a lock on its folder for as long as it runs, so that whoever comes next
can tell a folder in use from one whose owner is dead, in whatever container that was.
"""

import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir
from weakref import finalize

from delkalakedb.errors import StorageError

try:
    import fcntl
except ImportError:  # Windows has no such locks.
    fcntl = None  # type: ignore[assignment]

__all__ = [
    "ensure_own",
    "find_leftovers",
    "folder_of",
    "own_path",
    "private_folder",
    "remove_leftovers",
]

_DAY_S = 24 * 60 * 60


def own_path(name: str) -> Path:
    """Where this user has a folder of that name among the temporary ones."""
    # On Windows each user has temporary folders of their own.
    user = f"-{os.geteuid()}" if hasattr(os, "geteuid") else ""
    return Path(gettempdir()) / f"{name}{user}"


def ensure_own(folder: Path) -> Path:
    """The folder, which nobody else can read, or put anything into."""
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
    """A new folder below `work`, gone afterwards; removes those of dead owners."""
    work.mkdir(parents=True, exist_ok=True)
    remove_leftovers(work)
    folder, lock = _locked_folder(work)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _unlock(lock)


def folder_of(owner: object, name: str) -> Path:
    """A private folder among this user's temporary ones, gone when its owner is."""
    stack = ExitStack()
    folder = stack.enter_context(private_folder(ensure_own(own_path(name))))
    finalize(owner, _close, stack, os.getpid())
    return folder


def _close(stack: ExitStack, pid: int) -> None:
    # A forked process isn't the one that made it.
    if pid == os.getpid():
        stack.close()


def _locked_folder(work: Path) -> tuple[Path, int | None]:
    while True:
        folder = work / uuid.uuid4().hex
        folder.mkdir()
        with suppress(FileNotFoundError):
            lock = _lock(folder)
            # Before it was locked, somebody may have taken it for a leftover.
            if lock is None or os.fstat(lock).st_nlink:
                return folder, lock
            _unlock(lock)


def remove_leftovers(work: Path) -> None:
    """Remove the folders below `work` whose owners are dead."""
    if work.is_symlink():
        # What lies behind a link may be anybody's.
        return
    for entry in os.scandir(work):
        with suppress(FileNotFoundError, BlockingIOError):
            lock = _lock(Path(entry.path), wait=False)
            try:
                old = time.time() - entry.stat().st_mtime > _DAY_S
                if lock is not None or old:
                    shutil.rmtree(entry.path, ignore_errors=True)
            finally:
                _unlock(lock)


def find_leftovers(work: Path) -> list[Path]:
    """The folders below `work` whose owners are dead; the next one removes them."""
    found = []
    with suppress(FileNotFoundError):
        for entry in os.scandir(work):
            with suppress(FileNotFoundError, BlockingIOError):
                _unlock(_lock(Path(entry.path), wait=False))
                found.append(Path(entry.path))
    return found


def _lock(folder: Path, *, wait: bool = True) -> int | None:
    """A lock on the folder; None where the system has no such thing."""
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
