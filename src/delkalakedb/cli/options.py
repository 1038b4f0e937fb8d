"""Arguments and options that several commands share."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from delkalakedb.cli.app import App
from delkalakedb.clock import now_ms
from delkalakedb.model.times import duration_ms, parse_utc, to_ms

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")

_DAY_MS = 86_400_000
_DAYS_AGO = {"today": 0, "yesterday": 1}
_UNITS = {"w": "weeks", "d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


class _TableName(click.ParamType[str]):
    name = "table"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list["CompletionItem"]:
        """Return the catalog's tables whose names begin with `incomplete`."""
        from click.shell_completion import CompletionItem

        try:
            with ctx.ensure_object(App).connect() as catalog:
                names = [table.name for table in catalog.tables()]
        except Exception:
            # An error message would garble the line that the user is typing.
            return []
        return [CompletionItem(n) for n in names if n.startswith(incomplete)]


class Parsed(click.ParamType[_T]):
    """The type of an option whose text a function parses."""

    def __init__(self, name: str, parse: Callable[[str], _T]) -> None:
        self.name = name
        self._parse = parse

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> _T:
        """Parse `value`, unless it is a default or parsed already."""
        return self._parse(value) if isinstance(value, str) else value


def _parse_time_ms(text: str) -> int:
    """Parse a time, a duration before now, `today` or `yesterday`."""
    if text in _DAYS_AGO:
        midnight_ms = now_ms() // _DAY_MS * _DAY_MS
        return midnight_ms - _DAYS_AGO[text] * _DAY_MS
    try:
        return now_ms() - duration_ms(_parse_duration(text))
    except click.BadParameter:
        pass
    try:
        return to_ms(parse_utc(text))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} isn't a time like 2026-01-31T12:00:00Z, 1d or yesterday"
        ) from None


def _parse_duration(text: str) -> timedelta:
    found = re.fullmatch(r"(\d{1,6}(?:\.\d+)?)([wdhms])", text)
    if not found:
        raise click.BadParameter(f"{text!r} isn't a duration like 7d, 12h or 90m")
    return timedelta(**{_UNITS[found[2]]: float(found[1])})


def _parse_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _parse_pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        # The message doesn't quote the text, because it may hold a secret.
        raise click.BadParameter("write NAME=VALUE")
    return name.strip(), value.strip()


DURATION = Parsed("duration", _parse_duration)
NAMES = Parsed("a,b", _parse_names)
PAIR = Parsed("name=value", _parse_pair)
TABLE = _TableName()
TIME = Parsed("time", _parse_time_ms)


def at_options(command: _F) -> _F:
    """Add the options `--version` and `--timestamp` (as `timestamp_ms`)."""
    version = click.option(
        "--version", type=click.IntRange(min=0), help="The table at this version."
    )
    timestamp = click.option(
        "--timestamp",
        "timestamp_ms",
        type=TIME,
        help="The table at this time: 2026-01-31T12:00:00Z, 1d (ago), or yesterday.",
    )
    return version(timestamp(command))


def limit_option(
    things: str, *, least: int = 0, default: int | None = None
) -> Callable[[_F], _F]:
    """Return the option `--limit`, which bounds the number of `things` shown."""
    return click.option(
        "-n",
        "--limit",
        type=click.IntRange(min=least),
        default=default,
        show_default=True,
        metavar="N",
        help=f"Show at most N {things}.",
    )


def since_option(text: str, default: str | None = None) -> Callable[[_F], _F]:
    """Return the option `--since` (as `since_ms`) with the help `text`."""
    return click.option(
        "--since",
        "since_ms",
        type=TIME,
        default=default,
        show_default=True,
        help=text,
    )


def commits_options(command: _F) -> _F:
    """Add the options that select commits: times, an operation and an actor."""
    for option in (
        click.option("--actor", help="Only commits of this user, host or client."),
        click.option("--operation", help="Only this operation, such as MERGE."),
        click.option(
            "--until", "until_ms", type=TIME, help="Only commits up to this time."
        ),
        since_option("Only commits from this time on: 2026-01-31, 1d, or yesterday."),
    ):
        command = option(command)
    return command


def where_option(text: str) -> Callable[[_F], _F]:
    """Return the option `--where SQL` with the help `text`."""
    return click.option("--where", metavar="SQL", help=text)


yes_option = click.option("--yes", "-y", is_flag=True, help="Don't ask to confirm.")
dry_run_option = click.option(
    "--dry-run", is_flag=True, help="Show what would be done, and change nothing."
)
deep_option = click.option(
    "--deep", is_flag=True, help="Verify every version, and that data files exist."
)
outside_files_option = click.option(
    "--outside-files",
    is_flag=True,
    help="Accept a shallow clone, whose log names files of another location by "
    "absolute paths. Those files are read and never deleted.",
)
