"""The answers of commands: records as text, JSON or CSV.

Text shows chosen columns as people read them, times in UTC. On a terminal a table takes
the columns that fit, and shortens long texts; in a pipe, and with `--wide`, it has all
columns in full. CSV has these columns with values as stored. JSON has whole records.
Only the answer goes to standard output; remarks go to standard error.
"""

import csv
import json
import math
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain, islice, zip_longest
from typing import IO, Any

from delkalakedb.cli.columns import (
    GAP,
    AnyColumn,
    FittedColumns,
    Kind,
    Record,
    ShownColumn,
    cell_lines,
    colour_of,
    column_of,
    fields_of,
    fit,
    is_number,
    machine_text,
)
from delkalakedb.model.display import cut_end, text_width, wrapped
from delkalakedb.model.times import from_ms
from delkalakedb.settings import redact

FORMATS = ("text", "json", "csv")
# records; the columns of so many are aligned with each other
_PAGE_ROWS = 1000
_BOLD = 1
# A sentence about a change, and the record of the change.
Change = tuple[str, Record]


class Output:
    """The writer of a command's answer, in the format `kind`.

    Args:
        kind: `text`, `json` or `csv`.
        stream: where the answer goes.
        wide: show all columns in full even on a terminal.
        tall: show each row of a query as lines of its own.
        failed: an error follows, which says why an answer is empty.
    """

    def __init__(
        self,
        kind: str,
        stream: IO[str],
        *,
        wide: bool = False,
        tall: bool = False,
        failed: bool = False,
    ) -> None:
        self.kind = kind
        self.stream = stream
        self._wide = wide
        self._tall = tall
        self._failed = failed

    def rows(self, rows: Iterable[Record], names: Sequence[str]) -> int:
        """Write rows of a query; return how many of their columns didn't fit."""
        if self.kind != "text":
            self._write(rows, names)
            return 0
        columns = [ShownColumn(name, header=name, kind="data") for name in names]
        if self._tall:
            for number, row in enumerate(rows, 1):
                self.stream.write(f"-- row {number}\n")
                self._write_lines(row, columns)
            return 0
        return self._write_table(rows, columns)

    def records(
        self, records: Iterable[Record], columns: Sequence[AnyColumn], empty: str = ""
    ) -> None:
        """Write records; text and CSV show `columns`.

        Args:
            records: the records, which JSON has in whole.
            columns: names of fields, or columns.
            empty: the sentence that text has instead of an empty table.
        """
        masked = map(_masked, records)
        if self.kind == "text":
            first = next(masked, None)
            if first is None and empty:
                self.sentences([] if self._failed else [empty])
                return
            rows = masked if first is None else chain([first], masked)
            self._write_table(rows, [column_of(column) for column in columns])
        else:
            self._write(map(timed, masked), fields_of(columns))

    def record(
        self, record: Record, columns: Sequence[AnyColumn] | None = None
    ) -> None:
        """Write one record: as text a line for each column, as JSON one object."""
        record, shown = _masked(record), list(record) if columns is None else columns
        if self.kind == "json":
            self.document(timed(record))
        elif self.kind == "csv":
            _write_csv([record], fields_of(shown), self.stream)
        else:
            self._write_lines(record, [column_of(column) for column in shown])

    def changed(
        self,
        sentence: str,
        record: Record,
        columns: Sequence[AnyColumn] | None = None,
    ) -> None:
        """Write what a command did: as text a sentence, otherwise the record."""
        if self.kind == "text":
            self.sentences([sentence])
        else:
            self.record(record, columns)

    def changes(
        self, changes: Iterable[Change], columns: Sequence[AnyColumn], empty: str
    ) -> None:
        """Write what a command did to several tables: one sentence for each."""
        if self.kind == "text":
            found = [sentence for sentence, _ in changes]
            self.sentences(found if found or self._failed else [empty])
        else:
            self.records((record for _, record in changes), columns)

    def sentences(self, sentences: Iterable[str]) -> None:
        """Write sentences, which a terminal breaks between words."""
        for sentence in sentences:
            text = redact(sentence)
            if self._room is not None:
                text = "\n".join(wrapped(text, self._room, cut=False))
            self.stream.write(f"{text}\n")

    def document(self, value: Any) -> None:
        """Write one JSON value."""
        self.stream.write(_json(value, indent=2) + "\n")

    def lines(self, lines: Iterable[str], key: str) -> None:
        """Write lines of text; JSON and CSV get a record with `key` for each line."""
        if self.kind == "text":
            self.stream.writelines(f"{line}\n" for line in lines)
        else:
            self.records(({key: line} for line in lines), [key])

    def _write(self, records: Iterable[Record], names: Sequence[str]) -> None:
        write = {"json": _write_json, "csv": _write_csv}
        write[self.kind](records, names, self.stream)

    @property
    def _room(self) -> int | None:
        """The width of the terminal; None if nothing is to be cut."""
        if self._wide or not self.stream.isatty():
            return None
        return max(shutil.get_terminal_size().columns, 20)

    def _write_table(
        self, rows: Iterable[Record], columns: Sequence[ShownColumn]
    ) -> int:
        """Write a table; return how many columns didn't fit."""
        table = _Table(columns, self._room, self.stream)
        for page in _pages(rows):
            table.write(page)
        return table.left_out

    def _write_lines(self, record: Record, columns: Sequence[ShownColumn]) -> None:
        width = max((text_width(column.title) for column in columns), default=0)
        room = None if self._room is None else max(self._room - width - GAP, 10)
        for column in columns:
            text = column.text(record)
            lines = [text] if room is None else _folded(column, text, room)
            title = column.title
            for line in lines:
                blank = " " * (width + GAP - text_width(title))
                shown = _coloured(line, column, self.stream)
                self.stream.write(f"{title}{blank}{shown}\n")
                title = ""


