"""Which commits conflict: the rules of Delta Spark's ConflictChecker, as values.

A commit (the *attempt*) that was prepared on version r and finds versions after r
taken is checked against each of those *winners*, oldest first. `check` gives the
first rule that is broken, in Spark's order, or None when the attempt may be rebased:

    rule                        Spark's error                      relaxed by level
    protocol_changed            ProtocolChangedException           no
    metadata_changed            MetadataChangedException           no
    concurrent_domain           ConcurrentTransactionException     no
    concurrent_transaction      ConcurrentTransactionException     no
    concurrent_append           ConcurrentAppendException          yes
    concurrent_delete_read      ConcurrentDeleteReadException      no
    concurrent_delete_delete    ConcurrentDeleteDeleteException    no

`check_liveness` adds the rules of our own: whatever the level, a remove hits a live
file and an add neither doubles a live file nor brings back one that a winner removed.

Read sets are predicates over files: where Spark stops at partitions, and takes every
added file of an unpartitioned table as read, the caller's `matches` may use statistics.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self, TypeVar

from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Txn,
    UnknownAction,
    dv_id,
    known,
)
from delkalakedb.model.predicate import Predicate
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.protocol import supported_features
from delkalakedb.model.txnlog import Reads, Staged
from delkalakedb.model.upgrades import SAFE_FEATURES, harmful_changes

__all__ = [
    "ROW_TRACKING_DOMAIN",
    "Attempt",
    "Conflict",
    "IsolationLevel",
    "Rule",
    "Winner",
    "check",
    "check_liveness",
    "first_conflict",
    "is_blind_append",
    "isolation_of",
]

ROW_TRACKING_DOMAIN = "delta.rowTracking"

_A = TypeVar("_A", bound=Action)
Matches = Callable[[Predicate, Add], bool]
_LEVEL = "delta.isolationLevel"


class IsolationLevel(StrEnum):
    """How far a commit is kept apart from those that ran beside it."""

    SERIALIZABLE = "Serializable"
    WRITE_SERIALIZABLE = "WriteSerializable"
    SNAPSHOT = "SnapshotIsolation"


class Rule(StrEnum):
    """Why a commit can't be rebased."""

    PROTOCOL_CHANGED = "protocol_changed"
    METADATA_CHANGED = "metadata_changed"
    CONCURRENT_DOMAIN = "concurrent_domain"
    CONCURRENT_TRANSACTION = "concurrent_transaction"
    CONCURRENT_APPEND = "concurrent_append"
    CONCURRENT_DELETE_READ = "concurrent_delete_read"
    CONCURRENT_DELETE_DELETE = "concurrent_delete_delete"
    REMOVE_NOT_LIVE = "remove_not_live"
    ADD_ALREADY_LIVE = "add_already_live"
    ADD_RESURRECTS = "add_resurrects"
    READ_EXPIRED = "read_expired"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A broken rule; `detail` goes on from "version 42 was taken by a DELETE: "."""

    rule: Rule
    detail: str


@dataclass(frozen=True, slots=True)
class Winner:
    """A commit that took a version the attempt hadn't seen.

    `added` is looked at only if `Attempt.looks_at_added`, `removed` only if
    `Attempt.looks_at_removed`; both may leave out files that the attempt neither
    can have read nor removes. `removed` holds the files as they were added, since a
    tombstone may lack the statistics that predicates need. A file that was added
    again under the same deletion vector (new statistics) is in `added` only.
    """

    version: int
    operation: str
    is_blind_append: bool = False
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    app_ids: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    added: tuple[Add, ...] = ()
    removed: tuple[Add, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """A staged commit, taken apart, with the protocol and metadata it stands on."""

    reads: Reads
    isolation: IsolationLevel
    is_blind_append: bool
    protocol: Protocol
    metadata: Metadata
    new_protocol: Protocol | None
    new_metadata: Metadata | None
    app_ids: frozenset[str]
    domains: frozenset[str]
    adds: tuple[Add, ...]
    removes: tuple[Remove, ...]
    remove_all: bool

    @classmethod
    def of(cls, staged: Staged, protocol: Protocol, metadata: Metadata) -> Self:
        """The attempt to commit `staged`; protocol and metadata as it read them."""
        new_protocol = _only(staged.actions, Protocol)
        new_metadata = _only(staged.actions, Metadata)
        configuration = known((new_metadata or metadata).configuration) or {}
        txns = {a.app_id for a in staged.actions if isinstance(a, Txn)}
        return cls(
            reads=staged.reads,
            isolation=isolation_of(configuration, staged),
            is_blind_append=is_blind_append(staged),
            protocol=protocol,
            metadata=metadata,
            new_protocol=new_protocol,
            new_metadata=new_metadata,
            app_ids=staged.reads.app_ids | txns,
            domains=frozenset(
                a.domain for a in staged.actions if isinstance(a, DomainMetadata)
            ),
            adds=tuple(a for a in staged.actions if isinstance(a, Add)),
            removes=tuple(a for a in staged.actions if isinstance(a, Remove)),
            remove_all=staged.remove_all,
        )

    @property
    def whole_table(self) -> bool:
        """Whether every file counts as read; replacing all of them reads them."""
        return self.reads.whole_table or self.remove_all

    @property
    def looks_at_added(self) -> bool:
        """Whether `check` needs the files that winners added."""
        return self.isolation is not IsolationLevel.SNAPSHOT and bool(
            self.whole_table or self.reads.predicates
        )

    @property
    def looks_at_removed(self) -> bool:
        """Whether `check` needs the files that winners removed."""
        return self.whole_table or not self.reads.nothing or bool(self.removes)

    def after(self, winner: Winner) -> Self:
        """The same attempt, standing on `winner`."""
        return replace(
            self,
            protocol=winner.protocol or self.protocol,
            metadata=winner.metadata or self.metadata,
        )


def is_blind_append(staged: Staged) -> bool:
    """Whether a commit only adds files and looked at none, as Spark has it.

    A commit without any file, such as a property change, is one too.
    """
    other = (Remove, Cdc, UnknownAction)
    return (
        staged.reads.nothing
        and not staged.remove_all
        and not any(isinstance(action, other) for action in staged.actions)
    )


def isolation_of(
    configuration: Mapping[str, str | None], staged: Staged
) -> IsolationLevel:
    """The table's level, or SnapshotIsolation for a commit that changes no data.

    Without a property it is Serializable, as in open-source Delta. A commit of only
    `dataChange=false` files says the same before and after any other, so it needn't
    have seen what others added.
    """
    if _changes_no_data(staged):
        return IsolationLevel.SNAPSHOT
    # Alone: another property that can't be parsed is no reason not to commit.
    level = {_LEVEL: configuration.get(_LEVEL)}
    return IsolationLevel(parse_properties(level).isolation_level)


def check(attempt: Attempt, winner: Winner, matches: Matches) -> Conflict | None:
    """The first rule that keeps `attempt` from being rebased on `winner`."""
    return (
        _protocol_changed(attempt, winner)
        or _metadata_changed(attempt, winner)
        or _concurrent_domain(attempt, winner)
        or _concurrent_transaction(attempt, winner)
        or _concurrent_append(attempt, winner, matches)
        or _concurrent_delete_read(attempt, winner, matches)
        or _concurrent_delete_delete(attempt, winner)
    )


def first_conflict(
    attempt: Attempt, winners: Iterable[Winner], matches: Matches
) -> tuple[Winner, Conflict] | None:
    """The oldest winner that `attempt` can't be rebased on; `winners` in order.

    Winners without protocol, metadata, app ids, domains or files that the attempt
    looks at may be left out.
    """
    for winner in winners:
        if conflict := check(attempt, winner, matches):
            return winner, conflict
        attempt = attempt.after(winner)
    return None


def check_liveness(
    removes: Iterable[Remove],
    adds: Iterable[Add],
    live: Mapping[str, frozenset[str]],
    removed_since: Collection[str] = frozenset(),
) -> Conflict | None:
    """The rules that no isolation level relaxes, over the files as they are now.

    Args:
        removes: the removes of the commit.
        adds: the adds of the commit.
        live: for each of their paths the deletion vector ids under which it is live.
        removed_since: those of their paths that winners removed.
    """
    freed: dict[str, str] = {}
    for remove in removes:
        if dv_id(remove) not in live.get(remove.path, ()):
            return Conflict(Rule.REMOVE_NOT_LIVE, f"{remove.path} is no longer live")
        freed[remove.path] = dv_id(remove)
    for add in adds:
        held = live.get(add.path, frozenset()) - {freed.get(add.path)}
        if held - {dv_id(add)}:
            return Conflict(Rule.ADD_ALREADY_LIVE, f"{add.path} is already live")
        if not held and add.path not in freed and add.path in removed_since:
            return Conflict(Rule.ADD_RESURRECTS, f"it removed {add.path}")
    return None


def _changes_no_data(staged: Staged) -> bool:
    return not staged.remove_all and all(map(_says_nothing_new, staged.actions))


def _says_nothing_new(action: Action) -> bool:
    match action:
        case Add() | Remove():
            return not action.data_change
        case DomainMetadata(domain=name):
            # Row ids are given anew at each version.
            return name == ROW_TRACKING_DOMAIN
    return isinstance(action, Cdc | CommitInfo)


def _protocol_changed(attempt: Attempt, winner: Winner) -> Conflict | None:
    if winner.protocol is None:
        return None
    if attempt.new_protocol is not None:
        return Conflict(Rule.PROTOCOL_CHANGED, "both changed the protocol")
    before, after = map(supported_features, (attempt.protocol, winner.protocol))
    if dropped := sorted(before - after):
        return Conflict(Rule.PROTOCOL_CHANGED, f"it dropped {', '.join(dropped)}")
    if unsafe := sorted(after - before - SAFE_FEATURES):
        return Conflict(Rule.PROTOCOL_CHANGED, f"it turned on {', '.join(unsafe)}")
    return None


def _metadata_changed(attempt: Attempt, winner: Winner) -> Conflict | None:
    if winner.metadata is None:
        return None
    if attempt.new_metadata is not None:
        return Conflict(Rule.METADATA_CHANGED, "both changed the metadata")
    protocol = winner.protocol or attempt.protocol
    if changes := harmful_changes(attempt.metadata, winner.metadata, protocol):
        return Conflict(Rule.METADATA_CHANGED, f"it changed {', '.join(changes)}")
    return None


def _concurrent_domain(attempt: Attempt, winner: Winner) -> Conflict | None:
    shared = (attempt.domains & winner.domains) - {ROW_TRACKING_DOMAIN}
    if not shared:
        return None
    return Conflict(Rule.CONCURRENT_DOMAIN, f"both set the domain {min(shared)}")


def _concurrent_transaction(attempt: Attempt, winner: Winner) -> Conflict | None:
    """As delta-rs, and unlike Spark, an application that is written counts as read."""
    shared = attempt.app_ids & winner.app_ids
    if not shared:
        return None
    detail = f"it is of the same application, {min(shared)}"
    return Conflict(Rule.CONCURRENT_TRANSACTION, detail)


def _concurrent_append(
    attempt: Attempt, winner: Winner, matches: Matches
) -> Conflict | None:
    if not attempt.looks_at_added or _may_come_first(attempt, winner):
        return None
    for file in winner.added:
        if _is_read(attempt, file, matches):
            detail = f"it added {file.path}, which this commit would have read"
            return Conflict(Rule.CONCURRENT_APPEND, detail)
    return None


def _may_come_first(attempt: Attempt, winner: Winner) -> bool:
    """Whether WriteSerializable lets the attempt act as if before the winner.

    A full overwrite then leaves the winner's files alone: it removes what it read.
    """
    return (
        attempt.isolation is IsolationLevel.WRITE_SERIALIZABLE
        and winner.is_blind_append
        and attempt.new_metadata is None
    )


def _concurrent_delete_read(
    attempt: Attempt, winner: Winner, matches: Matches
) -> Conflict | None:
    for file in winner.removed:
        if file.path in attempt.reads.paths or _is_read(attempt, file, matches):
            detail = f"it removed {file.path}, which this commit read"
            return Conflict(Rule.CONCURRENT_DELETE_READ, detail)
    return None


def _concurrent_delete_delete(attempt: Attempt, winner: Winner) -> Conflict | None:
    ours = {remove.path for remove in attempt.removes}
    for file in winner.removed:
        if file.path in ours:
            detail = f"both removed {file.path}"
            return Conflict(Rule.CONCURRENT_DELETE_DELETE, detail)
    return None


def _is_read(attempt: Attempt, file: Add, matches: Matches) -> bool:
    return attempt.whole_table or any(
        matches(p, file) for p in attempt.reads.predicates
    )


def _only(actions: Iterable[Action], kind: type[_A]) -> _A | None:
    return next((a for a in actions if isinstance(a, kind)), None)
