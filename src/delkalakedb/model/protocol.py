"""What the protocol demands of readers, of writers, and of one commit.

Every check fails closed: a version, a feature or a combination that isn't known to
be safe is refused by name.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from delkalakedb.errors import ProtocolError
from delkalakedb.model.actions import (
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
from delkalakedb.model.features import FEATURES, LEGACY, TYPES, schema_words
from delkalakedb.model.properties import TableProperties, parse_properties
from delkalakedb.model.schema import check_schema, parse_schema

__all__ = [
    "DROP_FEATURE",
    "FENCE_FEATURES",
    "active_features",
    "check_actions",
    "check_adoptable",
    "check_checkpointable",
    "check_readable",
    "check_transition",
    "check_writable",
    "complete_upgrade",
    "supported_features",
    "supporting",
    "with_needed",
]

# What a fence adds to a table's protocol, and the one operation that takes it away.
FENCE_FEATURES = frozenset(
    {"catalogManaged", "inCommitTimestamp", "vacuumProtocolCheck"}
)
DROP_FEATURE = "DROP FEATURE"
SYSTEM_DOMAINS = frozenset({"delta.rowTracking", "delta.clustering"})
_SINGLES: dict[type[Any], str] = {
    Protocol: "protocol",
    Metadata: "metaData",
    CommitInfo: "commitInfo",
}
_CHECKPOINT_ONLY: dict[type[Any], str] = {
    CheckpointMetadata: "checkpointMetadata",
    Sidecar: "sidecar",
}
_F = TypeVar("_F", Add, Remove)
_A = TypeVar("_A", bound=Action)
_ByKind = Mapping[type[Any], Sequence[Any]]


def supported_features(protocol: Protocol) -> frozenset[str]:
    """The features a protocol lists, or implies by a version without lists."""
    readers, writers = known(protocol.reader_features), known(protocol.writer_features)
    return _supported(
        protocol.min_reader_version,
        protocol.min_writer_version,
        (*(readers or ()), *(writers or ())),
    )


# Every commit asks several times, and a table's protocol hardly changes.
@lru_cache(maxsize=256)
def _supported(reader: int, writer: int, listed: tuple[str, ...]) -> frozenset[str]:
    implied = {"columnMapping"} if reader == 2 else set()
    if writer < 7:
        implied.update(name for name, since in LEGACY.items() if since <= writer)
    return frozenset({*listed, *implied})


def active_features(protocol: Protocol, metadata: Metadata) -> frozenset[str]:
    """The supported features that the metadata makes use of; unknown ones always."""
    return frozenset(
        name
        for name in supported_features(protocol)
        if name not in FEATURES or FEATURES[name].active(metadata)
    )


def check_readable(protocol: Protocol) -> None:
    """Refuse a table whose log can't be replayed and pruned safely."""
    _check_versions(protocol)
    refused = [
        name
        for name in known(protocol.reader_features) or ()
        if name not in FEATURES or not FEATURES[name].read
    ]
    _refuse("read", refused)


def check_writable(protocol: Protocol, metadata: Metadata) -> None:
    """Refuse a table to which no commit can be made safely.

    A feature that can't be honoured but isn't in use, such as the identity columns
    that every legacy writer version 6 implies, is no reason to refuse.
    """
    check_readable(protocol)
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
    """Refuse a table that may need more in a checkpoint than what is known here."""
    unknown = supported_features(protocol) - FEATURES.keys()
    _refuse("write a checkpoint of", unknown)


