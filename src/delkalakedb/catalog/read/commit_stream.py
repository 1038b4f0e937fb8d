"""The commits of a table as they are made: none is skipped, and none comes twice."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

from delkalakedb.catalog.engine import Backend, CommitRow
from delkalakedb.catalog.read.head import Head
from delkalakedb.catalog.read.sql_log import commit_from_row
from delkalakedb.errors import (
    CatalogBusyError,
    CatalogUnavailableError,
    TableNotFoundError,
    VersionNotFoundError,
)
from delkalakedb.model.records import Commit
from delkalakedb.telemetry import log_event
from delkalakedb.waits import Bell

_log = logging.getLogger("delkalakedb.follow")
# commits that are loaded at once
_TOGETHER = 200


class _FollowedRow(NamedTuple):
    """A row of `load_commits_after`; without a new commit, `commit` is None."""

    created_at_ms: int
    current_version: int
    commit: CommitRow | None

    @classmethod
    def of(cls, created_at_ms: int, current_version: int, *rest: Any) -> _FollowedRow:
        commit = None if rest[0] is None else CommitRow(*rest)
        return cls(created_at_ms, current_version, commit)


class CommitStream:
    """The commits of one table after a version.

    A table that is renamed is still followed. While the database is down, the stream
    waits for it. The stream ends with a `TableNotFoundError` if the table is dropped,
    and with a `VersionNotFoundError` if the next version isn't kept any more.

    Args:
        backend: the catalog's database.
        head: the table.
        since: the version after which commits are wanted.
        poll_s: seconds between two looks, for databases that don't tell of commits.
    """

    def __init__(self, backend: Backend, head: Head, since: int, poll_s: float) -> None:
        self._backend = backend
        self._head = head
        self._since = since
        self.poll_s = poll_s
        self._bell = Bell()
        self._begun = False
        # Bound while the catalog is open, because it is called after that, too.
        self._unlisten = backend.unlisten

    def __iter__(self) -> Iterator[Commit]:
        """Yield commits without end."""
        try:
            while True:
                yield from self.load() or self.wait()
        finally:
            self.close()

    def load(self) -> list[Commit]:
        """Return the next commits, which may be none."""
        self._backend.check_open()
        try:
            commits = self._load()
        except (CatalogUnavailableError, CatalogBusyError) as error:
            self._backend.check_open()
            if not self._begun:
                raise
            text = f"{self._head.name}: can't look for commits, will try again: {error}"
            log_event(_log, logging.WARNING, text, table=self._head.name)
            return []
        self._begun = True
        return commits

    def wait(self) -> list[Commit]:
        """Wait until there may be commits, or for the time between two looks."""
        self._backend.listen(self._head.table_id, self._bell)
        self._bell.wait(self.poll_s)
        return []

    def close(self) -> None:
        """End the stream."""
        self._unlisten(self._bell)

    def _load(self) -> list[Commit]:
        head, after = self._head, self._since
        params = {"table_id": head.table_id, "after": after, "max_rows": _TOGETHER}
        with self._backend.reading() as session:
            rows = session.rows(_FollowedRow.of, "load_commits_after", params)
        if not rows or rows[0].created_at_ms != head.created_at_ms:
            raise TableNotFoundError(f"{head.name}: the table was dropped")
        if rows[0].current_version < after:
            raise VersionNotFoundError(
                f"{head.name}: there is no version {after}; the newest is "
                f"{rows[0].current_version}"
            )
        found = [row.commit for row in rows if row.commit is not None]
        if found and found[0].version != after + 1:
            raise VersionNotFoundError(
                f"{head.name}: version {after + 1} has expired; the oldest is version "
                f"{found[0].version}"
            )
        self._since += len(found)
        return [commit_from_row(row) for row in found]
