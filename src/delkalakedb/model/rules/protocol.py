"""The protocol's rules for readers, for writers, and for single commits."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from delkalakedb.errors import DeltaError, ProtocolError
from delkalakedb.model.actions import (
    NAMES,
    NO_SCHEMA,
    Action,
    Add,
    Cdc,
    CheckpointMetadata,
    CommitInfo,
    DomainMetadata,
    Metadata,
    Protocol,
    Remove,
    Sidecar,
    Txn,
    dv_id,
    known,
)
from delkalakedb.model.rules.features import (
    CATALOG_MANAGED,
    COLUMN_MAPPING,
    DELETION_VECTORS,
    DOMAIN_METADATA,
    FEATURES,
    FENCE_FEATURES,
    LEGACY,
    REMOVABLE,
    TYPES,
    Feature,
    Use,
    features_for,
    schema_words,
)
from delkalakedb.model.schema.properties import (
    IN_COMMIT_TIMESTAMPS,
    TableProperties,
    check_values,
    parse_properties,
)
from delkalakedb.model.schema.schema import check_schema, parse_schema

# The only operation that removes a fence or another feature.
DROP_FEATURE = "DROP FEATURE"
_NEWEST_WRITER = 7
SYSTEM_DOMAINS = frozenset({"delta.rowTracking", "delta.clustering"})
_F = TypeVar("_F", Add, Remove)
_A = TypeVar("_A", bound=Action)
_ByKind = Mapping[type[Any], Sequence[Any]]


def supported_features(protocol: Protocol) -> frozenset[str]:
    """Return the features that a protocol lists, or implies by a legacy version."""
    readers, writers = known(protocol.reader_features), known(protocol.writer_features)
    return _supported(
        protocol.min_reader_version,
        protocol.min_writer_version,
        (*(readers or ()), *(writers or ())),
    )


# Cached, because every commit asks several times and protocols hardly change.
@lru_cache(maxsize=256)
def _supported(reader: int, writer: int, listed: tuple[str, ...]) -> frozenset[str]:
    implied = {COLUMN_MAPPING} if reader == 2 else set()
    if writer < 7:
        implied.update(name for name, since in LEGACY.items() if since <= writer)
    return frozenset({*listed, *implied})


def active_features(protocol: Protocol, metadata: Metadata) -> frozenset[str]:
    """Return the supported features that the metadata uses, and all unknown ones."""
    return frozenset(
        name
        for name in supported_features(protocol)
        if name not in FEATURES or _is_in_use(FEATURES[name], metadata)
    )


def _is_in_use(feature: Feature, metadata: Metadata) -> bool:
    properties = known(metadata.configuration) or {}
    if feature.switch:
        value = properties.get(feature.switch)
        return value is not None and value.strip().lower() not in feature.off
    if feature.prefix:
        return any(key.lower().startswith(feature.prefix) for key in properties)
    words = feature.words
    return not words or not schema_words(metadata.schema_string).isdisjoint(words)


def switched_on(metadata: Metadata) -> frozenset[str]:
    """Return the features that table properties turn on, and that can be written."""
    return frozenset(
        name
        for name, feature in FEATURES.items()
        if feature.switch and feature.write and _is_in_use(feature, metadata)
    )


def unread_features(protocol: Protocol, metadata: Metadata, use: Use) -> list[str]:
    """Return the features that readers must know and that `use` doesn't allow.

    A feature that only brings types counts if the schema has one of them.
    """
    words = schema_words(metadata.schema_string)
    odd = {*(known(protocol.reader_features) or ())} - features_for(use)
    return sorted(
        name
        for name in odd
        if name not in FEATURES
        or not FEATURES[name].types
        or not words.isdisjoint(FEATURES[name].types)
    )


def check_readable(protocol: Protocol) -> None:
    """Raise `ProtocolError` if the table can't be replayed and pruned safely."""
    _check_versions(protocol)
    refused = [
        name
        for name in known(protocol.reader_features) or ()
        if name not in FEATURES or not FEATURES[name].read
    ]
    _refuse("read", refused)


