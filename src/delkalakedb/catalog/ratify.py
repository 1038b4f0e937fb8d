"""Ratify: the one SQL transaction in which staged actions become versions.

In order, and all of it or nothing:

1. lock every table involved, in name order, and load their heads;
2. for each staged commit: check the conflict rules against the versions since it
   read, the protocol's rules, and that what it removes is live;
3. give it the next version, a timestamp after the last one, and row ids;
4. insert its rows and move the head, `WHERE current_version = version - 1`;
5. commit. A table's versions above the published one are its outbox.

Killed before 5, nothing happened. A connection lost during 5 is resolved by asking
for the transaction's id under the same locks, so that an unfinished COMMIT has ended.

An append that travels as one message has no lock yet while that is under way: it may
arrive after it was asked for. It is void once the table has moved on, so it is made
again, in a transaction that asks first; where that fails, nobody can tell.
"""

import getpass
import socket
import time
import uuid
from collections.abc import Sequence
from importlib.metadata import version as package_version
from typing import TYPE_CHECKING

from delkalakedb.catalog.backend import Backend, MovedOnError, Row, Session
from delkalakedb.catalog.commit import Actor
from delkalakedb.catalog.fresh import keep_fresh
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.outbox import Lease, releasing_lost
from delkalakedb.catalog.transaction import LostError, Transaction, lock_queries
from delkalakedb.errors import (
    CatalogError,
    DeltalakeDBError,
    MirrorBehindError,
    UnknownOutcomeError,
)
from delkalakedb.model.txnlog import Committed, Conflicted, Skipped, Staged
from delkalakedb.telemetry import log_commit

if TYPE_CHECKING:
    from delkalakedb.config import Settings

__all__ = ["CLIENT", "SqlTxnLogWriter"]

# How many commits ask first after others got in between one's look and its commit.
_WHILE_RIVALS = 16
CLIENT = f"delkalakedb/{package_version('delkalakedb')}"


