"""Ratify staged actions, of one table or several at once, then publish them."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.catalog.head import Identity
from delkalakedb.catalog.names import check_name, no_such_table
from delkalakedb.catalog.outbox import Lease
from delkalakedb.catalog.pending import PendingSnapshot, new_table
from delkalakedb.catalog.staging import find_table_at
from delkalakedb.errors import (
    CatalogNotFoundError,
    CommitFailedError,
    DeltalakeDBError,
    TableExistsError,
    TransactionError,
    UnknownOutcomeError,
)
from delkalakedb.mirror.deliver import deliver
from delkalakedb.model.actions import Txn
from delkalakedb.model.conflicts import Rule
from delkalakedb.model.txnlog import Committed, Conflicted, Skipped, Staged
from delkalakedb.storage import canonical_location, open_store
from delkalakedb.storage.segment import LOG
from delkalakedb.telemetry import PublishWarning
from delkalakedb.workspace import Captured, Operation, Stage, StageNew, run, run_new

__all__ = [
    "Together",
    "check_repeated",
    "commit",
    "discarding",
    "is_certain",
    "new_location",
    "ratify",
]

T = TypeVar("T")
_Options = Mapping[str, str] | None


def new_location(catalog: Catalog, name: str, given: str | None) -> str:
    """Return where a new table's files go, before anything is written there."""
    check_name(name)
    return canonical_location(given or catalog.default_location(name))


def commit(
    catalog: Catalog, *staged: Staged, storage_options: _Options = None
) -> tuple[Committed, ...]:
    """Ratify all of `staged` or none of it, and publish what was ratified.

    The commits stand whether or not they can be published now.
    """
    for new in staged:
        if new.location is not None:
            _refuse_log(catalog, new.table, new.location, storage_options)
    leases = _leases(catalog)
    outcomes = catalog.commit(*staged, leases=leases)
    return _published(catalog, outcomes, storage_options, leases)


def ratify(
    catalog: Catalog, *staged: Staged, seen: Snapshot, storage_options: _Options = None
) -> tuple[Committed, ...] | Conflicted:
    """Like `commit`, but a conflict is a value."""
    leases = _leases(catalog)
    outcomes = catalog.ratify(*staged, leases=leases, seen=seen)
    if isinstance(outcomes, Conflicted):
        return outcomes
    return _published(catalog, outcomes, storage_options, leases)


def is_certain(error: DeltalakeDBError) -> bool:
    """Whether nothing was ratified, as far as an error of a commit tells.

    A connection that is lost during COMMIT leaves the outcome unknown. Whatever is
    raised after a commit stands is no `DeltalakeDBError`.
    """
    return not isinstance(error, UnknownOutcomeError)


@contextmanager
def discarding(written: "Captured[Any] | Together") -> Iterator[None]:
    """Remove the files that were written for a commit that is refused for certain."""
    try:
        yield
    except DeltalakeDBError as error:
        if is_certain(error):
            written.discard()
        raise


def check_repeated(captured: Captured[Any], seen: Snapshot) -> None:
    """What an application has written already is skipped where its caller saw that.

    A rival that wrote it meanwhile may have written something else.
    """
    for action in (a for actions in captured.commits for a in actions):
        if isinstance(action, Txn) and not _saw(seen, action):
            raise CommitFailedError(
                f"{seen.table.name}: {captured.operation.name} on version "
                f"{seen.version}: Failed to commit transaction: application "
                f"{action.app_id} has committed its version {action.version} "
                f"meanwhile; reload and retry ({Rule.CONCURRENT_TRANSACTION})"
            )


def _saw(seen: Snapshot, txn: Txn) -> bool:
    version = seen.txn_version(txn.app_id)
    return version is not None and version >= txn.version


def _refuse_log(
    catalog: Catalog, name: str, location: str, storage_options: _Options
) -> None:
    """Ours could never be published where there is one, unless it is the catalog's."""
    there = any(open_store(location, storage_options).list(LOG))
    if there and find_table_at(catalog, location) is None:
        raise TableExistsError(
            f"{name}: there is a Delta table at {location} already; import that one, "
            "or choose another location"
        )


def _leases(catalog: Catalog) -> list[Lease] | None:
    """Room for the lease of a table that will be published here and now."""
    return [] if catalog.settings.mirror.mode == "inline" else None


