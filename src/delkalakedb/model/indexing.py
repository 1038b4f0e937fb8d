"""Index entries of many files at once.

`index_entries` gives what `index_entry` of `column_bounds` gives; bulk commits spend
their time here, so the common shapes of statistics take a short way.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from delkalakedb.model.schema import Column
from delkalakedb.model.stats import (
    Bounds,
    Stats,
    column_bounds,
    index_entry,
    number_class,
    partition_bounds,
    text_class,
)
from delkalakedb.model.values import (
    INTEGRAL,
    TEXT_LENGTH,
    TIMES,
    Bound,
    Kind,
    kind_of,
    lower,
    upper,
)

__all__ = ["Entry", "index_entries", "partition_entries"]

Entry = tuple[Bound, Bound, int, bool]
# Whole numbers up to here are doubles; no finite double is beyond the other.
_LIMITS = {int: 2**53, float: 1.7976931348623157e308}


def index_entries(column: Column, stats: Sequence[Stats | None]) -> Iterator[Entry]:
    """Lower bound, upper bound, class and whether there may be nulls, per file."""
    kind = kind_of(column.type)
    assert kind is not None

    def slow(given: Stats | None) -> Entry:
        bounds = column_bounds(column, kind, given)
        return (*index_entry(bounds, kind), bounds.has_null)

    if len(column.physical) > 1 or column.metadata:
        return map(slow, stats)
    if column.type in INTEGRAL:
        return _number_entries(column.physical[0], int, stats, slow)
    if column.type == "double":
        return _number_entries(column.physical[0], float, stats, slow)
    if column.type in TIMES:
        return _time_entries(column.physical[0], column.type, stats, slow)
    if kind is Kind.TEXT:
        return _text_entries(column.physical[0], stats, slow)
    return map(slow, stats)


def partition_entries(
    column: Column, files: Sequence[Mapping[str, str | None]]
) -> Iterator[Entry]:
    """The same for a partition column, whose few values are computed once."""
    kind = kind_of(column.type)
    assert kind is not None
    name = column.physical[0]
    entries: dict[str | None, Entry] = {}
    for values in files:
        if name not in values:
            yield (*index_entry(Bounds(), kind), True)
            continue
        text = values[name]
        if (entry := entries.get(text)) is None:
            bounds = partition_bounds(column, text)
            entry = entries[text] = (*index_entry(bounds, kind), bounds.has_null)
        yield entry


def _number_entries(
    name: str,
    wanted: type[int] | type[float],
    stats: Sequence[Stats | None],
    slow: Callable[[Stats | None], Entry],
) -> Iterator[Entry]:
    limit = _LIMITS[wanted]
    classes: dict[float, int] = {}
    for given, lo, hi, has_null in _pairs(name, stats):
        if (
            has_null is not None
            and type(lo) is type(hi) is wanted
            and -limit <= lo <= hi <= limit
        ):
            lo, hi = lo + 0.0, hi + 0.0
            width = hi - lo
            if (number := classes.get(width)) is None:
                number = classes[width] = number_class(lo, hi)
            yield lo, hi, number, has_null
        else:
            yield slow(given)


def _time_entries(
    name: str,
    type_name: str,
    stats: Sequence[Stats | None],
    slow: Callable[[Stats | None], Entry],
) -> Iterator[Entry]:
    limit = _LIMITS[int]
    for given, least, greatest, has_null in _pairs(name, stats):
        lo, hi = lower(least, type_name), upper(greatest, type_name)
        if (
            has_null is not None
            and type(lo) is type(hi) is int
            and -limit <= lo <= hi <= limit
        ):
            yield lo + 0.0, hi + 0.0, number_class(lo + 0.0, hi + 0.0), has_null
        else:
            yield slow(given)


def _text_entries(
    name: str,
    stats: Sequence[Stats | None],
    slow: Callable[[Stats | None], Entry],
) -> Iterator[Entry]:
    for given, lo, hi, has_null in _pairs(name, stats):
        if (
            has_null is not None
            and type(lo) is type(hi) is str
            and lo <= hi
            and len(lo) <= TEXT_LENGTH >= len(hi)
            and (both := lo + hi).isascii()
            and "\0" not in both
        ):
            yield lo, hi, text_class(lo, hi), has_null
        else:
            yield slow(given)


def _pairs(
    name: str, stats: Sequence[Stats | None]
) -> Iterator[tuple[Stats | None, Any, Any, bool | None]]:
    """A column's minimum, maximum and nulls in each file, where they are plain."""
    given: Any
    for given in stats:
        try:
            lo, hi = given.min_values[name], given.max_values[name]
            has_null = _has_null(given.null_count[name], given.num_records)
        except (AttributeError, KeyError, TypeError):
            lo = hi = has_null = None
        yield given, lo, hi, has_null


def _has_null(nulls: Any, rows: Any) -> bool | None:
    """Whether a file has nulls besides values; None where that takes more thought."""
    if type(nulls) is type(rows) is int and 0 <= nulls < rows:
        return nulls != 0
    return None
