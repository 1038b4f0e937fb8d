"""Commit: stage operations, make their actions versions, and publish the versions.

`commit` is the one way into the catalog. `perform` stages an operation on one table and
commits it, again if it lost; `Together` commits operations on several tables at once;
`make_table` creates a table.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from delkalakedb.catalog import Catalog, PendingSnapshot, Snapshot, new_table, summary
from delkalakedb.catalog.commit import Committed, Conflicted, Skipped
from delkalakedb.catalog.load import find_table_at
from delkalakedb.catalog.read import Identity, check_name, check_place, no_such_table
from delkalakedb.clock import now_ms, pauses
from delkalakedb.errors import (
    CatalogNotFoundError,
    CommitFailedError,
    DeltalakeDBError,
    TableExistsError,
    TransactionError,
    UnknownOutcomeError,
)
from delkalakedb.mirror.publisher import deliver
from delkalakedb.model.actions import Txn
from delkalakedb.model.log import Staged
from delkalakedb.model.paths import LOG
from delkalakedb.model.records import Table
from delkalakedb.model.rules.conflicts import Rule
from delkalakedb.model.rules.protocol import taking_vectors
from delkalakedb.model.schema.identity import same_but_marks
from delkalakedb.model.vectors import InlineBounds
from delkalakedb.storage import canonical_location, open_store
from delkalakedb.telemetry import RETRIES, PublishWarning
from delkalakedb.write.engines.deltars import NewSchema, creation
from delkalakedb.write.operation import Operation, Staging, Target
from delkalakedb.write.unions import Unions

_T = TypeVar("_T")
_Options = Mapping[str, str] | None


def commit(
    catalog: Catalog, *staged: Staged, storage_options: _Options = None
) -> tuple[Committed, ...] | Conflicted:
    """Commit all of `staged` or none of it, and publish what was committed.

    A failure to publish undoes no commit. The result leaves out commits that were
    skipped, because an application had made them before.
    """
    for new in staged:
        if new.location is not None:
            _refuse_log(catalog, new.table, new.location, storage_options)
    mirror = catalog.settings.mirror
    lease_s = mirror.lease if mirror.mode == "inline" else None
    outcome = catalog._try_commit(*staged, lease_s=lease_s)
    if isinstance(outcome, Conflicted) and outcome.unread is not None:
        outcome = _commit_united(catalog, outcome, staged, lease_s, storage_options)
    if isinstance(outcome, Conflicted):
        return outcome
    made = [o for o in outcome if isinstance(o, Committed)]
    summaries = tuple(map(summary, made))
    try:
        deliver(catalog, made, storage_options)
    except PublishWarning as warning:
        # Where warnings are errors: the caller must know what was committed.
        warning.committed = summaries
        raise
    return summaries


def _commit_united(
    catalog: Catalog,
    lost: Conflicted,
    staged: Sequence[Staged],
    lease_s: float | None,
    storage_options: _Options,
) -> tuple[Committed | Skipped, ...] | Conflicted:
    """Commit once vectors are united, as often as other commits change them again."""
    vectors = catalog.settings.vectors
    bounds = InlineBounds(vectors.inline_bytes, vectors.inline_commit_bytes)
    unions = Unions(bounds, storage_options)
    left = catalog.settings.concurrency.retries
    outcome: tuple[Committed | Skipped, ...] | Conflicted = lost
    try:
        while isinstance(outcome, Conflicted) and (unread := outcome.unread) and left:
            if (union := unions.united(unread)) is None:
                break
            staged = [union if one is unread.staged else one for one in staged]
            outcome = catalog._try_commit(*staged, lease_s=lease_s)
            left -= 1
    except DeltalakeDBError as error:
        if is_certain(error):
            unions.discard()
        raise
    made = not isinstance(outcome, Conflicted) and isinstance(outcome[0], Committed)
    unions.discard(staged if made else ())
    return outcome


def _refuse_log(
    catalog: Catalog, name: str, location: str, storage_options: _Options
) -> None:
    """Refuse a new table at a location that has the log of another table.

    The new table's commits could never be published there.
    """
    there = any(open_store(location, storage_options).list(LOG))
    if there and find_table_at(catalog, location) is None:
        raise TableExistsError(
            f"{name}: there is a Delta table at {location} already; import that one, "
            "or choose another location"
        )


# An operation that lost by one of these rules is staged again. Other losses, such as
# by a changed schema, are for the caller to look at.
_STAGED_AGAIN = frozenset(
    {
        Rule.CONCURRENT_APPEND,
        Rule.CONCURRENT_DELETE_READ,
        Rule.CONCURRENT_DELETE_DELETE,
        Rule.REMOVE_NOT_LIVE,
        Rule.READ_EXPIRED,
    }
)


def perform(
    catalog: Catalog,
    snapshot: Snapshot,
    operation: Operation[_T],
    *,
    retries: int | None = None,
    storage_options: _Options = None,
) -> tuple[_T, int | None]:
    """Stage and commit an operation; return its result and the version that it made.

    The version is None if the operation had nothing to commit.

    Args:
        catalog: the table's catalog.
        snapshot: the table as the caller sees it.
        operation: what to do.
        retries: how often to stage the operation again on the newest version after it
            lost; `concurrency.retries` by default.
        storage_options: the options of the table's object store.
    """
    concurrency = catalog.settings.concurrency
    waits = pauses(concurrency.backoff_initial, concurrency.backoff_max, jitter=1)
    left = concurrency.retries if retries is None else retries
    snapshot._check_ours()
    read, staging = snapshot, operation.stage(Target.at(snapshot, storage_options))
    while staging.commits:
        with _discarding(staging):
            staged = staging.staged()
            outcome = commit(catalog, *staged, storage_options=storage_options)
        if not isinstance(outcome, Conflicted):
            if outcome:
                return staging.result, outcome[-1].version
            # An application's transaction that was there already.
            staging.discard()
            _check_repeated(staging, snapshot)
            break
        with _discarding(staging):
            latest = catalog.snapshot(read.table.name, identity=read.identity)
        if not left or not _may_stage_again(outcome, read, latest):
            staging.discard()
            raise lost(operation.name, read, outcome)
        left -= 1
        RETRIES.record(1, operation=operation.name)
        time.sleep(next(waits))
        same_metadata = read.metadata == latest.metadata
        read = latest
        if operation.files is None and same_metadata:
            # An operation that read no file is valid on every version, and its source
            # may be consumed.
            staging = staging.on(latest)
        else:
            staging.discard()
            staging = operation.stage(Target.at(latest, storage_options))
    return staging.result, None


def _may_stage_again(lost: Conflicted, read: Snapshot, latest: Snapshot) -> bool:
    # Another commit that gave values in identity columns has only taken these values.
    unchanged = read.protocol == latest.protocol and same_but_marks(
        read.metadata, latest.metadata
    )
    took_values = (
        lost.rule == Rule.METADATA_CHANGED and read.metadata != latest.metadata
    )
    return unchanged and (lost.rule in _STAGED_AGAIN or took_values)


def lost(operation: str, snapshot: Snapshot, to: Conflicted) -> CommitFailedError:
    """Return the error of an operation that lost against another commit."""
    return CommitFailedError(
        f"{to.table}: {operation} on version {snapshot.version}: "
        f"Failed to commit transaction: version {to.winner_version} was taken by "
        f"{to.winner_operation}: {to.detail}; reload and retry ({to.rule})",
        to.rule,
    )


def _check_repeated(staging: Staging[Any], seen: Snapshot) -> None:
    """Raise `CommitFailedError` if a rival committed the application's transaction.

    A transaction that the table has already is skipped. A rival that committed it after
    the caller read the table may have written other rows.
    """
    for action in (a for actions in staging.commits for a in actions):
        if isinstance(action, Txn) and not _saw(seen, action):
            raise CommitFailedError(
                f"{seen.table.name}: {staging.operation.name} on version "
                f"{seen.version}: Failed to commit transaction: application "
                f"{action.app_id} has committed its version {action.version} "
                f"meanwhile; reload and retry ({Rule.CONCURRENT_TRANSACTION})",
                Rule.CONCURRENT_TRANSACTION,
            )


def _saw(seen: Snapshot, txn: Txn) -> bool:
    version = seen.txn_version(txn.app_id)
    return version is not None and version >= txn.version


def is_certain(error: DeltalakeDBError) -> bool:
    """Return whether an error of a commit means that nothing was committed.

    A connection that is lost during COMMIT leaves the outcome unknown. An error that is
    raised after a commit isn't a `DeltalakeDBError`.
    """
    return not isinstance(error, UnknownOutcomeError)


@contextmanager
def _discarding(written: "Staging[Any] | Together") -> Iterator[None]:
    """Delete the files of a commit if the commit is certainly refused."""
    try:
        yield
    except DeltalakeDBError as error:
        if is_certain(error):
            written.discard()
        raise


class Together:
    """Operations on tables of one catalog that are committed together, or not at all.

    Tables are seen at one moment, with the changes that this transaction has staged.
    """

    def __init__(self, catalog: Catalog, storage_options: _Options = None) -> None:
        self.catalog = catalog
        self.storage_options = storage_options
        self._versions: dict[str, tuple[int, Identity]] = {}
        self._absent: CatalogNotFoundError | None = None
        try:
            # One statement: these versions were the latest at one moment.
            self._versions = catalog._versions()
        except CatalogNotFoundError as absent:
            # A first write makes the catalog.
            self._absent = absent
        self._pending: dict[str, PendingSnapshot] = {}
        self._staged: list[Staged] = []
        self._stagings: list[Staging[Any]] = []
        self._ended = False
        self._pid = os.getpid()

    def has(self, name: str) -> bool:
        """Return whether the transaction sees a table `name`."""
        return name in self._pending or name in self._versions

    def snapshot(self, name: str) -> Snapshot:
        """Return a table as this transaction sees it."""
        self.check_open()
        if name in self._pending:
            return self._pending[name]
        if self._absent is not None:
            raise self._absent
        if name not in self._versions:
            with self.catalog._backend.reading() as session:
                raise no_such_table(name, session)
        version, identity = self._versions[name]
        return self.catalog.snapshot(name, version, identity=identity)

    def stage(self, name: str, operation: Operation[_T]) -> _T:
        """Stage an operation on a table; return the operation's result."""
        snapshot = self.snapshot(name)
        snapshot._check_ours()
        staging = operation.stage(Target.at(snapshot, self.storage_options))
        self._stagings.append(staging)
        for staged in staging.staged():
            self._add(staged)
        return staging.result

    def stage_new(
        self, name: str, operation: Operation[None], location: str | None
    ) -> None:
        """Stage the operation that creates a table."""
        self.check_open()
        options = self.storage_options
        staging = _stage_new(self.catalog, name, location, operation, options)
        self._stagings.append(staging)
        (staged,) = staging.staged()
        self._staged.append(staged)
        self._pending[name] = new_table(self.catalog._backend, staged, now_ms())

    def commit(self) -> tuple[Committed, ...]:
        """Commit what was staged, and publish it."""
        self.check_open()
        self._ended = True
        if not self._staged:
            if self._absent is not None:
                raise self._absent
            return ()
        with _discarding(self):
            done = commit(
                self.catalog, *self._staged, storage_options=self.storage_options
            )
            if isinstance(done, Conflicted):
                raise done.error()
        if not done:
            # An application's transaction that was there already.
            self.discard()
            for staging in self._stagings:
                if staging.target.snapshot is not None:
                    _check_repeated(staging, staging.target.snapshot)
        return done

    def discard(self) -> None:
        """End the transaction without a commit, and delete the files it wrote."""
        self._ended = True
        if self._pid != os.getpid():
            # The files belong to the process that this one was forked from.
            return
        for staging in self._stagings:
            staging.discard()

    def check_open(self) -> None:
        """Raise `TransactionError` after the end, and in another process."""
        if self._pid != os.getpid():
            raise TransactionError("a transaction stays in the process that began it")
        if self._ended:
            raise TransactionError("the transaction has ended")

    def _add(self, staged: Staged) -> None:
        seen = self._pending.get(staged.table)
        if seen is None:
            seen = PendingSnapshot.over(self.snapshot(staged.table))
        # Each of the commits is checked against whatever others commit since.
        reads = replace(staged.reads, version=seen.read_version)
        self._staged.append(replace(staged, reads=reads))
        self._pending[staged.table] = seen.then(staged, now_ms())


