"""The commits that an attempt hadn't seen, loaded as far as the rules look at them."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from delkalakedb.catalog.backend import Row, Session
from delkalakedb.catalog.head import Head, load_head
from delkalakedb.catalog.rows import add_from_row
from delkalakedb.errors import VersionNotFoundError
from delkalakedb.model.actions import (
    Add,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Txn,
)
from delkalakedb.model.codec import decode_struct
from delkalakedb.model.conflicts import (
    Attempt,
    Conflict,
    Rule,
    Winner,
    first_conflict,
)
from delkalakedb.model.predicate import Predicate
from delkalakedb.model.prune import matcher
from delkalakedb.model.txnlog import Conflicted, Staged

__all__ = [
    "conflicted",
    "find_conflict",
    "find_expired",
    "follows_anything",
    "newest",
]


def follows_anything(staged: Staged, head: Head) -> bool:
    """Whether no commit since can conflict, so that none has to be loaded.

    An append that looked at nothing and brings only files conflicts with nothing but a
    change of the table's metadata or protocol since it was read, and there was none, or
    it wasn't.
    """
    read = staged.reads.version
    unchanged = max(head.metadata_version, head.protocol_version)
    return (read < 0 or unchanged <= read) and _appends_blindly(staged)


def find_expired(staged: Staged, head: Head) -> Conflicted | None:
    """The outcome where `staged` can't be checked against what came since it read."""
    read = max(staged.reads.version, 0)
    if head.first_version <= read <= head.version:
        return None
    conflict = Conflict(
        Rule.READ_EXPIRED,
        f"it read version {read}, and there are versions {head.first_version} to "
        f"{head.version}",
    )
    return conflicted(staged.table, newest([], head.version), conflict)


def _appends_blindly(staged: Staged) -> bool:
    return (
        staged.reads.nothing
        and not staged.reads.app_ids
        and not staged.remove_all
        and all(isinstance(action, Add | CommitInfo) for action in staged.actions)
    )


def find_conflict(
    session: Session, head: Head, staged: Staged, rows: Sequence[Row]
) -> Conflicted | None:
    """The rule that keeps `staged` from following the winners in `rows`."""
    if not rows:
        return None
    protocol, metadata = head.protocol, head.metadata
    if max(head.metadata_version, head.protocol_version) > staged.reads.version:
        protocol, metadata = _read_state(session, head, staged)
    attempt = Attempt.of(staged, protocol, metadata)
    winners = _load(session, head, attempt, rows)
    found = first_conflict(attempt, winners, _matches(metadata))
    return conflicted(staged.table, *found) if found else None


def conflicted(table: str, winner: Winner, conflict: Conflict) -> Conflicted:
    """The outcome that says who won and why."""
    return Conflicted(
        table, conflict.rule, conflict.detail, winner.version, winner.operation
    )


def newest(rows: Sequence[Row], otherwise: int) -> Winner:
    """The winner to name where no single one is to blame."""
    if not rows:
        return Winner(version=otherwise, operation="an earlier commit")
    version, operation, *_ = rows[-1]
    return Winner(version=version, operation=operation or "a commit")


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
    session: Session, head: Head, attempt: Attempt, rows: Sequence[Row]
) -> list[Winner]:
    window = {
        "table_id": head.table_id,
        "after": attempt.reads.version,
        "upto": head.current_version,
    }
    apps = _group(
        session.query("load_txns_since", window) if attempt.app_ids else [],
        lambda row: decode_struct(row[1], Txn).app_id,
    )
    domains = _group(
        session.query("load_domains_since", window) if attempt.domains else [],
        lambda row: decode_struct(row[1], DomainMetadata).domain,
    )
    added = _files(session, "load_added_since", window, attempt.looks_at_added)
    removed = _files(session, "load_removed_since", window, attempt.looks_at_removed)
    return [
        Winner(
            version=version,
            operation=operation or "a commit",
            is_blind_append=bool(blind),
            metadata=decode_struct(metadata, Metadata) if metadata else None,
            protocol=decode_struct(protocol, Protocol) if protocol else None,
            app_ids=frozenset(apps[version]),
            domains=frozenset(domains[version]),
            added=tuple(added[version]),
            removed=tuple(removed[version]),
        )
        for version, operation, blind, metadata, protocol in rows
    ]


def _group(
    rows: Iterable[Row], name: Callable[[Row], str]
) -> defaultdict[int, list[str]]:
    grouped: defaultdict[int, list[str]] = defaultdict(list)
    for row in rows:
        grouped[row[0]].append(name(row))
    return grouped


def _files(
    session: Session, name: str, window: dict[str, int], wanted: bool
) -> defaultdict[int, list[Add]]:
    files: defaultdict[int, list[Add]] = defaultdict(list)
    if wanted:
        for row in session.query(name, window):
            files[row[-1]].append(add_from_row(row))
    return files


def _matches(metadata: Metadata) -> Callable[[Predicate, Add], bool]:
    compiled: dict[Predicate, Callable[..., bool]] = {}

    def matches(predicate: Predicate, add: Add) -> bool:
        if predicate not in compiled:
            compiled[predicate] = matcher(predicate, metadata.partition_columns)
        return compiled[predicate](add.partition_values, add.stats or None)

    return matches