def check_writable(protocol: Protocol, metadata: Metadata) -> None:
    """Raise `ProtocolError` if no commit to the table would be safe.

    An unsupported feature that isn't in use, such as the identity columns that legacy
    writer version 6 implies, is allowed.
    """
    check_readable(protocol)
    if protocol.min_writer_version > _NEWEST_WRITER:
        raise ProtocolError(
            f"writer version {protocol.min_writer_version} is not known; at most "
            f"{_NEWEST_WRITER} is"
        )
    try:
        check_values(metadata)
    except DeltaError as error:
        raise ProtocolError(str(error)) from error
    supported = supported_features(protocol)
    active = active_features(protocol, metadata)
    refused = [n for n in active if n not in FEATURES or not FEATURES[n].write]
    _refuse("write", refused)
    if metadata.schema_string == NO_SCHEMA:
        raise ProtocolError("can't write to a table whose metaData has no schemaString")
    for name in sorted(supported & FEATURES.keys()):
        if missing := set(FEATURES[name].needs) - supported:
            raise ProtocolError(f"feature {name} needs {', '.join(sorted(missing))}")


def check_checkpointable(protocol: Protocol) -> None:
    """Raise `ProtocolError` if an unknown feature may change what checkpoints hold."""
    unknown = supported_features(protocol) - FEATURES.keys()
    _refuse("write a checkpoint of", unknown)


def check_transition(
    old: Protocol, new: Protocol, droppable: Collection[str] = ()
) -> None:
    """Raise `ProtocolError` if `new` lowers a version of `old` or drops a feature.

    A commit that drops one of the features `droppable` may lower versions.
    """
    if not droppable and (
        new.min_reader_version < old.min_reader_version
        or new.min_writer_version < old.min_writer_version
    ):
        raise ProtocolError(
            f"the protocol would go down from {_versions(old)} to {_versions(new)}"
        )
    if dropped := supported_features(old) - supported_features(new) - set(droppable):
        raise ProtocolError(
            f"the protocol would drop {', '.join(sorted(dropped))}; "
            "features can't be dropped by a commit"
        )


def complete_upgrade(old: Protocol, new: Protocol) -> Protocol:
    """Return `new` with the features that the legacy versions of `old` imply.

    delta-rs omits these features when it moves a table to feature lists, although the
    table's history may have used them.
    """
    if old.min_writer_version >= 7 or new.min_writer_version < 7:
        return new
    implied = supported_features(old) - supported_features(new)
    reader = {name for name in implied if FEATURES[name].reader}
    return msgspec.structs.replace(
        new,
        writer_features=_with(known(new.writer_features), implied),
        reader_features=_with(known(new.reader_features), reader)
        if new.min_reader_version >= 3
        else new.reader_features,
    )


def with_needed(protocol: Protocol) -> Protocol:
    """Return `protocol` with the writer features that its listed features need."""
    listed = known(protocol.writer_features) or ()
    needed = {n for name in listed if name in FEATURES for n in FEATURES[name].needs}
    if missing := needed - set(listed):
        features = _with(listed, missing)
        return msgspec.structs.replace(protocol, writer_features=features)
    return protocol


def supporting(protocol: Protocol, names: Collection[str]) -> Protocol:
    """Return `protocol` with the features `names` and the features that they need."""
    features = supported_features(protocol) | set(names)
    readers = {name for name in features if name in FEATURES and FEATURES[name].reader}
    listed = known(protocol.writer_features) or ()
    upgraded = msgspec.structs.replace(
        protocol,
        min_writer_version=7,
        writer_features=_with(listed, features - set(listed)),
    )
    if readers:
        listed = known(protocol.reader_features) or ()
        upgraded = msgspec.structs.replace(
            upgraded,
            min_reader_version=3,
            reader_features=_with(listed, readers - set(listed)),
        )
    return with_needed(upgraded)


def taking_vectors(actions: Sequence[Action]) -> list[Action]:
    """Return the commit of a new table, with deletion vectors unless it says otherwise.

    A table property that the commit sets stays as it is.
    """
    switch = FEATURES[DELETION_VECTORS].switch
    metadata = next((a for a in actions if isinstance(a, Metadata)), None)
    configuration = (known(metadata.configuration) or {}) if metadata else {}
    if metadata is None or switch in configuration:
        return list(actions)
    changed = msgspec.structs.replace(
        metadata, configuration={**configuration, switch: "true"}
    )

    def adapted(action: Action) -> Action:
        if isinstance(action, Protocol):
            return supporting(action, {DELETION_VECTORS})
        return changed if action is metadata else action

    return [adapted(action) for action in actions]


