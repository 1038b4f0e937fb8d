"""`deltasql shell`, which runs SQL statements and commands."""

import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from delkalakedb.cli.app import INTERRUPTED, App, command, failure, pass_app

if TYPE_CHECKING:
    from delkalakedb import Catalog


# Texts, because every command imports this module, and few run the shell.
_BLANK = r"(?s)(?:\s|;|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*"
_WORD = r"[.\\]?([a-z][\w-]*)(?=[\s;]|\Z)"
_TOKEN = r"""(?sx)--[^\n]* | /\*.*?\*/
    | [eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
    | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$
    | (?P<open>/\*|'|"|\$\w*\$)
    | (?P<end>;) | \w+ | ."""


@dataclass(frozen=True)
class ShellInput:
    """One command line, or one SQL statement without its semicolon."""

    text: str
    is_command: bool = False


def split(text: str, commands: Collection[str]) -> tuple[list[ShellInput], str]:
    """Return the complete statements in `text`, and the incomplete SQL at its end.

    Args:
        text: one or more lines.
        commands: the names of the commands.
    """
    found: list[ShellInput] = []
    start = _skipped(text, 0)
    while start < len(text):
        word = re.compile(_WORD).match(text, start)
        if word and word[1] in commands:
            line = text[start:].partition("\n")[0]
            end = start + len(line)
            line = line.lstrip(".\\").rstrip("; \t\r")
            found.append(ShellInput(line, is_command=True))
        else:
            stop = _end_of_sql(text, start)
            if stop is None:
                break
            found.append(ShellInput(text[start:stop].strip()))
            end = stop + 1
        start = _skipped(text, end)
    return found, text[start:]


def _skipped(text: str, start: int) -> int:
    blank = re.compile(_BLANK).match(text, start)
    return blank.end() if blank else start


def _end_of_sql(text: str, start: int) -> int | None:
    """Return the position of the semicolon, or None if the statement is incomplete."""
    for token in re.compile(_TOKEN).finditer(text, start):
        if token["open"]:
            return None
        if token["end"]:
            return token.start()
    return None


_OWN = ("exit", "help", "quit")
# rows that a query shows at the prompt
_PROMPT_ROWS = 1_000


@command(epilog="Example: deltasql shell --file report.sql --output csv")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False),
    help="Run the statements of this file, then exit.",
)
@click.option("--keep-going", is_flag=True, help="Continue a file after an error.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Show at most N rows of a query.  [default at the prompt: {_PROMPT_ROWS}]",
)
@pass_app
def shell(app: App, /, file: str | None, keep_going: bool, limit: int | None) -> None:
    """Open a prompt for SQL queries and commands, or run a file of them.

    A query ends with a semicolon; a command is typed without `deltasql`. The Tab key
    completes commands, tables and columns. Ctrl-C stops a statement, Ctrl-D exits.
    Statements can also come from a pipe. The first error in a pipe or a file ends the
    run with the exit code of the error.
    """
    root = click.get_current_context().find_root().command
    assert isinstance(root, click.Group)
    with app.connect() as catalog:
        session = _Session(app, catalog, root, limit)
        if file is None and sys.stdin.isatty():
            session.talk()
            return
        with click.open_file(file or "-", encoding="utf-8") as stream:
            code = session.run_all(stream, keep_going=keep_going)
    if code:
        raise click.exceptions.Exit(code)


@dataclass
class _Session:
    _app: App
    _catalog: "Catalog"
    _root: click.Group
    _limit: int | None
    _left: bool = False

    @property
    def _names(self) -> set[str]:
        return {*self._root.commands, *_OWN} - {"shell"}

    def talk(self) -> None:
        """Prompt for statements until the user exits."""
        from delkalakedb.cli.prompt import make_prompt

        uri = self._app.catalog_uri
        ask = make_prompt(self._root, self._catalog, uri, self._rest)
        self._app.say("end SQL with ;  type help for the commands  Ctrl-D exits")
        while not self._left:
            try:
                text = ask()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            for statement in self._statements(text):
                if self._run(statement, self._show_page):
                    break

    def run_all(self, lines: Iterable[str], *, keep_going: bool) -> int:
        """Run statements as their lines arrive; return the first error's exit code."""
        first = 0
        for statement in self._parsed(lines):
            code = self._run(statement, self._show)
            first = first or code
            if self._left or code == INTERRUPTED or (code and not keep_going):
                break
        return first

    def _parsed(self, lines: Iterable[str]) -> Iterator[ShellInput]:
        text = ""
        for line in lines:
            found, text = split(text + line, self._names)
            yield from found
        yield from self._statements(text)

    def _statements(self, text: str) -> list[ShellInput]:
        """Return all statements in `text`, of which the last may lack its semicolon."""
        return split(f"{text}\n;", self._names)[0]

    def _rest(self, text: str) -> str:
        return split(text, self._names)[1]

    def _run(self, statement: ShellInput, show: Callable[[str], None]) -> int:
        """Run `statement` and return its exit code."""
        try:
            if statement.is_command:
                return self._command(shlex.split(statement.text))
            show(statement.text)
        except click.ClickException as error:
            return _shown(error)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            return INTERRUPTED
        except Exception as error:
            return _shown(failure(error, debug=self._app.debug))
        return 0

    def _show(self, sql: str) -> None:
        self._app.show_query(self._catalog, sql, limit=self._limit)

    def _show_page(self, sql: str) -> None:
        most = _PROMPT_ROWS if self._limit is None else self._limit
        rows = self._app.show_query(self._catalog, sql, limit=most)
        cut = ", maybe more: see --limit" if rows == most else ""
        self._app.say(f"({rows} row{'' if rows == 1 else 's'}{cut})")

    def _command(self, words: list[str]) -> int:
        if words[0] in ("exit", "quit"):
            self._left = True
            return 0
        if words[0] == "help":
            words = [*words[1:], "--help"]
        app = self._app
        flags = ["--quiet"] * app.quiet + ["--debug"] * app.debug
        given = ["--catalog", app.catalog_uri, "--output", app.kind, *flags]
        code: Any = self._root.main(
            [*given, *words], prog_name="deltasql", standalone_mode=False
        )
        return code if isinstance(code, int) else 0


def _shown(error: click.ClickException) -> int:
    error.show()
    return error.exit_code
