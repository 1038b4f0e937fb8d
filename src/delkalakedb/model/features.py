"""Table features: which there are, and which can be honoured.

The catalog keeps metadata, ratifies commits and plans scans; rows are read and
written by the engine that stages a commit. A feature is `read` when replay and
pruning are right in its presence, and `write` when ratify does its part and an
engine that stages can do the rest. A table with a feature that is `read` but not
`write` is read-only here. Of a feature that isn't listed, only readers that don't have
to know it are safe: it makes a table unreadable where readers must know it, and
read-only where only writers must.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from delkalakedb.model.actions import Metadata, known
from delkalakedb.model.schema import parse_schema

__all__ = ["FEATURES", "LEGACY", "LOG_ONLY", "TYPES", "Feature", "schema_words"]


def always(metadata: Metadata) -> bool:
    """A feature without a switch is active where it is supported."""
    return True


@dataclass(frozen=True, slots=True)
class Feature:
    """One table feature and what becomes of it here."""

    name: str
    reason: str
    reader: bool = False
    read: bool = True
    write: bool = True
    # Whether it is nothing to who has the list of the files, and reads them.
    log_only: bool = False
    needs: tuple[str, ...] = ()
    active: Callable[[Metadata], bool] = always


@lru_cache(maxsize=256)
def schema_words(schema_string: str) -> frozenset[str]:
    """All types and all keys of column metadata in a schema."""
    fields = list(parse_schema(schema_string).walk())
    keys = {key for field in fields for key in field.metadata}
    return frozenset(keys | {field.type for field in fields})


def _property(name: str, *off: str) -> Callable[[Metadata], bool]:
    unset = {"false", *off}

    def active(metadata: Metadata) -> bool:
        value = (known(metadata.configuration) or {}).get(name)
        return value is not None and value.strip().lower() not in unset

    return active


def _prefix(name: str) -> Callable[[Metadata], bool]:
    return lambda metadata: any(
        key.lower().startswith(name) for key in known(metadata.configuration) or {}
    )


def _in_schema(*words: str) -> Callable[[Metadata], bool]:
    wanted = frozenset(words)
    return lambda metadata: not wanted.isdisjoint(schema_words(metadata.schema_string))


_ALL = (
    Feature(
        "appendOnly",
        "ratify refuses removes that change data",
        active=_property("delta.appendOnly"),
    ),
    Feature(
        "invariants",
        "rows are checked by the staging engine",
        active=_in_schema("delta.invariants"),
    ),
    Feature(
        "checkConstraints",
        "rows are checked by the staging engine",
        active=_prefix("delta.constraints."),
    ),
    Feature(
        "changeDataFeed",
        "cdc actions are kept and published as staged",
        active=_property("delta.enableChangeDataFeed"),
    ),
    Feature(
        "generatedColumns",
        "values are computed by the staging engine",
        active=_in_schema("delta.generationExpression"),
    ),
    Feature(
        "columnMapping",
        "statistics and partition values go by physical names",
        reader=True,
        active=_property("delta.columnMapping.mode", "none"),
    ),
    Feature(
        "identityColumns",
        "no staging engine here generates values and moves the high-water mark",
        write=False,
        active=_in_schema("delta.identity.start"),
    ),
    Feature(
        "allowColumnDefaults",
        "no staging engine here fills in the defaults",
        write=False,
        active=_in_schema("CURRENT_DEFAULT"),
    ),
    Feature(
        "deletionVectors",
        "logical files are keyed by path and vector id",
        reader=True,
        active=_property("delta.enableDeletionVectors"),
    ),
    Feature(
        "rowTracking",
        "row ids are assigned at ratify",
        needs=("domainMetadata",),
        active=_property("delta.enableRowTracking"),
    ),
    Feature(
        "timestampNtz",
        "a type: the staging engine reads and writes it",
        reader=True,
        active=_in_schema("timestamp_ntz"),
    ),
    Feature(
        "timestampNanos",
        "types of delta-rs: the staging engine reads and writes them",
        reader=True,
        active=_in_schema("timestamp_nanos", "timestamp_nanos_ntz"),
    ),
    Feature("domainMetadata", "all domains are kept"),
    Feature("v2Checkpoint", "both kinds of checkpoint are understood", reader=True),
    Feature(
        "inCommitTimestamp",
        "the timestamp is set at ratify",
        active=_property("delta.enableInCommitTimestamps"),
    ),
    Feature(
        "catalogManaged",
        "the catalog is the one that ratifies",
        reader=True,
        log_only=True,
        needs=("inCommitTimestamp",),
    ),
    Feature(
        "clustering",
        "a layout: files need statistics, which the staging engine writes",
        needs=("domainMetadata",),
    ),
    Feature(
        "typeWidening",
        "bounds are read by the column's present type",
        reader=True,
    ),
    Feature(
        "typeWidening-preview",
        "bounds are read by the column's present type",
        reader=True,
    ),
    Feature(
        "vacuumProtocolCheck",
        "vacuum checks the writer's side of the protocol",
        reader=True,
        log_only=True,
    ),
    Feature("variantType", "a type without statistics here", reader=True),
    Feature("variantType-preview", "a type without statistics here", reader=True),
    Feature(
        "variantShredding",
        "the staging engine reads it, but none here writes it",
        reader=True,
        write=False,
        active=_property("delta.enableVariantShredding"),
    ),
    Feature(
        "variantShredding-preview",
        "the staging engine reads it, but none here writes it",
        reader=True,
        write=False,
        active=_property("delta.enableVariantShredding"),
    ),
    Feature(
        "icebergCompatV1",
        "no staging engine here writes files by Iceberg's rules",
        write=False,
        active=_property("delta.enableIcebergCompatV1"),
    ),
    Feature(
        "icebergCompatV2",
        "no staging engine here writes files by Iceberg's rules",
        write=False,
        active=_property("delta.enableIcebergCompatV2"),
    ),
    Feature(
        "icebergCompatV3",
        "no staging engine here writes files by Iceberg's rules",
        write=False,
        active=_property("delta.enableIcebergCompatV3"),
    ),
    Feature(
        "icebergWriterCompatV1",
        "no staging engine here writes files by Iceberg's rules",
        write=False,
        active=_property("delta.enableIcebergWriterCompatV1"),
    ),
    Feature(
        "icebergWriterCompatV3",
        "no staging engine here writes files by Iceberg's rules",
        write=False,
        active=_property("delta.enableIcebergWriterCompatV3"),
    ),
    Feature(
        "collations",
        "no staging engine here compares text by a collation",
        write=False,
    ),
    Feature(
        "collations-preview",
        "no staging engine here compares text by a collation",
        write=False,
    ),
    Feature(
        "liquid",
        "no staging engine here keeps the layout of this preview of clustering",
        write=False,
    ),
    Feature(
        "inCommitTimestamp-preview",
        "the timestamp of this preview isn't set at ratify",
        write=False,
    ),
    Feature(
        "materializePartitionColumns",
        "no staging engine here writes partition columns into files",
        write=False,
    ),
    Feature(
        "checkpointProtection",
        "log cleanup doesn't know the protected versions",
        write=False,
    ),
    Feature(
        "coordinatedCommits-preview",
        "another coordinator decides what is committed",
        write=False,
    ),
    Feature(
        "catalogOwned-preview",
        "another catalog decides what is committed",
        reader=True,
        log_only=True,
        write=False,
    ),
    Feature(
        "adaptiveMetadata-preview",
        "the log alone no longer says which files are live",
        reader=True,
        read=False,
        write=False,
    ),
    Feature(
        "redirectReaderWriter-preview",
        "the table is somewhere else",
        reader=True,
        read=False,
        write=False,
    ),
    Feature("redirectWriterOnly-preview", "the table is somewhere else", write=False),
)
FEATURES = {feature.name: feature for feature in _ALL}
LOG_ONLY = frozenset(feature.name for feature in _ALL if feature.log_only)

# The writer version that brought each feature, before features had names.
LEGACY = {
    "appendOnly": 2,
    "invariants": 2,
    "checkConstraints": 3,
    "changeDataFeed": 4,
    "generatedColumns": 4,
    "columnMapping": 5,
    "identityColumns": 6,
}

# Types that a schema may hold only with one of these features.
TYPES = {
    "timestamp_nanos": frozenset({"timestampNanos"}),
    "timestamp_nanos_ntz": frozenset({"timestampNanos"}),
    "timestamp_ntz": frozenset({"timestampNtz"}),
    "variant": frozenset({"variantType", "variantType-preview"}),
}
