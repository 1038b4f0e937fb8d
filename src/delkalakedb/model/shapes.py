"""JSON texts that differ in nothing but their values, cut apart as text.

The statistics of a table's files nearly always have the same keys in the same order.
Texts of one such *shape* are cut at their commas, and each piece is a value between two
strings that all the texts share. Arrow does that in half the time that its JSON reader
needs; texts that aren't of the shape are for the reader.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Cut", "Shape", "joined", "shape_of"]

_Path = tuple[str, ...]
# A key and its value, or the start of the object that is its value.
_MEMBER = re.compile(r'"[^"]*"\s*:\s*(?:"([^"]*)"|([^\s",{}\[\]]+)|\{)')
# The second is never part of a value, the first is found more quickly.
_SEPARATORS = (",", ',"')
# Arrow multiplies it by the number of values.
_NO_STOP = 2**31 - 1
_BOOLEANS = ("true", "false", None)


@dataclass(frozen=True, slots=True)
class _Piece:
    """What is around one value."""

    before: str
    after: str

    @property
    def quoted(self) -> bool:
        return self.after.startswith('"')

    def fits(self, pieces: pa.StringArray) -> pa.BooleanArray:
        """Which of the pieces are a value between the same strings."""
        ends = pc.ends_with(pieces, self.after)
        return pc.and_(pc.starts_with(pieces, self.before), ends)

    def values(self, pieces: pa.StringArray) -> pa.StringArray:
        """What is between the strings."""
        start, stop = len(self.before.encode()), -len(self.after.encode())
        values = pc.binary_slice(pieces.view(pa.binary()), start, stop or _NO_STOP)
        return values.view(pa.string())

    def parse(self, pieces: pa.StringArray, kind: pa.DataType) -> pa.Array:
        """The values as Arrow's JSON reader has them; an error if it must be asked."""
        values = self.values(pieces)
        if not self.quoted:
            return _parsed(values, kind)
        if pa.types.is_string(kind) or pa.types.is_decimal(kind):
            return values.cast(kind)
        return pa.nulls(len(values), kind)


@dataclass(frozen=True, slots=True)
class Shape:
    """All of a text but its values."""

    separator: str
    pieces: dict[_Path, _Piece]

    def cut(self, texts: pa.StringArray) -> "Cut | pa.BooleanArray":
        """The texts in pieces or, if not all are, which of them are of this shape."""
        rows, pieces = len(texts), list(self.pieces.values())
        first, varying, texts = self._trimmed(texts)
        lists = pc.split_pattern(texts, self.separator)
        alike = pc.equal(pc.list_value_length(lists), len(varying))
        if b"\\" in joined(texts).to_pybytes():
            # What is escaped is for the reader.
            alike = pc.and_not(alike, pc.match_substring(texts, "\\"))
        if alike.true_count < rows:
            return alike
        columns = [pa.array([piece]) for piece in first]
        flat, ends = lists.flatten(), pc.cumulative_sum(pa.repeat(len(varying), rows))
        for i in varying:
            columns[i] = flat.take(pc.subtract(ends, varying.stop - i))
            alike = pc.and_(alike, pieces[i].fits(columns[i]))
        if alike.true_count < rows:
            return alike
        return Cut(self, rows, dict(zip(self.pieces, columns, strict=True)))

    def _trimmed(
        self, texts: pa.StringArray
    ) -> tuple[list[str], range, pa.StringArray]:
        """The first text's pieces, which of them vary, and these of each text."""
        first, last = (texts[i].as_py().split(self.separator) for i in (0, -1))
        start = _count_same(first[:-1], last)
        stop = len(first) - _count_same(first[:start:-1], last[::-1])
        around = _Piece(
            "".join(piece + self.separator for piece in first[:start]),
            "".join(self.separator + piece for piece in first[stop:]),
        )
        if around.fits(texts).true_count < len(texts):
            return first, range(len(first)), texts
        return first, range(start, stop), around.values(texts)


@dataclass(frozen=True, slots=True)
class Cut:
    """Texts of one shape in pieces; of those that are all the same there is one."""

    shape: Shape
    rows: int
    columns: dict[_Path, pa.StringArray]

    def parse(self, kind: pa.StructType) -> pa.StructArray | None:
        """The values of the texts, unless the reader must look at one of them."""
        try:
            return self._parse(kind, ())
        except pa.ArrowInvalid:
            return None

    def _parse(self, kind: pa.DataType, path: _Path) -> pa.Array:
        if path in self.columns:
            values = self.shape.pieces[path].parse(self.columns[path], kind)
            same = len(values) < self.rows
            return pa.repeat(values[0], self.rows) if same else values
        if not pa.types.is_struct(kind) or not len(kind):
            return pa.nulls(self.rows, kind)
        fields = list(kind)
        children = [self._parse(f.type, (*path, f.name)) for f in fields]
        return pa.StructArray.from_arrays(children, fields=fields)


def shape_of(text: str) -> Shape | None:
    """The shape of a text, if it is one that others may share."""
    try:
        leaves = dict(_leaves(msgspec.json.decode(text, type=dict[str, Any])))
    except msgspec.DecodeError:
        return None
    if "\\" in text or any(isinstance(value, list) for value in leaves.values()):
        return None
    members = (m for m in _MEMBER.finditer(text) if m.lastindex)
    spans = [member.span(member.lastindex or 0) for member in members]
    for separator in _SEPARATORS:
        if len(leaves) == len(spans) == text.count(separator) + 1:
            pieces = _pieces(text, separator, spans)
            return Shape(separator, dict(zip(leaves, pieces, strict=True)))
    return None


def _leaves(value: dict[str, Any], above: _Path = ()) -> Iterator[tuple[_Path, Any]]:
    for name, below in value.items():
        path = (*above, name)
        if isinstance(below, dict):
            yield from _leaves(below, path)
        else:
            yield path, below


def _pieces(
    text: str, separator: str, spans: list[tuple[int, int]]
) -> Iterator[_Piece]:
    start = 0
    for piece, (first, last) in zip(text.split(separator), spans, strict=True):
        stop = start + len(piece)
        yield _Piece(text[start:first], text[last:stop])
        start = stop + len(separator)


def joined(texts: pa.StringArray) -> pa.Buffer:
    """The texts one after the other, as they are in memory."""
    _, offsets, data = texts.buffers()
    ends = pa.Array.from_buffers(
        pa.int32(), len(texts) + 1, [None, offsets], offset=texts.offset
    )
    first, last = ends[0].as_py(), ends[len(texts)].as_py()
    return data.slice(first, last - first)


def _count_same(pieces: list[str], others: list[str]) -> int:
    """How many are the same from the start on."""
    pairs = zip(pieces, others, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _parsed(values: pa.StringArray, kind: pa.DataType) -> pa.Array:
    """What isn't quoted; an error where the reader wouldn't take it."""
    nulls = pc.equal(values, "null")
    if nulls.true_count == len(values):
        return pa.nulls(len(values), kind)
    if nulls.true_count:
        values = pc.if_else(nulls, None, values)
    if pa.types.is_struct(kind) or pa.types.is_string(kind):
        raise pa.ArrowInvalid("neither null nor quoted")
    parsed = values.cast(kind)
    if pa.types.is_boolean(kind) and not _all(pc.is_in(values, pa.array(_BOOLEANS))):
        raise pa.ArrowInvalid("neither true nor false")
    if pa.types.is_floating(kind) and not _all(pc.is_finite(parsed)):
        raise pa.ArrowInvalid("no number of JSON")
    return parsed


def _all(holds: pa.BooleanArray) -> bool:
    return bool(pc.all(holds).as_py())
