"""Purges: files are written again without the rows that deletion vectors delete.

A file is copied as it is, row group by row group, so the copy has the columns, the
order and the compression of the file, even if the schema of the table has changed.
"""

import json
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from delkalakedb.catalog import Snapshot, may_have_vectors
from delkalakedb.catalog.engine import CLIENT
from delkalakedb.catalog.read import add_from_row
from delkalakedb.clock import now_ms
from delkalakedb.errors import PredicateError
from delkalakedb.model.actions import (
    Action,
    Add,
    CommitInfo,
    Remove,
    Txn,
    known,
)
from delkalakedb.model.new_actions import new_commit_info, removed
from delkalakedb.model.paths import file_path, log_path
from delkalakedb.model.predicate.matcher import is_of_partitions
from delkalakedb.model.predicate.predicate import (
    EVERY_FILE,
    Predicate,
    parse_predicate,
)
from delkalakedb.model.rules.features import Use
from delkalakedb.model.rules.protocol import unread_features
from delkalakedb.model.stats.footer import file_stats
from delkalakedb.model.stats.stats import measured_columns, parse_stats
from delkalakedb.progress import counted
from delkalakedb.write.engines.deltars import DeltaRs, explained
from delkalakedb.write.engines.row_reader import arrow_reader, data_file
from delkalakedb.write.files import private_folder
from delkalakedb.write.operation import Operation, Staging, Target

# the share of dead rows above which Delta Spark's OPTIMIZE rewrites a large file
_MOST_DEAD = 0.05
_Metrics = Mapping[str, Any]


@dataclass(frozen=True)
class Purge:
    """The engine that rewrites files with many deleted rows; the result is metrics.

    Args:
        dead_share: files with a larger share of deleted rows are rewritten.
        operation: the operation's name in the history.
        parameters: the operation's parameters in the history.
        custom: more fields of commitInfo.
        txns: the application transactions to record.
        max_tasks: how many files to write concurrently; by default, as many as there
            are CPUs.
        chosen: returns the paths of the files to consider; by default, all that the
            operation reads.
    """

    dead_share: float = 0.0
    operation: str = "REORG"
    parameters: _Metrics = field(default_factory=dict)
    custom: _Metrics = field(default_factory=dict)
    txns: Sequence[Txn] = ()
    max_tasks: int | None = None
    chosen: Callable[[Snapshot], Container[str]] | None = None

    def stage(
        self, target: Target, operation: Operation[dict[str, Any]]
    ) -> Staging[dict[str, Any]]:
        """Rewrite the files that have more deleted rows than allowed."""
        considered, due = _due(target.base, operation.files, self._is_due)
        if self.chosen is not None:
            paths_chosen = self.chosen(target.base)
            due = [add for add in due if add.path in paths_chosen]
        with explained(operation.title(target), target.files.work, target.location):
            actions, paths = _rewritten(target, due, self.max_tasks)
        metrics = {
            "numBatches": len(due),
            "totalConsideredFiles": considered,
            "preserveInsertionOrder": True,
        }
        result = _counted(metrics, actions)
        info = self.info(result)
        commits = [[info, *self.txns, *actions]] if actions else []
        return Staging(target, operation, result, commits, paths)

    def info(self, metrics: _Metrics) -> CommitInfo:
        """Return the commitInfo of a purge."""
        return new_commit_info(
            self.operation,
            self.parameters,
            metrics,
            engine_info=CLIENT,
            timestamp_ms=now_ms(),
            custom=self.custom,
        )

    def _is_due(self, add: Add) -> bool:
        return _has_dead(add, self.dead_share)


@dataclass(frozen=True)
class Compaction:
    """The engine that compacts files, and then purges the files that were left.

    delta-rs leaves large files, and files that are alone in their partition.

    Args:
        engine: compacts files; its result is metrics as JSON.
        small_bytes: a smaller file is purged if it has any deleted row, and a larger
            one if it has more than a twentieth.
        purge: says what the history shows of a compaction that only purges.
    """

    engine: DeltaRs[str]
    small_bytes: int
    purge: Purge

    def stage(self, target: Target, operation: Operation[str]) -> Staging[str]:
        """Compact files, and rewrite the others that have deletion vectors."""
        staging = self.engine.stage(target, operation)
        gone = {a.path for a in _all(staging.commits) if isinstance(a, Remove)}
        try:
            _, due = _due(target.base, operation.files, self._is_due)
            left = [add for add in due if add.path not in gone]
            with explained(operation.title(target), target.files.work, target.location):
                actions, paths = _rewritten(target, left, self.purge.max_tasks)
        except BaseException:
            staging.discard()
            raise
        metrics = json.loads(staging.result)
        commits = [list(commit) for commit in staging.commits]
        if actions and commits:
            commits[-1] = [_recounted(a, commits[-1], actions) for a in commits[-1]]
            commits[-1] += actions
        elif actions:
            info = self.purge.info(_counted(metrics, actions))
            commits = [[info, *self.purge.txns, *actions]]
        if gone or actions:
            metrics = _counted(metrics, list(_all(commits)))
        return replace(
            staging,
            result=json.dumps(metrics),
            commits=commits,
            new_paths=[*staging.new_paths, *paths],
        )

    def _is_due(self, add: Add) -> bool:
        return _has_dead(add, 0.0 if add.size < self.small_bytes else _MOST_DEAD)


def can_purge(snapshot: Snapshot) -> bool:
    """Return whether Arrow reads the table, and its files may have deleted rows."""
    odd = unread_features(snapshot.protocol, snapshot.metadata, Use.ARROW)
    in_memory = snapshot.table.location.startswith("memory:")
    return may_have_vectors(snapshot) and not odd and not in_memory


