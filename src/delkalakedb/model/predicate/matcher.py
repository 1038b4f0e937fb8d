"""The files that a predicate can match, by their partition values and statistics.

A file is never dropped wrongly, but may be kept without need.

Statistics of floats ignore NaN, which is greater than every number, so a data file may
hold NaN whatever its upper bound. On a float column only a range with an upper limit
can therefore drop a file.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from delkalakedb.model.predicate.predicate import (
    And,
    Anything,
    Comparison,
    In,
    IsNotNull,
    IsNull,
    Nothing,
    Op,
    Or,
    Predicate,
    StartsWith,
)
from delkalakedb.model.schema.schema import Column
from delkalakedb.model.stats.stats import (
    Bounds,
    Stats,
    column_bounds,
    parse_stats,
    partition_bounds,
)
from delkalakedb.model.stats.values import (
    FLOATING,
    Bound,
    Value,
    after_prefix,
    kind_of,
    round_down,
    round_up,
    span,
)

_MOST_TERMS = 100  # of a driver; more become one range, or no driver
# The bounds of a partition with NaN, which is above every number.
_NAN = Bounds(math.inf, None, has_null=False)


@dataclass(frozen=True, slots=True)
class Range:
    """A term: the file may have values from `lo` to `hi`, where None is unbounded."""

    column: Column
    lo: Bound | None
    hi: Bound | None


@dataclass(frozen=True, slots=True)
class HasNull:
    """A term: the file may have nulls in the column."""

    column: Column


Term = Range | HasNull
Driver = tuple[Term, ...]
Match = Callable[[Mapping[str, str | None], str | None], bool]


@dataclass(frozen=True, slots=True)
class _Limits:
    """The range of a column's values that a predicate allows.

    `above` excludes `lo` itself, and `below` excludes `hi`.
    """

    lo: Value | None = None
    hi: Value | None = None
    above: bool = False
    below: bool = False

    def both(self, other: "_Limits") -> "_Limits":
        lower, upper = self, self
        if other.lo is not None and (
            self.lo is None or (other.lo, other.above) > (self.lo, self.above)
        ):
            lower = other
        if other.hi is not None and (
            self.hi is None or (other.hi, not other.below) < (self.hi, not self.below)
        ):
            upper = other
        return _Limits(lower.lo, upper.hi, lower.above, upper.below)

    def allow(self, lo: Value | None, hi: Value | None) -> bool:
        """Return whether the range from `lo` to `hi` overlaps these limits."""
        if self.lo is not None and hi is not None and _past(self.lo, hi, self.above):
            return False
        return not (
            self.hi is not None and lo is not None and _past(lo, self.hi, self.below)
        )


class _File:
    """The bounds of a file's columns, computed when they are asked for."""

    def __init__(self, partition_values: Mapping[str, str | None], stats: str | None):
        self._partition_values = partition_values
        self._text = stats
        self._stats: Stats | None = None
        self._parsed = False

    def partition(self, column: Column) -> Bounds:
        name = column.physical[0]
        if name not in self._partition_values:
            return Bounds()
        bounds = partition_bounds(column, self._partition_values[name])
        is_nan = bounds.lo is None and not bounds.has_null
        return _NAN if is_nan and column.type in FLOATING else bounds

    def data(self, column: Column) -> Bounds:
        if not self._parsed:
            self._stats, self._parsed = parse_stats(self._text), True
        return column_bounds(column, kind_of(column.type), self._stats)


_Test = Callable[[_File], bool]


