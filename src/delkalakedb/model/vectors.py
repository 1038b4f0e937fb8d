"""Deletion vectors: the layout of their bytes, and the paths of their files.

A vector is a 64-bit roaring bitmap in the portable layout that the protocol describes.
No other module knows the layout of a vector's bytes or of its path.
"""

import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

import msgspec

from delkalakedb.errors import CodecError
from delkalakedb.model.actions import DeletionVector, known

if TYPE_CHECKING:
    from pyroaring import BitMap64

FRAME_BYTES = 8
"""Bytes around each vector in a file: four of length before, four of checksum after."""

# The alphabet of Z85.
_DIGITS = (
    "0123456789abcdefghijklmnopqrstuvwxyz"
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
)
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
# Z85 has five digits for each four bytes.
_WORD_BYTES, _WORD_DIGITS = 4, 5
# The first bytes of a bitmap in the portable layout.
_MAGIC = (1681511377).to_bytes(4, "little")
# The first byte of a file of vectors.
_FILE_VERSION = b"\x01"
# digits of a UUID in Z85
_UUID_LENGTH = 20
# bytes; the protocol's offsets and sizes are signed integers of 32 bits
_LIMIT_BYTES = 1 << 31


class InlineBounds(NamedTuple):
    """How large vectors in a log entry may be: one of them, and all of them."""

    vector_bytes: int
    commit_bytes: int

    def fit(self, sizes: Iterable[int]) -> list[bool]:
        """Return for each of the vectors of a commit whether it is inline."""
        left, found = self.commit_bytes, []
        for size in sizes:
            found.append(size <= min(self.vector_bytes, left))
            left -= size if found[-1] else 0
        return found


def vector_path(vector: DeletionVector) -> str | None:
    """Return the path of a vector's file, encoded as in the log; None if inline.

    `model.paths.resolve_path` resolves the path, as it does for an add.
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
        name = vector_file_name(UUID(bytes=_decode(identity)))
    except (KeyError, OverflowError, ValueError) as error:
        raise CodecError(f"{text!r} isn't the path of a deletion vector") from error
    return f"{folder}/{name}" if folder else name


def vector_file_name(identity: UUID) -> str:
    """Return the name of a file of deletion vectors."""
    return f"deletion_vector_{identity}.bin"


def vector_paths(vector: DeletionVector) -> Iterator[str]:
    """Yield the path, as in the log, of a vector's file, if the vector has one."""
    # A path that can't be parsed names no file.
    with suppress(CodecError):
        if (path := vector_path(vector)) is not None:
            yield path


def renamed_vector(vector: DeletionVector, identity: UUID) -> DeletionVector:
    """Return the vector with the path of a UUID's file at the location's root."""
    return msgspec.structs.replace(
        vector, storage_type="u", path_or_inline_dv=_encode(identity.bytes)
    )


def relocated_vector(vector: DeletionVector, folder: str) -> DeletionVector:
    """Return the vector with `folder` put before its path, which holds a UUID."""
    text = vector.path_or_inline_dv
    prefix, identity = text[:-_UUID_LENGTH], text[-_UUID_LENGTH:]
    path = f"{folder}/{prefix}" if prefix else folder
    return msgspec.structs.replace(vector, path_or_inline_dv=path + identity)


def inline_vector(vector: DeletionVector) -> bytes:
    """Return the bytes of an inline vector."""
    text, size = vector.path_or_inline_dv, vector.size_in_bytes
    try:
        data = _decode(text)
    except (KeyError, OverflowError, ValueError) as error:
        raise CodecError(f"inline deletion vector {text[:20]!r}… isn't Z85") from error
    # The last word is padded.
    if not 0 <= len(data) - size < _WORD_BYTES:
        raise CodecError(
            f"inline deletion vector has {len(data)} bytes, "
            f"but its sizeInBytes is {size}"
        )
    return data[:size]


def framed_range(vector: DeletionVector) -> tuple[int, int]:
    """Return where a vector with its frame starts in its file, and its size in bytes.

    Raises:
        CodecError: The protocol has no such offset or size.
    """
    offset, size = known(vector.offset) or 0, vector.size_in_bytes
    if not (0 <= offset < _LIMIT_BYTES and 0 <= size < _LIMIT_BYTES):
        raise CodecError(
            f"deletion vector {vector.path_or_inline_dv} of {size} bytes at {offset}"
        )
    return offset, size + FRAME_BYTES


def unframed(vector: DeletionVector, data: bytes) -> bytes:
    """Return a vector's bytes without their frame, after checking the checksum."""
    length = int.from_bytes(data[:4], "big")
    body, checksum = data[4 : 4 + length], data[4 + length : 8 + length]
    if length != vector.size_in_bytes or zlib.crc32(body) != int.from_bytes(
        checksum, "big"
    ):
        where = f"{vector.path_or_inline_dv} at {known(vector.offset) or 0}"
        raise CodecError(f"deletion vector {where} is damaged")
    return body


