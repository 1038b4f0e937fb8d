"""Conflict rules: which commits may not follow others, as Delta Spark decides it."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Self, TypeVar

import msgspec

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
    UnknownAction,
    dv_id,
    known,
)
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.predicate.predicate import Predicate
from delkalakedb.model.rules.features import FEATURES, Use, features_for
from delkalakedb.model.rules.protocol import supported_features
from delkalakedb.model.schema.identity import MARK
from delkalakedb.model.schema.properties import (
    COLUMN_MAPPING_MODE,
    ISOLATION_LEVEL,
    MAX_COLUMN_ID,
    ROW_TRACKING_ENABLED,
    STAMPED_SINCE_TIMESTAMP,
    STAMPED_SINCE_VERSION,
    check_values,
    parse_properties,
)
from delkalakedb.model.schema.schema import COLUMN_ID, PHYSICAL_NAME

# Features that another commit may turn on, by property.
_SWITCHES = {feature.switch: feature for feature in FEATURES.values() if feature.on}
_SET_ONCE = frozenset(
    {
        STAMPED_SINCE_TIMESTAMP,
        STAMPED_SINCE_VERSION,
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
        COLUMN_ID,
        "delta.columnMapping.nested.ids",
        PHYSICAL_NAME,
        "parquet.field.id",
        "parquet.field.nested.ids",
    }
)
# the value given last, by which no staged file depends on another commit's values
_MARKS = frozenset({MARK})
_COMPARED_BY_PART = frozenset({"configuration", "schema_string"})

_Configuration = Mapping[str, str | None]


def harmful_changes(ours: Metadata, theirs: Metadata, protocol: Protocol) -> list[str]:
    """List the changes in `theirs` that a commit prepared under `ours` may break.

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
    if key == COLUMN_MAPPING_MODE and _mapping_mode(old) != "none":
        return False
    if feature := _SWITCHES.get(key):
        return _word(new[key]) == feature.on and feature.name in features
    if key in _SET_WITH_ROW_TRACKING:
        return _word(new.get(ROW_TRACKING_ENABLED)) == "true"
    return key == MAX_COLUMN_ID or (key in _SET_ONCE and key not in old)


def _same_schema(ours: Metadata, theirs: Metadata) -> bool:
    """Return whether data fits both schemas.

    Turning on column mapping by name only adds annotations to a schema, and new values
    in an identity column only move its high-water mark. A commit that gives such values
    changes the metadata itself.
    """
    if ours.schema_string == theirs.schema_string:
        return True
    modes = [_mapping_mode(_configuration(m)) for m in (ours, theirs)]
    ignored = _MARKS | (_MAPPING_FIELDS if modes == ["none", "name"] else frozenset())
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
    return _word(configuration.get(COLUMN_MAPPING_MODE)) or "none"


def _word(value: str | None) -> str:
    return (value or "").strip().lower()


def _configuration(metadata: Metadata) -> _Configuration:
    return known(metadata.configuration) or {}


ROW_TRACKING_DOMAIN = "delta.rowTracking"

_A = TypeVar("_A", bound=Action)
Matches = Callable[[Predicate, Add], bool]


class IsolationLevel(StrEnum):
    """How far a commit is kept apart from those that ran beside it."""

    SERIALIZABLE = "Serializable"
    WRITE_SERIALIZABLE = "WriteSerializable"
    SNAPSHOT = "SnapshotIsolation"


class Rule(StrEnum):
    """Why a commit can't be rebased."""

    PROTOCOL_CHANGED = "protocol_changed"
    METADATA_CHANGED = "metadata_changed"
    CONCURRENT_DOMAIN = "concurrent_domain"
    CONCURRENT_TRANSACTION = "concurrent_transaction"
    CONCURRENT_APPEND = "concurrent_append"
    CONCURRENT_DELETE_READ = "concurrent_delete_read"
    CONCURRENT_DELETE_DELETE = "concurrent_delete_delete"
    REMOVE_NOT_LIVE = "remove_not_live"
    ADD_ALREADY_LIVE = "add_already_live"
    ADD_RESURRECTS = "add_resurrects"
    READ_EXPIRED = "read_expired"


@dataclass(frozen=True, slots=True)
class Conflict:
    """A broken rule; `detail` goes on from "version 42 was taken by a DELETE: "."""

    rule: Rule
    detail: str


@dataclass(frozen=True, slots=True)
class Winner:
    """A commit that took a version the attempt hadn't seen.

    `added` is looked at only if `Attempt.looks_at_added`, `removed` only if
    `Attempt.looks_at_removed`; both may leave out files that the attempt neither
    can have read nor removes. `removed` holds the files as they were added, since a
    tombstone may lack the statistics that predicates need. A file that was added
    again under the same deletion vector (new statistics) is in `added` only.
    """

    version: int
    operation: str
    is_blind_append: bool = False
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    app_ids: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    added: tuple[Add, ...] = ()
    removed: tuple[Add, ...] = ()


