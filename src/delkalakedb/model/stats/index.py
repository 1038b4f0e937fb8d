"""Index entries of many files at once, by column.

They are what `data_entry` and `partition_entry` give for each file. Plain statistics
are computed together; whatever isn't plain goes file by file.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.model.schema.schema import Column
from delkalakedb.model.stats.stats import (
    EXACT,
    Entries,
    Entry,
    Stats,
    data_entry,
    number_class,
    partition_entry,
)
from delkalakedb.model.stats.values import (
    INTEGRAL,
    TEXT_LENGTH,
    TIMES,
    Kind,
    kind_of,
)

# Whole numbers up to here are doubles.
_EXACT_INTEGER = 2**53
# Times that Arrow and Python read alike, of which Spark drops no seconds.
_MOMENT = r"^[1-9]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?Z?$"
_CLASS = pa.int16()
_NONE: Mapping[str, Any] = {}


class FileStats:
    """The statistics of files, by column on first use."""

    def __init__(self, stats: Sequence[Stats | None]) -> None:
        self.each = stats

    @cached_property
    def least(self) -> list[Mapping[str, Any]]:
        """The minima of each file."""
        return [s.min_values or _NONE if s else _NONE for s in self.each]

    @cached_property
    def greatest(self) -> list[Mapping[str, Any]]:
        """The maxima of each file."""
        return [s.max_values or _NONE if s else _NONE for s in self.each]

    @cached_property
    def nulls(self) -> list[Mapping[str, Any]]:
        """The null counts of each file."""
        return [s.null_count or _NONE if s else _NONE for s in self.each]

    @cached_property
    def num_records(self) -> pa.Array:
        """The number of rows of each file; 0 if it isn't known."""
        return pa.array([s.num_records or 0 if s else 0 for s in self.each], pa.int64())


@dataclass(frozen=True, slots=True)
class _Intervals:
    """The intervals of files, and which of them are plain."""

    lo: pa.Array
    hi: pa.Array
    classes: pa.Array
    plain: pa.Array


def index_entries(column: Column, files: FileStats) -> Entries:
    """Return the entries of a data column."""
    if len(column.physical) == 1 and not column.metadata:
        try:
            return _together(column, files)
        except (OverflowError, UnicodeEncodeError, pa.ArrowInvalid):
            # A number, text or time that no array can hold.
            pass
    return _by_column(data_entry(column, stats) for stats in files.each)


def partition_entries(
    column: Column, files: Sequence[Mapping[str, str | None]]
) -> Entries:
    """Return the entries of a partition column; each value is computed once."""
    name = column.physical[0]
    if all(name in values for values in files):
        try:
            texts = pa.array([values[name] for values in files], pa.string())
        except UnicodeEncodeError:
            pass
        else:
            return _by_value(column, texts)
    return _by_column(partition_entry(column, values) for values in files)


def _by_value(column: Column, texts: pa.Array) -> Entries:
    encoded, name = texts.dictionary_encode(null_encoding="encode"), column.physical[0]
    lo, hi, classes, has_null = _by_column(
        partition_entry(column, {name: text}) for text in encoded.dictionary.to_pylist()
    )
    arrays = (pa.array(lo), pa.array(hi), pa.array(classes, _CLASS), pa.array(has_null))
    found = [array.take(encoded.indices) for array in arrays]
    return found[0], found[1], found[2], found[3]


def _by_column(entries: Iterable[Entry]) -> Entries:
    lo, hi, classes, has_null = zip(*entries, strict=True)
    return lo, hi, classes, has_null


def _together(column: Column, files: FileStats) -> Entries:
    name = column.physical[0]
    compute = _method(column.type)
    if compute is None:
        return _by_column(data_entry(column, stats) for stats in files.each)
    found = compute(
        [values.get(name) for values in files.least],
        [values.get(name) for values in files.greatest],
    )
    has_null, counted = _has_null(name, files)
    columns = (found.lo, found.hi, found.classes, has_null)
    odd = pc.indices_nonzero(pc.invert(pc.and_(found.plain, counted))).to_pylist()
    if not odd:
        return columns
    lo, hi, classes, nulls = (values.to_pylist() for values in columns)
    for i in odd:
        lo[i], hi[i], classes[i], nulls[i] = data_entry(column, files.each[i])
    return lo, hi, classes, nulls


_Compute = Callable[[list[Any], list[Any]], _Intervals]


def _method(type_name: str) -> _Compute | None:
    if type_name in INTEGRAL:
        return _integers
    if type_name == "double":
        return _doubles
    if type_name in TIMES:
        return _times
    return _texts if kind_of(type_name) is Kind.TEXT else None


