"""The answers of commands: records as text, JSON or CSV.

Text shows chosen columns with times in UTC, as a table on a terminal and as aligned
columns in a pipe. CSV has the same columns with values as stored. JSON has whole
records. Only the answer goes to standard output; remarks go to standard error.
"""

import csv
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice, zip_longest
from typing import IO, Any, Literal

from delkalakedb.model.times import format_ms
from delkalakedb.settings import redact

FORMATS = ("text", "json", "csv")
# records; the columns of so many are aligned with each other
_PAGE_ROWS = 1000

Record = Mapping[str, Any]


class Output:
    """The writer of a command's answer, in the format `kind`."""

    def __init__(self, kind: str, stream: IO[str]) -> None:
        self.kind = kind
        self.stream = stream

    def rows(self, rows: Iterable[Record], columns: Sequence[str]) -> None:
        """Write rows of a table, whose column names say nothing about formatting."""
        if self.kind == "text":
            _write_text(rows, columns, self.stream, as_named=False)
        else:
            self._write(rows, columns)

    def records(self, records: Iterable[Record], columns: Sequence[str]) -> None:
        """Write records; text and CSV show `columns`, in that order."""
        self._write(map(_masked, records), columns)

    def record(self, record: Record, columns: Sequence[str] | None = None) -> None:
        """Write one record: as text a line for each column, as JSON one object."""
        record, shown = _masked(record), list(record) if columns is None else columns
        if self.kind == "json":
            self.stream.write(_json(record, indent=2) + "\n")
        elif self.kind == "csv":
            _write_csv([record], shown, self.stream)
        else:
            _write_lines(record, shown, self.stream)

    def lines(self, lines: Iterable[str], key: str) -> None:
        """Write lines of text; JSON and CSV get a record with `key` for each line."""
        if self.kind == "text":
            self.stream.writelines(f"{line}\n" for line in lines)
        else:
            self.records(({key: line} for line in lines), [key])

    def _write(self, records: Iterable[Record], columns: Sequence[str]) -> None:
        write = {"json": _write_json, "csv": _write_csv, "text": _write_text}
        write[self.kind](records, columns, self.stream)


def _masked(record: Record) -> Record:
    """Mask a password in a table's name, which older versions accepted as a URI."""
    uris = {k: v for k in ("name", "table") if "://" in str(v := record.get(k))}
    return {**record, **{k: redact(str(v)) for k, v in uris.items()}}


def plain(value: Any) -> Any:
    """Return `value` with numbers that JSON lacks, such as NaN, turned into text."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0:
        return int(value)
    return value


def _json(record: Record, indent: int | None = None) -> str:
    # Dates, decimals and bytes become text, because JSON has no form for them.
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
    """Split `records` into pages of `_PAGE_ROWS`; yield one empty page for none."""
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
        # as Text, because brackets in a name would be read as markup
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
        cells = (
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numbers, strict=True)
        )
        stream.write("  ".join(cells).rstrip() + "\n")


def _header(column: str) -> str:
    return column.removesuffix("_ms")


def _human_text(column: str, value: Any) -> str:
    if isinstance(value, int) and column.endswith("_ms"):
        return format_ms(value)
    # Control characters are escaped, because the terminal would act on them.
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
