"""New actions: the add of a new file, commitInfo, and what a version adds to them.

commitInfo holds what callers may add, what operations say, and what the catalog writes.

Row ids, row commit versions and in-commit timestamps depend on the commit before, so
they are given under the lock that gives the version; all else stays as it was staged.
Type widening needs nothing here: versions in the schema were its preview's alone.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from delkalakedb.errors import CommitPropertiesError, ProtocolError
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
    known,
)
from delkalakedb.model.paths import Values, log_path
from delkalakedb.model.rules.conflicts import ROW_TRACKING_DOMAIN
from delkalakedb.model.rules.features import IN_COMMIT_TIMESTAMP, ROW_TRACKING
from delkalakedb.model.rules.protocol import supported_features
from delkalakedb.model.schema.properties import (
    STAMPED_SINCE_TIMESTAMP,
    STAMPED_SINCE_VERSION,
    parse_properties,
)

# The catalog writes these to every commit, whichever engine staged its actions.
_OF_THE_CATALOG = (IN_COMMIT_TIMESTAMP, "isBlindAppend", "participants", "txnId")
# Where delta-rs writes commitInfo, delta-rs refuses or merges these.
_OF_THE_OPERATION = (
    "engineInfo",
    "isolationLevel",
    "operation",
    "operationMetrics",
    "operationParameters",
    "readVersion",
    "timestamp",
)
_RESERVED = (*_OF_THE_CATALOG, *_OF_THE_OPERATION)
_TEXTS = ("userId", "userMetadata", "userName")

_Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class NewFile:
    """A file that was written for a version to come.

    Args:
        path: its literal path below the table's location.
        partition_values: by physical names, as the log has them.
        size_bytes: of the file.
        modified_ms: when the file was written.
        stats: its statistics, as the log has them.
    """

    path: str
    partition_values: Values
    size_bytes: int
    modified_ms: int
    stats: str

    def add(self) -> Add:
        """Return the action that adds the file's rows to the table."""
        return Add(
            path=log_path(self.path),
            partition_values=self.partition_values,
            size=self.size_bytes,
            modification_time=self.modified_ms,
            data_change=True,
            stats=self.stats,
        )

    def cdc(self) -> Cdc:
        """Return the action that adds the file to the change data feed."""
        return Cdc(
            path=log_path(self.path),
            size=self.size_bytes,
            partition_values=self.partition_values,
            data_change=False,
        )


def removed(add: Add, now_ms: int) -> Remove:
    """Return the remove of a file."""
    return Remove(
        path=add.path,
        data_change=True,
        deletion_timestamp=now_ms,
        extended_file_metadata=True,
        partition_values=add.partition_values,
        size=add.size,
        tags=add.tags,
        deletion_vector=add.deletion_vector,
        base_row_id=add.base_row_id,
        default_row_commit_version=add.default_row_commit_version,
    )


def new_commit_info(
    operation: str,
    parameters: _Fields,
    metrics: _Fields | None = None,
    *,
    engine_info: str | None = None,
    timestamp_ms: int | None = None,
    custom: _Fields | None = None,
) -> CommitInfo:
    """Return the commitInfo of an operation, as it is staged.

    Args:
        operation: the name of the operation.
        parameters: what the operation was asked for.
        metrics: what the operation did.
        engine_info: the name and version of the engine.
        timestamp_ms: when the commit was staged; the catalog says when it was made.
        custom: what the caller adds, as `custom_metadata` returns it.
    """
    given = {
        "timestamp": timestamp_ms,
        "operation": operation,
        "operationParameters": dict(parameters),
        "operationMetrics": None if metrics is None else dict(metrics),
        "engineInfo": engine_info,
    }
    said = {name: value for name, value in given.items() if value is not None}
    return CommitInfo({**(custom or {}), **said})


def merged_commit_info(
    infos: Iterable[CommitInfo], forced: _Fields, defaults: _Fields | None = None
) -> CommitInfo:
    """Return the one commitInfo of a commit.

    Args:
        infos: what was staged; of several, the first that has a field counts.
        forced: the fields that replace staged ones.
        defaults: the fields that staged ones replace.
    """
    fields: dict[str, Any] = {}
    for given in (*(info.fields for info in infos), defaults or {}):
        fields.update((k, v) for k, v in given.items() if k not in fields)
    return CommitInfo({**fields, **forced})


