"""Commits that this process has just ratified, for whoever publishes them.

Reading them back would take longer than writing them did. Only appends are kept, and
small ones: what a remove says of its file is in the database alone.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterable
from weakref import WeakKeyDictionary

from delkalakedb.catalog.backend import Backend
from delkalakedb.catalog.cache import Forkable
from delkalakedb.catalog.commit import ByKind
from delkalakedb.catalog.commits import Ratified
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.outbox import Mirror
from delkalakedb.model.actions import (
    Add,
    Cdc,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Txn,
    UnknownAction,
)

__all__ = ["fresh_commit", "keep_fresh", "take_fresh"]

_MOST_COMMITS = 32
_MOST_FILES = 100
# As `load_commits` has them.
_ORDER = (CommitInfo, Protocol, Metadata, Txn, DomainMetadata, Add, Cdc, UnknownAction)

_Kept = OrderedDict[tuple[int, int], Ratified]


class _Fresh(Forkable):
    def _reset(self) -> None:
        self.lock = threading.Lock()
        self.kept: WeakKeyDictionary[Backend, _Kept] = WeakKeyDictionary()


_fresh = _Fresh()


def fresh_commit(head: Head, transaction_id: str, actions: ByKind) -> Ratified | None:
    """An append as it is published; None for a large one."""
    if len(actions.of(Add)) > _MOST_FILES:
        return None
    ordered = tuple(action for kind in _ORDER for action in actions.of(kind))
    return Ratified(head, transaction_id, ordered)


def keep_fresh(backend: Backend, commits: Iterable[Ratified]) -> None:
    """Keep commits that were ratified, for a while."""
    with _fresh.lock:
        kept = _fresh.kept.setdefault(backend, OrderedDict())
        kept.update({(c.head.table_id, c.head.version): c for c in commits})
        while len(kept) > _MOST_COMMITS:
            kept.popitem(last=False)


def take_fresh(
    backend: Backend, mirror: Mirror, after: int, upto: int
) -> list[Ratified] | None:
    """The commits after a version, in order, if all of them are here."""
    versions = range(after + 1, upto + 1)
    with _fresh.lock:
        kept = _fresh.kept.setdefault(backend, OrderedDict())
        found = [kept.pop((mirror.table_id, version), None) for version in versions]
    whole = [commit for commit in found if commit and _is_of(commit.head, mirror)]
    return whole if len(whole) == len(versions) else None


def _is_of(head: Head, mirror: Mirror) -> bool:
    """Whether the table is the one that had this id when the commit was kept."""
    return (head.name, head.location, head.metadata.id) == (
        mirror.name,
        mirror.location,
        mirror.metadata.id,
    )