class _Partitioning:
    """The partition columns, which have one value for a whole file."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = {name.lower() for name in names}

    def __contains__(self, column: Column) -> bool:
        return len(column.path) == 1 and column.path[0].lower() in self._names

    def bounds(self, column: Column) -> Callable[[_File], Bounds]:
        """Return a function that returns the bounds of a column in a file."""
        if column in self:
            return lambda file: file.partition(column)
        return lambda file: file.data(column)

    def hides_nan(self, column: Column) -> bool:
        """Return whether a file may hold NaN in a column, above the upper bound."""
        return column.type in FLOATING and column not in self


def matcher(predicate: Predicate, partition_columns: Sequence[str] = ()) -> Match:
    """Return a test of a file's partition values and statistics.

    The test returns whether any row of the file may match the predicate.
    """
    test = _test(predicate, _Partitioning(partition_columns))
    return lambda partition_values, stats: test(_File(partition_values, stats))


def needs_statistics(
    predicate: Predicate, partition_columns: Sequence[str] = ()
) -> bool:
    """Return whether the test reads more of a file than its partition values."""
    partitioning = _Partitioning(partition_columns)
    return any(
        leaf.column not in partitioning
        for leaf in _leaves(predicate)
        if not isinstance(leaf, Anything | Nothing)
    )


def is_of_partitions(predicate: Predicate, partition_columns: Sequence[str]) -> bool:
    """Return whether partition values alone decide which rows match."""
    known = not any(isinstance(leaf, Anything) for leaf in _leaves(predicate))
    return known and not needs_statistics(predicate, partition_columns)


def drivers(
    predicate: Predicate, partition_columns: Sequence[str] = ()
) -> tuple[Driver, ...]:
    """Return the conditions that an index can look up, the most selective first.

    A file that may match satisfies at least one term of each driver. No file matches a
    driver without terms.
    """
    partitioning = _Partitioning(partition_columns)
    found = dict.fromkeys(_drivers(predicate, partitioning))
    return tuple(sorted(found, key=lambda driver: _rank(driver, partitioning)))


def _past(low: Any, high: Any, strictly: bool) -> bool:
    """Return whether no value is at least `low` and at most `high`.

    With `strictly`, one of the two excludes the value itself.
    """
    return bool(low > high or (strictly and low == high))


def _limits(leaf: Comparison | StartsWith) -> _Limits:
    if isinstance(leaf, StartsWith):
        return _Limits(leaf.prefix, after_prefix(leaf.prefix), below=True)
    lo, hi = _span(leaf, leaf.value)
    match leaf.op:
        case Op.EQ:
            return _Limits(lo, hi)
        case Op.LT | Op.LE:
            return _Limits(hi=hi, below=leaf.op is Op.LT)
        case _:
            return _Limits(lo=lo, above=leaf.op is Op.GT)


def _conjuncts(predicate: Predicate) -> Iterator[Predicate]:
    if isinstance(predicate, And):
        for part in predicate.parts:
            yield from _conjuncts(part)
    else:
        yield predicate


_Leaf = Comparison | In | IsNull | IsNotNull | StartsWith | Anything | Nothing


def _leaves(predicate: Predicate) -> Iterator[_Leaf]:
    if isinstance(predicate, And | Or):
        for part in predicate.parts:
            yield from _leaves(part)
    else:
        yield predicate


def _merged(
    predicate: Predicate,
) -> tuple[list[tuple[Column, _Limits]], list[Predicate]]:
    """Return the limits of each column in a conjunction, and its other parts."""
    limits: dict[tuple[str, ...], tuple[Column, _Limits]] = {}
    others: list[Predicate] = []
    for part in _conjuncts(predicate):
        if isinstance(part, StartsWith) or (
            isinstance(part, Comparison) and part.op is not Op.NE
        ):
            key = part.column.physical
            _, known = limits.get(key, (None, _Limits()))
            limits[key] = part.column, known.both(_limits(part))
        else:
            others.append(part)
    return list(limits.values()), others


def _test(predicate: Predicate, partitioning: _Partitioning) -> _Test:
    limits, others = _merged(predicate)
    tests = [_limits_test(*item, partitioning) for item in limits]
    tests += [_other_test(part, partitioning) for part in others]
    return tests[0] if len(tests) == 1 else lambda file: all(t(file) for t in tests)


def _limits_test(column: Column, limits: _Limits, partitioning: _Partitioning) -> _Test:
    bounds_of = partitioning.bounds(column)
    if not limits.allow(limits.lo, limits.hi):
        return lambda file: False
    if limits.hi is None and partitioning.hides_nan(column):
        limits = _Limits()

    def test(file: _File) -> bool:
        bounds = bounds_of(file)
        return bounds.has_value and limits.allow(bounds.lo, bounds.hi)

    return test


def _other_test(predicate: Predicate, partitioning: _Partitioning) -> _Test:
    match predicate:
        case Or(parts):
            tests = [_test(part, partitioning) for part in parts]
            return lambda file: any(test(file) for test in tests)
        case In():
            return _in_test(predicate, partitioning)
        case Comparison():
            return _unequal_test(predicate, partitioning)
        case IsNull(column):
            bounds_of = partitioning.bounds(column)
            return lambda file: bounds_of(file).has_null
        case IsNotNull(column):
            bounds_of = partitioning.bounds(column)
            return lambda file: bounds_of(file).has_value
        case Nothing():
            return lambda file: False
        case _:
            return lambda file: True


def _in_test(leaf: In, partitioning: _Partitioning) -> _Test:
    bounds_of = partitioning.bounds(leaf.column)
    spans = _spans(leaf)
    ends = list(accumulate((hi for _, hi in spans), max))

    def test(file: _File) -> bool:
        bounds = bounds_of(file)
        if not bounds.has_value:
            return False
        at = 0 if bounds.lo is None else bisect_left(ends, bounds.lo)
        return at < len(spans) and _Limits(*spans[at]).allow(bounds.lo, bounds.hi)

    return test


def _unequal_test(leaf: Comparison, partitioning: _Partitioning) -> _Test:
    bounds_of = partitioning.bounds(leaf.column)
    # Only an exact literal is equal, because engines differ on -0.0 and on rounding.
    lo, hi = _span(leaf, leaf.value)

    def test(file: _File) -> bool:
        bounds = bounds_of(file)
        equal = lo == hi == bounds.lo == bounds.hi
        return bounds.has_value and not equal

    return test


def _spans(leaf: In) -> list[tuple[Value, Value]]:
    return sorted({_span(leaf, value) for value in leaf.values})


def _span(leaf: Comparison | In, value: Value) -> tuple[Value, Value]:
    exact = leaf.typed and value not in (math.inf, -math.inf)
    return (value, value) if exact else span(value, leaf.column.type)


def _drivers(predicate: Predicate, partitioning: _Partitioning) -> Iterator[Driver]:
    limits, others = _merged(predicate)
    for column, limit in limits:
        if not limit.allow(limit.lo, limit.hi):
            yield ()
        elif limit.hi is not None or not partitioning.hides_nan(column):
            yield from _range_driver(column, [(limit.lo, limit.hi)])
    for part in others:
        yield from _other_drivers(part, partitioning)


def _other_drivers(
    predicate: Predicate, partitioning: _Partitioning
) -> Iterator[Driver]:
    match predicate:
        case Or(parts):
            yield from _or_driver(parts, partitioning)
        case In(column):
            spans = _spans(predicate)
            if len(spans) > _MOST_TERMS:
                spans = [(spans[0][0], max(hi for _, hi in spans))]
            yield from _range_driver(column, spans)
        case IsNull(column) if kind_of(column.type) is not None:
            yield (HasNull(column),)
        case Nothing():
            yield ()


def _or_driver(
    parts: tuple[Predicate, ...], partitioning: _Partitioning
) -> Iterator[Driver]:
    """Yield a driver of the terms of each part's best driver, if each part has one."""
    terms: dict[Term, None] = {}
    for part in parts:
        best = min(
            _drivers(part, partitioning),
            key=lambda driver: _rank(driver, partitioning),
            default=None,
        )
        if best is None:
            return
        terms.update(dict.fromkeys(best))
    if len(terms) <= _MOST_TERMS:
        yield tuple(terms)


def _range_driver(
    column: Column, limits: Sequence[tuple[Value | None, Value | None]]
) -> Iterator[Driver]:
    terms = [
        Range(
            column,
            None if lo is None else round_down(lo),
            None if hi is None else round_up(hi),
        )
        for lo, hi in limits
    ]
    if all(term.lo is not None or term.hi is not None for term in terms):
        yield tuple(dict.fromkeys(terms))


def _rank(driver: Driver, partitioning: _Partitioning) -> tuple[int, int, int]:
    worst = max((_term_rank(term) for term in driver), default=-1)
    data = sum(term.column not in partitioning for term in driver)
    return worst, len(driver), data


def _term_rank(term: Term) -> int:
    if isinstance(term, HasNull):
        return 3
    if term.lo is None or term.hi is None:
        return 2
    if isinstance(term.lo, float) and isinstance(term.hi, float):
        return 0 if math.isclose(term.lo, term.hi, rel_tol=1e-6, abs_tol=1e-9) else 1
    return 0 if term.lo == term.hi else 1
