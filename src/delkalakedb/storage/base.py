"""The interface of an object store, and its errors in plain words.

A store holds the objects of one table's location. A path is an object's literal key
below the location, so nothing in it is percent-decoded.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import pyarrow as pa
from obstore.exceptions import BaseError, NotFoundError

from delkalakedb.errors import StorageError
from delkalakedb.model.paths import NO_NAMES
from delkalakedb.settings import uncoloured

# The server's error code, such as NoSuchKey.
_CODE = re.compile(r"<Code>(\w+)</Code>")
# The server's XML or HTML, of which errors show only the code.
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


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """An object that doesn't exist."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """The size and time of an object; `is_link` if it is itself a symbolic link."""

    path: str
    size_bytes: int
    last_modified_ms: int
    is_link: bool = False


class Readable(Protocol):
    """The part of a store that reads whole objects, which may be kept in memory."""

    # the location, without credentials
    url: str

    def get(self, path: str) -> bytes:
        """Return the object's bytes."""

    def open(self, path: str) -> pa.NativeFile:
        """Open the object for reading."""


class Store(ABC):
    """The objects below one location; `url` is the location without credentials.

    Any number of threads may use a store at once. A process that was forked after the
    first use of a remote store can't use remote stores, because a fork leaves obstore's
    threads behind.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @abstractmethod
    def get(self, path: str) -> bytes:
        """Return the object's bytes; raise `ObjectNotFoundError` if there is none."""

    def open(self, path: str) -> pa.NativeFile:
        """Open the object for reading; only a local disk reads it part by part."""
        return pa.BufferReader(self.get(path))

    @abstractmethod
    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes of the object from offset `start`.

        Raises:
            ObjectNotFoundError: There is no object at `path`.
        """

    @abstractmethod
    def put_new(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        """Create the object, whole or not at all; return False if one exists.

        The existing object may be this caller's own, if the answer to the request that
        created it was lost. An object that isn't `durable` may be lost or cut off when
        the machine loses power.
        """

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object, whole or not at all."""

    @abstractmethod
    def put_file(self, path: str, source: Path) -> None:
        """Create or replace the object from a local file, whole or not at all."""

    @abstractmethod
    def head(self, path: str) -> ObjectMeta | None:
        """Return the object's size and time, or None if there is no object."""

    @abstractmethod
    def list(
        self, prefix: str = "", start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        """Yield the objects below the folder `prefix`, at any depth, sorted by path.

        With `start_after`, only objects whose path comes after it are listed. A local
        disk doesn't list what is behind a symbolic link to a folder.
        """

    def head_linked(self, path: str) -> ObjectMeta | None:
        """Return what `head` returns if `list` may have left out the object.

        Return None if `list` lists all objects.
        """
        return None

    def list_own(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """Yield the objects below `prefix`; symbolic links aren't followed."""
        return self.list(prefix)

    def behind_links(self, paths: Iterable[str]) -> Iterator[str]:
        """Yield the real path of each path that leads through a symbolic link.

        Only real paths below the location are yielded.
        """
        return iter(())

    @abstractmethod
    def folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders directly in the folder `prefix`, sorted."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Delete the object if there is one."""

    @abstractmethod
    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set the object's modification time; only a local disk can."""

    def delete_many(self, paths: Iterable[str]) -> None:
        """Delete each object that exists."""
        for path in paths:
            self.delete(path)

    def delete_own(self, paths: Iterable[str]) -> Sequence[str]:
        """Delete objects that `list_own` listed: a link itself, nothing behind it.

        Returns:
            The paths that lead through a link; the objects there aren't deleted.
        """
        self.delete_many(paths)
        return []

    def delete_leftovers(self, prefix: str) -> None:  # noqa: B027
        """Delete temporary files in a folder that are older than a day.

        Only a local disk has temporary files.
        """

    def delete_remains(self) -> None:  # noqa: B027
        """Delete temporary files and empty folders; links aren't followed."""

    @property
    def refuses_to_overwrite(self) -> bool:
        """Whether the store never overwrites in `put_new`.

        False only after `put_new` has seen the server ignore `If-None-Match`.
        """
        return True

    def exists(self, path: str) -> bool:
        """Return whether there is an object at the path."""
        return self.head(path) is not None

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        self._check(path)
        where = f"{self.url}: {path or '.'}"
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, NotFoundError) as error:
            if lacks_place(str(error)):
                raise StorageError(f"{where}: {_no_place(self.url)}") from error
            raise ObjectNotFoundError(f"{where}: no such object") from error
        except (OSError, ValueError, NotImplementedError, BaseError) as error:
            raise StorageError(f"{where}: {first_line(error, self.url)}") from error

    def _check(self, path: str) -> None:
        if path and not NO_NAMES.isdisjoint(path.split("/")):
            raise StorageError(f"{self.url}: {path}: not a path below the location")


def first_line(error: Exception, url: str) -> str:
    """Return the first line of an error, without what obstore and the server add."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    code = _CODE.search(str(error))
    return plain_words(f"{line} {code[0]}" if code else line, url)


def is_of_store(text: str) -> bool:
    """Return whether an error message of delta-rs comes from an object store."""
    return _OF_STORE.search(text) is not None


def lacks_place(text: str) -> bool:
    """Return whether an error message says that a bucket or container is missing."""
    return _NO_PLACE.search(text) is not None


def plain_words(text: str, url: str) -> str:
    """Return a store's error message on one line, without colours and markup.

    If the server refuses access, or the bucket or container in `url` is missing, the
    line also says what to do.
    """
    code = _CODE.search(text)
    line = _NEXT_LINE.sub(": ", _MARKUP.sub("", uncoloured(text)).strip())
    line = line.rstrip(": ")
    if code is not None:
        line = f"{line}: {code[1]}"
    if lacks_place(text):
        return f"{_no_place(url)} ({line})"
    return f"{line}; {_ADVICE}" if _REFUSED.search(text) else line


def _no_place(url: str) -> str:
    parts = urlsplit(url)
    kind = "bucket" if parts.scheme in ("s3", "gs") else "container"
    return (
        f"there is no {kind} {parts.username or parts.netloc}; create it, or correct "
        "the table's location"
    )
