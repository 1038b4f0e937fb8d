"""The few things that are asked of an object store, for one table's location.

A path is an object's literal key below that location: nothing is percent-decoded.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from obstore.exceptions import BaseError, NotFoundError

from delkalakedb.errors import StorageError

__all__ = [
    "ObjectMeta",
    "ObjectNotFoundError",
    "Store",
    "first_line",
    "is_of_store",
    "plain_words",
]

# The one word in a server's answer that says what is wrong.
_CODE = re.compile(r"<Code>(\w+)</Code>")
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
# What a server sends along; of that only the code is for people.
_MARKUP = re.compile(r"\s*<[?!a-z].*", re.IGNORECASE | re.DOTALL)
_NEXT_LINE = re.compile(r"[:\s]*\n[\s↳]*")
_OF_STORE = re.compile(
    r"non-2xx status code|error sending request|HTTP error|Generic (S3|GCS|Microsoft)"
)
_REFUSED = re.compile(r"\b40[13] (Unauthorized|Forbidden)\b|necessary privileges")
_NO_PLACE = re.compile(
    r"\b(NoSuchBucket|ContainerNotFound|FilesystemNotFound)\b"
    r"|specified (bucket|container|filesystem) does not exist"
)
_ADVICE = (
    "the store refuses access; check that the credentials in storage_options, or in "
    "the environment, are right and allow this"
)
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
            if _NO_PLACE.search(str(error)):
                raise StorageError(f"{where}: {_no_place(self.url)}") from error
            raise ObjectNotFoundError(f"{where}: no such object") from error
        except (OSError, ValueError, NotImplementedError, BaseError) as error:
            raise StorageError(f"{where}: {first_line(error, self.url)}") from error

    def _check(self, path: str) -> None:
        if path and not _NO_NAMES.isdisjoint(path.split("/")):
            raise StorageError(f"{self.url}: {path}: not a path below the location")


def first_line(error: Exception, url: str) -> str:
    """What an error says, without the pages that obstore and the server add."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    code = _CODE.search(str(error))
    return plain_words(f"{line} {code[0]}" if code else line, url)


def is_of_store(text: str) -> bool:
    """Whether an error of delta-rs comes from an object store."""
    return _OF_STORE.search(text) is not None


def plain_words(text: str, url: str) -> str:
    """Return a store's error on one line, without colours and the server's markup.

    Where the server refuses access, or the bucket or container in `url` is missing,
    the line says what to do.
    """
    code = _CODE.search(text)
    line = _NEXT_LINE.sub(": ", _MARKUP.sub("", _COLOUR.sub("", text)).strip())
    line = line.rstrip(": ")
    if code is not None:
        line = f"{line}: {code[1]}"
    if _NO_PLACE.search(text):
        return f"{_no_place(url)} ({line})"
    return f"{line}; {_ADVICE}" if _REFUSED.search(text) else line


def _no_place(url: str) -> str:
    parts = urlsplit(url)
    kind = "bucket" if parts.scheme in ("s3", "gs") else "container"
    return (
        f"there is no {kind} {parts.username or parts.netloc}; create it, or correct "
        "the table's location"
    )
