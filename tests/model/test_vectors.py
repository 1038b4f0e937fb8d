"""Deletion vectors: every layout of a roaring bitmap gives the same rows."""

import struct
from base64 import b85encode
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate, groupby, islice
from string import ascii_lowercase, ascii_uppercase, digits
from uuid import UUID
from zlib import crc32

import pytest
from hypothesis import example, given, strategies as st
from pyroaring import BitMap64

from delkalakedb.errors import CodecError
from delkalakedb.model.actions import DeletionVector
from delkalakedb.model.vectors import (
    deleted_rows,
    encode_vector,
    framed_range,
    inline_vector,
    inlined_vector,
    kept_rows,
    parse_vector,
    relocated_vector,
    renamed_vector,
    unframed,
    vector_file,
    vector_path,
    vector_paths,
)

MAGIC = struct.pack("<I", 1681511377)
# As in the protocol's own examples.
IDENTITY = "^-aqEH.-t@S}K{vb[*k^"
PATH = "deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
# The rows 3, 4, 7, 11, 18 and 29 in the order of bytes that came before the standard.
NATIVE = "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
# The rows in the layout of the standard.
INLINE = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
EXAMPLE = {3, 4, 7, 11, 18, 29}
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
    return set(parse_vector(data))


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
    start = len(cookie) + len(heads) + 4 * len(parts)
    ends = accumulate(map(len, bodies), initial=start)
    places = struct.pack(f"<{len(parts)}I", *islice(ends, len(parts)))
    if chosen and len(parts) < 4:
        places = b""
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


@given(st.sets(st.integers(0, 1 << 40), max_size=20), st.lists(spans, max_size=3))
def test_pyroaring_writes_the_layout_of_delta(
    single: set[int], together: list[tuple[int, int]]
) -> None:
    rows = single.union(*(range(at, at + length) for at, length in together))
    written = MAGIC + BitMap64(rows).serialize()

    assert rows_of(written) == rows
    assert MAGIC + BitMap64(rows, optimize=False).serialize() == encoded(rows, set())


@given(
    st.sets(st.integers(0, 300), max_size=80), st.integers(0, 300), st.integers(0, 99)
)
def test_kept_rows_are_counted_from_the_first_of_a_batch(
    gone: set[int], start: int, count: int
) -> None:
    kept = kept_rows(parse_vector(encoded(gone, set())), start, count)

    assert [*kept] == [i for i in range(count) if start + i not in gone]


# ---- hostile vectors

SOME = {3, 4, 7, 70_000, 70_001, 1 << 32, (5 << 32) + 9} | set(range(200_000, 206_000))


@pytest.mark.parametrize("as_runs", [set(), {0, 1, 2}], ids=["plain", "runs"])
def test_vector_that_is_cut_off_anywhere_is_refused(as_runs: set[int]) -> None:
    data = encoded(SOME, as_runs)

    assert rows_of(data) == SOME
    for length in range(len(data)):
        with pytest.raises(CodecError):
            parse_vector(data[:length])


