"""Whether the files that a table's adds name are there, in the size they say.

The store is listed once and nothing is asked file by file. Of each file only a hash is
kept.
"""

from base64 import b85decode
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from string import ascii_lowercase, ascii_uppercase, digits
from urllib.parse import unquote, urlsplit
from uuid import UUID

from delkalakedb.model.actions import Add, known
from delkalakedb.storage import Store

__all__ = ["absent_files", "vector_path"]

_UUID_LENGTH = 20
_Z85 = f"{digits}{ascii_lowercase}{ascii_uppercase}.-:+=^!/*?&<>()[]{{}}@%$#"
_B85 = f"{digits}{ascii_uppercase}{ascii_lowercase}!#$%&()*+-;<=>?@^_`{{|}}~"
_TO_B85 = str.maketrans(_Z85, _B85)


def absent_files(
    adds: Callable[[], Iterable[Add]], store: Store
) -> Iterator[tuple[str, int | None]]:
    """The files that aren't as their adds say; the size is None for any size."""
    wanted = {_hash(*file) for add in adds() for file in _files(add)}
    for meta in store.list() if wanted else ():
        wanted.discard(_hash(meta.path, None))
        wanted.discard(_hash(meta.path, meta.size_bytes))
    if wanted:
        files = (file for add in adds() for file in _files(add))
        yield from (file for file in files if _hash(*file) in wanted)


def vector_path(name: str) -> str | None:
    """The path of the file that holds a deletion vector of type `u`."""
    prefix, encoded = name[:-_UUID_LENGTH], name[-_UUID_LENGTH:]
    try:
        uuid = UUID(bytes=b85decode(encoded.translate(_TO_B85)))
    except ValueError:
        return None
    folder = f"{prefix}/" if prefix else ""
    return f"{folder}deletion_vector_{uuid}.bin"


def _files(add: Add) -> Iterator[tuple[str, int | None]]:
    # Absolute paths lead out of the table's own location.
    if not urlsplit(add.path).scheme and not add.path.startswith("/"):
        yield unquote(add.path), add.size
    vector = known(add.deletion_vector)
    if vector is not None and vector.storage_type == "u":
        path = vector_path(vector.path_or_inline_dv)
        if path is not None:
            yield path, None


def _hash(path: str, size: int | None) -> bytes:
    return blake2b(f"{size} {path}".encode(errors="replace"), digest_size=8).digest()