def check_transition(
    old: Protocol, new: Protocol, droppable: Collection[str] = ()
) -> None:
    """Refuse a protocol that takes back what the one before it promised."""
    if (
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
    """`new` with the features that the legacy versions of `old` imply.

    delta-rs leaves them out when it moves a table to feature lists, although the
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
    """`protocol` with the writer features that those it lists need."""
    listed = known(protocol.writer_features) or ()
    needed = {n for name in listed if name in FEATURES for n in FEATURES[name].needs}
    if missing := needed - set(listed):
        features = _with(listed, missing)
        return msgspec.structs.replace(protocol, writer_features=features)
    return protocol


def supporting(protocol: Protocol, names: Collection[str]) -> Protocol:
    """`protocol` with these features as well, and those that they need."""
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


def check_actions(
    actions: Iterable[Action],
    protocol: Protocol | None,
    metadata: Metadata | None,
    version: int,
) -> None:
    """Refuse a commit that breaks a rule which needs nothing but itself to be checked.

    `protocol` and `metadata` are the table's before the commit, None before its first.
    """
    kinds = _by_kind(actions)
    _check_singles(kinds)
    new_protocol, new_metadata = _first(kinds, Protocol), _first(kinds, Metadata)
    if version == 0 and not (new_protocol and new_metadata):
        raise ProtocolError("version 0 needs a protocol and a metaData action")
    after, schema = new_protocol or protocol, new_metadata or metadata
    if after is None or schema is None:
        raise ProtocolError(f"version {version} has no protocol or metaData before it")
    check_writable(after, schema)
    if new_protocol and protocol:
        info = _first(kinds, CommitInfo)
        drops = info is not None and info.fields.get("operation") == DROP_FEATURE
        droppable = FENCE_FEATURES if drops else ()
        check_transition(protocol, new_protocol, droppable)
    if new_protocol or new_metadata:
        _check_metadata(schema, after)
    _check_domains(kinds[DomainMetadata], after)
    _check_files(kinds, after, schema)


def check_adoptable(
    actions: Iterable[Action],
    protocol: Protocol | None,
    metadata: Metadata | None,
    version: int,
) -> None:
    """Refuse a commit of a log after which the table can't be read here.

    What is demanded of writers isn't checked: the commit is in the log already. The
    arguments are those of `check_actions`.
    """
    kinds = _by_kind(actions)
    _check_singles(kinds)
    new_protocol, new_metadata = _first(kinds, Protocol), _first(kinds, Metadata)
    after, schema = new_protocol or protocol, new_metadata or metadata
    if after is None or schema is None:
        raise ProtocolError(f"version {version} has no protocol or metaData before it")
    check_readable(after)
    # Without a schema it is for the next metaData to bring one.
    if (new_protocol or new_metadata) and schema.schema_string != NO_SCHEMA:
        _check_metadata(schema, after)
    adds, removes = _by_path("add", kinds[Add]), _by_path("remove", kinds[Remove])
    _check_pairs(adds, removes)


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
    if not (1 <= reader <= 3 and 1 <= writer <= 7):
        raise ProtocolError(
            f"protocol {_versions(protocol)} is not known; at most (3, 7) is"
        )
    if reader == 3 and writer != 7:
        raise ProtocolError("reader version 3 needs writer version 7")
    _check_lists(protocol)


def _check_lists(protocol: Protocol) -> None:
    readers, writers = known(protocol.reader_features), known(protocol.writer_features)
    for name, listed, needed in (
        ("readerFeatures", readers, protocol.min_reader_version == 3),
        ("writerFeatures", writers, protocol.min_writer_version == 7),
    ):
        if needed and listed is None:
            raise ProtocolError(f"protocol {_versions(protocol)} needs {name}")
        if listed and not needed:
            raise ProtocolError(f"protocol {_versions(protocol)} can't have {name}")
    if extra := set(readers or ()) - set(writers or ()):
        raise ProtocolError(f"only in readerFeatures: {', '.join(sorted(extra))}")
    _check_visible(protocol)


def _check_visible(protocol: Protocol) -> None:
    """A feature that readers must know has to be where readers look."""
    visible = set(known(protocol.reader_features) or ())
    if protocol.min_reader_version == 2:
        visible.add("columnMapping")
    hidden = [
        name
        for name in known(protocol.writer_features) or ()
        if name in FEATURES and FEATURES[name].reader and name not in visible
    ]
    if hidden:
        raise ProtocolError(f"not in readerFeatures: {', '.join(sorted(hidden))}")


def _by_kind(actions: Iterable[Action]) -> _ByKind:
    kinds: defaultdict[type[Any], list[Any]] = defaultdict(list)
    for action in actions:
        kinds[type(action)].append(action)
    return kinds


def _first(kinds: _ByKind, kind: type[_A]) -> _A | None:
    found = kinds[kind]
    return found[0] if found else None


def _check_singles(kinds: _ByKind) -> None:
    for kind, name in _SINGLES.items():
        if len(kinds[kind]) > 1:
            raise ProtocolError(
                f"a commit can't have {len(kinds[kind])} {name} actions"
            )
    for kind, name in _CHECKPOINT_ONLY.items():
        if kinds[kind]:
            raise ProtocolError(f"{name} belongs to checkpoints, not to commits")
    _check_unique("txn", [txn.app_id for txn in kinds[Txn]])
    _check_unique("domainMetadata", [item.domain for item in kinds[DomainMetadata]])


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
    if "catalogManaged" in supported and not (
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
    if domains and "domainMetadata" not in supported_features(protocol):
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
    if properties.append_only:
        _check_append_only(kinds[Remove])
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
    if vectors and "deletionVectors" not in supported_features(protocol):
        raise ProtocolError(
            f"add {vectors[0]}: a deletion vector needs feature deletionVectors"
        )
    # Files that have a vector already may be added again after the property is gone.
    if properties.enable_deletion_vectors or _restores(kinds):
        return
    for path in vectors:
        if path in removes:
            raise ProtocolError(
                f"add {path}: a new deletion vector needs "
                "delta.enableDeletionVectors=true"
            )


def _restores(kinds: _ByKind) -> bool:
    info = _first(kinds, CommitInfo)
    return info is not None and info.fields.get("operation") == "RESTORE"


def _check_append_only(removes: Sequence[Remove]) -> None:
    for remove in removes:
        if remove.data_change:
            raise ProtocolError(
                f"remove {remove.path}: the table is append-only (delta.appendOnly)"
            )