def check_partitions(snapshot: Snapshot, where: Predicate) -> None:
    """Raise `PredicateError` unless `where` selects whole partitions."""
    columns = snapshot.metadata.partition_columns
    if where != EVERY_FILE and not is_of_partitions(where, columns):
        there = ", ".join(columns) or "none"
        raise PredicateError(
            f"{snapshot.table.name}: the filter must compare partition columns with "
            f"values; the table's partition columns: {there}"
        )


def purgeable(snapshot: Snapshot, where: str | None, dead_share: float) -> list[Add]:
    """Return the files that a purge with this condition and share would rewrite."""
    predicate = where and parse_predicate(
        where, snapshot.table.schema, snapshot.table.partition_columns
    )
    return _due(snapshot, predicate or None, lambda add: _has_dead(add, dead_share))[1]


def _due(
    snapshot: Snapshot, where: Predicate | None, is_due: Callable[[Add], bool]
) -> tuple[int, list[Add]]:
    """Return how many files match `where`, and the due files among them."""
    considered, found = 0, list[Add]()
    for batch in snapshot.files(where):
        considered += batch.num_rows
        some = batch.filter(batch["deletion_vector"].is_valid())
        rows = zip(*(column.to_pylist() for column in some.columns), strict=True)
        found += filter(is_due, map(add_from_row, rows))
    return considered, found


def _has_dead(add: Add, share: float) -> bool:
    """Return whether more than a share of a file's rows are deleted."""
    vector, stats = known(add.deletion_vector), parse_stats(known(add.stats))
    if vector is None or not vector.cardinality:
        return False
    count = stats.num_records if stats else None
    return count is None or vector.cardinality > share * count


def _rewritten(
    target: Target, adds: Sequence[Add], max_tasks: int | None
) -> tuple[list[Action], list[str]]:
    """Return the actions that replace files by copies, and the paths of the copies."""
    if not adds:
        return [], []
    snapshot, files = target.base, target.files
    reader = arrow_reader(snapshot, pa.schema([]), target.storage_options)
    measured = measured_columns(snapshot.metadata)
    with private_folder(files.ensure_work()) as folder:

        def copy(add: Add) -> tuple[str, Add] | None:
            path = file_path(f"part-00000-{uuid4()}-c000.parquet", add.partition_values)
            local = folder / path
            local.parent.mkdir(parents=True, exist_ok=True)
            with_nan = reader.copy(data_file(add), local, measured)
            footer = pq.read_metadata(local)
            if not footer.num_rows:
                return None
            stats = file_stats(footer, measured, with_nan)
            return path, _copied(add, path, local.stat().st_size, stats)

        with ThreadPoolExecutor(max_tasks or pa.cpu_count()) as pool:
            what = f"purge {target.name}"
            copies = counted(what, pool.map(copy, adds), len(adds), "files")
            try:
                made = [one for one in copies if one is not None]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        paths = [path for path, _ in made]
        files.take(paths, folder)
    now = now_ms()
    gone = [
        msgspec.structs.replace(removed(add, now), data_change=False) for add in adds
    ]
    return [*gone, *(add for _, add in made)], paths


def _copied(add: Add, path: str, size_bytes: int, stats: str) -> Add:
    """Return the add of a copy, which gets row ids of its own as all new files do."""
    return msgspec.structs.replace(
        add,
        path=log_path(path),
        size=size_bytes,
        modification_time=now_ms(),
        data_change=False,
        stats=stats,
        deletion_vector=msgspec.UNSET,
        base_row_id=msgspec.UNSET,
        default_row_commit_version=msgspec.UNSET,
    )


def _all(commits: Iterable[Iterable[Action]]) -> Iterable[Action]:
    return (action for actions in commits for action in actions)


def _counted(metrics: _Metrics, actions: Sequence[Action]) -> dict[str, Any]:
    """Return delta-rs's metrics with the counts of the files that actions change."""
    adds = [a for a in actions if isinstance(a, Add)]
    removes = [a for a in actions if isinstance(a, Remove)]
    vectors = [v for a in removes if (v := known(a.deletion_vector)) is not None]
    parts = {frozenset((known(a.partition_values) or {}).items()) for a in removes}
    return {
        **metrics,
        "numFilesAdded": len(adds),
        "numFilesRemoved": len(removes),
        "filesAdded": _sizes([a.size for a in adds]),
        "filesRemoved": _sizes([known(a.size) or 0 for a in removes]),
        "partitionsOptimized": len(parts),
        "totalFilesSkipped": metrics["totalConsideredFiles"] - len(removes),
        "numDeletionVectorsRemoved": len(vectors),
        "numDeletionVectorRowsRemoved": sum(v.cardinality for v in vectors),
    }


def _sizes(sizes: Sequence[int]) -> str:
    total = sum(sizes)
    found = {
        "avg": total / len(sizes) if sizes else 0.0,
        "max": max(sizes, default=0),
        "min": min(sizes, default=0),
        "totalFiles": len(sizes),
        "totalSize": total,
    }
    return json.dumps(found, separators=(",", ":"))


def _recounted(
    action: Action, before: Sequence[Action], more: Sequence[Action]
) -> Action:
    """Return a commitInfo of delta-rs with the counts of both lists of actions."""
    if not isinstance(action, CommitInfo):
        return action
    metrics = action.fields.get("operationMetrics")
    if not isinstance(metrics, dict):
        return action
    counted = _counted(metrics, [*before, *more])
    return CommitInfo({**action.fields, "operationMetrics": counted})
