"""The one URL that a location has, and where that is on a local disk."""

import os
from urllib.parse import quote, unquote, urlsplit

from delkalakedb.errors import StorageError
from delkalakedb.redaction import redact_url
from delkalakedb.uri_options import SCHEMES, scheme_of

__all__ = ["canonical_location", "local_folder"]

# What deltalake, too, leaves as it is in a table's URI.
_SAFE = "/!$&'()*+,;=:@~"
_ALIASES = {"s3a": "s3"}


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


def local_folder(location: str) -> str | None:
    """Return the folder of a location on a local disk; None for any other."""
    parts = urlsplit(canonical_location(location))
    return _unquoted(parts.path) if parts.scheme == "file" else None


def _local_url(path: str) -> str:
    return f"file://{_quoted(os.path.abspath(path))}"


def _quoted(path: str) -> str:
    return quote(path, safe=_SAFE, errors="surrogateescape")


def _unquoted(path: str) -> str:
    return unquote(path, errors="surrogateescape")