def upgraded(protocol: Protocol, reader: int, writer: int) -> Protocol:
    """Return `protocol` raised to the given versions, and never lowered."""
    reader = max(reader, protocol.min_reader_version)
    writer = max(writer, protocol.min_writer_version)
    if not (1 <= reader <= 3 and 1 <= writer <= 7):
        raise ProtocolError(f"protocol ({reader}, {writer}) is not known; (3, 7) is")
    if reader == 3 and writer < 7:
        raise ProtocolError("reader version 3 needs writer version 7")
    if writer == 7 > protocol.min_writer_version:
        protocol = supporting(protocol, ())
    listed = known(protocol.reader_features)
    if reader == 3 > protocol.min_reader_version:
        features = supported_features(protocol)
        listed = sorted(n for n in features if n in FEATURES and FEATURES[n].reader)
    return msgspec.structs.replace(
        protocol,
        min_reader_version=reader,
        min_writer_version=writer,
        reader_features=listed if reader == 3 else protocol.reader_features,
    )


def normalized(protocol: Protocol) -> Protocol:
    """Return the weakest protocol with exactly the features of `protocol`.

    Features that a legacy version implies are not listed.
    """
    features = supported_features(protocol)
    reader, first = (2, 5) if COLUMN_MAPPING in features else (1, 1)
    for writer in range(first, 7):
        legacy = Protocol(min_reader_version=reader, min_writer_version=writer)
        if supported_features(legacy) == features:
            return legacy
    listed = known(protocol.reader_features) or ()
    reads = sorted(
        name
        for name in features
        if name in listed or (name in FEATURES and FEATURES[name].reader)
    )
    return Protocol(
        min_reader_version=3 if reads else 1,
        min_writer_version=7,
        reader_features=reads or UNSET,
        writer_features=sorted(features),
    )


def with_feature(protocol: Protocol, name: str) -> Protocol:
    """Return `protocol` with the feature `name`.

    Raises:
        ProtocolError: The feature isn't known, or tables with it can't be written.
    """
    if name not in FEATURES:
        raise ProtocolError(
            "[DELTA_UNSUPPORTED_FEATURES_IN_CONFIG] Unsupported table feature: "
            f"{name}; known are {', '.join(sorted(FEATURES))}"
        )
    if name in supported_features(protocol):
        return protocol
    if FEATURES[name].managed:
        raise ProtocolError(f"{name}: call delkalakedb.mirror.fence, which adds it")
    _refuse("write", [] if FEATURES[name].write else [name])
    supported = supporting(protocol, [name])
    # not weaker than before, which would let in writers that couldn't write the table
    return supported if protocol.min_writer_version == 7 else normalized(supported)


def without_feature(
    protocol: Protocol,
    metadata: Metadata,
    name: str,
    domains: Collection[str],
    *,
    truncate_history: bool,
) -> Protocol:
    """Return `protocol` without the feature `name`.

    Args:
        protocol: the table's protocol.
        metadata: the table's metadata, which must not use the feature.
        name: the feature.
        domains: the names of the table's domains.
        truncate_history: whether the caller asks for a shorter history, which no
            removable feature needs.
    """
    if name not in FEATURES:
        raise ProtocolError(
            f"[DELTA_FEATURE_DROP_UNSUPPORTED_CLIENT_FEATURE] {name} isn't known; "
            f"known are {', '.join(sorted(FEATURES))}"
        )
    if name not in supported_features(protocol):
        raise ProtocolError(
            f"[DELTA_FEATURE_DROP_FEATURE_NOT_PRESENT] the table has no feature {name}"
        )
    if name not in REMOVABLE:
        raise ProtocolError(
            f"[DELTA_FEATURE_DROP_NONREMOVABLE_FEATURE] {name} can't be dropped: "
            "earlier versions of the table may use it; clone the rows into a new table"
        )
    if truncate_history:
        raise ProtocolError(
            "[DELTA_FEATURE_DROP_HISTORY_TRUNCATION_NOT_ALLOWED] dropping "
            f"{name} needs no shorter history"
        )
    features = supported_features(protocol)
    needing = [n for n in features if n in FEATURES and name in FEATURES[n].needs]
    in_use, feature = name == DOMAIN_METADATA and bool(domains), FEATURES[name]
    if feature.switch or feature.prefix or feature.words:
        in_use = in_use or _is_in_use(feature, metadata)
    if needing or in_use:
        why = ", ".join(
            [feature.switch or feature.prefix or "its columns and domains", *needing]
        )
        raise ProtocolError(
            f"{name} is in use; first remove what uses it ({why}) from the table"
        )
    left = msgspec.structs.replace(
        supporting(protocol, ()),
        writer_features=sorted(features - {name}),
    )
    return normalized(left)