@dataclass(frozen=True, slots=True)
class Attempt:
    """A staged commit, by kind of action, with the protocol and metadata it read."""

    reads: Reads
    isolation: IsolationLevel
    is_blind_append: bool
    protocol: Protocol
    metadata: Metadata
    new_protocol: Protocol | None
    new_metadata: Metadata | None
    app_ids: frozenset[str]
    domains: frozenset[str]
    adds: tuple[Add, ...]
    removes: tuple[Remove, ...]
    remove_all: bool

    @classmethod
    def of(cls, staged: Staged, protocol: Protocol, metadata: Metadata) -> Self:
        """Return the attempt to commit `staged`, given what it read."""
        new_protocol = _only(staged.actions, Protocol)
        new_metadata = _only(staged.actions, Metadata)
        configuration = known((new_metadata or metadata).configuration) or {}
        txns = {a.app_id for a in staged.actions if isinstance(a, Txn)}
        return cls(
            reads=staged.reads,
            isolation=isolation_of(configuration, staged),
            is_blind_append=is_blind_append(staged),
            protocol=protocol,
            metadata=metadata,
            new_protocol=new_protocol,
            new_metadata=new_metadata,
            app_ids=staged.reads.app_ids | txns,
            domains=frozenset(
                a.domain for a in staged.actions if isinstance(a, DomainMetadata)
            ),
            adds=tuple(a for a in staged.actions if isinstance(a, Add)),
            removes=tuple(a for a in staged.actions if isinstance(a, Remove)),
            remove_all=staged.remove_all,
        )

    @property
    def whole_table(self) -> bool:
        """Whether every file counts as read; replacing all of them reads them."""
        return self.reads.whole_table or self.remove_all

    @property
    def looks_at_added(self) -> bool:
        """Whether `check` needs the files that winners added."""
        return self.isolation is not IsolationLevel.SNAPSHOT and bool(
            self.whole_table or self.reads.predicates
        )

    @property
    def looks_at_removed(self) -> bool:
        """Whether `check` needs the files that winners removed."""
        return not reads_nothing(self.reads) or self.whole_table or bool(self.removes)

    def after(self, winner: Winner) -> Self:
        """Return this attempt, rebased on `winner`."""
        return replace(
            self,
            protocol=winner.protocol or self.protocol,
            metadata=winner.metadata or self.metadata,
        )


def reads_nothing(reads: Reads) -> bool:
    """Return whether an operation looked at no file at all."""
    return not (reads.predicates or reads.paths or reads.whole_table)


def is_blind_append(staged: Staged) -> bool:
    """Return whether a commit only adds files and read none, as Spark defines it.

    A commit without any file, such as a property change, is a blind append, too.
    """
    other = (Remove, Cdc, UnknownAction)
    return (
        reads_nothing(staged.reads)
        and not staged.remove_all
        and not any(isinstance(action, other) for action in staged.actions)
    )


def isolation_of(
    configuration: Mapping[str, str | None], staged: Staged
) -> IsolationLevel:
    """Return the table's level, or SnapshotIsolation if no data changes.

    The default level is Serializable, as in open-source Delta. A commit whose files all
    have `dataChange=false` has the same effect before and after any other commit, so it
    needn't have read the files that other commits added.
    """
    if _changes_no_data(staged):
        return IsolationLevel.SNAPSHOT
    # Alone: another property that can't be parsed is no reason not to commit.
    level = {ISOLATION_LEVEL: configuration.get(ISOLATION_LEVEL)}
    check_values(level)
    return IsolationLevel(parse_properties(level).isolation_level)


def check(attempt: Attempt, winner: Winner, matches: Matches) -> Conflict | None:
    """Return the first rule that keeps `attempt` from being rebased on `winner`."""
    return (
        _protocol_changed(attempt, winner)
        or _metadata_changed(attempt, winner)
        or _concurrent_domain(attempt, winner)
        or _concurrent_transaction(attempt, winner)
        or _concurrent_append(attempt, winner, matches)
        or _concurrent_delete_read(attempt, winner, matches)
        or _concurrent_delete_delete(attempt, winner)
    )


def first_conflict(
    attempt: Attempt, winners: Iterable[Winner], matches: Matches
) -> tuple[Winner, Conflict] | None:
    """Return the oldest of `winners` that `attempt` can't be rebased on.

    `winners` are in version order. A winner without protocol, metadata, app ids,
    domains or files that the attempt looks at may be left out.
    """
    for winner in winners:
        if conflict := check(attempt, winner, matches):
            return winner, conflict
        attempt = attempt.after(winner)
    return None


