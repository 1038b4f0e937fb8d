"""The parts that all commands share: the catalog, questions, progress, failures."""

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from delkalakedb.cli.output import FORMATS, Output, plain

if TYPE_CHECKING:
    from delkalakedb import Catalog, DeltaTable
    from delkalakedb.settings import Settings, Uri
    from delkalakedb.telemetry import PublishWarning


# called with what is done and the total, or None where the total isn't known
Advance = Callable[[int, int | None], None]

# exit codes, as docs/cli.md lists them
FOUND = 1
USAGE = 2
UNREACHABLE = 3
CONFLICT = 4
FAILED = 5
INTERRUPTED = 130


def failure(*errors: Exception, debug: bool) -> click.ClickException:
    """Return the exception by which click shows `errors`, with credentials redacted.

    The first error decides the exit code.
    """
    from delkalakedb.settings import redact

    kind = type("Failure", (click.ClickException,), {"exit_code": _code(errors[0])})
    text = "\n".join(_text(error, debug=debug) for error in errors)
    shown: click.ClickException = kind(redact(text))
    return shown


def _text(error: Exception, *, debug: bool) -> str:
    from delkalakedb.errors import DeltalakeDBError

    if debug:
        return "".join(traceback.format_exception(error))
    if isinstance(error, DeltalakeDBError):
        return str(error)
    return f"{type(error).__name__}: {error} (--debug shows where)"


def _code(error: Exception) -> int:
    from delkalakedb import errors

    wrong = (
        errors.UriError | errors.ConfigError | errors.PredicateError | errors.QueryError
    )
    if isinstance(error, wrong):
        return USAGE
    if isinstance(error, errors.CatalogUnavailableError) or (
        isinstance(error, errors.CatalogNotFoundError) and error.without_database
    ):
        return UNREACHABLE
    if isinstance(error, errors.CommitFailedError | errors.CatalogBusyError):
        return CONFLICT
    return FAILED


@dataclass(slots=True)
class App:
    """One run of the command."""

    uri: str | None = None
    kind: str = "text"
    quiet: bool = False
    debug: bool = False
    # errors of single tables; the command goes on with the other tables
    failed: list[Exception] = field(default_factory=list)
    # whether the command has made a commit that couldn't be published
    behind: bool = False

    @property
    def output(self) -> Output:
        """The writer of the command's answer."""
        return Output(self.kind, sys.stdout)

    @property
    def catalog_uri(self) -> str:
        """The catalog's URI, from the option, the environment or the configuration."""
        if self.uri is None:
            from delkalakedb.settings import load_settings

            configured = load_settings().catalog
            self.uri = configured.get_secret_value() if configured else None
        if not self.uri:
            raise click.UsageError(
                "no catalog: give --catalog, set DELTASQL_CATALOG, or write "
                "catalog = '...' to deltalakedb.toml"
            )
        return self.uri

    def database(self, *, create: bool = False) -> tuple["Uri", "Settings"]:
        """Return the catalog's URI and settings, without opening the catalog."""
        from delkalakedb.settings import load_settings, parse_uri

        uri = parse_uri(self.catalog_uri).catalog
        return uri, load_settings(uri=uri, sql={"schema": _policy(create)})

    def connect(self, *, create: bool = False) -> "Catalog":
        """Open the catalog; create it only if `create` is true."""
        from delkalakedb import connect

        return connect(self.catalog_uri, sql={"schema": _policy(create)})

    def table_uri(self, name: str) -> str:
        """Return the URI of the table `name` in the catalog."""
        from delkalakedb.settings import format_uri, parse_uri

        return format_uri(parse_uri(self.catalog_uri).with_table(name))

    def table(self, name: str) -> "DeltaTable":
        """Open the table `name` as a `DeltaTable`."""
        from delkalakedb import DeltaTable

        # Unlike DeltaTable, connect() never creates a catalog.
        self.connect().close()
        return DeltaTable(self.table_uri(name))

    def show_query(
        self, catalog: "Catalog", sql: str, *, limit: int | None = None
    ) -> int:
        """Write the rows of the query `sql` as they arrive, and return their number."""
        from delkalakedb.query import select

        count = 0
        with select(catalog, sql, limit=limit) as found:

            def rows() -> Iterator[dict[str, Any]]:
                nonlocal count
                for batch in found.batches:
                    for row in batch.to_pylist():
                        count += 1
                        yield plain(row)

            self.output.rows(rows(), found.schema.names)
        return count

    def say(self, text: str) -> None:
        """Write a remark to standard error, unless `--quiet` was given."""
        if not self.quiet:
            from delkalakedb.settings import redact

            click.echo(redact(text), err=True)

    def tell_unpublished(self, failure: "PublishWarning") -> None:
        """Warn that a commit isn't published, even if `--quiet` was given."""
        from delkalakedb.settings import redact

        self.behind = True
        click.echo(f"Warning: {redact(str(failure))}", err=True)

    def confirm(self, question: str, *, yes: bool) -> None:
        """Ask `question` unless `yes` is true, and exit if the answer is no."""
        if yes:
            return
        if not sys.stdin.isatty():
            raise click.UsageError(f"{question} Add --yes to confirm.")
        if not click.confirm(question, err=True):
            raise click.exceptions.Exit(1)

    @contextmanager
    def progress(self, title: str) -> Iterator[Advance]:
        """Draw a progress bar on the terminal, with the rate and the time left."""
        if self.quiet or not sys.stderr.isatty():
            yield lambda done, total: None
            return
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        console = Console(file=sys.stderr)
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(title, total=None, rate="")

            def advance(done: int, total: int | None) -> None:
                elapsed = bar.tasks[0].elapsed or 0
                rate = f"{done / elapsed:,.0f}/s" if elapsed else ""
                bar.update(task, completed=done, total=total, rate=rate)

            yield advance


