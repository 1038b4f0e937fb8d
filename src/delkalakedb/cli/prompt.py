"""The shell's prompt, with completion, a history and statements of several lines."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import ShellComplete
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from delkalakedb.settings import redact

if TYPE_CHECKING:
    from delkalakedb import Catalog

_WORD = re.compile(r'[\w."]+')
_PLAIN = re.compile(r"[a-z_]\w*")
_KEYWORDS = re.findall(
    r"\w+",
    "SELECT FROM WHERE GROUP BY ORDER LIMIT JOIN LEFT ON USING HAVING WITH AS AND OR "
    "NOT IN IS NULL LIKE BETWEEN UNION ALL DISTINCT CASE WHEN THEN ELSE END VALUES "
    "DESCRIBE SUMMARIZE count sum min max avg",
)


def make_prompt(
    root: click.Group,
    catalog: "Catalog",
    uri: str,
    rest: Callable[[str], str],
) -> Callable[[], str]:
    """Return a function that prompts for the next statements.

    Args:
        root: the group whose commands are completed.
        catalog: the catalog whose tables and columns are completed.
        uri: the catalog's URI, for the completion of commands.
        rest: returns the incomplete SQL at the end of a text.
    """
    session: PromptSession[str] = PromptSession(
        history=_history(),
        completer=_Completer(root, catalog, uri, rest),
        complete_while_typing=False,
        multiline=Condition(lambda: bool(rest(get_app().current_buffer.text))),
        prompt_continuation="     ...> ",
    )
    return lambda: session.prompt("deltasql> ")


def _history() -> History:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    folder = Path(state).expanduser() / "deltasql"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "history").touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return _Redacted(str(folder / "history"))


class _Redacted(FileHistory):
    """A history file without credentials."""

    def store_string(self, string: str) -> None:
        super().store_string(redact(string))


@dataclass(frozen=True, eq=False)
class _Completer(Completer):
    root: click.Group
    catalog: "Catalog"
    uri: str
    rest: Callable[[str], str]

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        try:
            yield from self._found(document)
        except Exception:
            # An error message would garble the line that the user is typing.
            return

    def _found(self, document: Document) -> Iterator[Completion]:
        line = document.current_line_before_cursor
        sql = self.rest(document.text_before_cursor)
        word = document.get_word_before_cursor(pattern=_WORD)
        if not sql or sql == line.strip():
            yield from self._of_command(line)
        if sql or not line.strip():
            yield from _matching(word, self._of_sql(sql))

    def _of_command(self, line: str) -> Iterator[Completion]:
        line = re.sub(r"^\\d ", "describe ", line.lstrip())
        *before, last = line.lstrip(" .\\").split(" ")
        words = ["--catalog", self.uri, *filter(None, before)]
        commands = ShellComplete(self.root, {}, "deltasql", "")
        for item in commands.get_completions(words, last):
            if item.type == "plain":
                yield Completion(item.value, -len(last))

    def _of_sql(self, sql: str) -> Iterator[str]:
        from delkalakedb.query import METATABLES

        tables = self.catalog.tables()
        names = {word.strip('"').lower() for word in _WORD.findall(sql)}
        named = [table for table in tables if table.name.lower() in names]
        yield from (table.name for table in tables)
        yield from (f"deltasql.{name}" for name in METATABLES)
        yield from (f.name for table in named or tables for f in table.schema.fields)
        yield from _KEYWORDS


def _matching(word: str, names: Iterable[str]) -> Iterator[Completion]:
    from delkalakedb.query import quoted

    start = word.strip('"').lower()
    for name in dict.fromkeys(names):
        if start and name.lower().startswith(start):
            bare = _PLAIN.fullmatch(name.lower()) or "." in name
            yield Completion(name if bare else quoted(name), -len(word))
