"""Which store a location is in."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from obstore.exceptions import BaseError
from obstore.store import MemoryStore, from_url

from delkalakedb.errors import StorageError
from delkalakedb.redaction import redact_secrets
from delkalakedb.storage.base import (
    ObjectMeta,
    ObjectNotFoundError,
    Store,
    first_line,
)
from delkalakedb.storage.local import LocalStore
from delkalakedb.storage.location import canonical_location, local_folder
from delkalakedb.storage.options import parse_options
from delkalakedb.storage.remote import RemoteStore, Server

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = [
    "ObjectMeta",
    "ObjectNotFoundError",
    "Store",
    "canonical_location",
    "open_store",
]


def open_store(
    location: str, storage_options: Mapping[str, str] | None = None
) -> Store:
    """The store of a table's location, with deltalake's `storage_options`.

    A `memory://` location is the same one for everybody in the process.
    """
    url = canonical_location(location)
    if (folder := local_folder(url)) is not None:
        return LocalStore(url, Path(folder))
    if url.startswith("memory:"):
        return RemoteStore(url, _memory(url))
    return _connect(url, storage_options or {})


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