def _folded(column: ShownColumn, text: str, room: int) -> list[str]:
    # A record has room for a text of several lines, which a table cuts.
    form: Kind = "path" if column.form == "path" else "prose"
    return cell_lines(text, form, room)


class _Table:
    """A table that is written page by page.

    The first page decides which columns fit a terminal.
    """

    def __init__(
        self, columns: Sequence[ShownColumn], room: int | None, stream: IO[str]
    ) -> None:
        self._columns = columns
        self._room = room
        self._stream = stream
        self._layout: FittedColumns | None = None

    @property
    def left_out(self) -> int:
        """The number of columns that don't fit."""
        return self._layout.left_out if self._layout else 0

    def write(self, page: Sequence[Record]) -> None:
        """Write some rows, the first of them below the titles."""
        columns, numbers = self._columns, self._numbers(page)
        texts = [[column.text(row) for column in columns] for row in page]
        titles = [column.title for column in columns] if self._layout is None else None
        if self._layout is None or self._room is None:
            lines = texts if titles is None else [titles, *texts]
            needed = [max(map(text_width, cells)) for cells in zip(*lines, strict=True)]
            self._layout = fit(columns, needed, self._room, numbers)
        widths = self._layout.widths
        if titles is not None:
            line = self._line(
                [cut_end(titles[i], w) for i, w in widths.items()], numbers
            )
            self._stream.write(_styled(line, _BOLD, self._stream) + "\n")
        for row in texts:
            cells = [
                [row[i]] if i in numbers else cell_lines(row[i], columns[i].form, width)
                for i, width in widths.items()
            ]
            for parts in zip_longest(*cells, fillvalue=""):
                self._stream.write(self._line(parts, numbers, row) + "\n")

    def _numbers(self, page: Sequence[Record]) -> set[int]:
        """Return the positions of the columns that are aligned to the right."""
        return {
            index
            for index, column in enumerate(self._columns)
            if page and all(is_number(column, row) for row in page)
        }

    def _line(
        self, cells: Sequence[str], numbers: Collection[int], row: Sequence[str] = ()
    ) -> str:
        """Return a line with `cells`, which are parts of `row` or titles."""
        assert self._layout is not None
        parts = []
        for cell, (index, width) in zip(
            cells, self._layout.widths.items(), strict=True
        ):
            whole = bool(row) and cell == row[index]
            text = (
                _coloured(cell, self._columns[index], self._stream) if whole else cell
            )
            blank = " " * (width - text_width(cell))
            parts.append(blank + text if index in numbers else text + blank)
        return (" " * GAP).join(parts).rstrip()


def _coloured(text: str, column: ShownColumn, stream: IO[str]) -> str:
    code = colour_of(text) if column.form == "state" else None
    return text if code is None else _styled(text, code, stream)


def _styled(text: str, code: int, stream: IO[str]) -> str:
    """Return `text` in a colour or in bold, if the terminal is to show it."""
    plain_text = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if plain_text or not stream.isatty():
        return text
    return f"\x1b[{code}m{text}\x1b[0m"


def _pages(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Split `records` into pages of `_PAGE_ROWS`; yield one empty page for none."""
    left = iter(records)
    page = list(islice(left, _PAGE_ROWS))
    yield page
    while page := list(islice(left, _PAGE_ROWS)):
        yield page


def _masked(record: Record) -> Record:
    """Mask a password in a table's name, which older versions accepted as a URI."""
    uris = {k: v for k in ("name", "table") if "://" in str(v := record.get(k))}
    return {**record, **{k: redact(str(v)) for k, v in uris.items()}}


def timed(record: Record) -> Record:
    """Add a time in ISO 8601 after each time in milliseconds; parse a schema's JSON."""
    found: dict[str, Any] = {}
    for name, value in record.items():
        if name == "schema_string" and isinstance(value, str):
            found["schema"] = json.loads(value)
            continue
        found[name] = value
        if name.endswith("_ms"):
            time = (
                None if value is None else from_ms(value).isoformat("T", "milliseconds")
            )
            found[name.removesuffix("_ms")] = time and time.replace("+00:00", "Z")
    return found


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


def _json(value: Any, indent: int | None = None) -> str:
    # Dates, decimals and bytes become text, because JSON has no form for them.
    return json.dumps(value, ensure_ascii=False, default=str, indent=indent)


def _write_json(
    records: Iterable[Record], columns: Sequence[str], stream: IO[str]
) -> None:
    before = "[\n"
    for record in records:
        stream.write(before + _json(dict(record)))
        before = ",\n"
    stream.write("[]\n" if before == "[\n" else "\n]\n")


def _write_csv(
    records: Iterable[Record], columns: Sequence[str], stream: IO[str]
) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    for record in records:
        writer.writerow([machine_text(record[column]) for column in columns])
