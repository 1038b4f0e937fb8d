"""Commits as they are published: actions in order, and the head that each made."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from delkalakedb.catalog.backend import Backend, Row, Session
from delkalakedb.catalog.head import Head, load_head
from delkalakedb.catalog.rows import add_from_row, remove_from_row
from delkalakedb.model.actions import (
    Action,
    Cdc,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Txn,
)
from delkalakedb.model.codec import action_from_dict, decode_struct

__all__ = ["Ratified", "load_commits"]


@dataclass(frozen=True, slots=True)
class Ratified:
    """A commit of the catalog."""

    head: Head
    transaction_id: str
    actions: tuple[Action, ...]


def _struct(kind: type[Any]) -> Callable[[Row], Action]:
    def parse(row: Row) -> Action:
        action: Action = decode_struct(row[0], kind)
        return action

    return parse


# In the order in which they are published; rows start with their version.
_PARTS: tuple[tuple[str, Callable[[Row], Action]], ...] = (
    ("load_protocols_since", _struct(Protocol)),
    ("load_metadata_since", _struct(Metadata)),
    ("load_txns_since", _struct(Txn)),
    ("load_domains_since", _struct(DomainMetadata)),
    ("load_removes_since", remove_from_row),
    ("load_adds_since", add_from_row),
    ("load_cdc_since", _struct(Cdc)),
)


def load_commits(
    backend: Backend, name: str, after: int, upto: int, within: Session | None = None
) -> Iterator[Ratified]:
    """The commits after a version, in order; two round trips for all of them."""
    statements = backend.statements
    names = ["load_commits_since", *(part for part, _ in _PARTS)]
    with nullcontext(within) if within else backend.reading() as session:
        head = load_head(session, name, after + 1)
        window = {"table_id": head.table_id, "after": after, "upto": upto}
        commits, *parts = session.query_many([(statements[n], window) for n in names])
    found: defaultdict[int, list[Action]] = defaultdict(list)
    for (_, parse), rows in zip(_PARTS, parts, strict=True):
        for version, *row in rows:
            found[version].append(parse(tuple(row)))
    for commit in commits:
        ratified = _ratified(head, commit, found.pop(commit[0], []))
        head = ratified.head
        yield ratified


def _ratified(head: Head, row: Row, actions: list[Action]) -> Ratified:
    version, timestamp_ms, transaction_id, files, size_bytes, info, others = row
    for action in actions:
        if isinstance(action, Metadata):
            head = replace(head, metadata=action, metadata_version=version)
        elif isinstance(action, Protocol):
            head = replace(head, protocol=action, protocol_version=version)
    head = replace(
        head,
        version=version,
        timestamp_ms=timestamp_ms,
        num_files=files,
        size_bytes=int(size_bytes),
    )
    # An adopted commit may have no commitInfo.
    first = [CommitInfo(msgspec.json.decode(info))] if info else []
    last = map(action_from_dict, msgspec.json.decode(others or "[]"))
    return Ratified(head, transaction_id, (*first, *actions, *last))
