"""A file's statistics, and the interval of each column as the catalog indexes it.

Overlap with a query's range is a scan of one btree per *class*: files of a class have
intervals of at most one width (numbers) or that share one length of prefix (text), so
that those which overlap `[a, b]` have their upper bound between `a` and a little past
`b` (`class_reach`), however many files there are beyond it.
"""

import math
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from delkalakedb.errors import CodecError
from delkalakedb.model.actions import Metadata
from delkalakedb.model.schema.partition import parse_partition_value
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.schema.schema import Column, parse_schema
from delkalakedb.model.stats.values import (
    TEXT_LENGTH,
    TOP,
    Bound,
    Kind,
    Value,
    exact,
    kind_of,
    lower,
    round_down,
    round_up,
    upper,
)

# Classes. Of numbers: 0 for intervals of no width, k + _SHIFT for those up to 4**k
# wide, UNBOUNDED. Of text: the length of the common prefix (0: none), EXACT.
ALL_NULL = -1
EXACT = 1000
UNBOUNDED = 2000
_SHIFT = 540


class Stats(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The statistics of one file, by physical column names."""

    num_records: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = None
    min_values: dict[str, Any] | None = None
    max_values: dict[str, Any] | None = None
    null_count: dict[str, Any] | None = None
    tight_bounds: bool | None = None


class Bounds(msgspec.Struct, frozen=True, gc=False):
    """What is known of a column's values in one file.

    None is unbounded. `has_null` and `has_value` are false only where that is certain.
    """

    lo: Value | None = None
    hi: Value | None = None
    has_null: bool = True
    has_value: bool = True


_UNKNOWN = Bounds()
_NO_ROWS = Bounds(has_null=False, has_value=False)
_ONLY_NULLS = Bounds(has_value=False)
_decoder = msgspec.json.Decoder(Stats)


def parse_stats(text: str | None) -> Stats | None:
    """Parse an add's statistics; None if it has none that can be read."""
    if not text:
        return None
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def measured_columns(metadata: Metadata) -> list[Column]:
    """Return the columns for which a table's properties ask for statistics."""
    schema = parse_schema(metadata.schema_string)
    properties = parse_properties(metadata)
    partitions = metadata.partition_columns
    leaves = [c for c in schema.leaves() if c.path[0] not in partitions]
    named = properties.data_skipping_stats_columns
    if named is not None:
        paths = {found.path for name in named if (found := schema.column(name))}
        # The name of a struct stands for all of its columns.
        return [c for c in leaves if any(c.path[: len(p)] == p for p in paths)]
    count = properties.data_skipping_num_indexed_cols
    return leaves if count < 0 else leaves[:count]


def column_bounds(column: Column, kind: Kind | None, stats: Stats | None) -> Bounds:
    """Return the bounds of a data column."""
    if stats is None:
        return _UNKNOWN
    rows, nulls = stats.num_records, _at(stats.null_count, column.physical)
    if rows == 0:
        return _NO_ROWS
    # With loose bounds (deletion vectors) a null count still says "none" and "all".
    if nulls == rows and type(nulls) is int:
        return _ONLY_NULLS
    has_null = nulls != 0 or type(nulls) is not int
    if kind is None:
        return Bounds(None, None, has_null)
    written = _written_type(column)
    lo: Any = lower(_at(stats.min_values, column.physical), written)
    hi: Any = upper(_at(stats.max_values, column.physical), written)
    if lo is None or hi is None or lo <= hi:
        return Bounds(lo, hi, has_null)
    return Bounds(None, None, has_null)


def partition_bounds(column: Column, text: str | None) -> Bounds:
    """Return the bounds of a partition column: one exact value, or null."""
    if text is None:
        return _ONLY_NULLS
    if text == "":
        # Null by the protocol, but delta-rs also writes empty strings this way.
        empty = kind_of(column.type) is Kind.TEXT
        return Bounds("", "") if empty else _ONLY_NULLS
    try:
        value = exact(parse_partition_value(text, column.type))
    except CodecError:
        return _UNKNOWN
    return Bounds(value, value, has_null=False)


Entry = tuple[Bound, Bound, int, bool]
"""The lower bound, the upper bound, the class, and whether there may be nulls."""
Entries = tuple[Any, Any, Any, Any]
"""The entries of files, by field: each an Arrow array or a sequence."""


def data_entry(column: Column, stats: Stats | None) -> Entry:
    """Return the index entry of one file for a data column."""
    kind = kind_of(column.type)
    assert kind is not None
    bounds = column_bounds(column, kind, stats)
    return (*index_entry(bounds, kind), bounds.has_null)


def partition_entry(column: Column, values: Mapping[str, str | None]) -> Entry:
    """Return the index entry of one file for a partition column."""
    kind, name = kind_of(column.type), column.physical[0]
    assert kind is not None
    bounds = partition_bounds(column, values[name]) if name in values else _UNKNOWN
    return (*index_entry(bounds, kind), bounds.has_null)


def index_entry(bounds: Bounds, kind: Kind) -> tuple[Bound, Bound, int]:
    """Return the lower bound, upper bound and class under which a file is indexed."""
    lowest, highest, classify = _TEXT if kind is Kind.TEXT else _NUMBER
    if not bounds.has_value:
        return lowest, lowest, ALL_NULL
    lo = None if bounds.lo is None else round_down(bounds.lo)
    hi = None if bounds.hi is None else round_up(bounds.hi)
    lo, hi = lowest if lo is None else lo, highest if hi is None else hi
    return lo, hi, classify(lo, hi)


def class_width(number: int) -> float:
    """Return the greatest width of an interval of numbers in a class."""
    if number == UNBOUNDED:
        return math.inf
    return math.ldexp(1.0, 2 * (number - _SHIFT)) if number else 0.0


def class_reach(number: int, hi: Bound) -> Bound:
    """Return the greatest upper bound in a class that overlaps `[.., hi]`."""
    if isinstance(hi, str):
        return hi if number == EXACT else hi[:number] + TOP
    return hi + class_width(number)


def _at(values: dict[str, Any] | None, path: tuple[str, ...]) -> Any:
    if values is None:
        return None
    if len(path) == 1:
        return values.get(path[0])
    inner = values.get(path[0])
    return _at(inner, path[1:]) if isinstance(inner, dict) else None


def _written_type(column: Column) -> str:
    """Return the type of the statistics: a widened float still has a float's texts."""
    if column.type == "double" and column.metadata:
        changes = column.metadata.get("delta.typeChanges") or ()
        if any(change.get("fromType") == "float" for change in changes):
            return "float"
    return column.type


def number_class(lo: float, hi: float) -> int:
    """Return the class of an interval of numbers."""
    width = hi - lo
    if width == 0.0:
        return 0
    if not width < math.inf:
        return UNBOUNDED
    # The power of two above it: the difference may have been rounded down.
    half = (math.frexp(width)[1] + 1) // 2
    return half + _SHIFT if half < 512 else UNBOUNDED


def text_class(lo: str, hi: str) -> int:
    """Return the class of an interval of text."""
    if lo == hi:
        return EXACT
    shortest, longest = 0, min(len(lo), len(hi), TEXT_LENGTH)
    while shortest < longest:
        middle = (shortest + longest + 1) // 2
        if hi.startswith(lo[:middle]):
            shortest = middle
        else:
            longest = middle - 1
    return shortest


_Domain = tuple[Bound, Bound, Callable[[Any, Any], int]]
_NUMBER: _Domain = (-math.inf, math.inf, number_class)
_TEXT: _Domain = ("", TOP, text_class)