def deleted_rows(vector: DeletionVector, data: bytes) -> "BitMap64":
    """Return the rows that a vector with the bytes `data` deletes."""
    rows = parse_vector(data)
    if len(rows) != vector.cardinality:
        raise CodecError(
            f"a deletion vector deletes {len(rows)} rows, but its descriptor says "
            f"{vector.cardinality}"
        )
    return rows


def parse_vector(data: bytes) -> "BitMap64":
    """Return the deleted rows of a file as a bitmap.

    Never list all rows of the bitmap, because a vector of few bytes may hold billions.
    """
    # Here, because few tables need the C library.
    from pyroaring import BitMap64

    if data[:4] != _MAGIC:
        raise CodecError(f"not a deletion vector: it starts with {data[:4]!r}")
    try:
        return BitMap64.deserialize(data[4:])
    except (IndexError, ValueError) as error:
        raise CodecError("a deletion vector ends too early or is damaged") from error


def encode_vector(rows: "BitMap64") -> bytes:
    """Return the bytes of a vector that deletes `rows`."""
    rows.run_optimize()
    return _MAGIC + rows.serialize()


def inlined_vector(data: bytes, cardinality: int) -> DeletionVector:
    """Return the inline vector of `cardinality` rows with the bytes `data`."""
    padded = data + bytes(-len(data) % 4)
    return DeletionVector(
        storage_type="i",
        path_or_inline_dv=_encode(padded),
        size_in_bytes=len(data),
        cardinality=cardinality,
    )


def vector_file(
    vectors: Iterable[tuple[bytes, int]], identity: UUID
) -> tuple[list[DeletionVector], bytes]:
    """Return vectors in one file at the location's root, and the file's bytes.

    Args:
        vectors: the bytes of each vector, and how many rows it deletes.
        identity: the file's UUID, which must be new.
    """
    found, file = [], bytearray(_FILE_VERSION)
    for data, cardinality in vectors:
        found.append(
            DeletionVector(
                storage_type="u",
                path_or_inline_dv=_encode(identity.bytes),
                offset=len(file),
                size_in_bytes=len(data),
                cardinality=cardinality,
            )
        )
        file += len(data).to_bytes(4, "big") + data
        file += zlib.crc32(data).to_bytes(4, "big")
    return found, bytes(file)


def stored_vectors(
    rows: Iterable["BitMap64"], bounds: InlineBounds, identity: UUID
) -> tuple[list[DeletionVector], dict[str, bytes]]:
    """Return the vectors of a commit, and the file of those that aren't inline.

    Args:
        rows: the rows that each vector deletes.
        bounds: how large inline vectors may be.
        identity: the file's UUID, which must be new.
    """
    encoded = [(encode_vector(one), len(one)) for one in rows]
    inline = bounds.fit(len(data) for data, _ in encoded)
    outside = [one for one, within in zip(encoded, inline, strict=True) if not within]
    stored, data = vector_file(outside, identity)
    rest = iter(stored)
    vectors = [
        inlined_vector(*one) if within else next(rest)
        for one, within in zip(encoded, inline, strict=True)
    ]
    return vectors, {vector_file_name(identity): data} if outside else {}


def kept_rows(
    gone: "BitMap64 | None", start: int, count: int, only: "BitMap64 | None" = None
) -> "array[int]":
    """Return the live rows among `count` rows from `start` on, relative to `start`.

    Args:
        gone: the deleted rows.
        start: the first row.
        count: the number of rows.
        only: the rows to return if they are live, or None for all rows.
    """
    from pyroaring import BitMap64

    rows = BitMap64(range(start, start + count))
    if only is not None:
        rows &= only
    if gone is not None:
        rows -= gone
    return rows.shift(-start).to_array()


def _decode(text: str) -> bytes:
    """Return the bytes of a Z85 text: four bytes for five digits of base 85."""
    if len(text) % _WORD_DIGITS:
        raise ValueError("not whole words")
    found = bytearray()
    for at in range(0, len(text), _WORD_DIGITS):
        word = 0
        for digit in text[at : at + _WORD_DIGITS]:
            word = word * 85 + _VALUES[digit]
        found += word.to_bytes(_WORD_BYTES, "big")
    return bytes(found)


def _encode(data: bytes) -> str:
    found = []
    for at in range(0, len(data), 4):
        word = int.from_bytes(data[at : at + 4], "big")
        found += [_DIGITS[word // 85**power % 85] for power in range(4, -1, -1)]
    return "".join(found)
