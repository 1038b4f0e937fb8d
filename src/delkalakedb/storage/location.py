"""Locations: the canonical URL of each, and where the files of a table are."""

import os
from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from delkalakedb.errors import DeltaError, StorageError
from delkalakedb.model.paths import (
    Inside,
    Outside,
    canonical_server,
    log_path,
    resolve_path,
)
from delkalakedb.settings import SCHEMES, redact_url, scheme_of


def canonical_location(location: str) -> str:
    """Return the canonical URL of a location, without credentials or trailing slash."""
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
    scheme, authority = canonical_server(parts.scheme, parts.netloc)
    path = log_path(_unquoted(parts.path)).rstrip("/")
    return f"{scheme}://{authority}{path}"


def local_folder(location: str) -> str | None:
    """Return the folder of a location on a local disk; None for any other location."""
    parts = urlsplit(canonical_location(location))
    return _unquoted(parts.path) if parts.scheme == "file" else None


def real_location(location: str) -> str:
    """Return a location without symbolic links; only a local disk has links."""
    folder = local_folder(location)
    return location if folder is None else _local_url(os.path.realpath(folder))


def _local_url(path: str) -> str:
    return f"file://{log_path(os.path.abspath(path))}"


def _unquoted(path: str) -> str:
    return unquote(path, errors="surrogateescape")


def resolve_readable(path: str, location: str) -> Inside | Outside:
    """Return the file that a path in a table's log names.

    Raises:
        DeltaError: A relative path leads out of the location. Only a shallow clone has
            files outside it, and names them by absolute paths.
    """
    place = resolve_path(path, location)
    if isinstance(place, Outside) and not place.absolute:
        raise DeltaError(
            f"{location}: the log's path {path} doesn't lead to a file below the "
            "table's location, so nothing is read; overwrite the table, or restore a "
            "version without the path"
        )
    return place


def file_places(paths: Iterable[str], location: str) -> list[str | Outside]:
    """Return each file's literal path below the location, or where else it is."""
    places = (resolve_readable(path, location) for path in paths)
    return [place.path if isinstance(place, Inside) else place for place in places]


def file_uris(location: str, places: Iterable[str | Outside]) -> list[str]:
    """Return the URLs of a table's files; of files on a local disk the paths."""
    root = local_folder(location) or canonical_location(location)
    return [
        f"{root}/{place}"
        if isinstance(place, str)
        else local_folder(place.url) or place.url
        for place in places
    ]
