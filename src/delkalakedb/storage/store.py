"""Which store a location is in, and the stores that obstore talks to."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    UnknownConfigurationKeyError,
)
from obstore.store import MemoryStore, from_url

from delkalakedb.errors import StorageError
from delkalakedb.storage.base import (
    ObjectMeta,
    ObjectNotFoundError,
    Store,
    first_line,
)
from delkalakedb.storage.local import LocalStore

if TYPE_CHECKING:
    from obstore import ObjectMeta as Found
    from obstore.store import ObjectStore

__all__ = [
    "ObjectMeta",
    "ObjectNotFoundError",
    "Store",
    "canonical_location",
    "open_store",
]

# What deltalake, too, leaves as it is in a table's URI.
_SAFE = "/!$&'()*+,;=:@~"
_ALIASES = {"s3a": "s3"}
_SCHEMES = ("file", "s3", "s3a", "gs", "az", "abfs", "abfss", "memory")
_CLIENT_OPTIONS = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "http1_only",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_url",
        "read_timeout",
        "timeout",
        "user_agent",
    }
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|file:/")
_VENDOR = re.compile(r"^(aws|azure|google)_")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def open_store(
    location: str, storage_options: Mapping[str, str] | None = None
) -> Store:
    """The store of a table's location, with deltalake's `storage_options`.

    A `memory://` location is the same one for everybody in the process.
    """
    url = canonical_location(location)
    if url.startswith("file:"):
        return LocalStore(url, Path(_unquoted(urlsplit(url).path)))
    if url.startswith("memory:"):
        return _RemoteStore(url, _memory(url))
    return _RemoteStore(url, _connect(url, storage_options or {}))


def canonical_location(location: str) -> str:
    """The one URL of a location, without credentials or a trailing slash."""
    if not _URL.match(location):
        return _local_url(location)
    parts = urlsplit(location)
    if parts.scheme not in _SCHEMES:
        raise StorageError(
            f"{parts.scheme}:// locations aren't supported; "
            f"these are: {', '.join(_SCHEMES)}"
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise StorageError(f"file://{parts.netloc}: a file location has no host")
        return _local_url(_unquoted(parts.path))
    # In abfss:// the container stands where other URLs have a user.
    user, _, host = parts.netloc.rpartition("@")
    container = f"{user}@" if user and parts.scheme.startswith("abfs") else ""
    path = _quoted(_unquoted(parts.path)).rstrip("/")
    return f"{_ALIASES.get(parts.scheme, parts.scheme)}://{container}{host}{path}"


def _local_url(path: str) -> str:
    return f"file://{_quoted(os.path.abspath(path))}"


def _quoted(path: str) -> str:
    return quote(path, safe=_SAFE, errors="surrogateescape")


def _unquoted(path: str) -> str:
    return unquote(path, errors="surrogateescape")


@cache
def _memory(url: str) -> MemoryStore:
    return MemoryStore()


def _connect(url: str, options: Mapping[str, str]) -> "ObjectStore":
    build: Callable[..., ObjectStore] = from_url
    config, client = _split(options)
    try:
        return build(
            url,
            config={k: v for k, v in config.items() if _is_known(build, url, k, v)},
            client_options=client,
        )
    except BaseError as error:
        raise StorageError(f"{url}: {first_line(error)}") from error


def _split(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options of the store and of its HTTP client, which obstore wants apart."""
    config, client = {}, {}
    for key, value in options.items():
        bare = _VENDOR.sub("", key.lower())
        if bare in _CLIENT_OPTIONS:
            client[bare] = value
        else:
            config[key.lower()] = value
    return config, client


def _is_known(build: Callable[..., object], url: str, key: str, value: str) -> bool:
    """Whether obstore has the option: deltalake has more of them, and of its own."""
    try:
        build(url, config={key: value})
    except UnknownConfigurationKeyError:
        return False
    except BaseError:
        # Known, but not enough by itself.
        return True
    return True


class _RemoteStore(Store):
    def __init__(self, url: str, store: "ObjectStore") -> None:
        super().__init__(url)
        self._store = store

    def get(self, path: str) -> bytes:
        with self._errors(path):
            return obstore.get(self._store, path).bytes().to_bytes()

    def get_range(self, path: str, start: int, length: int) -> bytes:
        with self._errors(path):
            return obstore.get_range(
                self._store, path, start=start, length=length
            ).to_bytes()

    def put_new(self, path: str, data: bytes) -> bool:
        with self._errors(path):
            try:
                # A multipart upload can't refuse to overwrite.
                obstore.put(self._store, path, data, use_multipart=False, mode="create")
            except AlreadyExistsError:
                return False
            return True

    def put(self, path: str, data: bytes) -> None:
        with self._errors(path):
            obstore.put(self._store, path, data)

    def head(self, path: str) -> ObjectMeta | None:
        with suppress(ObjectNotFoundError), self._errors(path):
            return _meta(obstore.head(self._store, path))
        return None

    def list(
        self, prefix: str = "", start_after: str | None = None
    ) -> Iterator[ObjectMeta]:
        with self._errors(prefix):
            for batch in obstore.list(self._store, prefix or None, offset=start_after):
                yield from map(_meta, batch)

    def delete(self, path: str) -> None:
        with suppress(ObjectNotFoundError), self._errors(path):
            obstore.delete(self._store, path)

    def set_modified(self, path: str, modified_ms: int) -> None:
        pass


def _meta(found: "Found") -> ObjectMeta:
    modified_ms = (found["last_modified"] - _EPOCH) // timedelta(milliseconds=1)
    return ObjectMeta(found["path"], found["size"], modified_ms)
