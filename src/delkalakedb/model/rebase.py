"""What a commit's actions become at the version it gets.

Row ids, row commit versions and in-commit timestamps depend on the commit before, so
they are given under the lock that gives the version; all else stays as it was staged.
Type widening needs nothing here: versions in the schema were its preview's alone.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from delkalakedb.errors import ProtocolError
from delkalakedb.model.actions import (
    Action,
    Add,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    known,
)
from delkalakedb.model.conflicts import ROW_TRACKING_DOMAIN
from delkalakedb.model.protocol import supported_features

__all__ = [
    "NO_ROW_IDS",
    "assign_row_ids",
    "carry_row_ids",
    "gives_row_ids",
    "in_commit_timestamp",
    "merged_commit_info",
    "row_id_high_water_mark",
    "row_tracking_domain",
    "with_row_ids",
    "with_timestamp_enablement",
]

NO_ROW_IDS = -1
"""The high water mark of a table that never gave a row id."""

_ENABLED = "delta.enableInCommitTimestamps"
_SINCE_VERSION = "delta.inCommitTimestampEnablementVersion"
_SINCE_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"


class _Counted(msgspec.Struct):
    num_records: int | None = msgspec.field(default=None, name="numRecords")


class _HighWaterMark(msgspec.Struct):
    mark: int = msgspec.field(name="rowIdHighWaterMark")


_counted = msgspec.json.Decoder(_Counted)
_high_water_mark = msgspec.json.Decoder(_HighWaterMark)


def gives_row_ids(protocol: Protocol, metadata: Metadata) -> bool:
    """Whether commits under this protocol and metadata must give row ids."""
    suspended = _is_on(metadata, "delta.rowTrackingSuspended")
    return "rowTracking" in supported_features(protocol) and not suspended


def row_id_high_water_mark(domain: DomainMetadata | None) -> int:
    """The highest row id given so far, from the live `delta.rowTracking` domain."""
    if domain is None or domain.removed:
        return NO_ROW_IDS
    try:
        return _high_water_mark.decode(domain.configuration).mark
    except msgspec.DecodeError as error:
        raise ProtocolError(f"domain {ROW_TRACKING_DOMAIN}: {error}") from error


def row_tracking_domain(high_water_mark: int) -> DomainMetadata:
    """The action that records the high water mark."""
    configuration = msgspec.json.encode(_HighWaterMark(high_water_mark)).decode()
    return DomainMetadata(
        domain=ROW_TRACKING_DOMAIN, configuration=configuration, removed=False
    )


def assign_row_ids(
    adds: Iterable[Add], high_water_mark: int, version: int
) -> tuple[tuple[Add, ...], int]:
    """The adds with row ids as committed at `version`, and the new high water mark.

    An add that has a `baseRowId` was in the table before and keeps it.
    """
    given = []
    mark = high_water_mark
    for add in adds:
        base = known(add.base_row_id)
        if base is None:
            given.append(_with_row_id(add, mark + 1, version))
            mark += _num_records(add)
        elif base <= high_water_mark:
            committed = known(add.default_row_commit_version)
            given.append(_with_row_id(add, base, version, committed))
        else:
            raise ProtocolError(
                f"{add.path}: baseRowId {base} is above the table's high water mark "
                f"{high_water_mark}; stage new files without one"
            )
    return tuple(given), mark


def carry_row_ids(
    actions: Iterable[Action], last: Mapping[str, Add]
) -> tuple[Action, ...]:
    """The actions with the row ids that their paths already have.

    Args:
        actions: the actions of a commit.
        last: the newest add of each path that is removed or added again.
    """
    return tuple(
        _carried(action, last[action.path])
        if isinstance(action, Add | Remove) and action.path in last
        else action
        for action in actions
    )


def with_row_ids(
    actions: Iterable[Action], high_water_mark: int, version: int
) -> tuple[Action, ...]:
    """A commit's actions with row ids, and with the high water mark if it rose."""
    kept = [action for action in actions if not _is_row_tracking(action)]
    adds = [action for action in kept if isinstance(action, Add)]
    given, mark = assign_row_ids(adds, high_water_mark, version)
    rest = iter(given)
    numbered = [next(rest) if isinstance(a, Add) else a for a in kept]
    domain = [row_tracking_domain(mark)] if mark != high_water_mark else []
    return (*domain, *numbered)


def in_commit_timestamp(now_ms: int, previous_ms: int | None) -> int:
    """The timestamp of a commit: now, but after the commit before."""
    return now_ms if previous_ms is None else max(now_ms, previous_ms + 1)


def with_timestamp_enablement(
    metadata: Metadata, previous: Metadata | None, version: int, timestamp_ms: int
) -> Metadata:
    """The staged metadata, saying since when commits carry their timestamp.

    Args:
        metadata: the metadata that the commit writes.
        previous: the metadata at the version before; None for the first version.
        version: the commit's version.
        timestamp_ms: the commit's in-commit timestamp.
    """
    if not _is_on(metadata, _ENABLED) or previous is None:
        return metadata
    if not _is_on(previous, _ENABLED):
        since = {_SINCE_VERSION: str(version), _SINCE_TIMESTAMP: str(timestamp_ms)}
        return _configured(metadata, since)
    # A replaced table keeps its history, and so the version from which it is dated.
    old = known(previous.configuration) or {}
    kept = {k: old[k] for k in (_SINCE_VERSION, _SINCE_TIMESTAMP) if k in old}
    return _configured(metadata, kept)


def merged_commit_info(
    infos: Iterable[CommitInfo],
    forced: Mapping[str, Any],
    defaults: Mapping[str, Any] | None = None,
) -> CommitInfo:
    """The one commitInfo of a commit.

    Args:
        infos: what was staged; of several, the first that says something counts.
        forced: what only the commit itself knows: `txnId`, `inCommitTimestamp`, ...
        defaults: what is written where the staged commitInfo doesn't say.
    """
    fields: dict[str, Any] = {}
    for given in (*(info.fields for info in infos), defaults or {}):
        fields.update((k, v) for k, v in given.items() if k not in fields)
    return CommitInfo({**fields, **forced})


def _with_row_id(
    add: Add, base: int, version: int, committed: int | None = None
) -> Add:
    since = version if committed is None else committed
    return msgspec.structs.replace(
        add, base_row_id=base, default_row_commit_version=since
    )


def _num_records(add: Add) -> int:
    """The rows in the file, those that a deletion vector hides among them."""
    try:
        count = _counted.decode(known(add.stats) or "{}").num_records
    except msgspec.DecodeError as error:
        raise ProtocolError(f"{add.path}: statistics: {error}") from error
    if count is None or count < 0:
        raise ProtocolError(f"{add.path}: row ids need numRecords in the statistics")
    return count


def _carried(action: Add | Remove, last: Add) -> Add | Remove:
    return msgspec.structs.replace(
        action,
        base_row_id=last.base_row_id,
        default_row_commit_version=last.default_row_commit_version,
    )


def _is_row_tracking(action: Action) -> bool:
    return isinstance(action, DomainMetadata) and action.domain == ROW_TRACKING_DOMAIN


def _is_on(metadata: Metadata, key: str) -> bool:
    value = (known(metadata.configuration) or {}).get(key)
    return (value or "").strip().lower() == "true"


def _configured(metadata: Metadata, values: Mapping[str, str | None]) -> Metadata:
    configuration = {**(known(metadata.configuration) or {}), **values}
    return msgspec.structs.replace(metadata, configuration=configuration)