def final_commit_info(
    infos: Iterable[CommitInfo],
    *,
    transaction_id: str,
    timestamp_ms: int,
    stamped: bool,
    blind_append: bool,
    isolation_level: str,
    read_version: int,
    participants: Sequence[_Fields] = (),
) -> CommitInfo:
    """Return the staged commitInfo with what only the commit itself knows.

    Args:
        infos: what was staged.
        transaction_id: of the commit.
        timestamp_ms: of the commit.
        stamped: whether the table has in-commit timestamps.
        blind_append: whether the commit adds rows and read none.
        isolation_level: by which the commit was checked against others.
        read_version: the version that the commit read; below 0 for none.
        participants: the tables and versions of a commit to several tables.
    """
    # Rival commits are checked by isBlindAppend.
    forced: dict[str, object] = {"txnId": transaction_id, "isBlindAppend": blind_append}
    if participants:
        forced["participants"] = participants
    if stamped:
        forced[IN_COMMIT_TIMESTAMP] = timestamp_ms
    defaults: dict[str, object] = {
        "timestamp": timestamp_ms,
        "operation": "WRITE",
        "isolationLevel": isolation_level,
    }
    if read_version >= 0:
        defaults["readVersion"] = read_version
    return merged_commit_info(infos, forced, defaults)


def in_commit_timestamp_of(info: object) -> int | None:
    """Return the in-commit timestamp in milliseconds; None if `info` has none."""
    stamp = (
        info.fields.get(IN_COMMIT_TIMESTAMP) if isinstance(info, CommitInfo) else None
    )
    return stamp if isinstance(stamp, int) else None


def check_custom_metadata(commit_properties: Any) -> None:
    """Refuse custom metadata with keys that the catalog writes.

    delta-rs checks the other keys.
    """
    given = getattr(commit_properties, "custom_metadata", None)
    if isinstance(given, Mapping):
        _refuse(given, _OF_THE_CATALOG)


def custom_metadata(commit_properties: Any) -> dict[str, Any]:
    """Return the custom metadata of a commit whose commitInfo delta-rs doesn't write.

    Refuses reserved keys, and what delta-rs refuses: keys that aren't text, values
    that aren't JSON, and users that aren't text.
    """
    given = getattr(commit_properties, "custom_metadata", None)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise _error("must be a mapping")
    _refuse(given, _RESERVED)
    return {key: _value(key, value) for key, value in given.items()}


def app_txns(commit_properties: Any) -> list[Txn]:
    """Return the application transactions of a commit that delta-rs doesn't write."""
    given = getattr(commit_properties, "app_transactions", None) or ()
    return [
        Txn(app_id=t.app_id, version=t.version, last_updated=t.last_updated)
        for t in given
    ]


def _refuse(given: Mapping[Any, Any], reserved: Iterable[str]) -> None:
    if found := sorted(given.keys() & set(reserved)):
        names = ", ".join(map(repr, found))
        raise _error(
            f"can't set {names}, because the commit itself says that; choose another "
            "name, or userMetadata for a text"
        )


def _value(key: Any, value: Any) -> Any:
    if not isinstance(key, str):
        raise _error("keys must be strings")
    if key in _TEXTS and not isinstance(value, str):
        raise _error(f"value for {key!r} must be a string")
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise _error(f"value for {key!r} must be JSON: {error}") from error


def _error(problem: str) -> CommitPropertiesError:
    return CommitPropertiesError(f"CommitProperties.custom_metadata {problem}")


def with_counts(action: Action, counts: _Fields, more: _Fields | None = None) -> Action:
    """Return a commitInfo with other counts in its metrics, and with `more` metrics.

    An action of another kind, or without metrics, is returned as it is.
    """
    if not isinstance(action, CommitInfo):
        return action
    metrics = action.fields.get("operationMetrics")
    if not isinstance(metrics, dict):
        return action
    metrics = {**recounted(metrics, counts), **(more or {})}
    fields = {**action.fields, "operationMetrics": metrics}
    return msgspec.structs.replace(action, fields=fields)


def recounted(metrics: _Fields, counts: _Fields) -> dict[str, Any]:
    """Return the metrics; those that `counts` names have the values from there."""
    return {name: counts.get(name, value) for name, value in metrics.items()}


