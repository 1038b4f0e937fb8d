"""Paths of a table: the file that a path in the log names, new files, log entries.

Only `resolve_path` interprets a path in the log. All code that opens, links, lists,
compares or deletes a file of a table uses its result, never the text in the log,
because several texts can name one file, and a text can lead anywhere.
"""

import re
from collections.abc import Container, Iterable, Iterator
from functools import lru_cache
from typing import TypeGuard
from urllib.parse import quote, unquote

import msgspec

from delkalakedb.errors import ProtocolError
from delkalakedb.model.actions import Action, Add, Cdc, Remove, known
from delkalakedb.settings import redact

Values = dict[str, str | None]
"""Partition values by physical names, as the log has them."""

LOG = "_delta_log"
LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
SIDECARS = f"{LOG}/_sidecars"
STAGED_COMMITS = f"{LOG}/_staged_commits"
# The paths of commits and checksums, and of other files; first comes the version.
ENTRY = re.compile(rf"{LOG}/(\d{{20}})\.(json|crc)")
CHECKPOINT = re.compile(
    rf"{LOG}/(\d{{20}})\.checkpoint"
    r"(?:(?:\.\d{10}\.(?P<parts>\d{10}))?\.parquet"
    r"|\.[0-9a-fA-F-]{36}\.(?:json|parquet))"
)
COMPACTED = re.compile(rf"{LOG}/(\d{{20}})\.(\d{{20}})\.compacted\.json")
STAGED = re.compile(rf"{STAGED_COMMITS}/(\d{{20}})\.[^/]+\.json")
# The version of any of these files, and the last version of a compacted one.
VERSION = re.compile(rf"{LOG}/(?:\d{{20}}\.(?=\d{{20}}\.))?(\d{{20}})\.")
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
ODD_PATH = r"%|^/|(?:^|/)\.{0,2}(?:/|$)|:/|:$|\x00"
"""A pattern, for `re` and RE2, of paths that may not be their file's literal path."""

_MAX_NAME_BYTES = 255
_ABSOLUTE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(?=/|$)")
_ALIASES = {"s3a": "s3", "s3n": "s3"}
NO_NAMES = frozenset({"", ".", ".."})
"""Parts of a path that name no file or folder."""
_CLONE = (
    "to import a shallow clone, which has files of another table, pass "
    "outside_files=True (--outside-files)"
)


def commit_path(version: int) -> str:
    """Return the path of a version's commit."""
    return f"{LOG}/{version:020}.json"


def checksum_path(version: int) -> str:
    """Return the path of a version's checksum."""
    return f"{LOG}/{version:020}.crc"


def checkpoint_path(version: int, infix: str = "") -> str:
    """Return the path of a version's checkpoint; of a V2 one with a UUID's infix."""
    return f"{LOG}/{version:020}.checkpoint{infix}.parquet"


def compacted_path(first: int, last: int) -> str:
    """Return the path of the compacted entry of a range of versions."""
    return f"{LOG}/{first:020}.{last:020}.compacted.json"


class Inside(msgspec.Struct, frozen=True):
    """A file below a table's location.

    Args:
        path: the file's literal path below the location, as a store takes it.
    """

    path: str


class Outside(msgspec.Struct, frozen=True):
    """The target of a path that isn't a file below a table's location.

    Args:
        url: the target's absolute URL.
        absolute: whether the path is absolute, as a shallow clone names the files of
            another table. A valid relative path never leads out of the location.
    """

    url: str
    absolute: bool


class _Root(msgspec.Struct, frozen=True):
    scheme: str
    authority: str
    parts: tuple[str, ...]


def resolve_path(path: str, location: str) -> Inside | Outside:
    """Return the file that a path in a table's log names.

    Args:
        path: the path of an add, remove, cdc or deletion vector, percent-encoded:
            relative to the location, or absolute.
        location: the table's location, as a URL or as a local path.
    """
    text = unquote(path, errors="surrogateescape") if "%" in path else path
    if _is_plain(text):
        return Inside(text)
    root = _root(location)
    scheme, authority, absolute = root.scheme, root.authority, text.startswith("/")
    if found := _ABSOLUTE.match(text):
        scheme, authority = canonical_server(found[1], found[2])
        text, absolute = text[found.end() :], True
    parts = _normalized(() if absolute else root.parts, text)
    depth = len(root.parts)
    ours = (scheme, authority, parts[:depth]) == (
        root.scheme,
        root.authority,
        root.parts,
    )
    if ours and len(parts) > depth and "\0" not in text:
        return Inside("/".join(parts[depth:]))
    return Outside(_url(_Root(scheme, authority, parts)), absolute)


def _is_plain(text: str) -> bool:
    """Return whether a decoded path is a literal one; a regex takes thrice as long."""
    return (
        text[:1] not in "/."
        and "/." not in text
        and "//" not in text
        and ":/" not in text
        and "\0" not in text
        and text[-1] not in "/:"
    )


def key_inside(path: str, location: str) -> str | None:
    """Return the literal path below the location that a path in the log names.

    The result is None for a path that leads out of the location.
    """
    found = resolve_path(path, location)
    return found.path if isinstance(found, Inside) else None


def log_paths(action: Add | Remove | Cdc) -> Iterator[str]:
    """Yield the paths, as in the log, of an action's file and deletion vector."""
    # Imported here, because opening a table needs no vectors.
    from delkalakedb.model.vectors import vector_paths

    yield action.path
    if not isinstance(action, Cdc) and (vector := known(action.deletion_vector)):
        yield from vector_paths(vector)


