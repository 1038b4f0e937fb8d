"""The HTML that a notebook shows of a catalog, and of a table at a version."""

from collections.abc import Callable, Mapping
from threading import Thread
from typing import NamedTuple

from delkalakedb.catalog.commit import MirrorState, find_mirror
from delkalakedb.catalog.engine import Backend
from delkalakedb.errors import TableNotFoundError
from delkalakedb.model.display import count_of, format_minute, format_size
from delkalakedb.model.markup import StateWord, card, grid
from delkalakedb.model.records import Table

# Seconds that a notebook waits for a database before it shows something else.
_PATIENCE_S = 5.0
_MOST_TABLES = 50


def answered(title: str, make: Callable[[], str]) -> str:
    """Return the HTML that `make` returns, or why there is none.

    A notebook shows objects unasked, so this neither raises nor waits for long.
    """
    made: list[str] = []

    def work() -> None:
        try:
            made.append(make())
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            made.append(card(title, {"not shown": reason}))

    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(_PATIENCE_S)
    late = f"the catalog hasn't answered within {_PATIENCE_S:g} s"
    return made[0] if made else card(title, {"not shown": late})


class _OverviewRow(NamedTuple):
    name: str
    version: int
    timestamp_ms: int
    num_files: int
    size_bytes: int
    hold: str | None
    state: str
    published_version: int


def catalog_card(title: str, uri: str, backend: Backend) -> str:
    """Return the tables of a catalog, with their versions, sizes and mirrors."""
    with backend.reading() as session:
        count, *_ = session.values("count_tables", {})
        rows = session.rows(_OverviewRow, "load_overview", {"most": _MOST_TABLES})
    titles = ["table", "version", "changed (UTC)", "files", "size", "mirror"]
    below = grid(titles, map(_overview_cells, rows), count - len(rows))
    return card(title, {"catalog": uri, "tables": f"{count:,}"}, below)


def _overview_cells(row: _OverviewRow) -> tuple[object, ...]:
    behind = row.version - row.published_version
    time = format_minute(row.timestamp_ms)
    size = format_size(row.size_bytes)
    state = "held" if row.hold else row.state if row.state == "diverged" else None
    return (
        row.name,
        row.version,
        time,
        f"{row.num_files:,}",
        size,
        StateWord(state or _behind(behind)),
    )


def _behind(versions: int) -> str:
    return f"{count_of(versions, 'version')} behind" if versions > 0 else "published"


def table_card(title: str, table: Table, more: Mapping[str, object]) -> str:
    """Return a table at a version, with its columns.

    Args:
        title: the title.
        table: the table.
        more: other fields.
    """
    # Only for HTML, because sqlglot takes long to import.
    from delkalakedb.model.schema.ddl import format_type

    fields = {
        "version": f"{table.version} ({format_minute(table.timestamp_ms)} UTC)",
        **more,
        "files": f"{table.num_files:,} ({format_size(table.size_bytes)})",
        "partitioned by": ", ".join(table.partition_columns) or "nothing",
        "location": table.location,
    }
    rows = (
        (field.name, format_type(field), "" if field.nullable else "not null")
        for field in table.schema.fields
    )
    return card(title, fields, grid(["column", "type", ""], rows))


def mirror_state(backend: Backend, name: str) -> StateWord:
    """Return how far a table's mirror is, in words."""
    with backend.reading() as session:
        try:
            mirror = find_mirror(session, name)
        except TableNotFoundError:
            return StateWord("the catalog has no such table now")
    condition: MirrorState = mirror.condition
    behind = mirror.ratified_version - mirror.published_version
    if condition in ("published", "held"):
        return StateWord(condition)
    return StateWord(f"{condition}, {_behind(behind)}")