def not_less(protocol: Protocol, before: Protocol) -> Protocol:
    """Return `protocol` with every feature of the protocol `before` it."""
    if supported_features(before) <= supported_features(protocol):
        return protocol
    more = supported_features(protocol) - supported_features(before)
    return supporting(before, more) if more else before


def check_actions(
    actions: Iterable[Action],
    protocol: Protocol | None,
    metadata: Metadata | None,
    version: int,
) -> None:
    """Raise `ProtocolError` if a commit breaks a rule of the protocol.

    Only rules that can be checked without other commits are checked.

    Args:
        actions: the actions of the commit.
        protocol: the table's protocol before the commit; None before its first.
        metadata: the table's metadata before the commit; None before its first.
        version: the version of the commit.
    """
    kinds = _by_kind(actions)
    _check_singles(kinds)
    new_protocol = _first(kinds, Protocol)
    if version == 0 and not (new_protocol and kinds[Metadata]):
        raise ProtocolError("version 0 needs a protocol and a metaData action")
    after, schema = _state_after(kinds, protocol, metadata, version)
    check_writable(after, schema)
    if new_protocol and protocol:
        dropping = _operation(kinds) == DROP_FEATURE
        check_transition(
            protocol, new_protocol, FENCE_FEATURES | REMOVABLE if dropping else ()
        )
    if kinds[Protocol] or kinds[Metadata]:
        _check_metadata(schema, after)
    _check_domains(kinds[DomainMetadata], after)
    _check_files(kinds, after, schema)


def check_adoptable(
    actions: Iterable[Action],
    protocol: Protocol | None,
    metadata: Metadata | None,
    version: int,
) -> None:
    """Raise `ProtocolError` if the table can't be read after a commit of its log.

    The rules for writers aren't checked, because the commit is already in the log. The
    arguments are those of `check_actions`.
    """
    kinds = _by_kind(actions)
    _check_singles(kinds)
    after, schema = _state_after(kinds, protocol, metadata, version)
    check_readable(after)
    # A metaData without a schema is allowed, because a later one may bring it.
    if (kinds[Protocol] or kinds[Metadata]) and schema.schema_string != NO_SCHEMA:
        _check_metadata(schema, after)
    adds, removes = _by_path("add", kinds[Add]), _by_path("remove", kinds[Remove])
    _check_pairs(adds, removes)


def _state_after(
    kinds: _ByKind, protocol: Protocol | None, metadata: Metadata | None, version: int
) -> tuple[Protocol, Metadata]:
    """Return the protocol and metadata that a table has after a commit."""
    after = _first(kinds, Protocol) or protocol
    schema = _first(kinds, Metadata) or metadata
    if after is None or schema is None:
        raise ProtocolError(f"version {version} has no protocol or metaData before it")
    return after, schema


def _operation(kinds: _ByKind) -> Any:
    info = _first(kinds, CommitInfo)
    return info and info.fields.get("operation")


def _versions(protocol: Protocol) -> str:
    return f"({protocol.min_reader_version}, {protocol.min_writer_version})"


def _with(listed: Collection[str] | None, more: Collection[str]) -> list[str]:
    return [*(listed or ()), *sorted(more)]


def _refuse(verb: str, names: Collection[str]) -> None:
    if names:
        why = ", ".join(
            f"{name} ({FEATURES[name].reason if name in FEATURES else 'unknown'})"
            for name in sorted(names)
        )
        raise ProtocolError(f"can't {verb} a table with {why}")


def _check_versions(protocol: Protocol) -> None:
    reader, writer = protocol.min_reader_version, protocol.min_writer_version
    if not (1 <= reader <= 3 and writer >= 1):
        raise ProtocolError(
            f"protocol {_versions(protocol)} is not known; at most (3, 7) is"
        )
    if reader == 3 and writer < 7:
        raise ProtocolError("reader version 3 needs writer version 7")
    _check_lists(protocol)


