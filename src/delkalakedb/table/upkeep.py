"""What the stand-in for deltalake's `RawDeltaTable` does without delta-rs: upkeep.

Names, order of arguments and results are those of deltalake's own, which calls them.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

import msgspec

from delkalakedb.catalog.commits import load_commits
from delkalakedb.catalog.outbox import Mirror, Outbox
from delkalakedb.catalog.ratify import CLIENT
from delkalakedb.commits import ratify
from delkalakedb.errors import DeltaError
from delkalakedb.mirror.checkpoint import write_checkpoint
from delkalakedb.mirror.cleanup import clean_log
from delkalakedb.mirror.last_checkpoint import write_last_checkpoint
from delkalakedb.mirror.publish import publish
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
)
from delkalakedb.model.codec import encode_commit
from delkalakedb.model.paths import key_inside
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.txnlog import Conflicted, Reads, Staged
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.segment import LOG
from delkalakedb.table.commit_info import custom_metadata
from delkalakedb.table.files import has_vectors, load_files
from delkalakedb.table.perform import lost
from delkalakedb.table.reads import SqlRawReads
from delkalakedb.table.restore import check_present, removed, restored
from delkalakedb.table.vacuum import Vacuum, retention_of

__all__ = ["SqlRawUpkeep"]

_MANIFESTS = "_symlink_format_manifest"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_Fields = Mapping[str, Any]


class SqlRawUpkeep(SqlRawReads):
    """The upkeep part of the stand-in; each call that commits moves the handle."""

    def _check_upkeep(self, operation: str) -> None:
        """Refuse an operation that can't be done on this handle."""

    def vacuum(
        self,
        dry_run: bool,
        retention_hours: float | None = None,
        enforce_retention_duration: bool = True,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
        full: bool = False,
        keep_versions: Sequence[int] | None = None,
    ) -> list[str]:
        """Delete files that nothing needs any more; their paths."""
        self._check_upkeep("vacuum")
        custom = custom_metadata(commit_properties)
        head = self._log.head()
        if not dry_run:
            head.check_ours()
        enforce = enforce_retention_duration
        retention = retention_of(head, retention_hours, enforce=enforce)
        store, kept = self._store(), keep_versions or ()
        vacuum = Vacuum(self._catalog, self._log, store, retention.asked_ms, full, kept)
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
        self._commit(_info("VACUUM START", parameters, start, custom))
        # What was ratified meanwhile may have brought a file back.
        deleted = vacuum.delete(plan)
        end = {"numDeletedFiles": len(deleted), "numVacuumedDirectories": 0}
        info = _info("VACUUM END", {"status": "COMPLETED"}, end, custom)
        self._commit(info, txns=_txns(commit_properties))
        return deleted

    def restore(
        self,
        target: int | str,
        *,
        ignore_missing_files: bool = False,
        protocol_downgrade_allowed: bool = False,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> str:
        """Make the table what it was at a version or a time; metrics as JSON."""
        self._check_upkeep("restore")
        custom = custom_metadata(commit_properties)
        log = self._log
        difference = restored(
            self._catalog,
            log.head(self._snapshot.version),
            log.head(self._version_of(target)),
            downgrade=protocol_downgrade_allowed,
            now_ms=_now_ms(),
        )
        if not ignore_missing_files:
            check_present(self._name, difference.adds, self._store())
        metrics = difference.metrics
        self._commit(
            _info("RESTORE", _restored_from(target), metrics, custom),
            difference.actions,
            reads=Reads(version=self._snapshot.version, whole_table=True),
            txns=_txns(commit_properties),
        )
        return _json(metrics)

    def repair(
        self,
        dry_run: bool,
        commit_properties: Any = None,
        post_commithook_properties: Any = None,
    ) -> str:
        """Take files out of the table that aren't in the store; metrics as JSON."""
        self._check_upkeep("repair")
        custom = custom_metadata(commit_properties)
        latest = self._log.latest_version()
        absent = self._absent(latest)
        paths = [add.path for add in absent]
        names = [unquote(path) for path in paths]
        metrics = {"dry_run": dry_run, "files_removed": _json(names)}
        if dry_run or not absent:
            return _json(metrics)
        now_ms = _now_ms()
        self._commit(
            _info("FSCK", {}, metrics, custom),
            [removed(add, now_ms) for add in absent],
            reads=Reads(version=latest, paths=frozenset(paths)),
            txns=_txns(commit_properties),
        )
        return _json(metrics)

    def create_checkpoint(self, *, v2: bool = False) -> None:
        """Write a checkpoint of the loaded version to the mirror, with sidecars if v2.

        A table whose protocol has no V2 checkpoints gets a classic one.
        """
        self._check_upkeep("create_checkpoint")
        mirror, store = self._published(), self._store()
        version = self._snapshot.version
        made = write_checkpoint(
            self._catalog,
            self._name,
            version,
            store,
            _now_ms(),
            mirror.table_id,
            v2=v2,
        )
        write_last_checkpoint(store, made)
        Outbox(self._catalog.backend).mark_checkpoint(mirror, version)

    def cleanup_metadata(self) -> None:
        """Delete what has expired of the mirror's log; the catalog keeps its own."""
        self._check_upkeep("cleanup_metadata")
        self._log.head().check_ours()
        mirror = self._published()
        published = mirror.published_version
        clean_log(self._store(), mirror.metadata, published, _now_ms())

    def compact_logs(self, starting_version: int, ending_version: int) -> None:
        """Write the commits of a range of versions as one compacted log entry."""
        self._check_upkeep("compact_logs")
        first, last = starting_version, ending_version
        if last <= first:
            raise DeltaError(
                f"{self._name}: Invalid version range: end_version {last} must be "
                f"greater than start_version {first}"
            )
        self._log.head().check_ours()
        self._log.head(last)
        self._published()
        commits = load_commits(self._catalog.backend, self._name, first - 1, last)
        actions = _compacted(a for ratified in commits for a in ratified.actions)
        path = f"{LOG}/{first:020}.{last:020}.compacted.json"
        self._store().put(path, encode_commit(actions))

    def generate(self) -> None:
        """Write manifests that name the files, for readers that know no Delta."""
        self._check_upkeep("generate")
        if parse_properties(self._snapshot.metadata).column_mapping_mode != "none":
            raise DeltaError(
                f"{self._name}: a manifest can't say what the files' columns are "
                "called; its readers would find none of them (columnMapping)"
            )
        if has_vectors(self._snapshot):
            raise DeltaError(
                f"{self._name}: a manifest can't name the deletion vectors of version "
                f"{self._snapshot.version}; rewrite the files without them first"
            )
        store, named = self._store(), load_files(self._snapshot, columns=["path"])
        manifests: defaultdict[str, list[str]] = defaultdict(list)
        for path, uri in zip(named.paths(), named.uris(), strict=True):
            manifests["/".join([_MANIFESTS, *path.split("/")[:-1]])].append(uri)
        for folder, uris in manifests.items():
            store.put(f"{folder}/manifest", "".join(f"{u}\n" for u in uris).encode())
        stale = {file.path for file in store.list(_MANIFESTS)}
        store.delete_many(stale - {f"{folder}/manifest" for folder in manifests})

    def _version_of(self, target: int | str) -> int:
        if hasattr(target, "__index__"):
            return int(target)
        if not isinstance(target, str):
            raise DeltaError(f"{self._name}: restore needs a version or a time")
        here = self._snapshot
        try:
            self.load_with_datetime(target)
            return self._snapshot.version
        finally:
            self._snapshot = here

    def _commit(
        self,
        info: CommitInfo,
        actions: Iterable[Action] = (),
        *,
        reads: Reads | None = None,
        txns: Iterable[Txn] = (),
    ) -> None:
        """Make actions true, without another attempt, and move to their version."""
        if reads is None:
            reads = Reads(version=self._log.latest_version())
        reads = replace(reads, identity=self._snapshot.identity)
        staged = Staged(self._name, (info, *txns, *actions), reads)
        here, options = self._snapshot, self._storage_options
        done = ratify(self._catalog, staged, seen=here, storage_options=options)
        if isinstance(done, Conflicted):
            operation = str(info.fields["operation"])
            raise lost(operation.lower(), here, done)
        self._snapshot = self._load(done[-1].version if done else None)

    def _absent(self, version: int) -> list[Add]:
        log, store = self._log, self._store()
        keys = {key_inside(add.path, store.url) for add in log.adds(version)}
        absent = keys - {None, *(file.path for file in store.list())}
        adds = log.adds(version) if absent else ()
        return [add for add in adds if key_inside(add.path, store.url) in absent]

    def _published(self) -> Mirror:
        """The mirror, with the loaded version published."""
        self._log.head()
        outbox = Outbox(self._catalog.backend)
        mirror = outbox.load(self._name)
        if mirror.published_version < self._snapshot.version:
            publish(self._catalog, self._name, self._storage_options)
            mirror = outbox.load(self._name)
        return mirror

    def _store(self) -> Store:
        return open_store(self._snapshot.table.location, self._storage_options)


def _info(
    operation: str, parameters: _Fields, metrics: _Fields, custom: _Fields
) -> CommitInfo:
    ours = {
        "operation": operation,
        "operationParameters": parameters,
        "operationMetrics": metrics,
        "engineInfo": CLIENT,
    }
    return CommitInfo({**custom, **ours})


def _txns(commit_properties: Any) -> list[Txn]:
    given = getattr(commit_properties, "app_transactions", None) or ()
    return [
        Txn(app_id=t.app_id, version=t.version, last_updated=t.last_updated)
        for t in given
    ]


def _restored_from(target: int | str) -> dict[str, str]:
    if not isinstance(target, str):
        return {"version": str(target)}
    since = datetime.fromisoformat(target.upper()) - _EPOCH
    return {"datetime": str(since // timedelta(milliseconds=1))}


def _compacted(actions: Iterable[Action]) -> list[Action]:
    """The last action on each thing, tombstones included (PROTOCOL.md)."""
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
                # Nobody here knows which of them replace others.
                key = (*key, encode_commit([action]).decode())
        last[key] = action
    return list(last.values())


def _now_ms() -> int:
    return int(time.time() * 1000)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
