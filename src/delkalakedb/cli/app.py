"""The parts that all commands share: the catalog, questions, progress, failures."""

import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Literal, Protocol

import click

from delkalakedb.cli.output import FORMATS, Output, plain
from delkalakedb.model.display import count_of

if TYPE_CHECKING:
    from delkalakedb import Catalog, DeltaTable
    from delkalakedb.settings import Settings, Uri
    from delkalakedb.telemetry import PublishWarning


class Advance(Protocol):
    """Moves a progress bar."""

    def __call__(self, done: int, total: int | None, unit: str = "") -> None:
        """Show how much is done, of a total that may be unknown."""


# exit codes, as docs/cli.md lists them
FOUND = 1
USAGE = 2
UNREACHABLE = 3
CONFLICT = 4
FAILED = 5
INTERRUPTED = 130


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
class Shown:
    """How many rows of a query were shown, and whether there are more."""

    rows: int = 0
    more: bool = False


@dataclass(slots=True)
class App:
    """One run of the command."""

    uri: str | None = None
    kind: str = "text"
    quiet: bool = False
    debug: bool = False
    # whether tables have all columns in full, even on a terminal
    wide: bool = False
    # whether each row of a query is shown as lines of its own
    tall: bool = False
    # where answers go, if not to standard output
    stream: IO[str] | None = None
    # errors of single tables; the command goes on with the other tables
    failed: list[Exception] = field(default_factory=list)
    # whether the command has made a commit that couldn't be published
    behind: bool = False

    @property
    def output(self) -> Output:
        """The writer of the command's answer."""
        stream = self.stream or sys.stdout
        failed = bool(self.failed)
        return Output(self.kind, stream, wide=self.wide, tall=self.tall, failed=failed)

    @property
    def config(self) -> str | None:
        """The configuration file; settings find it by the environment."""
        return os.environ.get("DELKALAKEDB_CONFIG")

    @config.setter
    def config(self, path: str) -> None:
        os.environ["DELKALAKEDB_CONFIG"] = path

    @property
    def catalog_uri(self) -> str:
        """The catalog's URI, from the option, the environment or the configuration."""
        self.uri = self.uri or os.environ.get("DELTASQL_CATALOG")
        if not self.uri:
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
        self,
        catalog: "Catalog",
        sql: str,
        *,
        limit: int | None = None,
        more: bool = False,
    ) -> Shown:
        """Write the rows of the query `sql` as they arrive.

        Args:
            catalog: the catalog whose tables the query names.
            sql: the query.
            limit: the largest number of rows.
            more: write an ellipsis if the query has more rows.
        """
        from delkalakedb.query import select

        shown = Shown()
        most = limit if limit is None else limit + more
        with select(catalog, sql, limit=most) as found:

            def rows() -> Iterator[dict[str, Any]]:
                for batch in found.batches:
                    for row in batch.to_pylist():
                        if shown.rows == limit:
                            shown.more = True
                            return
                        shown.rows += 1
                        yield plain(row)

            out = self.output
            left_out = out.rows(rows(), found.schema.names)
        if shown.more and self.kind == "text":
            out.lines(["…"], "more")
        if left_out:
            self.say(f"({count_of(left_out, 'more column')}; --wide shows all)")
        return shown

    def failure(self, *errors: Exception) -> click.ClickException:
        """Return the exception by which click shows `errors`, without credentials.

        The first error decides the exit code.
        """
        from delkalakedb.settings import redact

        kind = type("Failure", (click.ClickException,), {"exit_code": _code(errors[0])})
        shown: click.ClickException = kind(redact("\n".join(map(self._text, errors))))
        return shown

    def _text(self, error: Exception) -> str:
        from delkalakedb.errors import DeltalakeDBError

        if self.debug:
            return "".join(traceback.format_exception(error))
        if isinstance(error, DeltalakeDBError):
            return str(error)
        return f"{type(error).__name__}: {error} (--debug shows where)"

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
        if not click.confirm(f"{question} (--yes skips this question)", err=True):
            raise click.exceptions.Exit(1)

    @contextmanager
    def progress(self, title: str) -> Iterator[Advance]:
        """Draw a progress bar on the terminal, with the rate and the time left.

        The bar also shows what the library reports.
        """
        from delkalakedb.progress import Progress, report, reporting

        with reporting(not self.quiet):
            yield lambda done, total, unit="": report(
                Progress(what=title, done=done, total=total, unit=unit)
            )


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

    catalog = (
        "The catalog's deltasql:// URI; ${NAME} stands for an environment variable.  "
        "[env var: DELTASQL_CATALOG]"
    )
    config = "The configuration file to use instead of deltalakedb.toml."
    formats = "Text with chosen columns (the default), JSON with all fields, or CSV."
    wide = "Show all columns in full, however narrow the terminal is."
    return [
        option("uri", "--catalog", metavar="URI", help=catalog),
        option("config", "--config", type=_CONFIG, help=config),
        option("kind", "--output", "-o", type=click.Choice(FORMATS), help=formats),
        option("wide", "--wide", is_flag=True, help=wide),
        option("quiet", "--quiet", "-q", is_flag=True, help="Write only the answer."),
        option("debug", "--debug", is_flag=True, help="Show an error's traceback."),
    ]


