"""Operations made true: run in a workspace, ratified, and run again where they lost."""

import random
import time
from collections.abc import Mapping
from typing import TypeVar

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.commits import check_repeated, discarding, ratify
from delkalakedb.errors import CommitFailedError
from delkalakedb.model.conflicts import Rule
from delkalakedb.model.txnlog import Committed, Conflicted
from delkalakedb.workspace import Captured, Operation, Stage, run

__all__ = ["lost", "perform"]

T = TypeVar("T")

# Others, such as a changed schema, are for the caller to look at.
_RUN_AGAIN = frozenset(
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
    operation: Operation[T],
    *,
    retries: int | None = None,
    storage_options: Mapping[str, str] | None = None,
    stage: Stage = run,
) -> tuple[T, int | None]:
    """What an operation returns, and the version it made, if any.

    Args:
        catalog: the table's catalog.
        snapshot: the table as the caller sees it.
        operation: what to run.
        retries: how often to run it again on the newest version after it lost;
            `concurrency.retries` by default.
        storage_options: of the table's store.
        stage: who runs it; delta-rs in a workspace by default.
    """
    concurrency = catalog.settings.concurrency
    left = concurrency.retries if retries is None else retries
    pause_s = concurrency.backoff_initial
    snapshot.check_ours()
    captured, seen = stage(snapshot, operation, storage_options), snapshot
    while True:
        outcome = _ratified(catalog, captured, snapshot, storage_options)
        if not isinstance(outcome, Conflicted):
            if not outcome:
                check_repeated(captured, seen)
            return captured.result, outcome[-1].version if outcome else None
        with discarding(captured):
            latest = catalog.snapshot(snapshot.table.name, identity=snapshot.identity)
        if not left or not _may_run_again(outcome, snapshot, latest):
            captured.discard()
            raise lost(operation.name, snapshot, outcome)
        left -= 1
        time.sleep(pause_s * random.random())
        pause_s = min(2 * pause_s, concurrency.backoff_max)
        # What looked at nothing is as good on the newest version, and its source may
        # be read up.
        if operation.files is not None:
            captured.discard()
            captured = stage(latest, operation, storage_options)
        snapshot = latest


def _ratified(
    catalog: Catalog,
    captured: Captured[T],
    snapshot: Snapshot,
    storage_options: Mapping[str, str] | None,
) -> tuple[Committed, ...] | Conflicted:
    if not captured.commits:
        return ()
    with discarding(captured):
        staged = captured.staged(snapshot)
        outcome = ratify(
            catalog, *staged, seen=snapshot, storage_options=storage_options
        )
    if not outcome:
        captured.discard()
    return outcome


def _may_run_again(lost: Conflicted, read: Snapshot, latest: Snapshot) -> bool:
    unchanged = (read.protocol, read.metadata) == (latest.protocol, latest.metadata)
    return lost.rule in _RUN_AGAIN and unchanged


def lost(operation: str, snapshot: Snapshot, to: Conflicted) -> CommitFailedError:
    """What to say of an operation that lost against another commit."""
    return CommitFailedError(
        f"{to.table}: {operation} on version {snapshot.version}: "
        f"Failed to commit transaction: version {to.winner_version} was taken by "
        f"{to.winner_operation}: {to.detail}; reload and retry ({to.rule})"
    )
