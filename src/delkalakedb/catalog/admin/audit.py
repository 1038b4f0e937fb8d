"""Audit: who committed what, and the sizes of the tables."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

from delkalakedb.catalog.engine import Backend, CommitRow
from delkalakedb.catalog.read import commit_from_row, count_due, no_such_table
from delkalakedb.clock import now_ms
from delkalakedb.model.times import DAY_MS

# rows; more than a catalog can have
_ALL = 2**62
# small files, from which on `optimize` is advised
_MANY_SMALL = 10


class _Audited(NamedTuple):
    """A row of `load_audit`."""

    table: str
    tables: int
    commit: CommitRow


class _SmallFiles(NamedTuple):
    """A row of `load_small_files`."""

    table: str
    small_files: int
    small_bytes: int
    compactable_files: int


class _Tombstones(NamedTuple):
    """A row of `load_tombstone_sizes`."""

    table: str
    tombstones: int
    tombstone_bytes: int


@dataclass(frozen=True, slots=True)
class TableStats:
    """The size of a table; `commits` and `grown_bytes` are since a given time.

    `compactable_files` are small files in partitions that have several small files.
    `expired_tombstones` are those whose files a vacuum would delete now.
    """

    table: str
    version: int
    versions: int
    num_files: int
    size_bytes: int
    commits: int
    grown_bytes: int
    small_files: int = 0
    small_bytes: int = 0
    compactable_files: int = 0
    tombstones: int = 0
    tombstone_bytes: int = 0
    expired_tombstones: int = 0
    expired_versions: int = 0

    @property
    def advice(self) -> tuple[str, ...]:
        """The commands that would change the table now."""
        wanted = {
            "optimize": self.compactable_files >= _MANY_SMALL,
            "vacuum": self.expired_tombstones > 0,
            "retention": self.expired_versions > 0,
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
    """Yield the commits of all tables, newest first, as JSON values.

    Args:
        backend: the catalog's database.
        limit: the greatest number of commits.
        filters: `name`, `transaction_id`, `since_ms`, `until_ms`, `operation`, `actor`;
            None matches every commit.
    """
    params = {**filters, "max_rows": _ALL if limit is None else limit}
    with backend.reading() as session:
        found = session.rows(
            lambda table, tables, *row: _Audited(table, tables, CommitRow(*row)),
            "load_audit",
            params,
        )
    for row in found:
        commit = commit_from_row(row.commit).to_dict()
        yield {"table": row.table, "transaction_tables": row.tables, **commit}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that was done to a catalog besides commits, or a refused commit."""

    occurred_at_ms: int
    event: str
    table: str | None
    version: int | None
    detail: str | None
    db_user: str | None
    os_user: str | None
    host: str | None
    client: str | None
    client_address: str | None


def load_events(
    backend: Backend,
    name: str | None = None,
    *,
    since_ms: int | None = None,
    until_ms: int | None = None,
    operation: str | None = None,
    actor: str | None = None,
    limit: int | None = None,
) -> list[Event]:
    """Return the events of one table, or of the catalog, the newest first.

    Args:
        backend: the catalog's database.
        name: the table's name; None for all.
        since_ms: the time of the oldest event.
        until_ms: the time of the newest event.
        operation: the kind of event, in any case.
        actor: a user, a host or a client.
        limit: the greatest number of events.
    """
    params = {
        "name": name,
        "since_ms": since_ms,
        "until_ms": until_ms,
        "event": operation,
        "actor": actor,
        "max_rows": _ALL if limit is None else limit,
    }
    with backend.reading() as session:
        return session.rows(Event, "load_events", params)


def load_stats(
    backend: Backend, name: str | None, *, small_bytes: int, since_ms: int
) -> list[TableStats]:
    """Return the sizes of one table, or of all tables by name."""
    key = {"name": name}
    below = key | {"small_bytes": small_bytes}
    with backend.reading() as session:
        tables = session.rows(TableStats, "load_sizes", key | {"since_ms": since_ms})
        small = session.rows(_SmallFiles, "load_small_files", below)
        removed = session.rows(_Tombstones, "load_tombstone_sizes", key)
        now = now_ms()
        due = {t.table: count_due(session, t.table, now) for t in tables}
        if name is not None and not tables:
            raise no_such_table(name, session)
    more: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    sizes: list[_SmallFiles | _Tombstones] = [*small, *removed]
    for row in sizes:
        more[row.table] |= row._asdict()
    return [replace(t, **more[t.table], **asdict(due[t.table])) for t in tables]


def load_growth(backend: Backend, name: str, since_ms: int) -> list[Growth]:
    """Return the growth of a table with each commit since a time, oldest first."""
    params = {"name": name, "since_ms": since_ms}
    with backend.reading() as session:
        return session.rows(Growth, "load_growth", params)


def by_day(commits: Iterable[Growth]) -> Iterator[Growth]:
    """Yield the growth of each day (UTC), with the timestamp of its midnight."""
    for day, group in groupby(commits, lambda one: one.timestamp_ms // DAY_MS):
        found = list(group)
        yield replace(
            found[-1],
            timestamp_ms=day * DAY_MS,
            operation=None,
            num_added_files=sum(one.num_added_files for one in found),
            num_removed_files=sum(one.num_removed_files for one in found),
            added_bytes=sum(one.added_bytes for one in found),
            removed_bytes=sum(one.removed_bytes for one in found),
            commits=len(found),
        )
