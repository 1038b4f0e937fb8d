"""Named SQL statements, read from the `.sql` files beside this module."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

__all__ = [
    "load_migrations",
    "load_statements",
    "qualify",
    "split_script",
]

_HEADER = re.compile(r"^-- name: (\w+)\n((?:--.*\n)*)", re.MULTILINE)
# A parameter, but neither a Postgres cast (`::text`) nor part of a word.
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
# A table of the catalog where a statement names it, not where it refers to its columns.
_TABLE = re.compile(
    r"\b((?:FROM|INTO|JOIN|ON|REFERENCES|TABLE|UPDATE)\s+)(dl_\w+)\b(?!\.)"
)
# The files of all engines, by topic; one named after an engine overrides them by name.
_SHARED = (
    "queries",
    "mirror",
    "retention",
    "verify",
    "adopt",
    "upkeep",
    "staging",
    "moving",
    "care",
)
_sql = Path(__file__).parent / "sql"


@cache
def load_statements(engine: str, placeholder: str) -> Mapping[str, str]:
    """An engine's statements, with parameters in its driver's style.

    `placeholder` is a format for one parameter, such as `%({})s`.
    """
    statements: dict[str, str] = {}
    for topic in (*_SHARED, engine):
        if (file := _sql / f"{topic}.sql").is_file():
            statements |= dict(_parse(file.read_text("utf-8")))
    now_ms = statements.pop("now_ms")
    return {
        name: _PARAMETER.sub(
            lambda m: placeholder.format(m[1]), text.replace("{now_ms}", now_ms)
        )
        for name, text in statements.items()
    }


def qualify(sql: str, name: Callable[[str], str]) -> str:
    """Return a statement in which each table has the name that `name` gives it."""
    return _TABLE.sub(lambda found: found[1] + name(found[2]), sql)


@cache
def load_migrations(engine: str) -> Mapping[int, str]:
    """An engine's migration scripts by version, in order."""
    folder = _sql / "migrations" / engine
    scripts = {int(f.name.split("_")[0]): f for f in folder.iterdir()}
    return {version: scripts[version].read_text("utf-8") for version in sorted(scripts)}


def split_script(script: str) -> Iterator[str]:
    """The statements of a migration, one by one."""
    for statement in re.sub(r"--.*\n", "\n", script).split(";"):
        if statement.strip():
            yield statement.strip()


def _parse(text: str) -> Iterator[tuple[str, str]]:
    headers = list(_HEADER.finditer(text))
    ends = [h.start() for h in headers[1:]] + [len(text)]
    for header, end in zip(headers, ends, strict=True):
        yield header[1], text[header.end() : end].strip()