class SqlTxnLogWriter:
    """Commits to the tables of one catalog; a `TxnLogWriter`."""

    def __init__(self, backend: Backend, settings: "Settings") -> None:
        self._backend = backend
        self._indexed_columns = settings.stats.indexed_columns
        self._concurrency = settings.concurrency
        self._max_unpublished = settings.mirror.max_unpublished
        self._lease_s = settings.mirror.lease
        self._actor: Actor | None = None
        self._rivals = 0

    def ratify(
        self,
        staged: Sequence[Staged],
        leases: list[Lease] | None = None,
        seen: Head | None = None,
    ) -> tuple[Committed | Skipped, ...] | Conflicted:
        """Make all of `staged` true, or none of it.

        Args:
            staged: the commits.
            leases: where given, gets the lease of the one table that was committed to,
                if it was free: for a caller that publishes it right away.
            seen: the table as the caller saw it. An append to a table that is still so
                takes one round trip where asking would take another.
        """
        started = time.monotonic()
        self._check_backlog(staged)
        try:
            outcomes = self._ratify(staged, str(uuid.uuid4()), leases, seen)
        except LostError as lost:
            return lost.outcome
        duration_ms = (time.monotonic() - started) * 1000
        for outcome in outcomes:
            if isinstance(outcome, Committed):
                _log(outcome, duration_ms)
        return outcomes

    def _check_backlog(self, staged: Sequence[Staged]) -> None:
        """Refuse to go on while too much of a table waits to be published."""
        if self._max_unpublished is None:
            return
        for name in sorted({commit.table for commit in staged}):
            with self._backend.reading() as session:
                rows = session.query("load_unpublished", {"name": name})
            if rows and rows[0][0] >= self._max_unpublished:
                raise MirrorBehindError(
                    f"{name}: {rows[0][0]} versions wait to be published, and "
                    f"mirror.max_unpublished is {self._max_unpublished}; nothing was "
                    "written. See mirror.status, and run the reconciler"
                )

    def _ratify(
        self,
        staged: Sequence[Staged],
        transaction_id: str,
        leases: list[Lease] | None,
        seen: Head | None,
    ) -> tuple[Committed | Skipped, ...]:
        retries = self._concurrency.retries
        if self._rivals or "check_seen" not in self._backend.statements:
            self._rivals, seen = max(0, self._rivals - 1), None
        under_way: UnknownOutcomeError | None = None
        while True:
            try:
                again = under_way is not None
                return self._attempt(staged, transaction_id, leases, seen, again)
            except MovedOnError:
                self._rivals, seen = _WHILE_RIVALS, None
            except UnknownOutcomeError as lost:
                if found := self._find_out(staged, transaction_id, lost):
                    return found
                if seen is not None:
                    under_way, seen = lost, None
                if retries == 0:
                    raise
                retries -= 1
            except DeltalakeDBError as error:
                if under_way is None:
                    raise
                raise _unknown(under_way, transaction_id, error) from error

    def _attempt(
        self,
        staged: Sequence[Staged],
        transaction_id: str,
        leases: list[Lease] | None,
        seen: Head | None,
        again: bool,
    ) -> tuple[Committed | Skipped, ...]:
        actor = self._actor = self._actor or _actor(self._backend)
        with self._backend.writing() as session:
            if again and (found := self._find(session, staged, transaction_id)):
                return found
            transaction = Transaction(
                session,
                self._backend,
                transaction_id,
                actor,
                self._indexed_columns,
                None if leases is None else self._lease_s,
                seen,
            )
            outcomes = transaction.ratify(staged)
        if leases is not None:
            leases[:] = filter(None, [transaction.lease()])
        keep_fresh(self._backend, transaction.fresh)
        return outcomes

    def _find_out(
        self, staged: Sequence[Staged], transaction_id: str, lost: UnknownOutcomeError
    ) -> tuple[Committed, ...] | None:
        """What became of a lost COMMIT; waits for a server that is restarting."""
        pause_s = self._concurrency.backoff_initial
        for left in range(self._concurrency.retries, -1, -1):
            try:
                return self._resolve(staged, transaction_id)
            except CatalogError as error:
                if left == 0:
                    raise _unknown(lost, transaction_id, error) from error
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, self._concurrency.backoff_max)
        raise lost

    def _resolve(
        self, staged: Sequence[Staged], transaction_id: str
    ) -> tuple[Committed, ...] | None:
        with self._backend.writing() as session:
            return self._find(session, staged, transaction_id)

    def _find(
        self, session: Session, staged: Sequence[Staged], transaction_id: str
    ) -> tuple[Committed, ...] | None:
        """What a transaction has made, under its locks; its lease is given back."""
        session.query_many(lock_queries(self._backend, staged))
        rows = session.query("load_transaction", {"transaction_id": transaction_id})
        session.apply([releasing_lost(c.table, transaction_id) for c in staged])
        # In the order in which they were staged; those of a renamed table come last.
        found: list[Row] = []
        for commit in staged:
            found += [row for row in rows if row[0] == commit.table][:1]
            rows = [row for row in rows if row not in found]
        return tuple(Committed(*row) for row in (*found, *rows)) or None


def _unknown(
    lost: UnknownOutcomeError, transaction_id: str, error: Exception
) -> UnknownOutcomeError:
    return UnknownOutcomeError(
        f"{lost}; it may have happened or not: the history would show transaction "
        f"{transaction_id}, but there is no telling now: {error}"
    )


def _log(committed: Committed, duration_ms: float) -> None:
    log_commit(
        table=committed.table,
        version=committed.version,
        operation=committed.operation,
        adds=committed.num_added_files,
        removes=committed.num_removed_files,
        bytes_added=committed.added_bytes,
        duration_ms=duration_ms,
        transaction_id=committed.transaction_id,
    )


def _actor(backend: Backend) -> Actor:
    try:
        user: str | None = getpass.getuser()
    except (ImportError, KeyError, OSError):
        user = None
    return Actor(backend.db_user(), user, socket.gethostname(), CLIENT)
