"""What every command shares: the catalog, the output, questions, progress.

Only click is imported at the top of the modules here, so that `--help` is quick.
"""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from delkalakedb.cli.failures import FOUND, INTERRUPTED, failure
from delkalakedb.cli.output import FORMATS, Output
from delkalakedb.cli.progress import Advance, progress

if TYPE_CHECKING:
    from delkalakedb import Catalog, DeltaTable
    from delkalakedb.config import Settings
    from delkalakedb.telemetry import PublishWarning
    from delkalakedb.uri import Uri

__all__ = ["App", "Group", "Root", "command", "pass_app"]

_FOR_CLICK = (click.ClickException, BrokenPipeError)


@dataclass(slots=True)
class App:
    """One run of the command."""

    uri: str | None = None
    kind: str = "text"
    quiet: bool = False
    debug: bool = False
    # Of tables among several, the others of which were done.
    failed: list[Exception] = field(default_factory=list)
    # Whether a commit stands that couldn't be published.
    behind: bool = False

    @property
    def output(self) -> Output:
        """Where the answer goes."""
        return Output(self.kind, sys.stdout)

    @property
    def catalog_uri(self) -> str:
        """The catalog's URI: the option, the environment, or the configuration."""
        if self.uri is None:
            from delkalakedb.config import load_settings

            configured = load_settings().catalog
            self.uri = configured.get_secret_value() if configured else None
        if not self.uri:
            raise click.UsageError(
                "no catalog: give --catalog, set DELTASQL_CATALOG, or write "
                "catalog = '...' to deltalakedb.toml"
            )
        return self.uri

    def database(self, *, create: bool = False) -> tuple["Uri", "Settings"]:
        """The catalog's database, for what is done without opening the catalog."""
        from delkalakedb.config import load_settings
        from delkalakedb.uri import parse_uri

        uri = parse_uri(self.catalog_uri).catalog
        return uri, load_settings(uri=uri, sql={"schema": _policy(create)})

    def connect(self, *, create: bool = False) -> "Catalog":
        """The catalog; looking at one never creates it."""
        from delkalakedb import connect

        return connect(self.catalog_uri, sql={"schema": _policy(create)})

    def table_uri(self, name: str) -> str:
        """The URI of a table in the catalog."""
        from delkalakedb.uri import format_uri, parse_uri

        return format_uri(parse_uri(self.catalog_uri).with_table(name))

    def table(self, name: str) -> "DeltaTable":
        """A table as deltalake's users know it."""
        from delkalakedb import DeltaTable

        self.connect().close()
        return DeltaTable(self.table_uri(name))

    def say(self, text: str) -> None:
        """Tell people something that isn't the answer."""
        if not self.quiet:
            from delkalakedb.redaction import redact

            click.echo(redact(text), err=True)

    def tell_unpublished(self, failure: "PublishWarning") -> None:
        """Say at once, even when quiet, that a commit isn't published."""
        from delkalakedb.redaction import redact

        self.behind = True
        click.echo(f"Warning: {redact(str(failure))}", err=True)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask before something is destroyed, unless `--yes` was given."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise click.UsageError(f"{question} Add --yes if that is meant.")
        if not click.confirm(question, err=True):
            raise click.exceptions.Exit(1)

    def progress(self, title: str) -> AbstractContextManager[Advance]:
        """A bar on the terminal; call it with (done, total or None)."""
        return progress(sys.stderr, title, quiet=self.quiet)


def _policy(create: bool) -> Literal["create_if_missing", "error"]:
    return "create_if_missing" if create else "error"


pass_app = click.make_pass_decorator(App)


def _keep(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _: click.Parameter, value: Any) -> None:
        if value:
            setattr(ctx.ensure_object(App), name, value)

    return callback


def _shared_options() -> list[click.Parameter]:
    """The options that may stand before and after a command's name."""
    return [
        click.Option(
            ["--output", "-o"],
            type=click.Choice(FORMATS),
            expose_value=False,
            callback=_keep("kind"),
            help="Text for people (the default), JSON with everything, or CSV.",
        ),
        click.Option(
            ["--quiet", "-q"],
            is_flag=True,
            expose_value=False,
            callback=_keep("quiet"),
            help="Only the answer: no progress, no remarks.",
        ),
        click.Option(
            ["--debug"],
            is_flag=True,
            expose_value=False,
            callback=_keep("debug"),
            help="Show the traceback of an error.",
        ),
    ]


class _Command(click.Command):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()


command = partial(click.command, cls=_Command)


class Group(click.Group):
    """Commands below one name, in the order in which they are defined."""

    command_class = _Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands."""
        return list(self.commands)


class Root(Group):
    """The command itself: turns errors into messages and exit codes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()
        self.sections: dict[str, tuple[click.Command, ...]] = {}

    def add_section(self, title: str, *commands: click.Command) -> None:
        """Add commands that the help shows below a title."""
        self.sections[title] = commands
        for one in commands:
            self.add_command(one)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the commands, section by section."""
        for title, commands in self.sections.items():
            rows = [(str(c.name), c.get_short_help_str(60)) for c in commands]
            with formatter.section(title):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run, and show an error as one message."""
        from delkalakedb.telemetry import telling

        app = ctx.ensure_object(App)
        try:
            with telling(app.tell_unpublished):
                super().invoke(ctx)
                _publish_rest()
        except click.exceptions.Exit as found:
            # That a table failed says more than what was found in the others.
            if not app.failed and (found.exit_code or not app.behind):
                raise
        except _FOR_CLICK:
            raise
        except (KeyboardInterrupt, click.Abort):
            click.echo("Interrupted; what was committed stays.", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except Exception as error:
            raise failure(*app.failed, error, debug=app.debug) from error
        if app.failed:
            raise failure(*app.failed, debug=app.debug)
        if app.behind:
            raise click.exceptions.Exit(FOUND)


def _publish_rest() -> None:
    """Wait, with `mirror.mode = background`, for what the command has committed."""
    if (background := sys.modules.get("delkalakedb.mirror.background")) is not None:
        background.drain()
