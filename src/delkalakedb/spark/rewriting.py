"""Update and delete: the files that hold matching rows are written anew.

Candidates come from SQL; Spark finds those that do hold such rows; only these are read
in full and replaced. Where partition values alone decide, nothing is read to find them.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from delkalakedb.catalog import Snapshot
from delkalakedb.model.predicate import Predicate
from delkalakedb.spark.assigning import assigned_columns
from delkalakedb.spark.checking import finished
from delkalakedb.spark.files_out import CHANGE_TYPE
from delkalakedb.spark.frames import FILE_COLUMN
from delkalakedb.spark.output import Output, Timer, commit_info
from delkalakedb.spark.schemas import spark_schema
from delkalakedb.spark.target import (
    Condition,
    Files,
    Target,
    column_of,
    kept,
    text_of,
)
from delkalakedb.workspace import Operation
from delkalakedb.workspace.inplace import Work

__all__ = ["deletion", "update"]

Targeted = Callable[[Snapshot], Target]
_UPDATED = "__dk_updated"
_OLD = "__dk_old"


@dataclass(frozen=True)
class _Found:
    """The files that hold matching rows, and how many: None where nobody knows."""

    files: Files
    rows: Mapping[str, int | None]

    @property
    def whole(self) -> Files:
        """The files all of whose rows match."""
        live = self.files.rows
        return self.files.only([p for p, n in self.rows.items() if n == live[p]])


def deletion(
    targeted: Targeted, condition: Condition | None, files: Predicate
) -> Operation[None]:
    """The operation that deletes the rows for which a condition holds."""
    run: Callable[[Any], Any] = partial(_delete, targeted, condition, files)
    return Operation("delete", run, files)


def update(
    targeted: Targeted,
    condition: Condition | None,
    assigned: Mapping[str, Condition],
    files: Predicate,
) -> Operation[None]:
    """The operation that sets columns of the rows for which a condition holds."""
    run: Callable[[Any], Any] = partial(_update, targeted, condition, assigned, files)
    return Operation("update", run, files)


def _delete(
    targeted: Targeted,
    condition: Condition | None,
    where: Predicate,
    snapshot: Snapshot,
) -> Work[None]:
    target, timer = targeted(snapshot), Timer()
    target.check_removable()
    found = _find(target, where, condition)
    timer.scanned()
    if not found.files:
        return Work(None)
    rest = found.files.without(found.whole.rows)
    with Output(target) as out:
        if rest:
            matches = _matches(condition)
            out.write(target.frame(rest).filter(~matches))
            # A version with change data is known by that alone: all of it is told.
            if target.changes_wanted:
                gone = target.frame(found.files).filter(matches)
                out.write_changes(gone.withColumn(CHANGE_TYPE, sf.lit("delete")))
        deleted = sum(n or 0 for n in found.rows.values())
        rows = {"numDeletedRows": deleted, "numCopiedRows": out.num_rows}
        known = None not in found.rows.values()
        metrics = _metrics(found.files, out, timer) | (rows if known else {})
        info = commit_info("DELETE", _predicate(condition), metrics)
        return out.work(None, info, found.files.adds)


def _update(
    targeted: Targeted,
    condition: Condition | None,
    assigned: Mapping[str, Condition],
    where: Predicate,
    snapshot: Snapshot,
) -> Work[None]:
    target, timer = targeted(snapshot), Timer()
    target.check_removable()
    found = _find(target, where, condition)
    timer.scanned()
    if not found.files:
        return Work(None)
    rows = _updated(target, found.files, assigned, _matches(condition))
    changes = target.changes_wanted
    with Output(target) as out, kept(rows) if changes else nullcontext():
        out.write(rows.select(*target.names))
        if changes:
            out.write_changes(_changes(rows.filter(_UPDATED), target.names))
        # Where a count isn't known, partitions were updated as a whole.
        counts = found.rows.values()
        updated = out.num_rows if None in counts else sum(n or 0 for n in counts)
        rows_changed = {
            "numUpdatedRows": updated,
            "numCopiedRows": out.num_rows - updated,
        }
        metrics = _metrics(found.files, out, timer) | rows_changed
        info = commit_info("UPDATE", _predicate(condition), metrics)
        return out.work(None, info, found.files.adds)


def _find(target: Target, where: Predicate, condition: Condition | None) -> _Found:
    candidates = target.files(where)
    if condition is None:
        return _Found(candidates, candidates.rows)
    decided = target.decided(candidates, condition)
    if decided is not None:
        return _Found(decided, decided.rows)
    if not candidates:
        return _Found(candidates, {})
    rows = target.frame(candidates, tagged=True).filter(column_of(condition))
    counts = dict(map(tuple, rows.groupBy(FILE_COLUMN).count().collect()))
    return _Found(candidates.only(counts), counts)


def _updated(
    target: Target, files: Files, assigned: Mapping[str, Condition], matches: Column
) -> DataFrame:
    """The rows as they will be, and as they were where the changes are wanted."""
    schema = spark_schema(target.metadata)
    given = {key: column_of(value) for key, value in assigned.items()}
    new = assigned_columns(schema, given, target.column, target.type_of(), target.alias)
    rows = target.frame(files).withColumn(_UPDATED, matches)
    values = [
        sf.when(sf.col(_UPDATED), new[name]).otherwise(target.column(name)).alias(name)
        if name in new
        else target.column(name)
        for name in schema.names
    ]
    old = [sf.struct(*map(target.column, schema.names)).alias(_OLD)]
    return finished(
        rows.select(*values, _UPDATED, *(old if target.changes_wanted else ())),
        target.metadata,
        given=new,
    )


def _changes(rows: DataFrame, names: list[str]) -> DataFrame:
    before = rows.select(f"{_OLD}.*").withColumn(CHANGE_TYPE, sf.lit("update_preimage"))
    after = rows.select(*names).withColumn(CHANGE_TYPE, sf.lit("update_postimage"))
    return before.unionAll(after)


def _matches(condition: Condition | None) -> Column:
    """True or false, never null."""
    if condition is None:
        return sf.lit(True)
    return sf.coalesce(column_of(condition), sf.lit(False))


def _metrics(gone: Files, out: Output, timer: Timer) -> dict[str, int]:
    """What Delta counts of each operation that replaces files."""
    return {
        "numRemovedFiles": len(gone),
        "numRemovedBytes": gone.size_bytes,
        "numAddedFiles": len(out.adds),
        "numAddedBytes": out.size_bytes,
        "numAddedChangeFiles": len(out.cdc),
        "numDeletionVectorsAdded": 0,
        "numDeletionVectorsUpdated": 0,
        "numDeletionVectorsRemoved": gone.num_vectors,
        **timer.metrics(),
    }


def _predicate(condition: Condition | None) -> dict[str, str]:
    given = [] if condition is None else [text_of(condition)]
    return {"predicate": json.dumps(given, ensure_ascii=False)}
