"""Which store a location is in."""

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import MemoryStore, from_url

from delkalakedb.errors import StorageError
from delkalakedb.redaction import redact_secrets, redact_url
from delkalakedb.storage.base import (
    ObjectMeta,
    ObjectNotFoundError,
    Store,
    first_line,
)
from delkalakedb.storage.local import LocalStore
from delkalakedb.storage.options import parse_options
from delkalakedb.storage.remote import RemoteStore, Server
from delkalakedb.uri_options import SCHEMES, scheme_of

if TYPE_CHECKING:
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
        return RemoteStore(url, _memory(url))
    return _connect(url, storage_options or {})


def canonical_location(location: str) -> str:
    """The one URL of a location, without credentials or a trailing slash."""
    scheme = scheme_of(location)
    if scheme is None:
        return _local_url(location)
    if scheme not in SCHEMES:
        raise StorageError(
            f"{scheme}:// locations aren't supported; these are: {', '.join(SCHEMES)}"
        )
    parts = urlsplit(location)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            host = redact_url(f"file://{parts.netloc}")
            raise StorageError(f"{host}: a file location has no host")
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


def _connect(url: str, given: Mapping[str, str]) -> RemoteStore:
    options = parse_options(urlsplit(url).scheme, given)
    build: Callable[..., ObjectStore] = from_url
    try:
        store = build(
            url,
            config=options.config,
            client_options=options.client,
            retry_config=options.retry,
        )
    except BaseError as error:
        error.args = (redact_secrets(str(error), options.secrets),)
        raise StorageError(f"{url}: {first_line(error, url)}") from error
    return RemoteStore(url, store, options.secrets, _doubted(url, options.config))


def _doubted(url: str, config: Mapping[str, str]) -> Server | None:
    """What has to show that it refuses to overwrite: an S3 that isn't Amazon's."""
    asked = [config.get(key, "") for key in ("endpoint", "conditional_put")]
    if not url.startswith("s3:") or not any(asked):
        return None
    return (urlsplit(url).netloc, *asked)
