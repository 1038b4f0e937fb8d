"""The methods of `SqlRawTable` for upkeep, which need no delta-rs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import msgspec

from delkalakedb.catalog import Snapshot, has_vectors, load_files
from delkalakedb.catalog.commit import Mirror, Outbox
from delkalakedb.catalog.engine import CLIENT
from delkalakedb.catalog.read import load_commits
from delkalakedb.clock import now_ms
from delkalakedb.deltalake.raw.raw_table import SqlRawTable
from delkalakedb.deltalake.vacuum import Vacuum, retention_of
from delkalakedb.errors import DeltaError, DeltalakeDBError
from delkalakedb.mirror.checkpoint import (
    clean_log,
    write_checkpoint,
    write_last_checkpoint,
)
from delkalakedb.mirror.publisher import publish
from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DomainMetadata,
    Remove,
    Txn,
    UnknownAction,
    dv_id,
    encode_commit,
)
from delkalakedb.model.new_actions import (
    app_txns,
    custom_metadata,
    new_commit_info,
    removed,
)
from delkalakedb.model.paths import compacted_path, key_inside
from delkalakedb.model.predicate.predicate import Anything, Predicate
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.times import parse_rfc_3339, to_ms
from delkalakedb.storage import ObjectMeta, Store, open_store
from delkalakedb.write import Operation, check_present, perform, restored
from delkalakedb.write.engines import InPlace, Work

_MANIFESTS = "_symlink_format_manifest"
_Fields = Mapping[str, Any]


def vacuum(
    table: SqlRawTable,
    dry_run: bool,
    retention_hours: float | None = None,
    enforce_retention_duration: bool = True,
    commit_properties: Any = None,
    post_commithook_properties: Any = None,
    full: bool = False,
    keep_versions: Sequence[int] | None = None,
    inventory: Sequence[ObjectMeta] | None = None,
) -> list[str]:
    """Delete the files that no kept version needs; return their paths."""
    table.check_upkeep("vacuum")
    custom = custom_metadata(commit_properties)
    head = table.log.head()
    if not dry_run:
        head.check_ours()
    enforce = enforce_retention_duration
    retention = retention_of(head, retention_hours, enforce=enforce)
    store, kept = _store(table), keep_versions or ()
    vacuum = Vacuum(
        table.catalog, table.log, store, retention.asked_ms, full, kept, inventory
    )
    plan = vacuum.plan()
    if dry_run or not plan:
        return list(plan)
    parameters = {
        "retentionCheckEnabled": str(enforce).lower(),
        "specifiedRetentionMillis": str(retention.asked_ms),
        "defaultRetentionMillis": str(retention.default_ms),
    }
    start = {
        "numFilesToDelete": len(plan),
        "sizeOfDataToDelete": sum(plan.values()),
    }
    info = _info("VACUUM START", parameters, start, custom)
    _commit(table, _newest(table), info)
    # What was ratified meanwhile may have brought a file back.
    try:
        deleted = vacuum.delete(plan)
    except BaseException:
        # The reason matters more than a second failure.
        with suppress(DeltalakeDBError):
            info = _info("VACUUM END", {"status": "FAILED"}, {}, custom)
            _commit(table, _newest(table), info)
        raise
    end = {"numDeletedFiles": len(deleted), "numVacuumedDirectories": 0}
    info = _info("VACUUM END", {"status": "COMPLETED"}, end, custom)
    _commit(table, _newest(table), info, app_txns(commit_properties))
    return deleted


def restore(
    table: SqlRawTable,
    target: int | str,
    *,
    ignore_missing_files: bool = False,
    protocol_downgrade_allowed: bool = False,
    commit_properties: Any = None,
    post_commithook_properties: Any = None,
    may_stay: bool = False,
) -> str:
    """Restore the table to a version or a time; return metrics as JSON.

    With `may_stay`, the version may be the newest one, as in Delta Spark.
    """
    table.check_upkeep("restore")
    custom = custom_metadata(commit_properties)
    log = table.log
    difference = restored(
        table.catalog,
        log.head(table.snapshot.version),
        log.head(_version_of(table, target)),
        downgrade=protocol_downgrade_allowed,
        now_ms=now_ms(),
        may_stay=may_stay,
    )
    if not ignore_missing_files:
        check_present(table.name, difference.adds, _store(table))
    metrics = difference.metrics
    info = _info("RESTORE", _restored_from(target), metrics, custom)
    actions = (*app_txns(commit_properties), *difference.actions)
    _commit(table, table.snapshot, info, actions, files=Anything())
    return _json(metrics)


def repair(
    table: SqlRawTable,
    dry_run: bool,
    commit_properties: Any = None,
    post_commithook_properties: Any = None,
) -> str:
    """Remove from the table the files that the store lacks; return metrics as JSON."""
    table.check_upkeep("repair")
    custom = custom_metadata(commit_properties)
    latest = _newest(table)
    absent = _absent(table, latest.version)
    names = [unquote(add.path) for add in absent]
    metrics = {"dry_run": dry_run, "files_removed": _json(names)}
    if dry_run or not absent:
        return _json(metrics)
    removed_ms = now_ms()
    removes = [removed(add, removed_ms) for add in absent]
    info = _info("FSCK", {}, metrics, custom)
    actions: list[Action] = [*app_txns(commit_properties), *removes]
    # It depends on the files that it removes, as an optimize does.
    _commit(table, latest, info, actions, rearranges=True)
    return _json(metrics)


def create_checkpoint(table: SqlRawTable, *, v2: bool = False) -> None:
    """Write a checkpoint of the loaded version to the mirror, with sidecars if v2.

    A table whose protocol has no V2 checkpoints gets a classic one.
    """
    table.check_upkeep("create_checkpoint")
    mirror, store = _published(table), _store(table)
    version = table.snapshot.version
    made = write_checkpoint(
        table.catalog,
        table.name,
        version,
        store,
        now_ms(),
        mirror.table_id,
        v2=v2,
    )
    write_last_checkpoint(store, made)
    Outbox(table.catalog._backend).mark_checkpoint(mirror, version)


def cleanup_metadata(table: SqlRawTable) -> None:
    """Delete expired entries of the mirror's log, but not of the catalog."""
    table.check_upkeep("cleanup_metadata")
    table.log.head().check_ours()
    mirror = _published(table)
    published = mirror.published_version
    clean_log(_store(table), mirror.metadata, published, now_ms())


