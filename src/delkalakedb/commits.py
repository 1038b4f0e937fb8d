"""Ratify staged actions, of one table or several at once, then publish them."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.catalog.outbox import Lease
from delkalakedb.catalog.pending import PendingSnapshot, new_table
from delkalakedb.catalog.staging import find_table_at
from delkalakedb.errors import (
    CatalogBusyError,
    DeltaError,
    MirrorBehindError,
    TableExistsError,
    TableNotFoundError,
    TransactionError,
)
from delkalakedb.mirror.deliver import deliver
from delkalakedb.model.txnlog import Committed, Conflicted, Skipped, Staged
from delkalakedb.storage import canonical_location, open_store
from delkalakedb.storage.segment import LOG
from delkalakedb.workspace import Captured, Operation, Stage, StageNew, run, run_new

__all__ = ["REFUSED", "Together", "commit", "ratify"]

T = TypeVar("T")
# Nothing was ratified, for certain; after a lost connection one can't know.
REFUSED = (DeltaError, CatalogBusyError, MirrorBehindError)
_Options = Mapping[str, str] | None


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
    deliver(catalog, {o.table: o.version for o in done}, storage_options, held)
    return done


class Together:
    """Operations on tables of one catalog that become true together, or not at all.

    Tables are seen as they were at one moment, with what was staged here on top.
    """

    def __init__(self, catalog: Catalog, storage_options: _Options = None) -> None:
        self.catalog = catalog
        self.storage_options = storage_options
        # One statement: these versions were the latest at one moment.
        self._versions = catalog.versions()
        self._pending: dict[str, PendingSnapshot] = {}
        self._staged: list[Staged] = []
        self._captured: list[Captured[Any]] = []
        self._ended = False

    def has(self, name: str) -> bool:
        """Whether there is such a table."""
        return name in self._pending or name in self._versions

    def snapshot(self, name: str) -> Snapshot:
        """A table as it is seen here."""
        if name in self._pending:
            return self._pending[name]
        if name not in self._versions:
            raise TableNotFoundError(f"{name}: the catalog has no such table")
        version, identity = self._versions[name]
        return self.catalog.snapshot(name, version, identity=identity)

    def stage(self, name: str, operation: Operation[T], stage: Stage = run) -> T:
        """Run an operation on a table, and keep its commits for later."""
        self._check_open()
        snapshot = self.snapshot(name)
        snapshot.check_ours()
        captured: Captured[T] = stage(snapshot, operation, self.storage_options)
        self._captured.append(captured)
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
        self._check_open()
        where = canonical_location(location or self.catalog.default_location(name))
        captured = stage(name, where, operation, self.storage_options)
        self._captured.append(captured)
        (actions,) = captured.commits
        staged = Staged(name, actions, location=where)
        self._staged.append(staged)
        self._pending[name] = new_table(self.catalog.backend, staged, _now_ms())

    def commit(self) -> tuple[Committed, ...]:
        """Make all of it true, and publish it."""
        self._check_open()
        self._ended = True
        if not self._staged:
            return ()
        try:
            done = commit(
                self.catalog, *self._staged, storage_options=self.storage_options
            )
        except REFUSED:
            self.discard()
            raise
        if not done:
            # An application's transaction that was there already.
            self.discard()
        return done

    def discard(self) -> None:
        """Let it be: remove the files that were written."""
        self._ended = True
        for captured in self._captured:
            captured.discard()

    def _check_open(self) -> None:
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
