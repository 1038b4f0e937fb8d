"""Logs with odd paths, links and vectors: tables that nobody would write on purpose."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    DeletionVector,
    Remove,
    encode_commit,
)
from tests.support.actions import metadata, protocol, remove, schema, stats

Spelling = Callable[[Path, str], str]
"""How a log of a table in a folder names a file of that folder, or of its parent."""

INSIDE: dict[str, Spelling] = {
    "plain": lambda folder, name: name,
    "dot": lambda folder, name: f"./{name}",
    "slashes": lambda folder, name: f".//{name}",
    "up and down": lambda folder, name: f"s/../{name}",
    "encoded up and down": lambda folder, name: f"s%2F..%2F{name}",
    "out and in": lambda folder, name: f"../{folder.name}/{name}",
    "encoded letter": lambda folder, name: f"%{ord(name[0]):02X}{name[1:]}",
    "absolute": lambda folder, name: f"{folder}/{name}",
    "encoded absolute": lambda folder, name: f"{folder}/{name}".replace("/", "%2F"),
    "file with one slash": lambda folder, name: f"file:{folder}/{name}",
    "file with three slashes": lambda folder, name: f"file://{folder}/{name}",
    "file in capitals": lambda folder, name: f"FILE://{folder}/{name}",
}
LEAVING: dict[str, Spelling] = {
    "up": lambda folder, name: f"../{name}",
    "encoded slash": lambda folder, name: f"..%2F{name}",
    "encoded dots": lambda folder, name: f"%2e%2E/{name}",
    "down and up": lambda folder, name: f"s/../../{name}",
    "change data": lambda folder, name: f"_change_data/../../{name}",
}
ABSOLUTE: dict[str, Spelling] = {
    "absolute": lambda folder, name: f"{folder.parent}/{name}",
    "encoded absolute": lambda folder, name: f"{folder.parent}/{name}".replace(
        "/", "%2F"
    ),
    "file with one slash": lambda folder, name: f"file:{folder.parent}/{name}",
    "file with three slashes": lambda folder, name: f"file://{folder.parent}/{name}",
}
OUTSIDE = {f"relative: {n}": s for n, s in LEAVING.items()} | {
    f"absolute: {n}": s for n, s in ABSOLUTE.items()
}
# Names at which no file can be, or none that vacuum may delete.
IMPOSSIBLE = (
    *("s", "x" * 300, "kept.parquet/x", ".", "s/..", "a/" * 3000, "_delta_log"),
    *("%FF.parquet", "a%0Ab", "%7F", "%00", "é" * 600),
)
FEATURE = "deletionVectors"
_OLD_S = 3600
# A bitmap of row 0 alone, as the protocol lays it out.
_BITMAP = bytes.fromhex("d1d33964" + "01" + "00" * 7 + "00" * 4) + bytes.fromhex(
    "3a300000" + "01000000" + "00000000" + "10000000" + "0000"
)


@dataclass
class HostileTable:
    """A Delta table in a folder of its own, whose log is written by hand."""

    folder: Path
    version: int = -1

    def __post_init__(self) -> None:
        self._numbers = count()
        (self.folder / "_delta_log").mkdir(parents=True)
        (self.folder / "s").mkdir()

    @property
    def uri(self) -> str:
        """The folder, as a URL."""
        return self.folder.as_uri()

    def begin(self, *features: str, **configuration: str) -> None:
        """Write the first commit."""
        meta = metadata(schema(x="long"), configuration=configuration)
        self.commit(protocol(*features), meta)

    def commit(self, *actions: Action) -> None:
        """Write the next entry of the log."""
        self.version += 1
        entry = self.folder / "_delta_log" / f"{self.version:020}.json"
        entry.write_bytes(encode_commit(actions))

    def data(self, x: int, rows: int = 1, *, name: str | None = None) -> Path:
        """Write a data file, old enough to be vacuumed, that nothing names yet."""
        path = self.folder / (name or f"f{next(self._numbers)}.parquet")
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": pa.array([x] * rows, pa.int64())}), path)
        return aged(path)

    def add(self, spelling: str, path: Path, **fields: Any) -> Add:
        """The add of a file, under a path that the log has for it."""
        rows = pq.read_metadata(path).num_rows
        return Add(
            path=spelling,
            partition_values={},
            size=path.stat().st_size,
            modification_time=1,
            data_change=True,
            stats=stats(rows),
            **fields,
        )

    def spelt(self, spellings: Mapping[str, Spelling]) -> Iterator[Add]:
        """A file for each spelling; its one row is the spelling's number."""
        for x, spell in enumerate(spellings.values()):
            path = self.data(x)
            yield self.add(spell(self.folder, path.name), path)

    def vector(self, path: Path, spelling: str) -> DeletionVector:
        """A vector of storage type `p` that deletes row 0 of a file."""
        body = _BITMAP
        framed = len(body).to_bytes(4, "big") + body + crc32(body).to_bytes(4, "big")
        path.write_bytes(b"\1" + framed)
        aged(path)
        return DeletionVector(
            storage_type="p",
            path_or_inline_dv=spelling,
            offset=1,
            size_in_bytes=len(body),
            cardinality=1,
        )


def aged(path: Path) -> Path:
    """The file, last modified an hour ago."""
    os.utime(path, (time.time() - _OLD_S,) * 2, follow_symlinks=False)
    return path


def tombstone(path: str) -> Remove:
    """The remove of a file that was never added, long ago."""
    return Remove(path=path, data_change=True, deletion_timestamp=2)


def hostile_actions(path: str) -> dict[str, Action]:
    """Every action that can name a file, with a path."""
    add = Add(
        path=path,
        partition_values={},
        size=1,
        modification_time=1,
        data_change=True,
        stats=stats(),
    )
    marked = msgspec.structs.replace(
        add,
        path="b.parquet",
        deletion_vector=DeletionVector(
            storage_type="p", path_or_inline_dv=path, size_in_bytes=1, cardinality=1
        ),
    )
    return {
        "add": add,
        "remove": remove(add),
        "cdc": Cdc(path=path, partition_values={}, size=1, data_change=False),
        "vector": marked,
    }


def tree(folder: Path) -> dict[str, bytes | str]:
    """All that lies in a folder, links as such."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = path.read_bytes() if path.is_file() else "folder"
    return found