@given(st.binary(max_size=64), st.integers(0, 80), st.integers(1, 255))
def test_vector_of_any_bytes_is_read_or_refused(
    more: bytes, place: int, flipped: int
) -> None:
    changed = bytearray(encoded({1, 5, 70_000, 1 << 33}, {0}) + more)
    changed[4 + place % (len(changed) - 4)] ^= flipped
    for data in (bytes(changed), MAGIC + more):
        with suppress(CodecError):
            found = parse_vector(data)
            assert len(kept_rows(found, 0, 100)) <= 100


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<q", -1),
        struct.pack("<q", 1),
        struct.pack("<Q", 1 << 63),
        struct.pack("<QI", (1 << 32) - 1, 0) + bitmap([1], set()),
        # containers: too many, none of them there
        struct.pack("<QIII", 1, 0, 12346, 1 << 31),
        struct.pack("<QIII", 1, 0, 12346, 0xFFFFFFFF),
        struct.pack("<QII", 1, 0, 0xFFFF << 16 | 12347),
        # keys that don't rise
        struct.pack("<QI", 2, 7) + 2 * (bitmap([1], set()) + struct.pack("<I", 7)),
        struct.pack("<QIIIHHHHIIHH", 1, 0, 12346, 2, 5, 0, 5, 0, 24, 26, 1, 2),
        # rows that don't rise
        struct.pack("<QIIIHHIHH", 1, 0, 12346, 1, 0, 1, 16, 9, 3),
        # a run that goes past its container
        struct.pack("<QIIBHHHHH", 1, 0, 12347, 1, 0, 9, 1, 65_530, 9),
        b"",
    ],
    ids=[
        "-1 bitmaps",
        "1 bitmap missing",
        "2**63 bitmaps",
        "2**32 bitmaps, 1 there",
        "2**31 containers",
        "2**32 containers",
        "65536 containers of runs",
        "bitmaps out of order",
        "containers out of order",
        "rows out of order",
        "run past its container",
        "nothing",
    ],
)
def test_vector_with_impossible_sizes_is_refused(body: bytes) -> None:
    with pytest.raises(CodecError, match="ends too early or is damaged"):
        parse_vector(MAGIC + body)


def test_vector_of_billions_of_rows_costs_what_its_file_has() -> None:
    heads = b"".join(struct.pack("<HH", key, 0xFFFF) for key in range(1 << 16))
    flags, places = b"\xff" * 8192, bytes(4 << 16)
    runs = struct.pack("<HHH", 1, 0, 0xFFFF) * (1 << 16)
    full = struct.pack("<I", 0xFFFF << 16 | 12347) + flags + heads + places + runs
    every = struct.pack("<QI", 2, 0) + full + struct.pack("<I", 0xFFFFFFFF) + full

    gone = parse_vector(MAGIC + every)

    assert len(gone) == 1 << 33
    assert [*kept_rows(gone, 0, 100)] == []
    assert len(kept_rows(gone, (1 << 32) - 50, 100)) == 50


def test_inline_vector_is_as_long_as_it_says() -> None:
    data = encoded({3, 4, 7, 11, 18, 29}, {0})
    padded = data + b"\0" * (-len(data) % 4)
    text = b85encode(padded).decode().translate(str.maketrans(B85, Z85))

    assert inline_vector(vector("i", text, len(data))) == data


def test_layout_from_before_the_standard_is_refused() -> None:
    # The protocol's inline example, which Delta Spark and delta-rs refuse, too.
    with pytest.raises(CodecError, match="not a deletion vector"):
        parse_vector(inline_vector(vector("i", NATIVE, 40)))


@pytest.mark.parametrize(
    ("text", "size", "message"),
    [
        ("\x7f" * 20, 16, "isn't Z85"),
        ("#" * 20, 16, "isn't Z85"),
        (INLINE[:-2], 44, "isn't Z85"),
        (INLINE[:20], 44, "16 bytes, but its sizeInBytes is 44"),
        ("", 44, "0 bytes, but its sizeInBytes is 44"),
        (INLINE, -1, "44 bytes, but its sizeInBytes is -1"),
        (INLINE, 40, "44 bytes, but its sizeInBytes is 40"),
        (INLINE, 45, "44 bytes, but its sizeInBytes is 45"),
    ],
)
def test_inline_text_that_no_vector_has_is_refused(
    text: str, size: int, message: str
) -> None:
    with pytest.raises(CodecError, match=message):
        inline_vector(vector("i", text, size))


@given(st.text(max_size=40), st.integers(-2, 50))
def test_inline_vector_of_any_text_is_read_or_refused(text: str, size: int) -> None:
    with suppress(CodecError):
        parse_vector(inline_vector(vector("i", text, size)))


