"""Table features: the one table that says what is supported, and how.

The catalog keeps metadata, ratifies commits and plans scans; the engine that stages a
commit reads and writes rows. A feature is `read` if replay and pruning are right in its
presence, and `write` if ratify and a staging engine together fulfil its demands. A
table with a feature that is `read` but not `write` is read-only. An unlisted feature
makes a table unreadable if readers must know it, and read-only if only writers must.

No other module has a list of features, or a feature's name in quotes.
"""

from dataclasses import dataclass
from enum import Flag, auto
from functools import lru_cache

from delkalakedb.model.schema.properties import (
    APPEND_ONLY,
    CHANGE_DATA_FEED_ENABLED,
    CHECKPOINT_POLICY,
    COLUMN_MAPPING_MODE,
    CONSTRAINTS,
    DELETION_VECTORS_ENABLED,
    IN_COMMIT_TIMESTAMPS,
    ROW_TRACKING_ENABLED,
)
from delkalakedb.model.schema.schema import GENERATION_EXPRESSION, parse_schema

CATALOG_MANAGED = "catalogManaged"
CHECK_CONSTRAINTS = "checkConstraints"
CLUSTERING = "clustering"
COLUMN_MAPPING = "columnMapping"
DELETION_VECTORS = "deletionVectors"
DOMAIN_METADATA = "domainMetadata"
IN_COMMIT_TIMESTAMP = "inCommitTimestamp"
ROW_TRACKING = "rowTracking"
V2_CHECKPOINT = "v2Checkpoint"


class Use(Flag):
    """The uses of a table that a feature allows.

    DATASET: pyarrow reads the files as a dataset, unless `odd_files` finds that the
        feature is in use.
    ARROW: pyarrow reads the files in the Python processes of Spark.
    SPARK: Spark's own reader reads the files.
    SPARK_3: Spark's own reader of version 3.5 reads the files.
    SMALL_APPEND: Arrow writes the rows of a small append.
    SPARK_SINK: Spark's data source writes rows.
    DELTA_RS: delta-rs supports the feature and is shown it.
    RATIFY: ratify fulfils the feature's demands, so delta-rs isn't shown it.
    UPGRADE: a commit that was staged before the table got the feature stays valid.
    """

    DATASET = auto()
    ARROW = auto()
    SPARK = auto()
    SPARK_3 = auto()
    SMALL_APPEND = auto()
    SPARK_SINK = auto()
    DELTA_RS = auto()
    RATIFY = auto()
    UPGRADE = auto()


_NONE = Use(0)
_READS = Use.DATASET | Use.ARROW | Use.SPARK | Use.SPARK_3
_APPENDS = Use.SMALL_APPEND | Use.SPARK_SINK


@dataclass(frozen=True, slots=True)
class Feature:
    """One table feature: a row of the table.

    Args:
        name: the name in the protocol.
        reason: how the feature is supported here, or why it isn't.
        uses: the uses of a table that the feature allows.
        reader: readers must know the feature, too.
        read: the catalog can read tables with the feature.
        write: the catalog can commit to tables with the feature.
        log_only: a reader that has the list of files can ignore the feature.
        fence: a fence adds the feature to a table.
        removable: a table that doesn't use the feature can drop it.
        managed: only the table's catalog knows the newest versions.
        stamped: the table may have in-commit timestamps.
        legacy: the writer version that brought the feature before features had names.
        needs: other features that a table with this one must have.
        types: column types that need this feature, or another with the same type.
        switch: the table property that turns the feature on.
        off: the values of `switch` that leave the feature off.
        on: the value of `switch` that doesn't conflict with a commit staged before.
        prefix: the feature is in use if a table property begins so.
        words: types, or keys of column metadata, of which one means that the feature
            is in use. A feature without `switch`, `prefix` and `words` is in use
            wherever it is supported.
    """

    name: str
    reason: str
    uses: Use = _NONE
    reader: bool = False
    read: bool = True
    write: bool = True
    log_only: bool = False
    fence: bool = False
    removable: bool = False
    managed: bool = False
    stamped: bool = False
    legacy: int | None = None
    needs: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    switch: str = ""
    off: tuple[str, ...] = ("false",)
    on: str = ""
    prefix: str = ""
    words: tuple[str, ...] = ()