def changed_state(
    before: Sequence[Protocol | Metadata], after: Sequence[Protocol | Metadata]
) -> tuple[Protocol | Metadata, ...]:
    """Return the protocol and the metadata, as far as a commit changes them."""
    return tuple(a for a, b in zip(after, before, strict=True) if a != b)


NO_ROW_IDS = -1
"""The high water mark of a table that never gave a row id."""


class _Counted(msgspec.Struct):
    num_records: int | None = msgspec.field(default=None, name="numRecords")


class _HighWaterMark(msgspec.Struct):
    mark: int = msgspec.field(name="rowIdHighWaterMark")


_counted = msgspec.json.Decoder(_Counted)
_high_water_mark = msgspec.json.Decoder(_HighWaterMark)


def gives_row_ids(protocol: Protocol, metadata: Metadata) -> bool:
    """Return whether commits under this protocol and metadata must assign row ids."""
    value = (known(metadata.configuration) or {}).get("delta.rowTrackingSuspended")
    suspended = (value or "").strip().lower() == "true"
    return ROW_TRACKING in supported_features(protocol) and not suspended


def row_id_high_water_mark(domain: DomainMetadata | None) -> int:
    """Return the highest row id so far, from the live `delta.rowTracking` domain."""
    if domain is None or domain.removed:
        return NO_ROW_IDS
    try:
        return _high_water_mark.decode(domain.configuration).mark
    except msgspec.DecodeError as error:
        raise ProtocolError(f"domain {ROW_TRACKING_DOMAIN}: {error}") from error


def row_tracking_domain(high_water_mark: int) -> DomainMetadata:
    """Return the action that records the high water mark."""
    configuration = msgspec.json.encode(_HighWaterMark(high_water_mark)).decode()
    return DomainMetadata(
        domain=ROW_TRACKING_DOMAIN, configuration=configuration, removed=False
    )


def assign_row_ids(
    adds: Iterable[Add], high_water_mark: int, version: int
) -> tuple[tuple[Add, ...], int]:
    """Return the adds with row ids for `version`, and the new high water mark.

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
    """Return the actions with the row ids that their paths already have.

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
    """Return the actions with row ids, and with the high water mark if it rose."""
    kept = [action for action in actions if not _is_row_tracking(action)]
    adds = [action for action in kept if isinstance(action, Add)]
    given, mark = assign_row_ids(adds, high_water_mark, version)
    rest = iter(given)
    numbered = [next(rest) if isinstance(a, Add) else a for a in kept]
    domain = [row_tracking_domain(mark)] if mark != high_water_mark else []
    return (*domain, *numbered)


def in_commit_timestamp(now_ms: int, previous_ms: int | None) -> int:
    """Return the timestamp of a commit: now, but after the commit before."""
    return now_ms if previous_ms is None else max(now_ms, previous_ms + 1)


def with_timestamp_enablement(
    metadata: Metadata, previous: Metadata | None, version: int, timestamp_ms: int
) -> Metadata:
    """Return the staged metadata with the time since when commits have timestamps.

    Args:
        metadata: the metadata that the commit writes.
        previous: the metadata at the version before; None for the first version.
        version: the commit's version.
        timestamp_ms: the commit's in-commit timestamp.
    """
    if not _is_stamped(metadata) or previous is None:
        return metadata
    if not _is_stamped(previous):
        since = {
            STAMPED_SINCE_VERSION: str(version),
            STAMPED_SINCE_TIMESTAMP: str(timestamp_ms),
        }
        return _configured(metadata, since)
    # A replaced table keeps its history, and so the version from which it is dated.
    old = known(previous.configuration) or {}
    kept = {
        k: old[k] for k in (STAMPED_SINCE_VERSION, STAMPED_SINCE_TIMESTAMP) if k in old
    }
    return _configured(metadata, kept)


def _with_row_id(
    add: Add, base: int, version: int, committed: int | None = None
) -> Add:
    since = version if committed is None else committed
    return msgspec.structs.replace(
        add, base_row_id=base, default_row_commit_version=since
    )


def _num_records(add: Add) -> int:
    """Return the rows in the file, including those that a deletion vector hides."""
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


def _is_stamped(metadata: Metadata) -> bool:
    return parse_properties(metadata).enable_in_commit_timestamps


def _configured(metadata: Metadata, values: Mapping[str, str | None]) -> Metadata:
    configuration = {**(known(metadata.configuration) or {}), **values}
    return msgspec.structs.replace(metadata, configuration=configuration)
