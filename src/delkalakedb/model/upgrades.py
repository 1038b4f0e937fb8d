"""What may change in a table's protocol and metadata under a running commit.

Turning a feature on is harmless when a commit prepared before is as good after it,
without a data file rewritten: Delta Spark's allow-lists.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from delkalakedb.model.actions import Metadata, Protocol, known
from delkalakedb.model.protocol import supported_features

__all__ = ["SAFE_FEATURES", "harmful_changes"]

# All others, unknown ones too, ask something of every file written under them.
SAFE_FEATURES = frozenset(
    {
        "appendOnly",
        "catalogManaged",
        "changeDataFeed",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "icebergCompatV1",
        "icebergCompatV2",
        "icebergCompatV3",
        "inCommitTimestamp",
        "rowTracking",
        "timestampNanos",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)

_MAPPING_MODE = "delta.columnMapping.mode"
_ROW_TRACKING = "delta.enableRowTracking"
# Property: the value it may take, and the feature that the table must support.
_SWITCHES = {
    "delta.checkpointPolicy": ("v2", "v2Checkpoint"),
    _MAPPING_MODE: ("name", "columnMapping"),
    "delta.enableDeletionVectors": ("true", "deletionVectors"),
    "delta.enableInCommitTimestamps": ("true", "inCommitTimestamp"),
    _ROW_TRACKING: ("true", "rowTracking"),
}
_SET_ONCE = frozenset(
    {
        "delta.inCommitTimestampEnablementTimestamp",
        "delta.inCommitTimestampEnablementVersion",
        "io.unitycatalog.tableId",
    }
)
_SET_WITH_ROW_TRACKING = frozenset(
    {
        "delta.rowTracking.materializedRowCommitVersionColumnName",
        "delta.rowTracking.materializedRowIdColumnName",
    }
)
_MAPPING_FIELDS = frozenset(
    {
        "delta.columnMapping.id",
        "delta.columnMapping.nested.ids",
        "delta.columnMapping.physicalName",
        "parquet.field.id",
        "parquet.field.nested.ids",
    }
)
_COMPARED_BY_PART = frozenset({"configuration", "schema_string"})

_Configuration = Mapping[str, str | None]


def harmful_changes(ours: Metadata, theirs: Metadata, protocol: Protocol) -> list[str]:
    """What differs in `theirs` that a commit prepared under `ours` may break.

    Args:
        ours: the metadata that the commit was prepared under.
        theirs: the metadata that it would be committed under.
        protocol: the protocol in force with `theirs`.
    """
    fields = [
        name
        for name in Metadata.__struct_fields__
        if name not in _COMPARED_BY_PART
        and known(getattr(ours, name)) != known(getattr(theirs, name))
    ]
    schema = [] if _same_schema(ours, theirs) else ["the schema"]
    return fields + schema + _harmful_properties(ours, theirs, protocol)


def _harmful_properties(
    ours: Metadata, theirs: Metadata, protocol: Protocol
) -> list[str]:
    old, new = _configuration(ours), _configuration(theirs)
    features = supported_features(protocol)
    return [
        key
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not _may_change(key, old, new, features)
    ]


def _may_change(
    key: str, old: _Configuration, new: _Configuration, features: frozenset[str]
) -> bool:
    if key not in new:
        return False
    if key == _MAPPING_MODE and _mapping_mode(old) != "none":
        return False
    if key in _SWITCHES:
        value, feature = _SWITCHES[key]
        return _word(new[key]) == value and feature in features
    if key in _SET_WITH_ROW_TRACKING:
        return _word(new.get(_ROW_TRACKING)) == "true"
    return key == "delta.columnMapping.maxColumnId" or (
        key in _SET_ONCE and key not in old
    )


def _same_schema(ours: Metadata, theirs: Metadata) -> bool:
    """Whether data fits both: turning on column mapping by name only annotates."""
    if ours.schema_string == theirs.schema_string:
        return True
    modes = [_mapping_mode(_configuration(m)) for m in (ours, theirs)]
    ignored = _MAPPING_FIELDS if modes == ["none", "name"] else frozenset[str]()
    plain = [
        _without(msgspec.json.decode(metadata.schema_string), ignored)
        for metadata in (ours, theirs)
    ]
    return bool(plain[0] == plain[1])


def _without(node: Any, keys: frozenset[str]) -> Any:
    if isinstance(node, dict):
        return {k: _without(v, keys) for k, v in node.items() if k not in keys}
    return [_without(v, keys) for v in node] if isinstance(node, list) else node


def _mapping_mode(configuration: _Configuration) -> str:
    return _word(configuration.get(_MAPPING_MODE)) or "none"


def _word(value: str | None) -> str:
    return (value or "").strip().lower()


def _configuration(metadata: Metadata) -> _Configuration:
    return known(metadata.configuration) or {}
