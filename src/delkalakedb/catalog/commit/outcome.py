"""Outcomes of a commit: committed, skipped, or conflicted with a winner.

Winners are the commits that an attempt hadn't seen. They are loaded as far as the
conflict rules look at them.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple
from uuid import uuid4

from delkalakedb.catalog.commit.outbox import Lease
from delkalakedb.catalog.engine import Session
from delkalakedb.catalog.read import Head, LoggedCommit, add_from_row, load_head
from delkalakedb.errors import CommitFailedError, VersionNotFoundError
from delkalakedb.model.actions import (
    Add,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Metadata,
    Protocol,
    Txn,
    decode_struct,
)
from delkalakedb.model.log import Staged
from delkalakedb.model.predicate.matcher import matcher
from delkalakedb.model.predicate.predicate import Predicate
from delkalakedb.model.rules.conflicts import (
    Attempt,
    Conflict,
    Matches,
    Rule,
    Winner,
    first_conflict,
    is_read,
    reads_nothing,
)
from delkalakedb.model.rules.row_changes import Marks, Union, marks_since, united
from delkalakedb.model.times import from_ms
from delkalakedb.model.vectors import InlineBounds


@dataclass(frozen=True, slots=True)
class Committed:
    """The staged actions are version `version` of `table`.

    `ratified` and `lease` are for publishing the version right away. `ratified` is None
    where only the database has all that the commit's log entry says. `lease` is on the
    last commit to the table, if the lease was asked for and free.
    """

    table: str
    version: int
    timestamp_ms: int
    transaction_id: str
    operation: str
    num_added_files: int
    num_removed_files: int
    added_bytes: int
    removed_bytes: int = 0
    table_id: int | None = None
    ratified: LoggedCommit | None = field(default=None, repr=False, compare=False)
    lease: Lease | None = field(default=None, repr=False, compare=False)

    @property
    def timestamp(self) -> datetime:
        """The time of the commit, in UTC."""
        return from_ms(self.timestamp_ms)


@dataclass(frozen=True, slots=True)
class Skipped:
    """The application's transaction is in the table already; nothing was written."""

    table: str
    version: int
    app_id: str


@dataclass(frozen=True, slots=True)
class Unread:
    """A commit that may go through, but not before vectors in files are united.

    Args:
        staged: the commit, as it was given.
        location: where the table's files are.
        marks: the files whose vectors other commits have changed, by path.
    """

    staged: Staged
    location: str
    marks: Mapping[str, Marks]


@dataclass(frozen=True, slots=True)
class Conflicted:
    """The staged actions lost against `winner_version` and can't be rebased on it.

    `unread` is given if the conflict may be none, once vectors in files are united.
    """

    table: str
    rule: str
    detail: str
    winner_version: int
    winner_operation: str
    unread: Unread | None = field(default=None, repr=False, compare=False)

    def error(self) -> CommitFailedError:
        """Return the error for callers that don't try again."""
        return CommitFailedError(
            f"{self.table}: version {self.winner_version} was taken by "
            f"{self.winner_operation}: {self.detail}; reload and retry ({self.rule})",
            self.rule,
        )


class WinnerRow(NamedTuple):
    """A row of `load_winners`."""

    version: int
    operation: str | None
    is_blind_append: bool | None
    metadata: str | None
    protocol: str | None


class _Change(NamedTuple):
    """What a winner changed: a file, or the name of an application or a domain."""

    version: int
    what: Any


def follows_anything(staged: Staged, head: Head) -> bool:
    """Return whether `staged` can't conflict with any commit since it read the table.

    An append that read no file and only adds files conflicts with nothing but a change
    of the metadata or protocol that it read.
    """
    read = staged.reads.version
    unchanged = max(head.metadata_version, head.protocol_version)
    return (read < 0 or unchanged <= read) and _appends_blindly(staged)


def find_expired(staged: Staged, head: Head) -> Conflicted | None:
    """Return a conflict if the commits since `staged` read the table have expired."""
    read = max(staged.reads.version, 0)
    if head.first_version <= read <= head.version:
        return None
    conflict = Conflict(
        Rule.READ_EXPIRED,
        f"this commit read version {read}, but the catalog has versions "
        f"{head.first_version} to {head.version}",
    )
    return conflicted(staged.table, newest([], head.version), conflict)


def _appends_blindly(staged: Staged) -> bool:
    return (
        reads_nothing(staged.reads)
        and not staged.reads.app_ids
        and not staged.remove_all
        and all(isinstance(action, Add | CommitInfo) for action in staged.actions)
    )


