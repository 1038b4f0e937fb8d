"""Whether the files that a table's adds name are there, in the size they say.

The store is listed once and nothing is asked file by file. Of each file only a hash is
kept.
"""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b

from delkalakedb.model.actions import Add
from delkalakedb.model.paths import key_inside, log_paths
from delkalakedb.storage import Store

__all__ = ["absent_files"]


def absent_files(
    adds: Callable[[], Iterable[Add]], store: Store
) -> Iterator[tuple[str, int | None]]:
    """The files that aren't as their adds say; the size is None for any size."""
    wanted = {_hash(*file) for add in adds() for file in _files(add, store.url)}
    for meta in store.list() if wanted else ():
        wanted.discard(_hash(meta.path, None))
        wanted.discard(_hash(meta.path, meta.size_bytes))
    if wanted:
        files = (file for add in adds() for file in _files(add, store.url))
        yield from (file for file in files if _hash(*file) in wanted)


def _files(add: Add, location: str) -> Iterator[tuple[str, int | None]]:
    file, *vector = log_paths(add)
    for path, size in [(file, add.size), *((path, None) for path in vector)]:
        # What lies outside isn't in the listing.
        if (key := key_inside(path, location)) is not None:
            yield key, size


def _hash(path: str, size: int | None) -> bytes:
    return blake2b(
        f"{size} {path}".encode(errors="surrogateescape"), digest_size=8
    ).digest()
