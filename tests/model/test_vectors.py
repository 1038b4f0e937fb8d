"""Deletion vectors: every layout of a roaring bitmap gives the same rows."""

import struct
from base64 import b85encode
from collections.abc import Iterator
from itertools import groupby
from string import ascii_lowercase, ascii_uppercase, digits
from uuid import UUID
from zlib import crc32

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delkalakedb.errors import CodecError
from delkalakedb.model.actions import DeletionVector
from delkalakedb.model.vectors import (
    inline_vector,
    parse_vector,
    renamed_vector,
    unframed,
    vector_path,
)

MAGIC = struct.pack("<I", 1681511377)
# As in the protocol's own examples.
IDENTITY = "^-aqEH.-t@S}K{vb[*k^"
PATH = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
# The rows 3, 4, 7, 11, 18 and 29 in the order of bytes that came before the standard.
NATIVE = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
Z85 = f"{digits}{ascii_lowercase}{ascii_uppercase}.-:+=^!/*?&<>()[]{{}}@%$#"
B85 = f"{digits}{ascii_uppercase}{ascii_lowercase}!#$%&()*+-;<=>?@^_`{{|}}~"


def vector(storage: str, text: str, size: int = 1, **fields: int) -> DeletionVector:
    return DeletionVector(
        storage_type=storage,
        path_or_inline_dv=text,
        size_in_bytes=size,
        cardinality=1,
        **fields,
    )


def rows_of(data: bytes) -> set[int]:
    found = parse_vector(data)
    return {row for row in range(8 * len(found)) if found[row >> 3] >> (row & 7) & 1}


def runs_of(rows: list[int]) -> Iterator[tuple[int, int]]:
    """Where runs of rows start, and how many more each has."""
    for _, run in groupby(enumerate(rows), lambda item: item[1] - item[0]):
        values = [row for _, row in run]
        yield values[0], len(values) - 1


def container(rows: list[int], as_runs: bool) -> bytes:
    if as_runs:
        runs = list(runs_of(rows))
        return struct.pack("<H", len(runs)) + b"".join(
            struct.pack("<HH", *run) for run in runs
        )
    if len(rows) <= 4096:
        return struct.pack(f"<{len(rows)}H", *rows)
    return sum(1 << row for row in rows).to_bytes(8192, "little")


def bitmap(rows: list[int], as_runs: set[int]) -> bytes:
    """A 32-bit roaring bitmap; containers of some numbers hold runs."""
    parts = [
        (key, [row & 0xFFFF for row in part])
        for key, part in groupby(rows, lambda row: row >> 16)
    ]
    chosen = {i for i in as_runs if i < len(parts)}
    heads = b"".join(struct.pack("<HH", key, len(part) - 1) for key, part in parts)
    if chosen:
        flags = sum(1 << i for i in chosen).to_bytes((len(parts) + 7) // 8, "little")
        cookie = struct.pack("<I", 12347 | len(parts) - 1 << 16) + flags
    else:
        cookie = struct.pack("<II", 12346, len(parts))
    bodies = [container(part, i in chosen) for i, (_, part) in enumerate(parts)]
    places = b"\0" * 4 * len(parts) if not chosen or len(parts) >= 4 else b""
    return cookie + heads + places + b"".join(bodies)


def encoded(rows: set[int], as_runs: set[int]) -> bytes:
    parts = [
        struct.pack("<I", high) + bitmap([row & 0xFFFFFFFF for row in part], as_runs)
        for high, part in groupby(sorted(rows), lambda row: row >> 32)
    ]
    return MAGIC + struct.pack("<Q", len(parts)) + b"".join(parts)


spans = st.tuples(st.integers(0, 400_000), st.integers(1, 9_000))


@given(
    st.sets(st.integers(0, 400_000), max_size=40),
    st.lists(spans, max_size=3),
    st.sets(st.integers(0, 6), max_size=4),
)
@example({0, 65_535, 65_536}, [], {0})
@example(set(), [(60_000, 9_000)], set())
def test_rows_of_a_vector_are_those_put_into_it(
    single: set[int], together: list[tuple[int, int]], as_runs: set[int]
) -> None:
    rows = single.union(*(range(at, at + length) for at, length in together))

    assert rows_of(encoded(rows, as_runs)) == rows


def test_inline_vector_is_as_long_as_it_says() -> None:
    data = encoded({3, 4, 7, 11, 18, 29}, {0})
    padded = data + b"\0" * (-len(data) % 4)
    text = b85encode(padded).decode().translate(str.maketrans(B85, Z85))

    assert inline_vector(vector("i", text, len(data))) == data


def test_layout_from_before_the_standard_is_refused() -> None:
    with pytest.raises(CodecError, match="not a deletion vector"):
        parse_vector(inline_vector(vector("i", NATIVE, 40)))


@pytest.mark.parametrize(
    ("storage", "text", "path"),
    [
        ("u", IDENTITY, PATH),
        ("u", f"ab{IDENTITY}", f"ab/{PATH}"),
        ("p", "s3://b/v.bin", "s3://b/v.bin"),
        ("i", NATIVE, None),
    ],
)
def test_path_of_a_vector_comes_from_its_storage(
    storage: str, text: str, path: str | None
) -> None:
    assert vector_path(vector(storage, text)) == path


def test_unknown_storage_is_refused() -> None:
    with pytest.raises(CodecError, match="unknown storage 'x'"):
        vector_path(vector("x", "?"))


def test_damaged_bytes_are_refused() -> None:
    data = encoded({1, 5}, set())
    framed = struct.pack(">I", len(data)) + data + struct.pack(">I", crc32(data))
    stored = vector("u", IDENTITY, len(data), offset=1)
    broken = bytearray(framed)
    broken[-6] ^= 1

    assert unframed(stored, framed) == data
    with pytest.raises(CodecError, match="damaged"):
        unframed(stored, bytes(broken))
    with pytest.raises(CodecError, match="ends too early"):
        parse_vector(data[:-1])
    with pytest.raises(CodecError, match="not a deletion vector"):
        parse_vector(b"x" * 20)


@given(st.uuids())
def test_renamed_vector_is_kept_in_the_file_of_its_uuid(identity: UUID) -> None:
    renamed = renamed_vector(vector("p", "s3://b/v.bin", offset=7), identity)

    assert vector_path(renamed) == f"deletion_vector_{identity}.bin"
    assert renamed.offset == 7


@pytest.mark.parametrize("text", ["short", "\N{SNOWMAN}" * 20, "#" * 20])
def test_vector_without_a_uuid_has_no_file(text: str) -> None:
    with pytest.raises(CodecError, match="names no file"):
        vector_path(vector("u", text))