def make_table(
    catalog: Catalog,
    name: str,
    location: str | None,
    operation: Operation[None],
    storage_options: _Options = None,
    instead: Callable[[Staging[None]], bool] = lambda made: False,
) -> None:
    """Create a table at a location, by default below the catalog's data path.

    If another process created the table first, `instead` is called with the staging; it
    returns whether it used the staging.
    """
    # Before files are written for the table.
    catalog._backend.check_open()
    made = _stage_new(catalog, name, location, operation, storage_options)
    try:
        done = commit(catalog, *made.staged(), storage_options=storage_options)
        if isinstance(done, Conflicted):
            raise done.error()
    except DeltalakeDBError as error:
        if not is_certain(error):
            raise
        try:
            if not isinstance(error, TableExistsError) or not instead(made):
                raise
        finally:
            made.discard()


def _stage_new(
    catalog: Catalog,
    name: str,
    location: str | None,
    operation: Operation[None],
    storage_options: _Options,
) -> Staging[None]:
    place = new_location(catalog, name, location)
    staging = operation.stage(Target(name, place, None, storage_options))
    if not catalog.settings.vectors.new_tables:
        return staging
    commits = [taking_vectors(actions) for actions in staging.commits]
    return replace(staging, commits=commits)


def new_location(catalog: Catalog, name: str, given: str | None) -> str:
    """Return the canonical location of a new table, which `check_place` accepts."""
    check_name(name)
    location = canonical_location(given or catalog._default_location(name))
    check_place(name, location)
    return location


def create_table(
    catalog: Catalog,
    name: str,
    schema: NewSchema,
    *,
    location: str | None,
    storage_options: _Options,
    **options: Any,
) -> Table:
    """Create a table without rows; `creation` has the options."""
    make_table(catalog, name, location, creation(schema, **options), storage_options)
    return catalog.snapshot(name, 0).table
