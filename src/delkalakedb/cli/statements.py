"""What is typed into the shell, cut into commands and SQL statements.

A line that begins with the name of a command is that command, with or without a dot
or a backslash before it. Anything else is SQL and goes on to its semicolon.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["Statement", "split"]

_BLANK = re.compile(r"(?:\s|;|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*", re.S)
_WORD = re.compile(r"[.\\]?([a-z][\w-]*)(?=[\s;]|\Z)")
_LINE = re.compile(r"[^\n]*")
_TOKEN = re.compile(
    r"""--[^\n]* | /\*.*?\*/
    | [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
    | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
    | (?P<open>/\*|'|"|\$\w*\$)
    | (?P<end>;) | \w+ | .""",
    re.S | re.X,
)


@dataclass(frozen=True)
class Statement:
    """A command's line, or a SQL statement without its semicolon."""

    text: str
    is_command: bool = False


def split(text: str, commands: Collection[str]) -> tuple[list[Statement], str]:
    """The statements that are whole, and the SQL at the end that isn't.

    Args:
        text: one line or many.
        commands: the names of the commands.
    """
    found: list[Statement] = []
    start = _skipped(text, 0)
    while start < len(text):
        word = _WORD.match(text, start)
        if word and word[1] in commands:
            end = _end_of_line(text, start)
            line = text[start:end].lstrip(".\\").rstrip("; \t\r")
            found.append(Statement(line, is_command=True))
        else:
            stop = _end_of_sql(text, start)
            if stop is None:
                break
            found.append(Statement(text[start:stop].strip()))
            end = stop + 1
        start = _skipped(text, end)
    return found, text[start:]


def _skipped(text: str, start: int) -> int:
    blank = _BLANK.match(text, start)
    return blank.end() if blank else start


def _end_of_line(text: str, start: int) -> int:
    line = _LINE.match(text, start)
    return line.end() if line else len(text)


def _end_of_sql(text: str, start: int) -> int | None:
    """Where the semicolon is; None where a text, a name or a comment is still open."""
    for token in _TOKEN.finditer(text, start):
        if token["open"]:
            return None
        if token["end"]:
            return token.start()
    return None
