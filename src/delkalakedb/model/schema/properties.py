"""Table properties: their names, types and defaults, and the times of retention."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from delkalakedb.errors import DeltaError, did_you_mean
from delkalakedb.model.actions import Metadata, known
from delkalakedb.model.schema.schema import parse_path
from delkalakedb.model.times import DAY_MICROS, DAY_MS

# Names of properties that several modules use; `CONSTRAINTS` is a prefix.
APPEND_ONLY = "delta.appendOnly"
CHANGE_DATA_FEED_ENABLED = "delta.enableChangeDataFeed"
CHECKPOINT_POLICY = "delta.checkpointPolicy"
COLUMN_MAPPING_MODE = "delta.columnMapping.mode"
CONSTRAINTS = "delta.constraints."
DELETION_VECTORS_ENABLED = "delta.enableDeletionVectors"
IN_COMMIT_TIMESTAMPS = "delta.enableInCommitTimestamps"
ISOLATION_LEVEL = "delta.isolationLevel"
MAX_COLUMN_ID = "delta.columnMapping.maxColumnId"
ROW_TRACKING_ENABLED = "delta.enableRowTracking"
STAMPED_SINCE_TIMESTAMP = "delta.inCommitTimestampEnablementTimestamp"
STAMPED_SINCE_VERSION = "delta.inCommitTimestampEnablementVersion"

_UNIT_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": DAY_MICROS,
    "week": 7 * DAY_MICROS,
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


_Source = Metadata | Mapping[str, str | None]


def parse_properties(source: _Source) -> TableProperties:
    """Return the properties of a table from its metadata or its configuration.

    A property whose value can't be parsed has its default, because another writer may
    have set it: the table can be read, and `check_values` keeps it from being written.

    Raises:
        DeltaError: The mode of column mapping can't be parsed, which readers need.
    """
    parsed = _parse_all(_items(source))
    if COLUMN_MAPPING_MODE in parsed.problems:
        raise DeltaError(parsed.problems[COLUMN_MAPPING_MODE])
    return parsed.properties


def check_values(source: _Source) -> None:
    """Raise `DeltaError` for a table property whose value can't be parsed."""
    for problem in _parse_all(_items(source)).problems.values():
        raise DeltaError(problem)


def _items(source: _Source) -> frozenset[tuple[str, str | None]]:
    if isinstance(source, Metadata):
        source = known(source.configuration) or {}
    return frozenset(source.items())


@dataclass(frozen=True, slots=True)
class _Parsed:
    properties: TableProperties
    # by the property's name
    problems: Mapping[str, str]


# Cached, because every commit asks several times and properties hardly change.
@lru_cache(maxsize=256)
def _parse_all(items: frozenset[tuple[str, str | None]]) -> _Parsed:
    configuration = dict(items)
    given: dict[str, Any] = {}
    problems = {}
    for name, (field, parse) in _PROPERTIES.items():
        text = configuration.get(name)
        if text is not None:
            try:
                given[field] = parse(text)
            except ValueError as error:
                problems[name] = f"table property {name} is {text!r}: {error}"
    return _Parsed(TableProperties(**given), problems)


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
    APPEND_ONLY: ("append_only", _bool),
    ISOLATION_LEVEL: ("isolation_level", partial(_one_of, _LEVELS)),
    "delta.checkpointInterval": ("checkpoint_interval", partial(_int, 1)),
    IN_COMMIT_TIMESTAMPS: ("enable_in_commit_timestamps", _bool),
    STAMPED_SINCE_VERSION: (
        "in_commit_timestamp_enablement_version",
        _natural,
    ),
    STAMPED_SINCE_TIMESTAMP: (
        "in_commit_timestamp_enablement_timestamp_ms",
        _natural,
    ),
    ROW_TRACKING_ENABLED: ("enable_row_tracking", _bool),
    DELETION_VECTORS_ENABLED: ("enable_deletion_vectors", _bool),
    CHANGE_DATA_FEED_ENABLED: ("enable_change_data_feed", _bool),
    COLUMN_MAPPING_MODE: (
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
    CHECKPOINT_POLICY: (
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
    CONSTRAINTS: "constraints are added and dropped with DeltaTable.alter",
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