def find_conflict(
    session: Session,
    head: Head,
    staged: Staged,
    rows: Sequence[WinnerRow],
    own: Mapping[str, DeletionVector | None],
    bounds: InlineBounds,
) -> tuple[Union, Conflicted | None]:
    """Return the conflict of `staged` with the winners in `rows`, if there is one.

    Return the commit, too, which keeps what winners deleted from the same files.

    Args:
        session: a transaction that has locked the table.
        head: the table's head.
        staged: the commit.
        rows: the commits since it read.
        own: the vectors that this transaction has given to files that winners changed.
        bounds: how large inline vectors may be.
    """
    protocol, metadata = head.protocol, head.metadata
    if max(head.metadata_version, head.protocol_version) > staged.reads.version:
        protocol, metadata = _read_state(session, head, staged)
    attempt = Attempt.of(staged, protocol, metadata)
    winners = _load(session, head, attempt, rows)
    matches = _matches(metadata)
    union, marks = Union(staged), dict[str, Marks]()
    if staged.reads.rows_only:
        marks = _marks(attempt, winners, matches)
        marks |= {p: replace(marks[p], now=own[p]) for p in own if p in marks}
        union = united(staged, marks, bounds, uuid4())
        if union.file:
            # Only without the lock, a file can be written.
            union = Union(staged, unread=union.kept | union.unread)
    for kept, unread in (
        (union.kept | union.unread, None),
        (union.kept, Unread(staged, head.location, marks)),
    ):
        left = [_without(winner, kept) for winner in winners]
        if found := first_conflict(attempt, left, matches):
            lost = conflicted(staged.table, *found)
            return union, replace(lost, unread=unread)
        if not union.unread:
            break
    return union, None


def _marks(
    attempt: Attempt, winners: Sequence[Winner], matches: Matches
) -> dict[str, Marks]:
    """Return the vectors of the files that an attempt has looked at."""
    ours = {remove.path for remove in attempt.removes}
    return marks_since(
        (
            [
                f
                for f in winner.removed
                if f.path in ours or is_read(attempt, f, matches)
            ],
            winner.added,
        )
        for winner in winners
    )


def _without(winner: Winner, kept: frozenset[str]) -> Winner:
    """Return `winner` without the files in which it deleted only other rows."""
    return replace(
        winner,
        added=tuple(add for add in winner.added if add.path not in kept),
        removed=tuple(add for add in winner.removed if add.path not in kept),
    )


def conflicted(table: str, winner: Winner, conflict: Conflict) -> Conflicted:
    """Return the outcome that names the winner and the reason."""
    return Conflicted(
        table, conflict.rule, conflict.detail, winner.version, winner.operation
    )


def newest(rows: Sequence[WinnerRow], otherwise: int) -> Winner:
    """Return the winner to name if no single commit is the cause."""
    if not rows:
        return Winner(version=otherwise, operation="an earlier commit")
    last = rows[-1]
    return Winner(version=last.version, operation=last.operation or "a commit")


def _read_state(
    session: Session, head: Head, staged: Staged
) -> tuple[Protocol, Metadata]:
    try:
        read = load_head(session, head.name, staged.reads.version)
    except VersionNotFoundError:
        # Prepared before the table was there: all of it is new to the attempt.
        read = head
    return read.protocol, read.metadata


def _load(
    session: Session, head: Head, attempt: Attempt, rows: Sequence[WinnerRow]
) -> list[Winner]:
    window = {
        "table_id": head.table_id,
        "after": attempt.reads.version,
        "upto": head.current_version,
    }

    def changes(
        kind: Callable[..., _Change], name: str, wanted: object
    ) -> defaultdict[int, list[Any]]:
        found: defaultdict[int, list[Any]] = defaultdict(list)
        for change in session.rows(kind, name, window) if wanted else ():
            found[change.version].append(change.what)
        return found

    apps = changes(_app, "load_txns_since", attempt.app_ids)
    domains = changes(_domain, "load_domains_since", attempt.domains)
    added = changes(_file, "load_adds_since", attempt.looks_at_added)
    removed = changes(_file, "load_removed_since", attempt.looks_at_removed)
    return [
        Winner(
            version=row.version,
            operation=row.operation or "a commit",
            is_blind_append=bool(row.is_blind_append),
            metadata=decode_struct(row.metadata, Metadata) if row.metadata else None,
            protocol=decode_struct(row.protocol, Protocol) if row.protocol else None,
            app_ids=frozenset(apps[row.version]),
            domains=frozenset(domains[row.version]),
            added=tuple(added[row.version]),
            removed=tuple(removed[row.version]),
        )
        for row in rows
    ]


def _app(version: int, action: str) -> _Change:
    return _Change(version, decode_struct(action, Txn).app_id)


def _domain(version: int, action: str) -> _Change:
    return _Change(version, decode_struct(action, DomainMetadata).domain)


def _file(version: int, *row: Any) -> _Change:
    return _Change(version, add_from_row(row))


def _matches(metadata: Metadata) -> Matches:
    compiled: dict[Predicate, Callable[..., bool]] = {}

    def matches(predicate: Predicate, add: Add) -> bool:
        if predicate not in compiled:
            compiled[predicate] = matcher(predicate, metadata.partition_columns)
        return compiled[predicate](add.partition_values, add.stats or None)

    return matches