def test_vector_of_another_cardinality_is_refused() -> None:
    data = inline_vector(vector("i", INLINE, 44))
    said = vector("i", INLINE, 44)

    with pytest.raises(CodecError, match="deletes 6 rows, but its descriptor says 1"):
        deleted_rows(said, data)


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 1), (1 << 31, 1), (1, -1), (1, 1 << 31), (1 << 70, 1)]
)
def test_place_that_no_file_has_is_refused(offset: int, size: int) -> None:
    with pytest.raises(CodecError, match=f"{size} bytes at {offset}"):
        framed_range(vector("u", IDENTITY, size, offset=offset))


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
    assert [*vector_paths(vector("x", "?"))] == []


@pytest.mark.parametrize("prefix", ["", "ab"])
def test_relocated_vector_is_in_a_folder_above(prefix: str) -> None:
    there = relocated_vector(vector("u", f"{prefix}{IDENTITY}"), "table")

    assert vector_path(there) == "/".join(filter(None, ["table", prefix, PATH]))


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
    with pytest.raises(CodecError, match="isn't the path of a deletion vector"):
        vector_path(vector("u", text))


numbers = st.integers(0, 2**34) | st.integers(0, 300) | st.integers(65_500, 65_600)


@given(st.sets(numbers), st.sets(numbers))
def test_encoded_vectors_are_read_back_inline_and_from_a_file(
    rows: set[int], more: set[int]
) -> None:
    identity = UUID(PATH.removeprefix("deletion_vector_").removesuffix(".bin"))
    encoded = [(encode_vector(BitMap64(some)), len(some)) for some in (rows, more)]
    stored, data = vector_file(encoded, identity)
    inline = inlined_vector(*encoded[0])

    assert rows_of(inline_vector(inline)) == rows
    assert inline.cardinality == len(rows)
    # the first byte of a file of vectors is its version
    assert data[:1] == b"\x01"
    assert [vector_path(one) for one in stored] == [PATH, PATH]
    assert stored[0].path_or_inline_dv == IDENTITY
    for one, expected in zip(stored, (rows, more), strict=True):
        assert isinstance(one.offset, int)
        body = unframed(one, data[one.offset :])
        assert rows_of(body) == expected
        assert one.cardinality == len(expected)


def test_inline_text_is_that_of_the_protocol() -> None:
    encoded = encode_vector(BitMap64(EXAMPLE))

    assert encoded.hex() == (
        # the magic number, one bitmap, its key
        "d1d33964"
        "0100000000000000"
        "00000000"
        # one container: its key, its last row's number, and where it begins
        "3a300000"
        "01000000"
        "0000"
        "0500"
        "10000000"
        "0300"
        "0400"
        "0700"
        "0b00"
        "1200"
        "1d00"
    )
    assert inlined_vector(encoded, 6) == DeletionVector(
        storage_type="i", path_or_inline_dv=INLINE, size_in_bytes=44, cardinality=6
    )


def test_file_of_vectors_is_laid_out_as_in_the_protocol() -> None:
    first, second = (encode_vector(BitMap64(rows)) for rows in (EXAMPLE, [1 << 33]))
    stored, data = vector_file([(first, 6), (second, 1)], UUID(PATH[16:-4]))

    sizes = [struct.pack(">I", len(one)) for one in (first, second)]
    checks = [struct.pack(">I", crc32(one)) for one in (first, second)]
    assert data == b"\1" + sizes[0] + first + checks[0] + sizes[1] + second + checks[1]
    assert [one.offset for one in stored] == [1, 1 + 8 + len(first)]
    assert [one.size_in_bytes for one in stored] == [44, len(second)]
    assert [one.unique_id for one in stored] == [f"u{IDENTITY}@1", f"u{IDENTITY}@53"]


@given(st.sets(numbers), st.sets(numbers), st.lists(spans, max_size=3))
def test_union_of_vectors_deletes_the_rows_of_both(
    old: set[int], new: set[int], together: list[tuple[int, int]]
) -> None:
    new = new.union(*(range(at, at + length) for at, length in together))
    before = parse_vector(encode_vector(BitMap64(old)))
    both = encode_vector(before | BitMap64(new))

    assert rows_of(both) == old | new