def _policy(create: bool) -> Literal["create_if_missing", "error"]:
    return "create_if_missing" if create else "error"


pass_app = click.make_pass_decorator(App)


def _shared_options() -> list[click.Parameter]:
    """Return the options that are allowed before and after a command's name."""

    def option(name: str, *flags: str, **more: Any) -> click.Option:
        def keep(ctx: click.Context, _: click.Parameter, value: Any) -> None:
            if value:
                setattr(ctx.ensure_object(App), name, value)

        return click.Option(flags, expose_value=False, callback=keep, **more)

    formats = "Text with chosen columns (the default), JSON with all fields, or CSV."
    return [
        option("kind", "--output", "-o", type=click.Choice(FORMATS), help=formats),
        option("quiet", "--quiet", "-q", is_flag=True, help="Write only the answer."),
        option("debug", "--debug", is_flag=True, help="Show an error's traceback."),
    ]


class _Command(click.Command):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()


command = partial(click.command, cls=_Command)


class Group(click.Group):
    """A group of commands, which its help lists in the order of their definition."""

    command_class = _Command

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands)


class Root(Group):
    """The command `deltasql`, which turns errors into messages and exit codes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()
        self.sections: dict[str, tuple[click.Command, ...]] = {}

    def add_section(self, title: str, *commands: click.Command) -> None:
        """Add commands that the help lists below `title`."""
        self.sections[title] = commands
        for one in commands:
            self.add_command(one)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the commands to the help, section by section."""
        for title, commands in self.sections.items():
            rows = [(str(c.name), c.get_short_help_str(60)) for c in commands]
            with formatter.section(title):
                formatter.write_dl(rows)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and show an error as one message."""
        from delkalakedb.mirror.publisher import drain_loaded
        from delkalakedb.telemetry import telling

        app = ctx.ensure_object(App)
        try:
            with telling(app.tell_unpublished):
                super().invoke(ctx)
                # The commits that wait because of `mirror.mode = background`.
                drain_loaded()
        except click.exceptions.Exit as found:
            # The failure of a table outranks what the command found in other tables.
            if not app.failed and (found.exit_code or not app.behind):
                raise
        except (click.ClickException, BrokenPipeError):
            raise
        except (KeyboardInterrupt, click.Abort):
            click.echo("Interrupted; commits already made stay.", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except Exception as error:
            raise failure(*app.failed, error, debug=app.debug) from error
        if app.failed:
            raise failure(*app.failed, debug=app.debug)
        if app.behind:
            raise click.exceptions.Exit(FOUND)
