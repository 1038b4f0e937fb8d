"""Stores by location, opened with deltalake's `storage_options`."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from obstore.exceptions import BaseError, UnknownConfigurationKeyError
from obstore.store import MemoryStore, from_url

from delkalakedb.errors import StorageError
from delkalakedb.progress import Progress, report
from delkalakedb.settings import SECRET_NAMES, redact, redact_secrets
from delkalakedb.storage.base import Store, first_line
from delkalakedb.storage.local import LocalStore
from delkalakedb.storage.location import canonical_location, local_folder
from delkalakedb.storage.remote import RemoteStore, Server

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# objects deleted between two reports
_AT_ONCE = 1000
_VENDORS = {"s3": ("aws_",), "gs": ("google_",), "az": ("azure_storage_", "azure_")}
_CLIENT = frozenset(
    {
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "default_content_type",
        "http1_only",
        "http2_keep_alive_interval",
        "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle",
        "http2_max_frame_size",
        "http2_only",
        "pool_idle_timeout",
        "pool_max_idle_per_host",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "randomize_addresses",
        "read_timeout",
        "timeout",
        "user_agent",
    }
)
_RETRY = ("max_retries", "retry_timeout")
_BACKOFF = ("init_backoff", "max_backoff", "base")
# Options that the URL already says.
_PLACES = ("bucket", "bucket_name", "container_name")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}

# Without its signature, which has a typed dictionary of options for each scheme.
_build: Callable[..., "ObjectStore"] = from_url


def open_store(
    location: str, storage_options: Mapping[str, str] | None = None
) -> Store:
    """Return the store of a table's location.

    Args:
        location: a URL or a local path. A `memory://` location is shared by the whole
            process.
        storage_options: deltalake's, for the object store.
    """
    url = canonical_location(location)
    if (folder := local_folder(url)) is not None:
        return LocalStore(url, Path(folder))
    if url.startswith("memory:"):
        return RemoteStore(url, _memory(url))
    return _connect(url, storage_options or {})


def delete_counted(store: Store, paths: Sequence[str], what: str) -> list[str]:
    """Delete objects in parts, and report how many are deleted.

    Args:
        store: the store.
        paths: paths that `Store.list_own` listed.
        what: what the deletion is called in reports.

    Returns:
        The paths that lead through a link; the objects there aren't deleted.
    """
    left: list[str] = []
    for start in range(0, len(paths), _AT_ONCE):
        part = paths[start : start + _AT_ONCE]
        left += store.delete_own(part)
        done = start + len(part)
        report(Progress(what=what, done=done, total=len(paths), unit="files"))
    return left


@cache
def _memory(url: str) -> MemoryStore:
    return MemoryStore()


def _connect(url: str, given: Mapping[str, str]) -> RemoteStore:
    options = parse_options(urlsplit(url).scheme, given)
    try:
        store = _build(
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
    """Return the key of an S3 server that may overwrite; None for any other store."""
    asked = [config.get(key, "") for key in ("endpoint", "conditional_put")]
    if not url.startswith("s3:") or not any(asked):
        return None
    return (urlsplit(url).netloc, *asked)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a store, of its HTTP client and of its retries."""

    config: dict[str, str] = field(repr=False)
    client: dict[str, str] = field(repr=False)
    retry: dict[str, Any]

    @property
    def secrets(self) -> frozenset[str]:
        """The values that must not be shown."""
        options = self.config.items()
        return frozenset(v for k, v in options if v and k.endswith(SECRET_NAMES))


def parse_options(scheme: str, options: Mapping[str, str]) -> Options:
    """Return the options for a scheme; given ones override the environment's.

    An option that obstore doesn't know for the scheme is ignored, as by deltalake.
    """
    vendor = "az" if scheme.startswith("abfs") else scheme
    given = _bare(vendor, _environment(vendor)) | _bare(vendor, options)
    if (for_s3 := given.pop("endpoint_url_s3", None)) is not None:
        given["endpoint"] = for_s3
    client = {key: given.pop(key) for key in _CLIENT & given.keys()}
    retry = _retry(given)
    config = {
        key: value
        for key, value in given.items()
        if key not in _PLACES and _is_known(vendor, key)
    }
    return Options(config, client, retry)


def is_secret(key: str, value: str) -> bool:
    """Return whether an option's value must not be shown."""
    return key.lower().endswith(SECRET_NAMES) or redact(value) != value


def _environment(vendor: str) -> dict[str, str]:
    prefixes = tuple(prefix.upper() for prefix in _VENDORS[vendor])
    return {k: v for k, v in os.environ.items() if k.startswith(prefixes)}


def _bare(vendor: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by their names without the vendor's prefix."""
    return {_name(vendor, key.lower()): str(value) for key, value in options.items()}


def _name(vendor: str, key: str) -> str:
    for prefix in _VENDORS[vendor]:
        key = key.removeprefix(prefix)
    return "endpoint" if key == "endpoint_url" else key


def _retry(given: dict[str, str]) -> dict[str, Any]:
    backoff = {
        key: _number(key, given[f"backoff_config.{key}"])
        for key in _BACKOFF
        if f"backoff_config.{key}" in given
    }
    retry = {key: _number(key, given[key]) for key in _RETRY if key in given}
    return retry | ({"backoff": backoff} if backoff else {})


def _number(key: str, value: str) -> timedelta | int | float:
    duration = _DURATION.fullmatch(value.strip())
    try:
        if key == "max_retries":
            return int(value)
        if key == "base":
            return float(value)
        if duration is None:
            raise ValueError("not a duration such as 30s")
    except ValueError as error:
        raise StorageError(f"storage option {key}={value!r}: {error}") from error
    return timedelta(seconds=float(duration[1]) * _SECONDS[duration[2]])


@cache
def _is_known(vendor: str, key: str) -> bool:
    """Return whether obstore has the option; deltalake has more than obstore."""
    try:
        _build(f"{vendor}://any", config={key: ""})
    except BaseError as error:
        # Any other error is about options that are missing here, not about this one.
        return not isinstance(error, UnknownConfigurationKeyError)
    return True
