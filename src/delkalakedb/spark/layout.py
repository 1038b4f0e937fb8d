"""Where a table's files are, and whether their folders say their partition values."""

import re
from collections.abc import Sequence
from functools import cache
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.model.paths import NULL_FOLDER, Outside, log_path
from delkalakedb.model.schema import Field
from delkalakedb.spark.session import java_path, spark_url
from delkalakedb.storage import canonical_location
from delkalakedb.table.files import resolve_readable

__all__ = ["is_hidden", "is_verbatim", "schemes_of", "told_by_folders", "uris_of"]

# What Java leaves as it is, with what it escapes.
_VERBATIM = (
    r"^(?:[A-Za-z0-9_!.~'()*,;:$&+=@/-]|%(?:[01][0-9A-F]|2[0235]|3[CEF]|5[BCDE]|60"
    r"|7[BCDF]))+$"
)
_ROUNDABOUT = r"(?:^|/)(?:\.{0,2})(?:/|$)"
_HIDDEN = r"(?:^|/)(?:(?:\.|%2[Ee])[^/]*|(?:_|%5[Ff])[^/=]*)$"
# Of these types Spark makes the same of a folder's name as Delta of the log's text.
_SAME = frozenset({"boolean", "byte", "date", "integer", "long", "short", "string"})
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")


def uris_of(root: str, paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Where files are, as Spark takes it and gives it back."""
    plain = is_verbatim(paths)
    if pc.all(plain).as_py() is not False:
        return pc.binary_join_element_wise(root, paths, "/")
    found = [
        f"{root}/{path}" if same else _uri(root, path)
        for path, same in zip(paths.to_pylist(), plain.to_pylist(), strict=True)
    ]
    return pa.chunked_array([found])


def is_verbatim(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which paths are, as they stand in the log, the end of the files' URIs."""
    odd = pc.or_(
        pc.match_substring(paths, ":/"), pc.match_substring_regex(paths, _ROUNDABOUT)
    )
    return pc.and_not(pc.match_substring_regex(paths, _VERBATIM), odd)


def is_hidden(paths: pa.ChunkedArray) -> pa.ChunkedArray:
    """Which files Spark passes over without a word, because of their names."""
    return pc.match_substring_regex(paths, _HIDDEN)


def schemes_of(paths: pa.ChunkedArray) -> list[str]:
    """The beginnings, such as `s3://`, of absolute paths."""
    found = pc.extract_regex(paths, r"^(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)")
    return list(pc.struct_field(found, "scheme").unique().drop_null().to_pylist())


def told_by_folders(
    root: str, partitions: Sequence[Field], files: pa.Table
) -> pa.ChunkedArray:
    """Of which files Spark reads from the folders' names what the log says."""
    same = all(field.type in _SAME for field in partitions)
    if not same or "=" in root.rpartition("/")[2]:
        return pa.chunked_array([pa.repeat(False, files.num_rows)])
    names = [field.physical_name for field in partitions]

    @cache
    def told(folder: str, text: str) -> bool:
        values = msgspec.json.decode(text)
        return _values(folder, names) == [values.get(name) or None for name in names]

    folders = (path.rpartition("/")[0] for path in files["path"].to_pylist())
    found = list(map(told, folders, files["partition_values"].to_pylist()))
    # All below the table's folder: Spark wants them to be below one.
    return pc.and_(pa.chunked_array([found]), is_verbatim(files["path"]))


def _values(folder: str, names: Sequence[str]) -> list[str | None] | None:
    """What Spark takes for the values of a file in a folder of the table."""
    parts = [unquote(part) for part in folder.split("/")]
    while parts and "=" not in parts[-1]:
        parts.pop()
    found = [part.partition("=") for part in parts]
    if [_unescaped(name) for name, _, _ in found] != list(names):
        return None
    return [None if text == NULL_FOLDER else _unescaped(text) for _, _, text in found]


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)


def _uri(root: str, path: str) -> str:
    place = resolve_readable(path, root)
    if isinstance(place, Outside):
        return spark_url(canonical_location(place.url))
    return f"{root}/{java_path(log_path(place.path))}"