def _check_lists(protocol: Protocol) -> None:
    readers, writers = known(protocol.reader_features), known(protocol.writer_features)
    for name, listed, version, since in (
        ("readerFeatures", readers, protocol.min_reader_version, 3),
        ("writerFeatures", writers, protocol.min_writer_version, _NEWEST_WRITER),
    ):
        if version == since and listed is None:
            raise ProtocolError(f"protocol {_versions(protocol)} needs {name}")
        if listed and version < since:
            raise ProtocolError(f"protocol {_versions(protocol)} can't have {name}")
    if extra := set(readers or ()) - set(writers or ()):
        raise ProtocolError(
            f"writerFeatures lacks {', '.join(sorted(extra))}, which readerFeatures has"
        )
    _check_visible(protocol)


def _check_visible(protocol: Protocol) -> None:
    """Raise `ProtocolError` if `readerFeatures` lacks a feature that readers need."""
    visible = set(known(protocol.reader_features) or ())
    if protocol.min_reader_version == 2:
        visible.add(COLUMN_MAPPING)
    hidden = [
        name
        for name in known(protocol.writer_features) or ()
        if name in FEATURES and FEATURES[name].reader and name not in visible
    ]
    if hidden:
        raise ProtocolError(
            f"readerFeatures lacks {', '.join(sorted(hidden))}, which readers need"
        )


def _by_kind(actions: Iterable[Action]) -> _ByKind:
    kinds: defaultdict[type[Any], list[Any]] = defaultdict(list)
    for action in actions:
        kinds[type(action)].append(action)
    return kinds


def _first(kinds: _ByKind, kind: type[_A]) -> _A | None:
    found = kinds[kind]
    return found[0] if found else None


def _check_singles(kinds: _ByKind) -> None:
    names: dict[type[Any], str] = {**NAMES, CommitInfo: "commitInfo"}
    for single in (Protocol, Metadata, CommitInfo):
        if (count := len(kinds[single])) > 1:
            raise ProtocolError(
                f"a commit can have only one {names[single]} action, not {count}"
            )
    for kind in (CheckpointMetadata, Sidecar):
        if kinds[kind]:
            raise ProtocolError(f"{names[kind]} belongs to checkpoints, not to commits")
    _check_unique(NAMES[Txn], [txn.app_id for txn in kinds[Txn]])
    _check_unique(
        NAMES[DomainMetadata], [item.domain for item in kinds[DomainMetadata]]
    )


def _check_unique(kind: str, keys: Sequence[str]) -> None:
    if len(set(keys)) != len(keys):
        ((twice, count),) = Counter(keys).most_common(1)
        raise ProtocolError(f"a commit can't have {count} {kind} actions for {twice!r}")


def _check_metadata(metadata: Metadata, protocol: Protocol) -> None:
    if metadata.format.provider != "parquet":
        raise ProtocolError(
            f"data files in {metadata.format.provider} aren't supported"
        )
    check_schema(parse_schema(metadata.schema_string), metadata.partition_columns)
    supported = supported_features(protocol)
    if CATALOG_MANAGED in supported and not (
        parse_properties(metadata).enable_in_commit_timestamps
    ):
        raise ProtocolError(
            "feature catalogManaged needs delta.enableInCommitTimestamps=true"
        )
    for word in schema_words(metadata.schema_string) & TYPES.keys():
        if not TYPES[word] & supported:
            needed = " or ".join(sorted(TYPES[word]))
            raise ProtocolError(f"a column of type {word} needs feature {needed}")


def _check_domains(domains: Sequence[DomainMetadata], protocol: Protocol) -> None:
    if domains and DOMAIN_METADATA not in supported_features(protocol):
        raise ProtocolError("a domainMetadata action needs feature domainMetadata")
    for item in domains:
        if item.domain.startswith("delta.") and item.domain not in SYSTEM_DOMAINS:
            raise ProtocolError(f"domain {item.domain} is reserved and not known here")


def _check_files(kinds: _ByKind, protocol: Protocol, metadata: Metadata) -> None:
    properties = parse_properties(metadata)
    adds, removes = _by_path("add", kinds[Add]), _by_path("remove", kinds[Remove])
    _check_adds(kinds[Add], _partition_keys(metadata))
    _check_pairs(adds, removes)
    _check_vectors(kinds, adds, removes, protocol, properties)
    for remove in kinds[Remove] if properties.append_only else ():
        if remove.data_change:
            raise ProtocolError(
                f"remove {remove.path}: the table is append-only (delta.appendOnly)"
            )
    for cdc in kinds[Cdc]:
        if cdc.data_change:
            raise ProtocolError(f"cdc {cdc.path}: dataChange has to be false")


