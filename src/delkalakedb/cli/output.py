"""What commands say: records as text, JSON or CSV.

Text is for people: chosen columns, times in UTC, a table on a terminal and aligned
columns in a pipe. CSV has the same columns as they are stored, JSON whole records.
The answer goes to standard output and nothing else does; what is said on the way
goes to standard error.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice, zip_longest
from typing import IO, Any, Literal

__all__ = ["FORMATS", "Output"]

FORMATS = ("text", "json", "csv")
_PAGE_ROWS = 1000

Record = Mapping[str, Any]


class Output:
    """The one place that writes a command's answer."""

    def __init__(self, kind: str, stream: IO[str]) -> None:
        self.kind = kind
        self.stream = stream

    def rows(self, rows: Iterable[Record], columns: Sequence[str]) -> None:
        """Write rows of a table: what a column means is not known from its name."""
        if self.kind == "text":
            _write_text(rows, columns, self.stream, as_named=False)
        else:
            self.records(rows, columns)

    def records(self, records: Iterable[Record], columns: Sequence[str]) -> None:
        """Write records; `columns` are those that text and CSV show, in order."""
        write = {"json": _write_json, "csv": _write_csv, "text": _write_text}
        write[self.kind](records, columns, self.stream)

    def record(self, record: Record, columns: Sequence[str] | None = None) -> None:
        """Write one record: a line for each column as text, one object as JSON."""
        shown = list(record) if columns is None else columns
        if self.kind == "json":
            self.stream.write(_json(record, indent=2) + "\n")
        elif self.kind == "csv":
            _write_csv([record], shown, self.stream)
        else:
            _write_lines(record, shown, self.stream)

    def lines(self, lines: Iterable[str], key: str) -> None:
        """Write texts as they are; as JSON or CSV they are records with one key."""
        if self.kind == "text":
            self.stream.writelines(f"{line}\n" for line in lines)
        else:
            self.records(({key: line} for line in lines), [key])


def _json(record: Record, indent: int | None = None) -> str:
    # What JSON has no form for (dates, decimals, bytes of a table's rows) is text.
    return json.dumps(dict(record), ensure_ascii=False, default=str, indent=indent)


def _write_json(
    records: Iterable[Record], columns: Sequence[str], stream: IO[str]
) -> None:
    before = "[\n"
    for record in records:
        stream.write(before + _json(record))
        before = ",\n"
    stream.write("[]\n" if before == "[\n" else "\n]\n")


def _write_csv(
    records: Iterable[Record], columns: Sequence[str], stream: IO[str]
) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        writer.writerow([_machine_text(record[column]) for column in columns])


def _write_lines(record: Record, columns: Sequence[str], stream: IO[str]) -> None:
    headers = [_header(column) for column in columns]
    width = max(map(len, headers), default=0)
    for header, column in zip(headers, columns, strict=True):
        text = _human_text(column, record[column])
        stream.write(f"{header.ljust(width)}  {text}\n")


def _write_text(
    records: Iterable[Record],
    columns: Sequence[str],
    stream: IO[str],
    *,
    as_named: bool = True,
) -> None:
    headers = [_header(column) if as_named else column for column in columns]
    names = columns if as_named else [""] * len(columns)
    write = _write_table if stream.isatty() else _write_aligned
    for shown in _pages(records):
        rows = [
            [_human_text(n, record[c]) for n, c in zip(names, columns, strict=True)]
            for record in shown
        ]
        numbers = [all(isinstance(r[c], int) for r in shown) for c in columns]
        write(headers, rows, numbers, stream)
        headers = []


def _pages(records: Iterable[Record]) -> Iterator[list[Record]]:
    """As many as are aligned with each other, of a list of any length; one at least."""
    left = iter(records)
    page = list(islice(left, _PAGE_ROWS))
    yield page
    while page := list(islice(left, _PAGE_ROWS)):
        yield page


def _write_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[bool],
    stream: IO[str],
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=None, pad_edge=False, header_style="bold", show_header=bool(headers)
    )
    for header, number in zip_longest(headers, numbers, fillvalue=""):
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(Text(header), justify=justify, overflow="fold")
    for row in rows:
        # Not markup: a name may hold brackets.
        table.add_row(*map(Text, row))
    Console(file=stream).print(table)


def _write_aligned(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[bool],
    stream: IO[str],
) -> None:
    lines = [headers, *rows] if headers else rows
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = _aligned(line, widths, numbers)
        stream.write("  ".join(cells).rstrip() + "\n")


def _aligned(
    line: Sequence[str], widths: Sequence[int], numbers: Sequence[bool]
) -> Iterator[str]:
    for cell, width, number in zip(line, widths, numbers, strict=True):
        yield cell.rjust(width) if number else cell.ljust(width)


def _header(column: str) -> str:
    return column.removesuffix("_ms")


def _human_text(column: str, value: Any) -> str:
    if isinstance(value, int) and column.endswith("_ms"):
        return _utc(value)
    # A control character in a name must not reach the terminal.
    text = _machine_text(value)
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text) or "-"


def _machine_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _utc(time_ms: int) -> str:
    time = datetime.fromtimestamp(time_ms / 1000, UTC)
    return time.strftime("%Y-%m-%d %H:%M:%S") + f".{time_ms % 1000:03}Z"
