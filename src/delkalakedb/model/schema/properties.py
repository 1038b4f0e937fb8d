"""Table properties: their names, types and defaults, and the times of retention."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from delkalakedb.errors import DeltaError, did_you_mean
from delkalakedb.model.actions import Metadata, known
from delkalakedb.model.schema.schema import parse_path

DAY_MS = 86_400_000
_UNIT_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 7 * 86_400_000_000,
}
_QUANTITY = re.compile(r"([0-9]+)\s+([a-z]+?)s?(?:\s+|$)")
_LIST_ITEM = re.compile(r"\s*((?:`(?:[^`]|``)*`|[^`,])+)(?:,|$)")


@dataclass(frozen=True, slots=True)
class TableProperties:
    """The properties in a table's `configuration`, with defaults.

    `checkpoint_interval` has no default, because Delta's implementations differ: it is
    10 in Spark and 100 in delta-rs.
    """

    append_only: bool = False
    isolation_level: str = "Serializable"
    checkpoint_interval: int | None = None
    enable_in_commit_timestamps: bool = False
    in_commit_timestamp_enablement_version: int | None = None
    in_commit_timestamp_enablement_timestamp_ms: int | None = None
    enable_row_tracking: bool = False
    enable_deletion_vectors: bool = False
    enable_change_data_feed: bool = False
    column_mapping_mode: str = "none"
    data_skipping_num_indexed_cols: int = 32
    data_skipping_stats_columns: tuple[tuple[str, ...], ...] | None = None
    log_retention_ms: int = 30 * DAY_MS
    deleted_file_retention_ms: int = 7 * DAY_MS
    set_transaction_retention_ms: int | None = None
    enable_expired_log_cleanup: bool = True
    require_checkpoint_protection_before_version: int = 0
    checkpoint_policy: str = "classic"
    checkpoint_write_stats_as_json: bool = True
    checkpoint_write_stats_as_struct: bool = False


def parse_properties(
    source: Metadata | Mapping[str, str | None],
) -> TableProperties:
    """Return the properties of a table from its metadata or its configuration."""
    configuration = source
    if isinstance(configuration, Metadata):
        configuration = known(configuration.configuration) or {}
    return _parse_all(frozenset(configuration.items()))


# Cached, because every commit asks several times and properties hardly change.
@lru_cache(maxsize=256)
def _parse_all(items: frozenset[tuple[str, str | None]]) -> TableProperties:
    configuration = dict(items)
    given: dict[str, Any] = {}
    for name, (field, parse) in _PROPERTIES.items():
        text = configuration.get(name)
        if text is not None:
            try:
                given[field] = parse(text)
            except ValueError as error:
                raise DeltaError(
                    f"table property {name} is {text!r}: {error}"
                ) from error
    return TableProperties(**given)


def all_understood(names: Iterable[str]) -> bool:
    """Return whether `TableProperties` has all properties named `delta.…`."""
    return all(n in _PROPERTIES or not n.lower().startswith("delta.") for n in names)


def check_changeable(names: Iterable[str]) -> None:
    """Raise `DeltaError` for a property that users can't change or that is unknown."""
    for name in names:
        if not name:
            raise DeltaError("a table property needs a name")
        for prefix, why in _KEPT.items():
            if name.lower().startswith(prefix.lower()):
                raise DeltaError(f"table property {name} can't be changed: {why}")
        known = name in _PROPERTIES or name in _OTHERS
        if name.lower().startswith("delta.") and not known:
            near = did_you_mean(name, [*_PROPERTIES, *_OTHERS])
            raise DeltaError(f"there is no table property {name}{near}")


def parse_interval_ms(text: str) -> int:
    """Parse an interval such as `interval 1 week`; return its milliseconds."""
    rest = text.strip().lower().removeprefix("interval ").strip()
    total_us, at = 0, 0
    while match := _QUANTITY.match(rest, at):
        if match[2] not in _UNIT_US:
            break
        total_us += int(match[1]) * _UNIT_US[match[2]]
        at = match.end()
    if not rest or at != len(rest):
        raise ValueError("an interval such as '2 weeks' or '36 hours' is needed")
    return total_us // 1_000


def _bool(text: str) -> bool:
    return _one_of(("true", "false"), text) == "true"


def _int(low: int, text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text.strip()) or int(text) < low:
        raise ValueError(f"an integer of at least {low} is needed")
    return int(text)


def _one_of(allowed: tuple[str, ...], text: str) -> str:
    for word in allowed:
        if text.strip().lower() == word.lower():
            return word
    raise ValueError(f"one of {', '.join(allowed)} is needed")


