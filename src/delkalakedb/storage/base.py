"""The few things that are asked of an object store, for one table's location.

A path is an object's literal key below that location: nothing is percent-decoded.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from obstore.exceptions import BaseError, NotFoundError

from delkalakedb.errors import StorageError

__all__ = ["ObjectMeta", "ObjectNotFoundError", "Store", "first_line"]


class ObjectNotFoundError(StorageError, FileNotFoundError):
    """There is no object at that path."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """An object, but for its bytes."""

    path: str
    size_bytes: int
    last_modified_ms: int


class Store(ABC):
    """The objects below one location, `url`, which holds no credentials."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @abstractmethod
    def get(self, path: str) -> bytes:
        """The object's bytes; `ObjectNotFoundError` where there is none."""

    @abstractmethod
    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Some of the object's bytes; `ObjectNotFoundError` where there is none."""

    @abstractmethod
    def put_new(self, path: str, data: bytes) -> bool:
        """Create the object, whole or not at all; False where there is one already."""

    @abstractmethod
    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object, whole or not at all."""

    @abstractmethod
    def head(self, path: str) -> ObjectMeta | None:
        """The object's size and time, or None where there is none."""

    @abstractmethod
    def list(
        self, prefix: str = "", start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        """The objects below the folder `prefix`, at any depth, in order of path."""

    @abstractmethod
    def delete(self, path: str) -> None:
        """Remove the object; fine where there is none."""

    @abstractmethod
    def set_modified(self, path: str, modified_ms: int) -> None:
        """Set the object's time on a local disk; elsewhere that can't be done."""

    def exists(self, path: str) -> bool:
        """Whether there is an object at the path."""
        return self.head(path) is not None

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        where = f"{self.url}: {path or '.'}"
        if path and any(part in ("", ".", "..") for part in path.split("/")):
            raise StorageError(f"{where}: not a path below the location")
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, NotFoundError) as error:
            raise ObjectNotFoundError(f"{where}: no such object") from error
        except (OSError, ValueError, BaseError) as error:
            raise StorageError(f"{where}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """What an error says, without the pages that obstore adds."""
    return next(iter(str(error).splitlines()), type(error).__name__)
