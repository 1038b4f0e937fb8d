"""Arguments and options that several commands take."""

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from delkalakedb.cli.app import App

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

__all__ = [
    "DURATION",
    "NAMES",
    "PAIR",
    "TABLE",
    "TIME",
    "at_options",
    "dry_run_option",
    "outside_files_option",
    "where_option",
    "yes_option",
]

_F = TypeVar("_F", bound=Callable[..., Any])

_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


class _TableName(click.ParamType[str]):
    name = "table"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list["CompletionItem"]:
        """The catalog's tables whose names begin so."""
        from click.shell_completion import CompletionItem

        given = ctx.find_root().params.get("catalog")
        try:
            with App(given or os.environ.get("DELTASQL_CATALOG")).connect() as catalog:
                names = [table.name for table in catalog.tables()]
        except Exception:
            # The line that is being typed is no place for an error.
            return []
        return [CompletionItem(n) for n in names if n.startswith(incomplete)]


class _Time(click.ParamType[int]):
    name = "time"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Milliseconds since the epoch; a time without a zone is in UTC."""
        if isinstance(value, int):
            return value
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} isn't a time like 2026-01-31T12:00:00Z", param, ctx)
        aware = time if time.tzinfo else time.replace(tzinfo=UTC)
        return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


class _Duration(click.ParamType[timedelta]):
    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        """A number and a unit, such as 7d or 12h."""
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([wdhms])", value)
        if not found:
            self.fail(f"{value!r} isn't a duration like 7d, 12h or 90m", param, ctx)
        return timedelta(**{_UNITS[found[2]]: float(found[1])})


class _Names(click.ParamType[tuple[str, ...]]):
    name = "a,b"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Names between commas."""
        if isinstance(value, tuple):
            return value
        return tuple(name.strip() for name in value.split(","))


class _Pair(click.ParamType[tuple[str, str]]):
    name = "name=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """A name and its value."""
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not (name and equals):
            # Not the text itself: it may be a secret.
            self.fail("this is written NAME=VALUE", param, ctx)
        return name.strip(), text.strip()


DURATION = _Duration()
NAMES = _Names()
PAIR = _Pair()
TABLE = _TableName()
TIME = _Time()


def at_options(command: _F) -> _F:
    """`--version` and `--timestamp` (`timestamp_ms`): the table as it was."""
    version = click.option(
        "--version", type=click.IntRange(min=0), help="As of this version."
    )
    timestamp = click.option(
        "--timestamp",
        "timestamp_ms",
        type=TIME,
        help="As of this time, such as 2026-01-31T12:00:00Z.",
    )
    return version(timestamp(command))


def where_option(text: str) -> Callable[[_F], _F]:
    """`--where SQL`."""
    return click.option("--where", metavar="SQL", help=text)


def yes_option(command: _F) -> _F:
    """`--yes`."""
    return click.option("--yes", "-y", is_flag=True, help="Don't ask.")(command)


def outside_files_option(command: _F) -> _F:
    """`--outside-files`."""
    text = (
        "Take a shallow clone: absolute paths may name files of another location, "
        "which are read and never deleted."
    )
    return click.option("--outside-files", is_flag=True, help=text)(command)


def dry_run_option(command: _F) -> _F:
    """`--dry-run`."""
    text = "Only say what would be done."
    return click.option("--dry-run", is_flag=True, help=text)(command)