def _published(
    catalog: Catalog,
    outcomes: tuple[Committed | Skipped, ...],
    storage_options: _Options,
    leases: list[Lease] | None,
) -> tuple[Committed, ...]:
    done = tuple(o for o in outcomes if isinstance(o, Committed))
    held = next(iter(leases or ()), None)
    try:
        deliver(catalog, {o.table: o.version for o in done}, storage_options, held)
    except PublishWarning as warning:
        # Where warnings are errors: the caller must know what was committed.
        warning.committed = done
        raise
    return done


class Together:
    """Operations on tables of one catalog that become true together, or not at all.

    Tables are seen as they were at one moment, with what was staged here on top.
    """

    def __init__(self, catalog: Catalog, storage_options: _Options = None) -> None:
        self.catalog = catalog
        self.storage_options = storage_options
        self._versions: dict[str, tuple[int, Identity]] = {}
        self._absent: CatalogNotFoundError | None = None
        try:
            # One statement: these versions were the latest at one moment.
            self._versions = catalog.versions()
        except CatalogNotFoundError as absent:
            # A first write makes it.
            self._absent = absent
        self._pending: dict[str, PendingSnapshot] = {}
        self._staged: list[Staged] = []
        # With the table as each was done on; a new one wasn't there.
        self._captured: list[tuple[Captured[Any], Snapshot | None]] = []
        self._ended = False
        self._pid = os.getpid()

    def has(self, name: str) -> bool:
        """Whether there is such a table."""
        return name in self._pending or name in self._versions

    def snapshot(self, name: str) -> Snapshot:
        """A table as it is seen here."""
        self.check_open()
        if name in self._pending:
            return self._pending[name]
        if self._absent is not None:
            raise self._absent
        if name not in self._versions:
            raise no_such_table(name)
        version, identity = self._versions[name]
        return self.catalog.snapshot(name, version, identity=identity)

    def stage(self, name: str, operation: Operation[T], stage: Stage = run) -> T:
        """Run an operation on a table, and keep its commits for later."""
        snapshot = self.snapshot(name)
        snapshot.check_ours()
        captured: Captured[T] = stage(snapshot, operation, self.storage_options)
        self._captured.append((captured, snapshot))
        for staged in captured.staged(snapshot):
            self._add(staged)
        return captured.result

    def stage_new(
        self,
        name: str,
        operation: Operation[None],
        location: str | None,
        stage: StageNew = run_new,
    ) -> None:
        """Run the operation that makes a table, and keep its commit for later."""
        self.check_open()
        where = new_location(self.catalog, name, location)
        captured = stage(name, where, operation, self.storage_options)
        self._captured.append((captured, None))
        (actions,) = captured.commits
        staged = Staged(name, actions, location=where)
        self._staged.append(staged)
        self._pending[name] = new_table(self.catalog.backend, staged, _now_ms())

    def commit(self) -> tuple[Committed, ...]:
        """Make all of it true, and publish it."""
        self.check_open()
        self._ended = True
        if not self._staged:
            if self._absent is not None:
                raise self._absent
            return ()
        with discarding(self):
            done = commit(
                self.catalog, *self._staged, storage_options=self.storage_options
            )
        if not done:
            # An application's transaction that was there already.
            self.discard()
            for captured, seen in self._captured:
                if seen is not None:
                    check_repeated(captured, seen)
        return done

    def discard(self) -> None:
        """Let it be: remove the files that were written."""
        self._ended = True
        if self._pid != os.getpid():
            # They are those of the process that this one was forked from.
            return
        for captured, _ in self._captured:
            captured.discard()

    def check_open(self) -> None:
        """Refuse use after the end, and in another process."""
        if self._pid != os.getpid():
            raise TransactionError("a transaction stays in the process that began it")
        if self._ended:
            raise TransactionError("the transaction has ended")

    def _add(self, staged: Staged) -> None:
        seen = self._pending.get(staged.table)
        if seen is None:
            seen = PendingSnapshot.over(self.snapshot(staged.table))
        # What others ratify since is a winner to each of the commits.
        reads = replace(staged.reads, version=seen.read_version)
        self._staged.append(replace(staged, reads=reads))
        self._pending[staged.table] = seen.then(staged, _now_ms())


def _now_ms() -> int:
    return int(time.time() * 1000)