@lru_cache(maxsize=256)
def schema_words(schema_string: str) -> frozenset[str]:
    """Return all types, and all keys of column metadata, in a schema."""
    fields = list(parse_schema(schema_string).walk())
    keys = {key for field in fields for key in field.metadata}
    return frozenset(keys | {field.type for field in fields})


_ALL = (
    Feature(
        "appendOnly",
        "ratify refuses removes that change data",
        uses=_APPENDS | Use.DELTA_RS | Use.UPGRADE,
        legacy=2,
        switch=APPEND_ONLY,
    ),
    Feature(
        "invariants",
        "rows are checked by the staging engine",
        uses=Use.DELTA_RS,
        legacy=2,
        words=("delta.invariants",),
    ),
    Feature(
        CHECK_CONSTRAINTS,
        "rows are checked by the staging engine",
        uses=Use.DELTA_RS,
        removable=True,
        legacy=3,
        prefix=CONSTRAINTS,
    ),
    Feature(
        "changeDataFeed",
        "cdc actions are kept and published as staged",
        uses=_APPENDS | Use.DELTA_RS | Use.UPGRADE,
        legacy=4,
        switch=CHANGE_DATA_FEED_ENABLED,
    ),
    Feature(
        "generatedColumns",
        "values are computed by the staging engine",
        uses=Use.DELTA_RS,
        legacy=4,
        words=(GENERATION_EXPRESSION,),
    ),
    Feature(
        COLUMN_MAPPING,
        "statistics and partition values go by physical names",
        uses=_READS | Use.DELTA_RS | Use.UPGRADE,
        legacy=5,
        reader=True,
        switch=COLUMN_MAPPING_MODE,
        off=("false", "none"),
        on="name",
    ),
    Feature(
        "identityColumns",
        "Spark's writes generate values, and move the high-water mark",
        legacy=6,
        words=("delta.identity.start",),
    ),
    Feature(
        "allowColumnDefaults",
        "Spark's writes fill in the defaults",
        removable=True,
        words=("CURRENT_DEFAULT",),
    ),
    Feature(
        DELETION_VECTORS,
        "logical files are keyed by path and vector id",
        uses=_READS | _APPENDS | Use.DELTA_RS | Use.UPGRADE,
        reader=True,
        switch=DELETION_VECTORS_ENABLED,
        on="true",
    ),
    Feature(
        ROW_TRACKING,
        "row ids are assigned at ratify",
        uses=_APPENDS | Use.RATIFY | Use.UPGRADE,
        needs=(DOMAIN_METADATA,),
        switch=ROW_TRACKING_ENABLED,
        on="true",
    ),
    Feature(
        "timestampNtz",
        "a type: the staging engine reads and writes it",
        uses=_READS | _APPENDS | Use.DELTA_RS | Use.UPGRADE,
        types=("timestamp_ntz",),
        reader=True,
        words=("timestamp_ntz",),
    ),
    Feature(
        "timestampNanos",
        "types of delta-rs: the staging engine reads and writes them",
        uses=Use.DATASET | Use.DELTA_RS | Use.UPGRADE,
        types=("timestamp_nanos", "timestamp_nanos_ntz"),
        reader=True,
        words=("timestamp_nanos", "timestamp_nanos_ntz"),
    ),
    Feature(
        DOMAIN_METADATA,
        "all domains are kept",
        uses=_APPENDS | Use.RATIFY | Use.UPGRADE,
        removable=True,
    ),
    Feature(
        V2_CHECKPOINT,
        "both kinds of checkpoint are understood",
        uses=_READS | _APPENDS | Use.DELTA_RS | Use.UPGRADE,
        reader=True,
        switch=CHECKPOINT_POLICY,
        off=("classic",),
        on="v2",
    ),
    Feature(
        IN_COMMIT_TIMESTAMP,
        "the timestamp is set at ratify",
        uses=_APPENDS | Use.RATIFY | Use.UPGRADE,
        fence=True,
        removable=True,
        stamped=True,
        switch=IN_COMMIT_TIMESTAMPS,
        on="true",
    ),
    Feature(
        CATALOG_MANAGED,
        "the catalog is the one that ratifies",
        uses=_READS | _APPENDS | Use.RATIFY | Use.UPGRADE,
        fence=True,
        managed=True,
        reader=True,
        log_only=True,
        needs=(IN_COMMIT_TIMESTAMP,),
    ),
    Feature(
        CLUSTERING,
        "a layout: files need statistics, which the staging engine writes",
        uses=Use.SPARK_SINK | Use.RATIFY,
        needs=(DOMAIN_METADATA,),
    ),
    *(
        Feature(
            name,
            "bounds are read by the column's present type",
            uses=Use.ARROW | Use.SPARK | Use.SPARK_SINK | Use.UPGRADE,
            reader=True,
        )
        for name in ("typeWidening", "typeWidening-preview")
    ),
    Feature(
        "vacuumProtocolCheck",
        "vacuum checks the writer's side of the protocol",
        uses=_READS | _APPENDS | Use.RATIFY | Use.UPGRADE,
        fence=True,
        reader=True,
        log_only=True,
    ),
    Feature(
        "variantType",
        "a type without statistics here",
        uses=Use.DATASET | Use.SPARK | Use.DELTA_RS,
        types=("variant",),
        reader=True,
    ),
    Feature(
        "variantType-preview",
        "a type without statistics here",
        uses=Use.DATASET | Use.DELTA_RS,
        types=("variant",),
        reader=True,
    ),
    *(
        Feature(
            name,
            "the staging engine reads it, but none here writes it",
            reader=True,
            write=False,
            switch="delta.enableVariantShredding",
        )
        for name in ("variantShredding", "variantShredding-preview")
    ),
    *(
        Feature(
            f"iceberg{name}",
            "no staging engine here writes files by Iceberg's rules",
            uses=uses,
            write=False,
            switch=f"delta.enableIceberg{name}",
        )
        for name, uses in (
            ("CompatV1", Use.UPGRADE),
            ("CompatV2", Use.UPGRADE),
            ("CompatV3", Use.UPGRADE),
            ("WriterCompatV1", _NONE),
            ("WriterCompatV3", _NONE),
        )
    ),
    *(
        Feature(
            name, "no staging engine here compares text by a collation", write=False
        )
        for name in ("collations", "collations-preview")
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
        stamped=True,
    ),
    Feature(
        "materializePartitionColumns",
        "no staging engine here writes partition columns into files",
        write=False,
    ),
    Feature(
        "checkpointProtection",
        "log cleanup doesn't know the protected versions",
        uses=Use.SPARK_SINK,
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
        uses=_READS,
        reader=True,
        log_only=True,
        write=False,
        managed=True,
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
FENCE_FEATURES = frozenset(feature.name for feature in _ALL if feature.fence)
"""The features that a fence adds to a table's protocol."""
REMOVABLE = frozenset(feature.name for feature in _ALL if feature.removable)
"""The features that a table that doesn't use them can drop."""
MANAGED = frozenset(feature.name for feature in _ALL if feature.managed)
"""The features of a table whose newest versions only its catalog knows."""
STAMPED = frozenset(feature.name for feature in _ALL if feature.stamped)
"""The features of a table that may have in-commit timestamps."""
LEGACY = {feature.name: feature.legacy for feature in _ALL if feature.legacy}
"""The writer version that brought each feature, before features had names."""
TYPES = {
    name: frozenset(feature.name for feature in _ALL if name in feature.types)
    for name in sorted({name for feature in _ALL for name in feature.types})
}
"""The features of which a table must have one, by the column type that needs them."""

_BY_USE = {
    use: frozenset(feature.name for feature in _ALL if use in feature.uses)
    for use in Use
}


def features_for(use: Use) -> frozenset[str]:
    """Return the features that a table may have for a use."""
    return _BY_USE[use]
