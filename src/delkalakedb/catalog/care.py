"""What an administrator asks of a catalog: who did what, and how large it all is."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from delkalakedb.catalog.backend import Backend, Row
from delkalakedb.catalog.names import no_such_table
from delkalakedb.catalog.reader import commit_from_row

__all__ = ["Growth", "TableStats", "by_day", "load_audit", "load_growth", "load_stats"]

_ALL = 2**62
_DAY_MS = 86_400_000
# From so many on it is worth while.
_MANY_SMALL = 10
_MANY_VERSIONS = 10_000


@dataclass(frozen=True, slots=True)
class TableStats:
    """A table's size; `commits` and `grown_bytes` are since the time asked for.

    `compactable_files` are the small files that share a partition with others.
    """

    table: str
    version: int
    versions: int
    num_files: int
    size_bytes: int
    commits: int
    grown_bytes: int
    small_files: int
    small_bytes: int
    compactable_files: int
    tombstones: int
    tombstone_bytes: int

    @property
    def advice(self) -> tuple[str, ...]:
        """The commands that would do it good."""
        wanted = {
            "optimize": self.compactable_files >= _MANY_SMALL,
            "vacuum": self.tombstone_bytes > self.size_bytes,
            "retention": self.versions >= _MANY_VERSIONS,
        }
        return tuple(command for command, due in wanted.items() if due)


@dataclass(frozen=True, slots=True)
class Growth:
    """A table after one commit, or after the last of several."""

    version: int
    timestamp_ms: int
    operation: str | None
    num_added_files: int
    num_removed_files: int
    added_bytes: int
    removed_bytes: int
    num_files: int
    size_bytes: int
    commits: int = 1


def load_audit(
    backend: Backend, limit: int | None = None, **filters: Any
) -> Iterator[dict[str, Any]]:
    """The commits of all tables, newest first, as JSON values.

    Args:
        backend: the catalog's database.
        limit: at most so many.
        filters: `name`, `transaction_id`, `since_ms`, `until_ms`, `operation`, `actor`;
            one that is None lets everything through.
    """
    params = {**filters, "max_rows": _ALL if limit is None else limit}
    with backend.reading() as session:
        rows = session.query("load_audit", params)
    for name, tables, *row in rows:
        commit = commit_from_row(tuple(row))
        yield {"table": name, "transaction_tables": tables, **commit.to_dict()}


def load_stats(
    backend: Backend, name: str | None, *, small_bytes: int, since_ms: int
) -> list[TableStats]:
    """The sizes of one table or all of them, by name."""
    key = {"name": name}
    with backend.reading() as session:
        rows = session.query("load_sizes", key | {"since_ms": since_ms})
        small = session.query("load_small_files", key | {"small_bytes": small_bytes})
        removed = session.query("load_tombstone_sizes", key)
    if name is not None and not rows:
        raise no_such_table(name)
    smalls: dict[str, Row] = {table: tuple(sizes) for table, *sizes in small}
    tombstones: dict[str, Row] = {table: tuple(sizes) for table, *sizes in removed}
    return [
        TableStats(
            *row, *smalls.get(row[0], (0, 0, 0)), *tombstones.get(row[0], (0, 0))
        )
        for row in rows
    ]


def load_growth(backend: Backend, name: str, since_ms: int) -> list[Growth]:
    """A table's commits since a time, oldest first."""
    with backend.reading() as session:
        rows = session.query("load_growth", {"name": name, "since_ms": since_ms})
    return [Growth(*row) for row in rows]


def by_day(commits: Iterable[Growth]) -> Iterator[Growth]:
    """The growth of each day (UTC), whose time is its midnight."""
    for day, group in groupby(commits, lambda one: one.timestamp_ms // _DAY_MS):
        found = list(group)
        last = found[-1]
        yield Growth(
            version=last.version,
            timestamp_ms=day * _DAY_MS,
            operation=None,
            num_added_files=sum(one.num_added_files for one in found),
            num_removed_files=sum(one.num_removed_files for one in found),
            added_bytes=sum(one.added_bytes for one in found),
            removed_bytes=sum(one.removed_bytes for one in found),
            num_files=last.num_files,
            size_bytes=last.size_bytes,
            commits=len(found),
        )
