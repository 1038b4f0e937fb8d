"""A staged commit made to fit the version it becomes. Pure: values in, values out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from delkalakedb.catalog.backend import Row
from delkalakedb.catalog.commit import ByKind
from delkalakedb.catalog.head import Head
from delkalakedb.model.actions import Add, CommitInfo, Metadata, Protocol, known
from delkalakedb.model.conflicts import is_blind_append, isolation_of
from delkalakedb.model.fencing import asks_for_fence, fenced
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.rebase import (
    in_commit_timestamp,
    merged_commit_info,
    with_timestamp_enablement,
)
from delkalakedb.model.txnlog import Staged

__all__ = ["advanced", "commit_info", "empty_head", "last_adds", "rebased"]


def rebased(head: Head, staged: Staged, now_ms: int) -> tuple[Head, ByKind]:
    """The head that the commit makes, and its actions fit for that version."""
    first = head.version < 0
    version = head.version + 1
    timestamp_ms = in_commit_timestamp(now_ms, None if first else head.timestamp_ms)
    actions = ByKind(staged.actions)
    if metadata := actions.one(Metadata):
        if asks_for_fence(metadata):
            before = actions.one(Protocol) or head.protocol
            protocol, metadata = fenced(before, metadata)
            actions.put(protocol)
        previous = None if first else head.metadata
        metadata = with_timestamp_enablement(metadata, previous, version, timestamp_ms)
        actions.put(metadata)
    return advanced(head, actions, timestamp_ms), actions


def advanced(head: Head, actions: ByKind, timestamp_ms: int) -> Head:
    """The head one version on, but for its files."""
    version = head.version + 1
    metadata, protocol = actions.one(Metadata), actions.one(Protocol)
    return replace(
        head,
        version=version,
        current_version=version,
        timestamp_ms=timestamp_ms,
        metadata=metadata or head.metadata,
        metadata_version=version if metadata else head.metadata_version,
        protocol=protocol or head.protocol,
        protocol_version=version if protocol else head.protocol_version,
    )


def commit_info(
    actions: ByKind,
    staged: Staged,
    head: Head,
    transaction_id: str,
    participants: Sequence[Mapping[str, object]] = (),
) -> CommitInfo:
    """The commitInfo with what only the commit itself knows."""
    configuration = known(head.metadata.configuration) or {}
    forced: dict[str, object] = {
        "txnId": transaction_id,
        # Others are checked by it.
        "isBlindAppend": is_blind_append(staged),
    }
    if participants:
        forced["participants"] = participants
    if parse_properties(configuration).enable_in_commit_timestamps:
        forced["inCommitTimestamp"] = head.timestamp_ms
    defaults: dict[str, object] = {
        "timestamp": head.timestamp_ms,
        "operation": "WRITE",
        "isolationLevel": isolation_of(configuration, staged).value,
    }
    if staged.reads.version >= 0:
        defaults["readVersion"] = staged.reads.version
    return merged_commit_info(actions.of(CommitInfo), forced, defaults)


def empty_head(staged: Staged, table_id: int, now_ms: int) -> Head:
    """The head of a new table, one step before its first version."""
    assert staged.location is not None
    actions = ByKind(staged.actions)
    return Head(
        table_id=table_id,
        name=staged.table,
        location=staged.location,
        created_at_ms=now_ms,
        current_version=-1,
        first_version=0,
        next_file=0,
        version=-1,
        timestamp_ms=-1,
        num_files=0,
        size_bytes=0,
        metadata_version=0,
        protocol_version=0,
        stat_columns=(),
        metadata=actions.of(Metadata)[0],
        protocol=actions.of(Protocol)[0],
    )


def last_adds(rows: Sequence[Row]) -> dict[str, Add]:
    """The newest add of each path that has row ids, as far as they are concerned."""
    return {
        path: Add(
            path=path,
            partition_values={},
            size=size,
            modification_time=0,
            data_change=False,
            base_row_id=base,
            default_row_commit_version=committed,
        )
        for _, path, _, size, _, base, committed in sorted(rows)
        if base is not None
    }
