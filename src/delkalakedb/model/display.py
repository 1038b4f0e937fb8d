"""Sizes, times, long texts and syntax errors as people read them."""

import unicodedata
from collections.abc import Sequence
from textwrap import wrap
from typing import Any

from delkalakedb.model.times import from_ms
from delkalakedb.settings import uncoloured

_UNITS = ("KB", "MB", "GB", "TB", "PB", "EB")
# seconds in a unit, and the unit's name
_SPANS = ((86_400, "d"), (3_600, "h"), (60, "min"))
_GAP = "…"


def format_size(size_bytes: int) -> str:
    """Return a number of bytes as text such as `3.1 KB`; 1 KB is 1024 bytes."""
    size, unit = float(size_bytes), "B"
    for larger in _UNITS:
        # 1023.95 and above would be shown as 1024.0.
        if abs(size) < 1023.95:
            break
        size, unit = size / 1024, larger
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def format_minute(time_ms: int) -> str:
    """Return a time in milliseconds since the epoch as `2026-11-18 02:36`, in UTC."""
    return from_ms(time_ms).strftime("%Y-%m-%d %H:%M")


def format_span(seconds: float) -> str:
    """Return a duration as text such as `0.3 s`, `12 s`, `5 min` or `2.5 h`."""
    for length, unit in _SPANS:
        if seconds >= length:
            return f"{_rounded(seconds / length)} {unit}"
    return f"{_rounded(seconds)} s"


def _rounded(number: float) -> str:
    text = f"{number:.1f}" if number < 10 else f"{number:.0f}"
    return text.removesuffix(".0")


def format_change(added: int, removed: int) -> str:
    """Return the change of a number of files, such as `+2 −1 files`."""
    parts = [f"+{added}"] * bool(added) + [f"−{removed}"] * bool(removed)
    noun = "file" if added + removed == 1 else "files"
    return f"{' '.join(parts)} {noun}" if parts else "-"


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun in the right form, such as `1 file`, `2 files`."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number:,} {plural}"


def listed(names: Sequence[str]) -> str:
    """Return names as an enumeration, such as `a, b and c`."""
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last


def text_width(text: str) -> int:
    """Return how many columns of a terminal `text` takes."""
    if text.isascii():
        return len(text)
    return sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def cut_end(text: str, width: int) -> str:
    """Return `text` with an ellipsis for its end if it is wider than `width`."""
    if text_width(text) <= width:
        return text
    return _beginning(text, width - 1) + _GAP


def cut_middle(text: str, width: int) -> str:
    """Return `text` with an ellipsis for its middle if it is wider than `width`."""
    if text_width(text) <= width:
        return text
    # The end of a path says more than its beginning.
    start = _beginning(text, (width - 1) // 3)
    end = _beginning(text[::-1], width - 1 - text_width(start))[::-1]
    return f"{start}{_GAP}{end}"


def _beginning(text: str, width: int) -> str:
    taken = 0
    for index, char in enumerate(text):
        taken += _char_width(char)
        if taken > width:
            return text[:index]
    return text


def wrapped(text: str, width: int, *, cut: bool = True) -> list[str]:
    """Return `text` in lines broken between words.

    Args:
        text: one paragraph.
        width: the greatest width of a line.
        cut: shorten a word that is wider than a line in its middle.
    """
    lines = wrap(text, width, break_long_words=False, break_on_hyphens=False)
    return [cut_middle(line, width) if cut else line for line in lines] or [""]


def syntax_problem(error: Any, before: int = 0) -> str:
    """Return what an error of sqlglot says, without the names of its classes.

    Args:
        error: the error.
        before: characters that were put before the user's text.
    """
    if not (found := getattr(error, "errors", None)):
        return uncoloured(str(error)).splitlines()[0]
    problem, near = found[0]["description"], found[0]["highlight"]
    what = "unexpected text"
    if problem.startswith("Expecting "):
        what = problem.replace("Expecting", "expected", 1)
    elif problem.startswith("Required keyword"):
        what = "an operand is missing"
    # sqlglot counts to the end of a token.
    line, column = found[0]["line"], found[0]["col"] - len(near) + 1
    where = f"line {line}, column {column}" if line > 1 else f"column {column - before}"
    return f"{what} at {near!r}, {where}"
