"""Named SQL statements from the `.sql` files, and the rows that several modules read.

A row that only one module reads is beside its use.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

_HEADER = re.compile(r"^-- name: (\w+)\n((?:--.*\n)*)", re.MULTILINE)
# the format of parameters in the files
_AS_WRITTEN = ":{}"
# a parameter, but neither a Postgres cast (`::text`) nor part of a word
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
# a table of the catalog where a statement names it, not before the name of a column
_TABLE = re.compile(
    r"\b((?:FROM|INTO|JOIN|ON|REFERENCES|TABLE|UPDATE)\s+)(dl_\w+)\b(?!\.)"
)
_sql = Path(__file__).parent / "sql"


class HeadRow(NamedTuple):
    """A row of `load_head`, `load_latest`, `load_heads` or `load_staged`.

    `version` and the five columns after it describe the version that was asked for, and
    are None if the catalog doesn't have that version. `metadata` was set by the version
    `latest_metadata_version`, and `protocol` by `latest_protocol_version`.
    """

    table_id: int
    name: str
    location: str
    created_at_ms: int
    current_version: int
    first_version: int
    next_file: int
    version: int | None
    timestamp_ms: int
    num_files: int
    size_bytes: int
    metadata_version: int
    protocol_version: int
    stat_columns: str
    latest_metadata_version: int
    metadata: str
    latest_protocol_version: int
    protocol: str
    hold: str | None


class FileRow(NamedTuple):
    """A row of `load_files_at_paths` or `load_files_at_path`."""

    file_id: int
    path: str
    dv_id: str
    size_bytes: int
    removed_version: int | None
    base_row_id: int | None
    default_row_commit_version: int | None


class CommitRow(NamedTuple):
    """A row of `load_history`, or the end of a row of `load_audit`."""

    version: int
    timestamp_ms: int
    transaction_id: str
    operation: str | None
    operation_parameters: str | None
    operation_metrics: str | None
    user_metadata: str | None
    engine_info: str | None
    read_version: int | None
    isolation_level: str | None
    is_blind_append: bool | None
    db_user: str | None
    os_user: str | None
    host: str | None
    client: str | None
    num_added_files: int
    num_removed_files: int
    added_bytes: int
    removed_bytes: int
    commit_info: str | None


class PublishedRow(NamedTuple):
    """A row of `load_published`; `sha256` is of the log entry."""

    version: int
    transaction_id: str
    sha256: str | None


class TableRow(NamedTuple):
    """A row of `load_table_versions`."""

    name: str
    current_version: int
    table_id: int
    created_at_ms: int


@cache
def load_statements(engine: str, placeholder: str) -> Mapping[str, str]:
    """Return the statements of an engine by name.

    Args:
        engine: the engine.
        placeholder: the driver's format of a parameter, such as `%({})s`.
    """
    files = {file.stem: file for file in _sql.glob("*.sql")}
    engines = {folder.name for folder in (_sql / "migrations").iterdir()}
    # Last, because a statement of an engine replaces the shared one of that name.
    own = [engine] if engine in files else []
    statements: dict[str, str] = {}
    for topic in (*sorted(files.keys() - engines), *own):
        statements |= dict(_parse(files[topic].read_text("utf-8")))
    now_ms = statements.pop("now_ms")
    texts = {n: text.replace("{now_ms}", now_ms) for n, text in statements.items()}
    if placeholder == _AS_WRITTEN:
        return texts
    return {
        name: _PARAMETER.sub(lambda m: placeholder.format(m[1]), text)
        for name, text in texts.items()
    }


def qualify(sql: str, name: Callable[[str], str]) -> str:
    """Return `sql` with each table's name replaced by what `name` returns for it."""
    return _TABLE.sub(lambda found: found[1] + name(found[2]), sql)


@cache
def load_migrations(engine: str) -> Mapping[int, str]:
    """Return the migration scripts of an engine by version, in order."""
    folder = _sql / "migrations" / engine
    scripts = {int(f.name.split("_")[0]): f for f in folder.iterdir()}
    return {version: scripts[version].read_text("utf-8") for version in sorted(scripts)}


def split_script(script: str) -> Iterator[str]:
    """Yield the statements of a migration."""
    for statement in re.sub(r"--.*\n", "\n", script).split(";"):
        if statement.strip():
            yield statement.strip()


def _parse(text: str) -> Iterator[tuple[str, str]]:
    headers = list(_HEADER.finditer(text))
    ends = [h.start() for h in headers[1:]] + [len(text)]
    for header, end in zip(headers, ends, strict=True):
        yield header[1], text[header.end() : end].strip()
