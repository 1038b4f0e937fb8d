"""Deletion vectors that are damaged, or that lie: an error, and never wrong rows."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyroaring import BitMap64

import delkalakedb as dk
from delkalakedb.errors import CodecError, DeltaError
from delkalakedb.model.actions import DeletionVector
from delkalakedb.model.vectors import encode_vector, inlined_vector
from tests.support.actions import DV
from tests.support.hostile_tables import FEATURE, HostileTable, aged, tree

ROWS = range(10)
GONE = {1, 2}
LEFT = [row for row in ROWS if row not in GONE]
DATA = encode_vector(BitMap64(GONE))
INLINE = inlined_vector(DATA, len(GONE))
TEXT = INLINE.path_or_inline_dv
IDENTITY = "^-aqEH.-t@S}K{vb[*k^"
FILE = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
Vector = tuple[DeletionVector, bytes | None]


def inline(**lies: Any) -> Vector:
    return msgspec.structs.replace(INLINE, **lies), None


def stored(body: bytes | None, **lies: Any) -> Vector:
    """A vector in a file with the bytes `body`, and what its descriptor says."""
    truth: dict[str, Any] = {
        "storage_type": "u",
        "path_or_inline_dv": IDENTITY,
        "offset": 1,
        "size_in_bytes": len(DATA),
        "cardinality": len(GONE),
    }
    return DeletionVector(**{**truth, **lies}), body


def framed(
    data: bytes = DATA, size: int | None = None, check: int | None = None
) -> Any:
    return (
        b"\1"
        + struct.pack(">I", len(data) if size is None else size)
        + data
        + struct.pack(">I", crc32(data) if check is None else check)
    )


DAMAGED: dict[str, Vector] = {
    "inline letters": inline(path_or_inline_dv="\x7f" * 20),
    "inline words": inline(path_or_inline_dv="#" * 20),
    "inline cut within a word": inline(path_or_inline_dv=TEXT[:-2]),
    "inline cut after a word": inline(path_or_inline_dv=TEXT[:20]),
    "inline size below zero": inline(size_in_bytes=-1),
    "inline size too large": inline(size_in_bytes=len(DATA) + 9),
    "no file": stored(None),
    "empty file": stored(b""),
    "file cut": stored(framed()[:-6]),
    "wrong checksum": stored(framed(check=1)),
    "wrong size": stored(framed(size=len(DATA) - 1)),
    "wrong magic number": stored(framed(b"x" * len(DATA))),
    "offset beyond the end": stored(framed(), offset=10_000),
    "offset of another byte": stored(framed(), offset=2),
    "offset below zero": stored(framed(), offset=-5),
    "offset of 63 bits": stored(framed(), offset=1 << 62),
    "size below zero": stored(framed(), size_in_bytes=-9),
    "size of nothing": stored(framed(), size_in_bytes=0),
    "size of 2 GB": stored(framed(), size_in_bytes=(1 << 31) - 1),
    "size of 63 bits": stored(framed(), size_in_bytes=1 << 62),
    "no uuid": stored(framed(), path_or_inline_dv="#" * 20),
    "unknown storage": stored(framed(), storage_type="x"),
}
# delta-rs reads these, and they don't lie about rows.
LYING: dict[str, Vector] = {
    "fewer rows": inline(cardinality=1),
    "more rows": inline(cardinality=3),
    "fewer rows in a file": stored(framed(), cardinality=1),
}
CHANGES: dict[str, Callable[[DeltaTable], Any]] = {
    "delete": lambda t: t.delete("x = 5"),
    "update": lambda t: t.update({"x": "x + 100"}, predicate="x = 5"),
    "merge": lambda t: (
        t.merge(pa.table({"x": [5, 50]}), "t.x = s.x", "s", "t")
        .when_matched_delete()
        .when_not_matched_insert_all()
        .execute()
    ),
}


@pytest.fixture
def uri(catalog_uri: str) -> str:
    return f"{catalog_uri}{'&' if '?' in catalog_uri else '?'}table=t"


def made(folder: Path, given: Vector, rows: range = ROWS) -> HostileTable:
    """A table of one file of rows with a deletion vector."""
    vector, body = given
    table = HostileTable(folder / "lake" / "t")
    table.begin(FEATURE, **{DV: "true"})
    path = table.folder / "rows.parquet"
    pq.write_table(pa.table({"x": rows}), path)
    if body is not None:
        (table.folder / FILE).write_bytes(body)
    table.commit(table.add(path.name, aged(path), deletion_vector=vector))
    return table


def rows_of(table: DeltaTable) -> list[int]:
    return sorted(row["x"] for row in pa.table(table.scan()).to_pylist())


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__MODE", "always")


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_vector_stops_every_read_and_change(
    uri: str, tmp_path: Path, name: str
) -> None:
    table = made(tmp_path, DAMAGED[name])
    assert dk.import_table(str(table.folder), uri).ok
    before = tree(table.folder.parent)
    for change in CHANGES.values():
        with pytest.raises((CodecError, DeltaError), match=r"lake/t|on version 1"):
            change(dk.DeltaTable(uri))
    if name not in ("inline size below zero", "inline size too large"):
        with pytest.raises(deltalake.exceptions.DeltaError):
            rows_of(dk.DeltaTable(uri))
    assert dk.DeltaTable(uri).version() == 1
    after = tree(table.folder.parent)
    assert {k: v for k, v in after.items() if "_delta_work" not in k} == before


@pytest.mark.parametrize("name", LYING)
def test_vector_of_another_cardinality_is_read_but_not_changed(
    uri: str, tmp_path: Path, name: str
) -> None:
    table = made(tmp_path, LYING[name])
    assert dk.import_table(str(table.folder), uri).ok
    assert rows_of(dk.DeltaTable(uri)) == LEFT
    for change in CHANGES.values():
        with pytest.raises(CodecError, match="its descriptor says"):
            change(dk.DeltaTable(uri))
    assert rows_of(dk.DeltaTable(uri)) == LEFT


def test_rows_that_a_file_lacks_dont_count_as_deleted(uri: str, tmp_path: Path) -> None:
    beyond = encode_vector(BitMap64([1, 100, 1 << 33]))
    table = made(tmp_path, (inlined_vector(beyond, 3), None), range(4))
    assert dk.import_table(str(table.folder), uri).ok
    stale = dk.DeltaTable(uri)

    # one of the four rows would be left, if three of them were deleted
    dk.DeltaTable(uri).delete("x = 0")
    assert dk.DeltaTable(uri).to_pyarrow_table()["x"].to_pylist() == [2, 3]
    stale.delete("x = 2")
    assert dk.DeltaTable(uri).to_pyarrow_table()["x"].to_pylist() == [3]
    dk.DeltaTable(uri).delete("x = 3")
    assert dk.DeltaTable(uri).file_uris() == []


@pytest.mark.parametrize("prefix", ["../x", "..", "%2e%2e/x", "x/../../y"])
def test_vector_outside_of_the_location_is_never_read(
    uri: str, tmp_path: Path, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = stored(framed(), path_or_inline_dv=f"{prefix}{IDENTITY}")
    table = made(tmp_path, given)
    for folder in ("x", "y", "."):
        there = table.folder.parent / folder
        there.mkdir(exist_ok=True)
        (there / FILE).write_bytes(framed())
    with pytest.raises(DeltaError, match="location"):
        dk.import_table(str(table.folder), uri)
    # as a catalog had it that didn't check paths
    monkeypatch.setattr("delkalakedb.migrate.loader.check_inside", lambda *a, **k: None)
    assert dk.import_table(str(table.folder), uri).ok
    for change in CHANGES.values():
        with pytest.raises(DeltaError, match=r"location"):
            change(dk.DeltaTable(uri))
    assert dk.DeltaTable(uri).version() == 1
