"""Parquet files of an object store with nothing of them but their footers.

That, their size and their time are all that delta-rs looks at when it converts them, so
the rows, however many, stay where they are.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from delkalakedb.storage import ObjectMeta, Store

__all__ = ["bring_footers"]

_AT_ONCE = 16
# Most footers are shorter, and come with the first request.
_TAIL_BYTES = 64 * 1024
# A footer's length and four letters.
_END_BYTES = 8


def bring_footers(store: Store, files: Iterable[ObjectMeta], folder: Path) -> None:
    """Make files of the store's sizes below a folder, empty up to their footers."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        # Consumed, so that the first failure is raised.
        list(pool.map(lambda file: _bring(store, file, folder / file.path), files))


def _bring(store: Store, file: ObjectMeta, target: Path) -> None:
    footer = _footer(store, file)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        # A hole takes no room on the disk.
        out.seek(file.size_bytes - len(footer))
        out.write(footer)
    seconds = file.last_modified_ms / 1000
    os.utime(target, (seconds, seconds))


def _footer(store: Store, file: ObjectMeta) -> bytes:
    tail = _last_bytes(store, file, _TAIL_BYTES)
    length = int.from_bytes(tail[-_END_BYTES:-4], "little") + _END_BYTES
    return tail if length <= len(tail) else _last_bytes(store, file, length)


def _last_bytes(store: Store, file: ObjectMeta, count: int) -> bytes:
    length = min(count, file.size_bytes)
    return store.get_range(file.path, file.size_bytes - length, length)