_CONFIG = click.Path(exists=True, dir_okay=False)


class _Command(click.Command):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()


command = partial(click.command, cls=_Command)


class Group(click.Group):
    """A group of commands, which its help lists in the order of their definition."""

    command_class = _Command

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += _shared_options()

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command of `args`; suggest one for a misspelt name."""
        name = args[0]
        known = self.get_command(ctx, name) or name.startswith("-")
        if not known and not ctx.resilient_parsing:
            raise no_such_command(name, self.commands, ctx)
        return super().resolve_command(ctx, args)


def no_such_command(
    name: str, known: Iterable[str], ctx: click.Context
) -> click.UsageError:
    """Return the error for an unknown command, with the names near it."""
    from delkalakedb.errors import did_you_mean

    return click.UsageError(f"No such command {name!r}{did_you_mean(name, known)}", ctx)


class Commands(MutableMapping[str, click.Command]):
    """Commands by their names, each imported when it is first used.

    Importing all of them costs 15 ms, a fifth of `deltasql tables`.
    """

    def __init__(self) -> None:
        self._found: dict[str, click.Command | str] = {}

    def place(self, name: str, module: str, attribute: str) -> None:
        """Say where the command `name` is defined."""
        self._found[name] = f"{module}:{attribute}"

    def __getitem__(self, name: str) -> click.Command:
        """Return a command; import its module if needed."""
        found = self._found[name]
        if isinstance(found, str):
            module, _, attribute = found.partition(":")
            one: click.Command = getattr(import_module(module), attribute)
            self._found[name] = found = one
        return found

    def __setitem__(self, name: str, one: click.Command) -> None:
        """Add a command that is imported already."""
        self._found[name] = one

    def __delitem__(self, name: str) -> None:
        """Remove a command."""
        del self._found[name]

    def __contains__(self, name: object) -> bool:
        """Return whether there is such a command, without importing it."""
        return name in self._found

    def __iter__(self) -> Iterator[str]:
        """Yield the names in the order in which they were added."""
        return iter(self._found)

    def __len__(self) -> int:
        """Return the number of commands."""
        return len(self._found)


class Root(Group):
    """The command `deltasql`, which turns errors into messages and exit codes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands: Commands = Commands()
        self.sections: dict[str, list[str]] = {}

    def add_section(self, title: str, places: Mapping[str, str]) -> None:
        """Add commands that the help lists below `title`.

        Args:
            title: the title of the section.
            places: the module below `cli/` of each command's function.
        """
        names = self.sections[title] = []
        for function, module in places.items():
            # Python's own words and types have an underscore at their end.
            name = function.rstrip("_").replace("_", "-")
            self.commands.place(name, f"delkalakedb.cli.{module}", function)
            names.append(name)

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the commands to the help, section by section."""
        for title, names in self.sections.items():
            rows = [(n, self.commands[n].get_short_help_str(60)) for n in names]
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
            raise app.failure(*app.failed, error) from error
        if app.failed:
            raise app.failure(*app.failed)
        if app.behind:
            raise click.exceptions.Exit(FOUND)