def check_liveness(
    removes: Iterable[Remove],
    adds: Iterable[Add],
    live: Mapping[str, frozenset[str]],
    removed_since: Collection[str] = frozenset(),
) -> Conflict | None:
    """Check against the live files the rules that hold at every isolation level.

    Args:
        removes: the removes of the commit.
        adds: the adds of the commit.
        live: the deletion vector ids of the live files at each of these paths.
        removed_since: the paths among these that winners removed.
    """
    freed: dict[str, str] = {}
    for remove in removes:
        if dv_id(remove) not in live.get(remove.path, ()):
            return Conflict(Rule.REMOVE_NOT_LIVE, f"{remove.path} is no longer live")
        freed[remove.path] = dv_id(remove)
    for add in adds:
        held = live.get(add.path, frozenset()) - {freed.get(add.path)}
        if held - {dv_id(add)}:
            return Conflict(Rule.ADD_ALREADY_LIVE, f"{add.path} is already live")
        if not held and add.path not in freed and add.path in removed_since:
            return Conflict(Rule.ADD_RESURRECTS, f"it removed {add.path}")
    return None


def _changes_no_data(staged: Staged) -> bool:
    return not staged.remove_all and all(map(_says_nothing_new, staged.actions))


def _says_nothing_new(action: Action) -> bool:
    match action:
        case Add() | Remove():
            return not action.data_change
        case DomainMetadata(domain=name):
            # Row ids are given anew at each version.
            return name == ROW_TRACKING_DOMAIN
    return isinstance(action, Cdc | CommitInfo)


def _protocol_changed(attempt: Attempt, winner: Winner) -> Conflict | None:
    if winner.protocol is None:
        return None
    if attempt.new_protocol is not None:
        return Conflict(Rule.PROTOCOL_CHANGED, "both changed the protocol")
    before, after = map(supported_features, (attempt.protocol, winner.protocol))
    if dropped := sorted(before - after):
        return Conflict(Rule.PROTOCOL_CHANGED, f"it dropped {', '.join(dropped)}")
    # Unknown features, too, may ask something of every file written under them.
    if unsafe := sorted(after - before - features_for(Use.UPGRADE)):
        return Conflict(Rule.PROTOCOL_CHANGED, f"it turned on {', '.join(unsafe)}")
    return None


def _metadata_changed(attempt: Attempt, winner: Winner) -> Conflict | None:
    if winner.metadata is None:
        return None
    if attempt.new_metadata is not None:
        return Conflict(Rule.METADATA_CHANGED, "both changed the metadata")
    protocol = winner.protocol or attempt.protocol
    if changes := harmful_changes(attempt.metadata, winner.metadata, protocol):
        return Conflict(Rule.METADATA_CHANGED, f"it changed {', '.join(changes)}")
    return None


def _concurrent_domain(attempt: Attempt, winner: Winner) -> Conflict | None:
    shared = (attempt.domains & winner.domains) - {ROW_TRACKING_DOMAIN}
    if not shared:
        return None
    return Conflict(Rule.CONCURRENT_DOMAIN, f"both set the domain {min(shared)}")


def _concurrent_transaction(attempt: Attempt, winner: Winner) -> Conflict | None:
    """Return a conflict if both commits are of one application.

    As in delta-rs, and unlike in Spark, an application that is written counts as read.
    """
    shared = attempt.app_ids & winner.app_ids
    if not shared:
        return None
    detail = f"it is of the same application, {min(shared)}"
    return Conflict(Rule.CONCURRENT_TRANSACTION, detail)


def _concurrent_append(
    attempt: Attempt, winner: Winner, matches: Matches
) -> Conflict | None:
    if not attempt.looks_at_added or _may_come_first(attempt, winner):
        return None
    for file in winner.added:
        if is_read(attempt, file, matches):
            detail = f"it added {file.path}, which this commit would have read"
            return Conflict(Rule.CONCURRENT_APPEND, detail)
    return None


def _may_come_first(attempt: Attempt, winner: Winner) -> bool:
    """Return whether WriteSerializable allows the attempt to precede the winner.

    A full overwrite then keeps the winner's files, because it removes what it read.
    """
    return (
        attempt.isolation is IsolationLevel.WRITE_SERIALIZABLE
        and winner.is_blind_append
        and attempt.new_metadata is None
    )


def _concurrent_delete_read(
    attempt: Attempt, winner: Winner, matches: Matches
) -> Conflict | None:
    for file in winner.removed:
        if file.path in attempt.reads.paths or is_read(attempt, file, matches):
            detail = f"it removed {file.path}, which this commit read"
            return Conflict(Rule.CONCURRENT_DELETE_READ, detail)
    return None


def _concurrent_delete_delete(attempt: Attempt, winner: Winner) -> Conflict | None:
    ours = {remove.path for remove in attempt.removes}
    for file in winner.removed:
        if file.path in ours:
            detail = f"both removed {file.path}"
            return Conflict(Rule.CONCURRENT_DELETE_DELETE, detail)
    return None


def is_read(attempt: Attempt, file: Add, matches: Matches) -> bool:
    """Return whether an attempt may have read rows of a file."""
    return attempt.whole_table or any(
        matches(p, file) for p in attempt.reads.predicates
    )


def _only(actions: Iterable[Action], kind: type[_A]) -> _A | None:
    return next((a for a in actions if isinstance(a, kind)), None)
