"""`deltasql shell`: SQL and commands, one after the other."""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from delkalakedb.cli.app import App, command, pass_app
from delkalakedb.cli.failures import INTERRUPTED, failure
from delkalakedb.cli.rows import show_query
from delkalakedb.cli.statements import Statement, split

if TYPE_CHECKING:
    from delkalakedb import Catalog

__all__ = ["shell"]

_OWN = ("exit", "help", "quit")
# More are no help on a screen.
_MOST_ROWS = 1_000


@command(epilog="Example: deltasql shell --file report.sql --output csv")
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False),
    help="Run the statements of this file, and leave.",
)
@click.option("--keep-going", is_flag=True, help="Go on after an error in a file.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    help=f"At most so many rows of a query; {_MOST_ROWS} at the prompt by default.",
)
@pass_app
def shell(app: App, /, file: str | None, keep_going: bool, limit: int | None) -> None:
    """Type queries that end with a semicolon, and commands without `deltasql`.

    The Tab key completes commands, tables and columns; the history is kept. Ctrl-C
    stops what runs, Ctrl-D leaves. Statements from a pipe or a file are run one after
    the other; the first error ends that with its exit code.
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


class _Session:
    def __init__(
        self, app: App, catalog: "Catalog", root: click.Group, limit: int | None
    ) -> None:
        self._app = app
        self._catalog = catalog
        self._root = root
        self._limit = limit
        self._names = {*root.commands, *_OWN} - {"shell"}
        self._left = False

    def talk(self) -> None:
        """Ask for statements until the user leaves."""
        from delkalakedb.cli.prompt import make_prompt

        uri = self._app.catalog_uri
        ask = make_prompt(self._root, self._catalog, uri, self._rest)
        self._app.say("SQL ends with ;  help lists the commands  Ctrl-D leaves")
        while not self._left:
            try:
                text = ask()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            for statement in self._statements(text):
                if self._run(statement, self._show_some):
                    break

    def run_all(self, lines: Iterable[str], *, keep_going: bool) -> int:
        """Run statements as they come; the first error's exit code."""
        first = 0
        for statement in self._as_they_come(lines):
            code = self._run(statement, self._show)
            first = first or code
            if self._left or code == INTERRUPTED or (code and not keep_going):
                break
        return first

    def _as_they_come(self, lines: Iterable[str]) -> Iterator[Statement]:
        text = ""
        for line in lines:
            found, text = split(text + line, self._names)
            yield from found
        yield from self._statements(text)

    def _statements(self, text: str) -> list[Statement]:
        """All of them; the last one may lack its semicolon."""
        return split(f"{text}\n;", self._names)[0]

    def _rest(self, text: str) -> str:
        return split(text, self._names)[1]

    def _run(self, statement: Statement, show: Callable[[str], None]) -> int:
        """Run one; its exit code."""
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
        show_query(self._app, self._catalog, sql, limit=self._limit)

    def _show_some(self, sql: str) -> None:
        most = _MOST_ROWS if self._limit is None else self._limit
        rows = show_query(self._app, self._catalog, sql, limit=most)
        cut = ", and maybe more: see --limit" if rows == most else ""
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