def _has_null(name: str, files: FileStats) -> tuple[pa.Array, pa.Array]:
    """Return which files have nulls, and for which files the null count is plain."""
    nulls, plain = _only(int, [values.get(name) for values in files.nulls])
    counts = pa.array(nulls, pa.int64())
    some = pc.less(counts, files.num_records)
    return pc.not_equal(counts, 0), _all(plain, pc.greater_equal(counts, 0), some)


def _only(kind: type, values: list[Any]) -> tuple[list[Any], pa.Array]:
    """Return the values of a type, a default in place of others, and a mask."""
    if set(map(type, values)) == {kind}:
        return values, pa.repeat(True, len(values))
    which = [type(value) is kind for value in values]
    kept = [v if fits else kind() for v, fits in zip(values, which, strict=True)]
    return kept, pa.array(which)


def _all(*conditions: pa.Array) -> pa.Array:
    return reduce(pc.and_, conditions)


def _integers(least: list[Any], greatest: list[Any]) -> _Intervals:
    (lo, plain), (hi, also) = _only(int, least), _only(int, greatest)
    return _whole(pa.array(lo, pa.int64()), pa.array(hi, pa.int64()), plain, also)


def _doubles(least: list[Any], greatest: list[Any]) -> _Intervals:
    (lo, plain), (hi, also) = _only(float, least), _only(float, greatest)
    return _numbers(pa.array(lo, pa.float64()), pa.array(hi, pa.float64()), plain, also)


def _times(least: list[Any], greatest: list[Any]) -> _Intervals:
    (lo, plain), (hi, also) = _micros(least), _micros(greatest)
    # Spark and delta-rs cut them down to milliseconds.
    moments = hi.cast(pa.timestamp("us"))
    hi = pc.add(pc.floor_temporal(moments, unit="millisecond").cast(pa.int64()), 999)
    return _whole(lo, hi, plain, also)


def _whole(lo: pa.Array, hi: pa.Array, *plain: pa.Array) -> _Intervals:
    exact = (
        pc.greater_equal(lo, -_EXACT_INTEGER),
        pc.less_equal(hi, _EXACT_INTEGER),
    )
    doubles = (array.cast(pa.float64(), safe=False) for array in (lo, hi))
    return _numbers(*doubles, *plain, *exact)


def _numbers(lo: pa.Array, hi: pa.Array, *plain: pa.Array) -> _Intervals:
    # There is no negative zero.
    lo, hi = pc.add(lo, 0.0), pc.add(hi, 0.0)
    widths = pc.subtract(hi, lo).dictionary_encode()
    classes = [number_class(0.0, width) for width in widths.dictionary.to_pylist()]
    found = pa.array(classes, _CLASS).take(widths.indices)
    return _Intervals(lo, hi, found, _all(*plain, pc.less_equal(lo, hi)))


def _micros(values: list[Any]) -> tuple[pa.Array, pa.Array]:
    texts, plain = _only(str, values)
    written = pa.array(texts, pa.string())
    usual = pc.match_substring_regex(written, _MOMENT)
    bare = pc.utf8_rtrim(pc.if_else(usual, written, None), "Z")
    micros = bare.cast(pa.timestamp("us")).cast(pa.int64())
    return micros.fill_null(0), pc.and_(plain, usual)


def _texts(least: list[Any], greatest: list[Any]) -> _Intervals:
    (lo, plain), (hi, also) = _stored(least), _stored(greatest)
    classes = _text_classes(lo, hi)
    return _Intervals(lo, hi, classes, _all(plain, also, pc.less_equal(lo, hi)))


def _stored(values: list[Any]) -> tuple[pa.Array, pa.Array]:
    """Return the texts, and which of them can be stored as bounds unchanged."""
    texts, plain = _only(str, values)
    written = pa.array(texts, pa.string())
    short = pc.less_equal(pc.binary_length(written), TEXT_LENGTH)
    usual = _all(plain, short, pc.string_is_ascii(written))
    return written, pc.and_not(usual, pc.match_substring(written, "\0"))


def _text_classes(lo: pa.Array, hi: pa.Array) -> pa.Array:
    """Return the lengths of the common prefixes of each pair of bounds."""
    equal = pc.equal(lo, hi)
    shorter = pc.min_element_wise(pc.binary_length(lo), pc.binary_length(hi))
    longest = pc.if_else(equal, 0, shorter)
    classes = pc.if_else(equal, pa.scalar(EXACT, _CLASS), pa.scalar(0, _CLASS))
    left, right = lo.cast(pa.binary()), hi.cast(pa.binary())
    for length in range(1, TEXT_LENGTH + 1):
        heads = (pc.binary_slice(texts, 0, length) for texts in (left, right))
        common = pc.and_(pc.greater_equal(longest, length), pc.equal(*heads))
        if not pc.any(common).as_py():
            break
        classes = pc.if_else(common, pa.scalar(length, _CLASS), classes)
    return classes