def compact_logs(
    table: SqlRawTable, starting_version: int, ending_version: int
) -> None:
    """Write the commits of a range of versions as one compacted log entry."""
    table.check_upkeep("compact_logs")
    first, last = starting_version, ending_version
    if last <= first:
        raise DeltaError(
            f"{table.name}: Invalid version range: end_version {last} must be "
            f"greater than start_version {first}"
        )
    table.log.head().check_ours()
    table.log.head(last)
    _published(table)
    commits = load_commits(table.catalog._backend, table.name, first - 1, last)
    actions = _compacted(a for ratified in commits for a in ratified.actions)
    _store(table).put(compacted_path(first, last), encode_commit(actions))


def generate(table: SqlRawTable) -> None:
    """Write manifests that name the files, for readers that don't know Delta."""
    table.check_upkeep("generate")
    table.log.head().check_ours()
    if parse_properties(table.snapshot.metadata).column_mapping_mode != "none":
        raise DeltaError(
            f"{table.name}: a manifest can't say what the files' columns are "
            "called; its readers would find none of them (columnMapping)"
        )
    if has_vectors(table.snapshot):
        raise DeltaError(
            f"{table.name}: a manifest can't name the deletion vectors of version "
            f"{table.snapshot.version}; rewrite the files without them first"
        )
    store, named = _store(table), load_files(table.snapshot, columns=["path"])
    manifests: defaultdict[str, list[str]] = defaultdict(list)
    for path, uri in zip(named.paths(), named.uris(), strict=True):
        manifests["/".join([_MANIFESTS, *path.split("/")[:-1]])].append(uri)
    for folder, uris in manifests.items():
        store.put(f"{folder}/manifest", "".join(f"{u}\n" for u in uris).encode())
    stale = {file.path for file in store.list_own(_MANIFESTS)}
    store.delete_own(stale - {f"{folder}/manifest" for folder in manifests})


def _version_of(table: SqlRawTable, target: int | str) -> int:
    if hasattr(target, "__index__"):
        return int(target)
    if not isinstance(target, str):
        raise DeltaError(f"{table.name}: restore needs a version or a time")
    here = table.snapshot
    try:
        table.load_with_datetime(target)
        return table.snapshot.version
    finally:
        table.snapshot = here


def _commit(
    table: SqlRawTable,
    snapshot: Snapshot,
    info: CommitInfo,
    actions: Iterable[Action] = (),
    *,
    files: Predicate | None = None,
    rearranges: bool = False,
) -> None:
    """Commit actions on a version, once, and move to the new version."""
    name = str(info.fields["operation"]).lower()
    engine = InPlace(lambda _: Work(None, [(info, *actions)]))
    # Without retries, because the actions are for this version.
    _, version = perform(
        table.catalog,
        snapshot,
        Operation(name, engine, files, rearranges),
        retries=0,
        storage_options=table.storage_options,
    )
    table.move_to(version)


def _newest(table: SqlRawTable) -> Snapshot:
    identity = table.snapshot.identity
    return table.catalog.snapshot(table.name, identity=identity)


def _absent(table: SqlRawTable, version: int) -> list[Add]:
    log, store = table.log, _store(table)
    keys = {key_inside(add.path, store.url) for add in log.adds(version)}
    unlisted = keys - {None, *(file.path for file in store.list())}
    absent = {key for key in unlisted if key and store.head_linked(key) is None}
    adds = log.adds(version) if absent else ()
    return [add for add in adds if key_inside(add.path, store.url) in absent]


def _published(table: SqlRawTable) -> Mirror:
    """Publish the loaded version if it isn't, and return the mirror."""
    table.log.head()
    outbox = Outbox(table.catalog._backend)
    mirror = outbox.load(table.name)
    if mirror.published_version < table.snapshot.version:
        publish(table.catalog, table.name, table.storage_options)
        mirror = outbox.load(table.name)
    return mirror


def _store(table: SqlRawTable) -> Store:
    return open_store(table.snapshot.table.location, table.storage_options)


def _info(
    operation: str, parameters: _Fields, metrics: _Fields, custom: _Fields
) -> CommitInfo:
    return new_commit_info(
        operation, parameters, metrics, engine_info=CLIENT, custom=custom
    )


def _restored_from(target: int | str) -> dict[str, str]:
    if not isinstance(target, str):
        return {"version": str(target)}
    return {"datetime": str(to_ms(parse_rfc_3339(target)))}


def _compacted(actions: Iterable[Action]) -> list[Action]:
    """Return the last action on each thing, tombstones included (PROTOCOL.md)."""
    last: dict[tuple[str, ...], Action] = {}
    for action in actions:
        key: tuple[str, ...] = (type(action).__name__,)
        match action:
            case CommitInfo() | Cdc():
                continue
            case Add() | Remove():
                key = ("file", action.path, dv_id(action))
            case Txn():
                key = (*key, action.app_id)
            case DomainMetadata():
                key = (*key, action.domain)
            case UnknownAction():
                # It isn't known which unknown actions replace others.
                key = (*key, encode_commit([action]).decode())
        last[key] = action
    return list(last.values())


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
