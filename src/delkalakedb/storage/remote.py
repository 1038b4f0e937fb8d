"""Stores in the cloud or in memory, by obstore.

An S3 server other than Amazon's may ignore `If-None-Match`, so that `put_new` would
overwrite. Each process finds out once for each bucket: it puts the first object that
it creates a second time, with equal bytes. If the server doesn't refuse the second
put, `put_new` looks for the object before it puts, and only two writers in the same
instant can still overwrite each other.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    NotSupportedError,
)
from obstore.store import MemoryStore

from delkalakedb.errors import StorageError
from delkalakedb.forks import Library, count_threads
from delkalakedb.model.times import to_ms
from delkalakedb.settings import redact_secrets
from delkalakedb.storage.base import ObjectMeta, ObjectNotFoundError, Store

if TYPE_CHECKING:
    from obstore import ObjectMeta as Found
    from obstore.store import ObjectStore

# The key of a bucket on an S3 server that may ignore `If-None-Match`.
Server = tuple[str, ...]

# No object's key has control characters, or characters that UTF-8 can't express.
_NO_KEY = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
# bytes of a key; characters on Azure
_LONGEST_KEY = 1024
_NOT_IMPLEMENTED = "<Code>NotImplemented</Code>"
# Whether the server of a bucket honours `If-None-Match`, once that is known.
_honours: dict[Server, bool] = {}


class RemoteStore(Store):
    """The objects below a prefix of a bucket, of a container, or in memory."""

    def __init__(
        self,
        url: str,
        store: "ObjectStore",
        secrets: Iterable[str] = (),
        doubted: Server | None = None,
    ) -> None:
        super().__init__(url)
        self._store = store
        self._secrets = secrets
        self._doubted = doubted

    def get(self, path: str) -> bytes:
        """Return the object's bytes."""
        with self._errors(path):
            return obstore.get(self._store, path).bytes().to_bytes()

    def get_range(self, path: str, start: int, length: int) -> bytes:
        """Return `length` bytes of the object from offset `start`."""
        with self._errors(path):
            try:
                found = obstore.get_range(self._store, path, start=start, length=length)
            except GenericError:
                # HTTP allows a server to send the whole object; obstore doesn't.
                return self.get(path)[start : start + length]
            return found.to_bytes()

    def put_new(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        """Create the object unless one exists, in one request if the server can."""
        with self._errors(path):
            honours = self._doubted is None or _honours.get(self._doubted)
            if honours:
                return self._create(path, data)
            if self.exists(path):
                return False
            if honours is None:
                return self._create_in_doubt(path, data)
            self.put(path, data)
            return True

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object."""
        with self._errors(path):
            obstore.put(self._store, path, data)

    def put_file(self, path: str, source: Path) -> None:
        """Create or replace the object, in parts when it is large."""
        with source.open("rb") as file, self._errors(path):
            obstore.put(self._store, path, file)

    def head(self, path: str) -> ObjectMeta | None:
        """Return the object's size and time."""
        if not self._is_key(path):
            return None
        with suppress(ObjectNotFoundError), self._errors(path):
            return _meta(obstore.head(self._store, path))
        return None

    def list(
        self, prefix: str = "", start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        """Yield the objects below a folder; the server skips to `start_after`."""
        with self._errors(prefix):
            for batch in obstore.list(self._store, prefix or None, offset=start_after):
                yield from map(_meta, batch)

    def folders(self, prefix: str = "") -> Sequence[str]:
        """Return the names of the folders directly in a folder, sorted."""
        with self._errors(prefix):
            found = obstore.list_with_delimiter(self._store, prefix or None)
        return sorted(path.rsplit("/", 1)[-1] for path in found["common_prefixes"])

    def delete(self, path: str) -> None:
        """Delete the object."""
        if self._is_key(path):
            with suppress(ObjectNotFoundError), self._errors(path):
                obstore.delete(self._store, path)

    def delete_many(self, paths: Iterable[str]) -> None:
        """Delete the objects, a thousand in each request if the server can."""
        # One path that no object can have would keep the server from deleting any.
        listed = [*filter(self._is_key, paths)]
        for path in listed:
            self._check(path)
        try:
            with self._errors(""):
                obstore.delete(self._store, listed)
        except ObjectNotFoundError:
            # Some stores stop at the first object that doesn't exist.
            super().delete_many(listed)

    def set_modified(self, path: str, modified_ms: int) -> None:
        """Do nothing, because the server sets the time."""

    @property
    def refuses_to_overwrite(self) -> bool:
        """Whether the server honours `If-None-Match`, as far as is known."""
        return self._doubted is None or _honours.get(self._doubted, True)

    def _is_key(self, path: str) -> bool:
        """Return whether an object can be at a path; a log may name other paths."""
        if _NO_KEY.search(path):
            return False
        url = urlsplit(self.url)
        if url.scheme == "memory":
            return True
        key = f"{unquote(url.path)}/{path}".lstrip("/")
        by_characters = url.scheme.startswith(("az", "abfs"))
        return len(key if by_characters else key.encode()) <= _LONGEST_KEY

    def _create(self, path: str, data: bytes) -> bool:
        try:
            # A multipart upload can't refuse to overwrite.
            obstore.put(self._store, path, data, use_multipart=False, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def _create_in_doubt(self, path: str, data: bytes) -> bool:
        """Create an object that was absent, and note whether the server can refuse."""
        assert self._doubted is not None
        try:
            if not self._create(path, data):
                _honours[self._doubted] = True
                return False
        except (NotSupportedError, NotImplementedError, GenericError) as error:
            if isinstance(error, GenericError) and _NOT_IMPLEMENTED not in str(error):
                raise
            _honours[self._doubted] = False
            self.put(path, data)
            return True
        # The object is created, even if the second request fails.
        with suppress(BaseError):
            _honours[self._doubted] = not self._create(path, data)
        return True

    @contextmanager
    def _errors(self, path: str) -> Iterator[None]:
        _obstore.check(self.url)
        with super()._errors(path):
            try:
                yield
            except (BaseError, FileNotFoundError) as error:
                # Servers repeat the access key that they refuse.
                error.args = (redact_secrets(str(error), self._secrets),)
                raise


def _has_own_threads() -> bool:
    """Return whether a first use of obstore starts its threads in this process."""
    before = count_threads()
    obstore.put(MemoryStore(), "tried", b"")
    after = count_threads()
    return before is not None and after is not None and after > before


_obstore = Library("an object store", _has_own_threads, StorageError)


def _meta(found: "Found") -> ObjectMeta:
    modified_ms = to_ms(found["last_modified"])
    return ObjectMeta(found["path"], found["size"], modified_ms)