def files_inside(action: Add | Remove | Cdc, location: str) -> Iterator[str]:
    """Yield the literal paths of an action's files that lie below the location."""
    for path in log_paths(action):
        if (key := key_inside(path, location)) is not None:
            yield key


def check_inside(
    actions: Iterable[Action],
    location: str,
    *,
    had: Container[str] = (),
    outside_files: bool = False,
    hint: str = _CLONE,
) -> None:
    """Raise `ProtocolError` if an action names no file below a table's location.

    Args:
        actions: the actions of a commit, or some of them.
        location: the table's location.
        had: paths and deletion vector ids that the table already has; absolute paths
            among them are allowed, so that the files of a shallow clone can be removed.
        outside_files: allow every absolute path, as a shallow clone has them.
        hint: what the error says to do about an absolute path.

    A remove may name what can't be a file, such as `.`, because it opens nothing.
    """
    for action in actions:
        if isinstance(action, Add | Remove | Cdc):
            for path in log_paths(action):
                place = resolve_path(path, location)
                if not _leaves(place, location):
                    if not isinstance(action, Remove):
                        _check_file(action, path, place, location)
                    continue
                taken = outside_files or _is_had(action, path, had)
                if not (place.absolute and taken):
                    raise ProtocolError(_refusal(action, path, place, location, hint))


def _leaves(place: Inside | Outside, location: str) -> TypeGuard[Outside]:
    """Return whether a path leads out of the location; one such as `.` doesn't."""
    if isinstance(place, Inside):
        return False
    return not f"{place.url}/".startswith(f"{_url(_root(location))}/")


def _check_file(
    action: Add | Cdc, path: str, place: Inside | Outside, location: str
) -> None:
    """Raise `ProtocolError` if there can be no file at a path within the location."""
    what = _described(action, path)
    if isinstance(place, Outside):
        raise ProtocolError(
            f"{what} {path!r}: this is the table's location {location}, or no path at "
            "all, and not a file below the location; only a log that was tampered with "
            "has such a path"
        )
    if not _is_utf8(place.path):
        raise ProtocolError(
            f"{what} {path}: the file's name isn't valid UTF-8; rewrite the file under "
            "another name with the table's own writer"
        )


def _is_utf8(text: str) -> bool:
    """Return whether a decoded path has no bytes that `surrogateescape` kept."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _described(action: Add | Remove | Cdc, path: str) -> str:
    kind = type(action).__name__.lower()
    return kind if path == action.path else f"deletion vector of {kind}"


def _refusal(
    action: Add | Remove | Cdc, path: str, place: Outside, location: str, hint: str
) -> str:
    what = _described(action, path)
    if not place.absolute:
        hint = "only a log that was tampered with has such a relative path"
    return redact(
        f"{what} {path}: {place.url} isn't a file below the table's location "
        f"{location}; {hint}"
    )


def _is_had(action: Add | Remove | Cdc, path: str, had: Container[str]) -> bool:
    if path == action.path:
        return path in had
    vector = None if isinstance(action, Cdc) else known(action.deletion_vector)
    return vector is not None and vector.unique_id in had


def _url(root: _Root) -> str:
    return f"{root.scheme}://{root.authority}/{log_path('/'.join(root.parts))}"


@lru_cache(maxsize=256)
def _root(location: str) -> _Root:
    found = _ABSOLUTE.match(location)
    if found is None:
        return _Root("file", "", _normalized((), location))
    path = unquote(location[found.end() :], errors="surrogateescape")
    return _Root(*canonical_server(found[1], found[2]), _normalized((), path))


def canonical_server(scheme: str, authority: str | None) -> tuple[str, str]:
    """Return the scheme and the authority of a URL in their canonical spelling."""
    scheme = scheme.lower()
    # In abfss:// the part before `@` is the container, not a user.
    if not scheme.startswith("abfs"):
        authority = (authority or "").rpartition("@")[2]
    if scheme == "file" and authority == "localhost":
        authority = ""
    return _ALIASES.get(scheme, scheme), authority or ""


def _normalized(above: tuple[str, ...], path: str) -> tuple[str, ...]:
    parts = [*above]
    for part in path.split("/"):
        if part == "..":
            del parts[-1:]
        elif part not in NO_NAMES:
            parts.append(part)
    return tuple(parts)


def file_path(name: str, values: Values) -> str:
    """Return the path below the location of a new file with partition values."""
    return "/".join((*(_folder(*item) for item in values.items()), name))


def log_path(path: str) -> str:
    """Return a literal path percent-encoded, as in the log and in locations."""
    # Characters that deltalake, too, doesn't encode.
    return quote(path, safe="/!$&'()*+,;=:@~", errors="surrogateescape")


def _folder(name: str, value: str | None) -> str:
    text = NULL_FOLDER if value is None else quote(value, safe="")
    # delta-rs encodes values but not names; a name that leads out is encoded, too.
    *above, _ = name.split("/")
    plain = NO_NAMES.isdisjoint(above) and "\0" not in name
    folder = f"{name if plain else quote(name, safe='')}={text}"
    if all(len(part.encode()) <= _MAX_NAME_BYTES for part in folder.split("/")):
        return folder
    # Imported here, because opening a table hashes nothing and OpenSSL takes 3 ms.
    import hashlib

    return hashlib.sha256(folder.encode()).hexdigest()
