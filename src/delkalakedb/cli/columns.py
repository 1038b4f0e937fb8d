"""The columns of an answer, and the choice of those that fit a terminal."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from delkalakedb.model.display import (
    cut_end,
    cut_middle,
    format_minute,
    format_size,
    format_span,
    text_width,
    wrapped,
)

Record = Mapping[str, Any]
Kind = Literal["text", "data", "size", "time", "span", "state", "path", "prose"]

# columns of a terminal, between two columns of a table
GAP = 2
# the least widths of the columns that are cut
_LEAST = {"path": 18, "text": 9, "data": 9, "prose": 16}
_UNCUT = 2**31
_HEADERS = {
    "timestamp_ms": "time",
    "occurred_at_ms": "time",
    "num_records": "rows",
    "seconds": "took",
    "seconds_behind": "behind",
    "published_version": "published",
    "ratified_version": "ratified",
    "versions_checked": "checked",
    "versions_behind": "waiting",
    "partition_values": "partition",
}
_PATHS = ("location", "path", "catalog", "data_path", "file")
_PROSE = (
    "advice",
    "comment",
    "description",
    "detail",
    "features",
    "found",
    "last_error",
    "message",
    "properties",
)
_COLOURS = {
    "ok published yes true imported copied": 32,
    "warn pending held failed": 33,
    "fail diverged differs refused": 31,
}
_CODES = {word: code for words, code in _COLOURS.items() for word in words.split()}


@dataclass(frozen=True, slots=True)
class ShownColumn:
    """One column of an answer.

    Args:
        name: the field of a record, and the column's name in CSV.
        header: the title that people see; by default it comes from the name.
        kind: how people see the values; by default it comes from the name.
        priority: the column with the greatest number is left out first if a terminal
            is too narrow; by default a column comes after those to its left.
        show: returns the text of a record, if it isn't that of one field.
        fields: the columns that CSV has instead.
    """

    name: str
    header: str = ""
    kind: Kind | None = None
    priority: float | None = None
    show: Callable[[Record], str] | None = None
    fields: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The title that people see."""
        return self.header or _HEADERS.get(self.name) or _title(self.name)

    @property
    def form(self) -> Kind:
        """How people see the values."""
        return self.kind or _kind(self.name)

    def text(self, record: Record) -> str:
        """Return the text that people see."""
        if self.show:
            return self.show(record)
        return human_text(record[self.name], self.form)


AnyColumn = str | ShownColumn


def column_of(column: AnyColumn) -> ShownColumn:
    """Return `column`, or the column of a field."""
    return ShownColumn(column) if isinstance(column, str) else column


def fields_of(columns: Sequence[AnyColumn]) -> list[str]:
    """Return the fields of the records that `columns` show."""
    found = map(column_of, columns)
    return [name for column in found for name in column.fields or (column.name,)]


def _title(name: str) -> str:
    bare = name.removeprefix("num_").removesuffix("_ms").removesuffix("_bytes")
    return bare.replace("_", " ")


def _kind(name: str) -> Kind:
    if name.endswith("_ms"):
        return "time"
    if name.endswith("_bytes"):
        return "size"
    if name.startswith("seconds"):
        return "span"
    if name.endswith("state"):
        return "state"
    if name in _PATHS:
        return "path"
    return "prose" if name in _PROSE else "text"


def human_text(value: Any, kind: Kind) -> str:
    """Return `value` as people read it; `-` stands for nothing."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        if kind == "time":
            return format_minute(int(value))
        if kind == "size":
            return format_size(int(value))
        if kind == "span":
            return format_span(value)
    elif kind != "data" and isinstance(value, dict):
        value = ", ".join(f"{name}={item}" for name, item in value.items())
    elif kind != "data" and isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    # Control characters are escaped, because the terminal would act on them.
    return printable(machine_text(value)) or "-"


def printable(text: str) -> str:
    """Return `text` with its control characters escaped."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def machine_text(value: Any) -> str:
    """Return `value` as programs read it; nothing is an empty text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def is_number(column: ShownColumn, record: Record) -> bool:
    """Return whether a value is aligned to the right."""
    if column.show:
        return False
    value = record[column.name]
    return isinstance(value, int) and column.form != "time"


@dataclass(frozen=True, slots=True)
class FittedColumns:
    """The columns that a table shows, by their positions, with their widths."""

    widths: dict[int, int]
    num_columns: int

    @property
    def left_out(self) -> int:
        """The number of columns that don't fit."""
        return self.num_columns - len(self.widths)


def fit(
    columns: Sequence[ShownColumn],
    needed: Sequence[int],
    room: int | None,
    numbers: Collection[int] = (),
) -> FittedColumns:
    """Choose the columns that fit, and their widths.

    Args:
        columns: all columns.
        needed: the width at which each column is shown in full.
        room: the width of the terminal; None for a table of any width.
        numbers: the positions of the columns that hold numbers, which are never cut.
    """
    if room is None:
        return FittedColumns(dict(enumerate(needed)), len(columns))
    first, *others = sorted(range(len(columns)), key=lambda i: _priority(columns, i))
    least = [
        width if i in numbers else min(width, _least(column))
        for i, (column, width) in enumerate(zip(columns, needed, strict=True))
    ]
    # The column by which people know a row is cut last.
    least[first] = min(max(least[first], min(needed[first], room // 2)), room)
    widths: dict[int, int] = {}
    left = room + GAP
    for index in (first, *others):
        if least[index] + GAP <= left:
            widths[index] = least[index]
            left -= least[index] + GAP
    growing = [i for i in widths if widths[i] < needed[i]]
    while left > 0 and growing:
        for index in growing[:left]:
            widths[index] += 1
        left -= len(growing[:left])
        growing = [i for i in growing if widths[i] < needed[i]]
    return FittedColumns(dict(sorted(widths.items())), len(columns))


def _least(column: ShownColumn) -> int:
    """Return the width below which a column is left out rather than cut further."""
    if column.form not in _LEAST:
        return _UNCUT
    return max(_LEAST[column.form], text_width(column.title))


def _priority(columns: Sequence[ShownColumn], index: int) -> tuple[float, int]:
    priority = columns[index].priority
    return (index if priority is None else priority), index


def cell_lines(text: str, kind: Kind, width: int) -> list[str]:
    """Return the lines of a cell that is `width` columns wide."""
    if text_width(text) <= width or kind not in _LEAST:
        return [text]
    if kind == "prose":
        return wrapped(text, width)
    return [(cut_middle if kind == "path" else cut_end)(text, width)]


def colour_of(text: str) -> int | None:
    """Return the code of a state's colour, or None for an ordinary state."""
    return _CODES.get(text)