def _by_path(kind: str, files: Sequence[_F]) -> dict[str, _F]:
    by_path = {file.path: file for file in files}
    if len(by_path) != len(files):
        _check_unique(kind, [file.path for file in files])
    if "" in by_path:
        raise ProtocolError(f"{kind}: the path is empty")
    return by_path


def _partition_keys(metadata: Metadata) -> frozenset[str]:
    schema = parse_schema(metadata.schema_string)
    columns = ((name, schema.column((name,))) for name in metadata.partition_columns)
    return frozenset(column.physical[0] if column else name for name, column in columns)


def _check_adds(adds: Sequence[Add], keys: frozenset[str]) -> None:
    for add in adds:
        if add.size < 0 or add.modification_time < 0:
            raise ProtocolError(f"add {add.path}: a negative size or modificationTime")
        if add.partition_values.keys() != keys:
            raise ProtocolError(
                f"add {add.path}: partitionValues has {sorted(add.partition_values)}, "
                f"the table is partitioned by {sorted(keys)}"
            )


def _check_pairs(adds: Mapping[str, Add], removes: Mapping[str, Remove]) -> None:
    for path in adds.keys() & removes.keys():
        if dv_id(adds[path]) == dv_id(removes[path]):
            raise ProtocolError(
                f"{path} is added and removed with the same deletion vector"
            )


def _check_vectors(
    kinds: _ByKind,
    adds: Mapping[str, Add],
    removes: Mapping[str, Remove],
    protocol: Protocol,
    properties: TableProperties,
) -> None:
    vectors = [add.path for add in adds.values() if known(add.deletion_vector)]
    if vectors and DELETION_VECTORS not in supported_features(protocol):
        raise ProtocolError(
            f"add {vectors[0]}: a deletion vector needs feature deletionVectors"
        )
    # A restore may add files with their vectors again after the property is unset.
    if properties.enable_deletion_vectors or _operation(kinds) == "RESTORE":
        return
    for path in vectors:
        if path in removes:
            raise ProtocolError(
                f"add {path}: a new deletion vector needs "
                "delta.enableDeletionVectors=true"
            )


FENCE_PROPERTY = "delta.feature.catalogManaged"
"""The property that asks for the fence, as Delta does for features; it isn't stored."""

_ENABLEMENT = "delta.inCommitTimestampEnablement"


def is_fenced(protocol: Protocol) -> bool:
    """Return whether the table is fenced."""
    return CATALOG_MANAGED in supported_features(protocol)


def asks_for_fence(metadata: Metadata) -> bool:
    """Return whether the properties ask for the fence."""
    asked = (known(metadata.configuration) or {}).get(FENCE_PROPERTY)
    if asked not in (None, "supported", "enabled"):
        raise ProtocolError(f"{FENCE_PROPERTY} can be 'supported', not {asked!r}")
    return asked is not None


def fenced(protocol: Protocol, metadata: Metadata) -> tuple[Protocol, Metadata]:
    """Return a table's protocol and metadata with the fence."""
    configuration = {
        **(known(metadata.configuration) or {}),
        IN_COMMIT_TIMESTAMPS: "true",
    }
    configuration.pop(FENCE_PROPERTY, None)
    return (
        supporting(protocol, FENCE_FEATURES),
        msgspec.structs.replace(metadata, configuration=configuration),
    )


def unfenced(protocol: Protocol, metadata: Metadata) -> tuple[Protocol, Metadata]:
    """Return a table's protocol and metadata without the fence and its properties."""
    configuration = {
        name: value
        for name, value in (known(metadata.configuration) or {}).items()
        if name != IN_COMMIT_TIMESTAMPS and not name.startswith(_ENABLEMENT)
    }
    return (
        msgspec.structs.replace(
            protocol,
            reader_features=_without_fence(known(protocol.reader_features)),
            writer_features=_without_fence(known(protocol.writer_features)),
        ),
        msgspec.structs.replace(metadata, configuration=configuration),
    )


def _without_fence(features: Iterable[str] | None) -> list[str]:
    return [name for name in features or () if name not in FENCE_FEATURES]
