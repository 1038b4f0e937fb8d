"""What commands say: records as text, JSON or CSV.

Text is for people: chosen columns, times in UTC, a table on a terminal and aligned
columns in a pipe. CSV has the same columns as they are stored, JSON whole records.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import IO, Any, Literal

__all__ = ["FORMATS", "Output"]

FORMATS = ("text", "json", "csv")

Record = Mapping[str, Any]


class Output:
    """The one place that writes a command's answer."""

    def __init__(self, kind: str, stream: IO[str]) -> None:
        self._kind = kind
        self._stream = stream

    def records(self, records: Iterable[Record], columns: Sequence[str]) -> None:
        """Write records; `columns` are those that text and CSV show, in order."""
        write = {"json": _write_json, "csv": _write_csv, "text": _write_text}
        write[self._kind](records, columns, self._stream)


def _write_json(
    records: Iterable[Record], columns: Sequence[str], stream: IO[str]
) -> None:
    before = "[\n"
    for record in records:
        stream.write(before + json.dumps(dict(record), ensure_ascii=False))
        before = ",\n"
    stream.write("[]\n" if before == "[\n" else "\n]\n")


def _write_csv(
    records: Iterable[Record], columns: Sequence[str], stream: IO[str]
) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        writer.writerow([_machine_text(record[column]) for column in columns])


def _write_text(
    records: Iterable[Record], columns: Sequence[str], stream: IO[str]
) -> None:
    shown = list(records)
    headers = [column.removesuffix("_ms") for column in columns]
    rows = [[_human_text(c, record[c]) for c in columns] for record in shown]
    numbers = [all(isinstance(r[c], int) for r in shown) for c in columns]
    write = _write_table if stream.isatty() else _write_aligned
    write(headers, rows, numbers, stream)


def _write_table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    numbers: Sequence[bool],
    stream: IO[str],
) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for header, number in zip(headers, numbers, strict=True):
        justify: Literal["left", "right"] = "right" if number else "left"
        table.add_column(header, justify=justify, overflow="fold")
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
    lines = [headers, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if number else cell.ljust(width)
            for cell, width, number in zip(line, widths, numbers, strict=True)
        ]
        stream.write("  ".join(cells).rstrip() + "\n")


def _human_text(column: str, value: Any) -> str:
    if value is not None and column.endswith("_ms"):
        return _utc(value)
    # A control character in a name must not reach the terminal.
    text = _machine_text(value)
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text) or "-"


def _machine_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _utc(time_ms: int) -> str:
    time = datetime.fromtimestamp(time_ms / 1000, UTC)
    return time.strftime("%Y-%m-%d %H:%M:%S") + f".{time_ms % 1000:03}Z"
