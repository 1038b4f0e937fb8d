"""Statements of small commits, prepared on a connection to Postgres.

To parse and plan them takes the server a third of a small commit's time. What is sent
then is `EXECUTE`, which goes into a message with others like any statement.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any

from delkalakedb.catalog.backend import Params

__all__ = ["Prepared", "preparation"]

_MOST = 200
_PLACEHOLDER = re.compile(r"%(?:\((\w+)\)s|s|%)")
_Values = Params | Sequence[Any]


class Prepared:
    """What one connection has prepared; a statement is from its second use on.

    Args:
        kinds: the texts to prepare; inserts always are.
    """

    def __init__(self, kinds: Iterable[str]) -> None:
        self._kinds = frozenset(kinds)
        self._seen: set[str] = set()
        self._names: dict[str, str] = {}
        self._numbers = count()

    def due(self, texts: Iterable[str]) -> dict[str, str]:
        """The names under which to prepare some statements now.

        No name comes twice: whether a message that failed got that far isn't known.
        """
        due = {}
        for text in filter(self._is_kind, texts):
            if text in self._seen and text not in self._names:
                due[text] = f"dk_{next(self._numbers)}"
            elif len(self._seen) < _MOST:
                self._seen.add(text)
        return due

    def add(self, made: Mapping[str, str]) -> None:
        """Statements were prepared under these names."""
        self._names.update(made)

    def clear(self) -> None:
        """Whatever was prepared may be gone."""
        self._names.clear()

    def call(
        self,
        text: str,
        values: _Values,
        made: Mapping[str, str],
        literal: Callable[[Any], bytes],
    ) -> str | None:
        """The statement as it is sent, if it is prepared; with these it is, too."""
        name = self._names.get(text) or made.get(text)
        if name is None:
            return None
        if isinstance(values, Mapping):
            values = [values[key] for key in _numbered(text)[1]]
        given = b", ".join(b"NULL" if v is None else literal(v) for v in values)
        return f"EXECUTE {name} ({given.decode()})" if given else f"EXECUTE {name}"

    def _is_kind(self, text: str) -> bool:
        return text in self._kinds or text.startswith("INSERT INTO ")


def preparation(text: str, name: str) -> str:
    """The statement that prepares another."""
    return f"PREPARE {name} AS {_numbered(text)[0]}"


@lru_cache(maxsize=1024)
def _numbered(text: str) -> tuple[str, tuple[str, ...]]:
    """A statement with numbers for its parameters, and their names in that order."""
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