def _column_list(text: str) -> tuple[tuple[str, ...], ...]:
    columns, at = [], 0
    while at < len(text):
        match = _LIST_ITEM.match(text, at)
        if not match or not match[1].strip():
            raise ValueError(
                "column names with commas between them are needed, "
                "names with special characters in backticks"
            )
        columns.append(parse_path(match[1].strip()))
        at = match.end()
    return tuple(columns)


_LEVELS = ("Serializable", "WriteSerializable", "SnapshotIsolation")
_natural = partial(_int, 0)

_PROPERTIES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "delta.appendOnly": ("append_only", _bool),
    "delta.isolationLevel": ("isolation_level", partial(_one_of, _LEVELS)),
    "delta.checkpointInterval": ("checkpoint_interval", partial(_int, 1)),
    "delta.enableInCommitTimestamps": ("enable_in_commit_timestamps", _bool),
    "delta.inCommitTimestampEnablementVersion": (
        "in_commit_timestamp_enablement_version",
        _natural,
    ),
    "delta.inCommitTimestampEnablementTimestamp": (
        "in_commit_timestamp_enablement_timestamp_ms",
        _natural,
    ),
    "delta.enableRowTracking": ("enable_row_tracking", _bool),
    "delta.enableDeletionVectors": ("enable_deletion_vectors", _bool),
    "delta.enableChangeDataFeed": ("enable_change_data_feed", _bool),
    "delta.columnMapping.mode": (
        "column_mapping_mode",
        partial(_one_of, ("none", "name", "id")),
    ),
    "delta.dataSkippingNumIndexedCols": (
        "data_skipping_num_indexed_cols",
        partial(_int, -1),
    ),
    "delta.dataSkippingStatsColumns": ("data_skipping_stats_columns", _column_list),
    "delta.logRetentionDuration": ("log_retention_ms", parse_interval_ms),
    "delta.deletedFileRetentionDuration": (
        "deleted_file_retention_ms",
        parse_interval_ms,
    ),
    "delta.setTransactionRetentionDuration": (
        "set_transaction_retention_ms",
        parse_interval_ms,
    ),
    "delta.enableExpiredLogCleanup": ("enable_expired_log_cleanup", _bool),
    "delta.requireCheckpointProtectionBeforeVersion": (
        "require_checkpoint_protection_before_version",
        _natural,
    ),
    "delta.checkpointPolicy": (
        "checkpoint_policy",
        partial(_one_of, ("classic", "v2")),
    ),
    "delta.checkpoint.writeStatsAsJson": ("checkpoint_write_stats_as_json", _bool),
    "delta.checkpoint.writeStatsAsStruct": (
        "checkpoint_write_stats_as_struct",
        _bool,
    ),
}

# Delta's properties that nothing here reads.
_OTHERS = frozenset(
    {
        "delta.autoOptimize.autoCompact",
        "delta.autoOptimize.optimizeWrite",
        "delta.parquet.compression.codec",
        "delta.randomPrefixLength",
        "delta.randomizeFilePrefixes",
        "delta.targetFileSize",
        "delta.tuneFileSizesForRewrites",
    }
)
# Prefixes of properties on which data files or the protocol depend, and why each
# can't be changed.
_KEPT = {
    "delta.columnMapping.": "the names of columns in data files depend on it",
    "delta.constraints.": "constraints are added and dropped with DeltaTable.alter",
    "delta.feature.": "features are added with DeltaTable.alter, a fence by the mirror",
    "delta.inCommitTimestampEnablement": "it is set when timestamps are turned on",
    "delta.minReaderVersion": "features are added with DeltaTable.alter",
    "delta.minWriterVersion": "features are added with DeltaTable.alter",
    "delta.requireCheckpointProtection": "it is set when a feature is dropped",
    "delta.rowTracking.": "the names of columns in data files depend on it",
}


def midnight_ms(time_ms: int) -> int:
    """Return the time, in UTC, at which a time's day began."""
    return time_ms - time_ms % DAY_MS


def log_cutoff_ms(properties: TableProperties, now_ms: int) -> int | None:
    """Return the time since which the log keeps all versions; None to keep it whole."""
    if not properties.enable_expired_log_cleanup:
        return None
    return midnight_ms(now_ms - properties.log_retention_ms)


def tombstone_cutoff_ms(properties: TableProperties, now_ms: int) -> int:
    """Return the deletion time up to which tombstones have expired."""
    return now_ms - properties.deleted_file_retention_ms


_SIZE = re.compile(r"([0-9]{1,15})\s*(?:([kmgtp])?b?)", re.IGNORECASE)


def parse_size(text: str) -> int | None:
    """Return a size such as `10m` in bytes, or None if `text` isn't one."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        return None
    return int(found[1]) << 10 * " kmgtp".index((found[2] or " ").lower())
