"""`deltasql shell`, which runs SQL statements and commands."""

import io
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from delkalakedb.cli.app import INTERRUPTED, App, command, pass_app
from delkalakedb.model.display import count_of

if TYPE_CHECKING:
    from delkalakedb import Catalog


# Texts, because every command imports this module, and few run the shell.
_BLANK = r"(?s)(?:\s|;|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*"
_WORD = r"[.\\]?([a-z][\w-]*)(?=[\s;]|\Z)"
_BACKSLASH = r"\\|\.[a-z]"
# the one word that begins a command and a query
_DESCRIBE = r"(?i)(describe)\s+(?!\s|(?:select|from|with|values|table|summarize)\b|\()"
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
        line = text[start:].partition("\n")[0]
        if command_line := _command_in(line, commands):
            end = start + len(line)
            found.append(ShellInput(command_line, is_command=True))
        else:
            stop = _end_of_sql(text, start)
            if stop is None:
                break
            found.append(ShellInput(text[start:stop].strip()))
            end = stop + 1
        start = _skipped(text, end)
    return found, text[start:]


def _command_in(line: str, commands: Collection[str]) -> str | None:
    """Return the command that `line` is, or None if it begins SQL."""
    bare = line.rstrip("; \t\r")
    if "describe" in commands and (word := re.match(_DESCRIBE, bare)):
        return f"describe{bare[word.end(1) :]}"
    word = re.match(_WORD, line)
    if word and word[1] in commands and word[1] != "describe":
        return bare.lstrip(".\\")
    if word and word[1] == "describe" and bare.lower().lstrip(".\\") == "describe":
        return "describe"
    # Unknown names, too, because no SQL begins so.
    return bare if re.match(_BACKSLASH, line) else None


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


_OWN = ("exit", "quit")
_SWITCHES = ("x", "timing")
# the commands of psql and sqlite3 for which another command stands
_ALIASES = {"q": "quit", "dt": "tables", "d": "describe", "h": "help"}
_HELP = (
    ("\\d [TABLE]", "describe a table, or list the tables"),
    ("\\dt  .tables", "list the tables"),
    ("\\x", "show each row of a query as lines of its own, or as a table again"),
    ("\\timing", "show how long each statement takes, or no longer"),
    ("\\q  exit", "leave the shell"),
    ("help [COMMAND]", "list the commands of deltasql, or explain one"),
)
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
    "-n",
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Show at most N rows of a query.  [default at the prompt: {_PROMPT_ROWS}]",
)
@pass_app
def shell(app: App, /, file: str | None, keep_going: bool, limit: int | None) -> None:
    """Open a prompt for SQL and commands, or run a file.

    A query ends with a semicolon; a command is typed without `deltasql`. A line that
    begins with a backslash is a command, too: \\? lists them. The Tab key
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
    _timing: bool = False

    @property
    def _names(self) -> set[str]:
        return {*self._root.commands, *_OWN} - {"shell"}

    def talk(self) -> None:
        """Prompt for statements until the user exits."""
        from delkalakedb.cli.prompt import make_prompt

        uri = self._app.catalog_uri
        ask = make_prompt(self._root, self._catalog, uri, self._rest)
        self._greet()
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

    def _greet(self) -> None:
        from importlib.metadata import version

        tables = count_of(len(self._catalog.tables()), "table")
        self._app.say(
            f"deltasql {version('delkalakedb')} on {self._catalog.uri} ({tables})\n"
            "end SQL with ;  \\? lists the commands  Ctrl-D exits"
        )

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
        started, timing = time.monotonic(), self._timing
        try:
            if statement.is_command:
                return self._command(_words(statement.text))
            show(statement.text)
        except click.ClickException as error:
            return _shown(error)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            return INTERRUPTED
        except Exception as error:
            return _shown(self._app.failure(error))
        finally:
            if timing:
                self._app.say(f"Time: {1000 * (time.monotonic() - started):.0f} ms")
        return 0

    def _show(self, sql: str) -> None:
        self._app.show_query(self._catalog, sql, limit=self._limit)

    def _show_page(self, sql: str) -> None:
        """Show rows of a query, in a pager if they need more than the screen."""
        most = _PROMPT_ROWS if self._limit is None else self._limit
        screen = self._app.stream = _Screen()
        try:
            shown = self._app.show_query(self._catalog, sql, limit=most, more=True)
        finally:
            self._app.stream = None
        text = screen.getvalue()
        if text.count("\n") >= shutil.get_terminal_size().lines - 2:
            click.echo_via_pager(text)
        else:
            click.echo(text, nl=False)
        cut = "; --limit shows more" if shown.more else ""
        self._app.say(f"({count_of(shown.rows, 'row')}{cut})")

    def _command(self, words: list[str]) -> int:
        """Run a command, one of the shell's own or of `deltasql`."""
        name = words[0].lstrip(".\\")
        is_escaped = name != words[0]
        if is_escaped:
            name = "tables" if words == ["\\d"] else _ALIASES.get(name, name)
        if name in _OWN:
            self._left = True
            return 0
        if is_escaped and name in _SWITCHES:
            return self._switch(name, words[1:])
        if is_escaped and name == "?":
            for left, right in _HELP:
                click.echo(f"{left:16}{right}")
            return 0
        if name in self._names:
            return self._delegate([name, *words[1:]])
        from delkalakedb.errors import did_you_mean

        hint = did_you_mean(name, self._names)
        raise click.UsageError(f"no command {words[0]}{hint}; \\? lists them")

    def _delegate(self, words: list[str]) -> int:
        """Run a command of `deltasql` with the shell's own options."""
        app = self._app
        flags = ["--quiet"] * app.quiet + ["--debug"] * app.debug
        flags += ["--wide"] * app.wide
        given = ["--catalog", app.catalog_uri, "--output", app.kind, *flags]
        code: Any = self._root.main(
            [*given, *words], prog_name="deltasql", standalone_mode=False
        )
        return code if isinstance(code, int) else 0

    def _switch(self, name: str, words: list[str]) -> int:
        """Turn expanded rows or timing on or off."""
        field = {"x": "tall", "timing": "_timing"}[name]
        owner: Any = self._app if name == "x" else self
        on = words[0] == "on" if words else not getattr(owner, field)
        setattr(owner, field, on)
        what = "expanded rows" if name == "x" else "timing"
        self._app.say(f"{what}: {'on' if on else 'off'}")
        return 0


def _words(line: str) -> list[str]:
    bare = line.removeprefix("\\")
    name, *rest = shlex.split(bare) or [""]
    return [line[: len(line) - len(bare)] + name, *rest]


class _Screen(io.StringIO):
    """A text that is formatted for the terminal before it is shown."""

    def isatty(self) -> bool:
        """Return true, because the text is for a terminal."""
        return True


def _shown(error: click.ClickException) -> int:
    error.show()
    return error.exit_code
