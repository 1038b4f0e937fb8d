"""deltalake's `storage_options`, as obstore wants them."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

from obstore.exceptions import BaseError, UnknownConfigurationKeyError
from obstore.store import from_url

from delkalakedb.errors import StorageError
from delkalakedb.redaction import SECRET_NAMES, redact

__all__ = ["Options", "is_secret", "parse_options"]

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
# The URL says these.
_PLACES = ("bucket", "bucket_name", "container_name")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a store, of its HTTP client and of its retries."""

    config: dict[str, str] = field(repr=False)
    client: dict[str, str] = field(repr=False)
    retry: dict[str, Any]

    @property
    def secrets(self) -> frozenset[str]:
        """The values that nobody may read."""
        found = (
            value for key, value in self.config.items() if key.endswith(SECRET_NAMES)
        )
        return frozenset(filter(None, found))


def parse_options(scheme: str, options: Mapping[str, str]) -> Options:
    """The options of a location's scheme, above those of the environment.

    What another tool or store would understand is left out, as deltalake does.
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
    """Whether an option, by whatever vendor's name, is one that nobody may read."""
    return key.lower().endswith(SECRET_NAMES) or redact(value) != value


def _environment(vendor: str) -> dict[str, str]:
    prefixes = tuple(prefix.upper() for prefix in _VENDORS[vendor])
    return {k: v for k, v in os.environ.items() if k.startswith(prefixes)}


def _bare(vendor: str, options: Mapping[str, str]) -> dict[str, str]:
    """The options by the one name each of them has here."""
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
    """Whether obstore has the option: deltalake has more of them, and of its own."""
    build: Callable[..., object] = from_url
    try:
        build(f"{vendor}://any", config={key: ""})
    except UnknownConfigurationKeyError:
        return False
    except BaseError:
        # Known, but no store comes of it alone.
        return True
    return True
