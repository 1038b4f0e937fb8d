"""The few things that are asked of an object store, for one table's location.

A path is an object's literal key below that location: nothing is percent-decoded.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from obstore.exceptions import BaseError, NotFoundError

from delkalakedb.errors import StorageError

__all__ = ["ObjectMeta", "ObjectNotFoundError", "Store", "first_line"]

# The one word in a server's answer that says what is wrong.
_CODE = re.compile(r"<Code>(\w+)</Code>")
_NO_NAMES = frozenset({"", ".", ".."})


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """There is no object at that path."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """An object, but for its bytes; `is_link` if it is a symbolic link itself."""

    path: str
    size_bytes: int
    last_modified_ms: int
    is_link: bool = False


class Store(ABC):
    """The objects below one location, `url`, which holds no credentials.

    Any number of threads may use it at once. A process forked after the first use of
    a remote store can't use any: obstore's own threads aren't in it.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @abstractmethod
    def get(self, path: str) -> bytes:
        """The object's bytes; `ObjectNotFoundError` where there is none."""

    def open(self, path: str) -> pa.NativeFile:
        """The same to read from, on a disk part by part."""
        return pa.BufferReader(self.get(path))

    @abstractmethod
    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Some of the object's bytes; `ObjectNotFoundError` where there is none."""

    @abstractmethod
    def put_new(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        """Create the object, whole or not at all; False where there is one already.

        That one may be our own, put by a request whose answer was lost. One that isn't
        `durable` may be lost, or cut off, when the machine loses power.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object, whole or not at all."""

    @abstractmethod
    def put_file(self, path: str, source: Path) -> None:
        """Create or replace the object from a local file, whole or not at all."""

    @abstractmethod
    def head(self, path: str) -> ObjectMeta | None:
        """The object's size and time, or None where there is none."""

    @abstractmethod
    def list(
        self, prefix: str = "", start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        """The objects below the folder `prefix`, at any depth, in order of path."""

    def list_own(self) -> Iterator[ObjectMeta]:
        """The objects below the location, but for what lies behind symbolic links."""
        return self.list()

    def behind_links(self, paths: Iterable[str]) -> Iterator[str]:
        """The paths at which objects lie that some paths reach by symbolic links.

        Only paths below the location are given. A store without links gives none.
        """
        return iter(())

    @abstractmethod
    def folders(self, prefix: str = "") -> Sequence[str]:
        """The names of the folders right below the folder `prefix`, in order."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove the object; fine where there is none."""

    @abstractmethod
    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set the object's time on a local disk; elsewhere that can't be done."""

    def delete_many(self, paths: Iterable[str]) -> None:
        """Remove the objects; fine where there are none."""
        for path in paths:
            self.delete(path)

    def delete_own(self, paths: Iterable[str]) -> Sequence[str]:
        """Remove objects as `list_own` gives them: a link itself, none behind one.

        Returns:
            The paths to which only a link leads: what is there stays.
        """
        self.delete_many(paths)
        return []

    def delete_leftovers(self, prefix: str) -> None:  # noqa: B027
        """Remove what was half-written in a folder a day ago; only disks have such."""

    def delete_remains(self) -> None:  # noqa: B027
        """Remove what was half-written, and empty folders; none behind links."""

    @property
    def refuses_to_overwrite(self) -> bool:
        """Whether `put_new` is one request that can't overwrite; False: it was seen to.

        Known once something was put.
        """
        return True

    def exists(self, path: str) -> bool:
        """Whether there is an object at the path."""
        return self.head(path) is not None

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        self._check(path)
        where = f"{self.url}: {path or '.'}"
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, NotFoundError) as error:
            raise ObjectNotFoundError(f"{where}: no such object") from error
        except (OSError, ValueError, NotImplementedError, BaseError) as error:
            raise StorageError(f"{where}: {first_line(error)}") from error

    def _check(self, path: str) -> None:
        if path and not _NO_NAMES.isdisjoint(path.split("/")):
            raise StorageError(f"{self.url}: {path}: not a path below the location")


def first_line(error: Exception) -> str:
    """What an error says, without the pages that obstore and the server add."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    code = _CODE.search(str(error))
    return f"{line.partition(' <')[0]} {code[1]}" if code else line
