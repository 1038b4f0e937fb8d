"""Statements of small commits, prepared on a connection to Postgres.

Parsing and planning the statements takes the server a third of the time of a small
commit. `EXECUTE` of a prepared statement goes into one message with other statements.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import lru_cache
from itertools import count
from typing import Any

from delkalakedb.catalog.engine.backend import Params

# statements that a connection remembers
_MOST = 200
_PLACEHOLDER = re.compile(r"%(?:\((\w+)\)s|s|%)")
_Values = Params | Sequence[Any]


class Prepared:
    """The statements that one connection has prepared.

    A statement is prepared on its second use. Its name is random: should a pooler share
    the session with other clients unnoticed, no client runs another's statement.
    """

    def __init__(self) -> None:
        self._prefix = f"dk_{secrets.token_hex(8)}"
        self._seen: set[str] = set()
        self._names: dict[str, str] = {}
        self._numbers = count()

    def due(self, texts: Iterable[str], hot: Set[str]) -> dict[str, str]:
        """Return a new name for each of `texts` that is to be prepared now.

        `hot` are the statements that are worth preparing, besides all inserts. No name
        is used twice, because a message that failed may have prepared its statements
        before it failed.
        """
        due = {}
        for text in texts:
            if text not in hot and not text.startswith("INSERT INTO "):
                continue
            if text in self._seen and text not in self._names:
                due[text] = f"{self._prefix}_{next(self._numbers)}"
            elif len(self._seen) < _MOST:
                self._seen.add(text)
        return due

    def add(self, made: Mapping[str, str]) -> None:
        """Note the names under which statements were prepared."""
        self._names.update(made)

    def clear(self) -> None:
        """Forget all names, because the server may have dropped the statements."""
        self._names.clear()

    def call(
        self,
        text: str,
        values: _Values,
        made: Mapping[str, str],
        literal: Callable[[Any], bytes],
    ) -> str | None:
        """Return the `EXECUTE` for a statement, or None if it isn't prepared.

        `made` holds the names that are prepared earlier in this message.
        """
        name = self._names.get(text) or made.get(text)
        if name is None:
            return None
        if isinstance(values, Mapping):
            values = [values[key] for key in _numbered(text)[1]]
        given = ", ".join(
            # Most values are integers, which psycopg takes a microsecond to write.
            "NULL" if v is None else str(v) if type(v) is int else literal(v).decode()
            for v in values
        )
        return f"EXECUTE {name} ({given})" if given else f"EXECUTE {name}"


def preparation(text: str, name: str) -> str:
    """Return the statement that prepares `text` under `name`."""
    return f"PREPARE {name} AS {_numbered(text)[0]}"


@lru_cache(maxsize=1024)
def _numbered(text: str) -> tuple[str, tuple[str, ...]]:
    """Return `text` with numbered parameters, and the names of the parameters."""
    names: list[str] = []
    positions = count(1)

    def number(found: re.Match[str]) -> str:
        if found[0] == "%%":
            return "%"
        if found[1] is None:
            return f"${next(positions)}"
        if found[1] not in names:
            names.append(found[1])
        return f"${names.index(found[1]) + 1}"

    return _PLACEHOLDER.sub(number, text), tuple(names)
