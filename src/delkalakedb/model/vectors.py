"""Deletion vectors: where one is kept, and which rows it takes from its file.

A vector is a 64-bit roaring bitmap in the portable layout that the protocol describes.
"""

import struct
import zlib
from uuid import UUID

import msgspec

from delkalakedb.errors import CodecError
from delkalakedb.model.actions import DeletionVector, known

__all__ = [
    "inline_vector",
    "parse_vector",
    "renamed_vector",
    "unframed",
    "vector_path",
]

# The alphabet of Z85.
_DIGITS = (
    "0123456789abcdefghijklmnopqrstuvwxyz"
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
_MAGIC = 1681511377
_UUID_LENGTH = 20
# Bytes of the bitmap of one container, which stands for 65,536 rows.
_CONTAINER_BYTES = 8192
_ARRAY_MAX = 4096
_WITH_RUNS, _WITHOUT_RUNS = 12347, 12346
_NO_OFFSETS_BELOW = 4


def vector_path(vector: DeletionVector) -> str | None:
    """Return the path of a vector's file as the log would have it; None if inline.

    An add's path has the same form: `model.paths.resolve_path` says where it leads.
    """
    text = vector.path_or_inline_dv
    if vector.storage_type == "i":
        return None
    if vector.storage_type == "p":
        return text
    if vector.storage_type != "u":
        raise CodecError(f"deletion vector of unknown storage {vector.storage_type!r}")
    folder, identity = text[:-_UUID_LENGTH], text[-_UUID_LENGTH:]
    try:
        if len(identity) < _UUID_LENGTH:
            raise ValueError("too short")
        name = f"deletion_vector_{UUID(bytes=_decode(identity))}.bin"
    except (KeyError, OverflowError, ValueError) as error:
        raise CodecError(f"{text!r} names no file of a deletion vector") from error
    return f"{folder}/{name}" if folder else name


def renamed_vector(vector: DeletionVector, identity: UUID) -> DeletionVector:
    """Return a vector that is kept in the file of a UUID at the location's root."""
    return msgspec.structs.replace(
        vector, storage_type="u", path_or_inline_dv=_encode(identity.bytes)
    )


def inline_vector(vector: DeletionVector) -> bytes:
    """The bytes of a vector that is in the log itself."""
    return _decode(vector.path_or_inline_dv)[: vector.size_in_bytes]


def unframed(vector: DeletionVector, data: bytes) -> bytes:
    """A vector's bytes as its file has them: between their length and a checksum."""
    length = int.from_bytes(data[:4], "big")
    body, checksum = data[4 : 4 + length], data[4 + length : 8 + length]
    if length != vector.size_in_bytes or zlib.crc32(body) != int.from_bytes(
        checksum, "big"
    ):
        where = f"{vector.path_or_inline_dv} at {known(vector.offset) or 0}"
        raise CodecError(f"deletion vector {where} is damaged")
    return body


def parse_vector(data: bytes) -> bytearray:
    """A bitmap of the rows that are gone: bit i of byte n stands for row 8n + i."""
    try:
        return _parse(data)
    except (struct.error, IndexError) as error:
        raise CodecError("a deletion vector ends too early") from error


def _parse(data: bytes) -> bytearray:
    magic, parts = struct.unpack_from("<IQ", data)
    if magic != _MAGIC:
        raise CodecError(f"not a deletion vector: it starts with {magic}")
    rows, at = bytearray(), 12
    for _ in range(parts):
        (high,) = struct.unpack_from("<I", data, at)
        at = _add_bitmap(rows, high << 32, data, at + 4)
    return rows


def _add_bitmap(rows: bytearray, base: int, data: bytes, at: int) -> int:
    """Add a 32-bit roaring bitmap, and say where it ends."""
    (cookie,) = struct.unpack_from("<I", data, at)
    at += 4
    runs = 0
    if cookie & 0xFFFF == _WITH_RUNS:
        count = (cookie >> 16) + 1
        length = (count + 7) // 8
        runs = int.from_bytes(data[at : at + length], "little")
        at += length
    elif cookie == _WITHOUT_RUNS:
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
    else:
        raise CodecError(f"not a roaring bitmap: it starts with {cookie}")
    heads = list(struct.iter_unpack("<HH", data[at : at + 4 * count]))
    at += 4 * count
    if cookie == _WITHOUT_RUNS or count >= _NO_OFFSETS_BELOW:
        at += 4 * count
    for number, (key, cardinality) in enumerate(heads):
        start = (base >> 3) + key * _CONTAINER_BYTES
        if len(rows) < start + _CONTAINER_BYTES:
            rows.extend(bytes(start + _CONTAINER_BYTES - len(rows)))
        if runs >> number & 1:
            at = _add_runs(rows, start, data, at)
        elif cardinality + 1 <= _ARRAY_MAX:
            at = _add_array(rows, start, cardinality + 1, data, at)
        else:
            rows[start : start + _CONTAINER_BYTES] = data[at : at + _CONTAINER_BYTES]
            at += _CONTAINER_BYTES
    return at


def _add_array(rows: bytearray, start: int, count: int, data: bytes, at: int) -> int:
    for row in struct.unpack_from(f"<{count}H", data, at):
        rows[start + (row >> 3)] |= 1 << (row & 7)
    return at + 2 * count


def _add_runs(rows: bytearray, start: int, data: bytes, at: int) -> int:
    count = int.from_bytes(data[at : at + 2], "little")
    pairs = struct.unpack_from(f"<{2 * count}H", data, at + 2)
    for first, more in zip(pairs[::2], pairs[1::2], strict=True):
        bits = (1 << more + 1) - 1 << (first & 7)
        width = (first & 7) + more + 8 >> 3
        into = slice(start + (first >> 3), start + (first >> 3) + width)
        bits |= int.from_bytes(rows[into], "little")
        rows[into] = bits.to_bytes(width, "little")
    return at + 2 + 4 * count


def _decode(text: str) -> bytes:
    """Z85: five digits of base 85 for four bytes."""
    found = bytearray()
    for at in range(0, len(text), 5):
        word = 0
        for digit in text[at : at + 5]:
            word = word * 85 + _VALUES[digit]
        found += word.to_bytes(4, "big")
    return bytes(found)


def _encode(data: bytes) -> str:
    found = []
    for at in range(0, len(data), 4):
        word = int.from_bytes(data[at : at + 4], "big")
        found += [_DIGITS[word // 85**power % 85] for power in range(4, -1, -1)]
    return "".join(found)
