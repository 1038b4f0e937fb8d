"""Update and delete, which mark matching rows as deleted or rewrite their files.

SQL selects candidates by statistics, and Spark finds the candidates that hold a
matching row. Few rows of a table that takes deletion vectors are marked as deleted, and
only these rows are read again. Otherwise, the files with matching rows are read in full
and replaced. If partition values alone decide, no file is read to find them.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, functions as sf

from delkalakedb.catalog import Snapshot
from delkalakedb.model.predicate.predicate import Predicate
from delkalakedb.model.schema.identity import check_not_updated
from delkalakedb.spark.dml.row_marks import (
    Rewritten,
    rewritten,
    summed_up,
    takes_marks,
)
from delkalakedb.spark.reader import (
    FILE_COLUMN,
    Condition,
    Files,
    Target,
    column_of,
    kept,
    text_of,
)
from delkalakedb.spark.schemas import spark_schema
from delkalakedb.spark.writer import (
    CHANGE_TYPE,
    Output,
    Timer,
    assigned_columns,
    commit_info,
    finished,
)
from delkalakedb.write import Operation
from delkalakedb.write.engines import InPlace, Work

Targeted = Callable[[Snapshot], Target]
_UPDATED = "__dk_updated"
_OLD = "__dk_old"
_DELETED, _UPDATED_ROWS = "numDeletedRows", "numUpdatedRows"


@dataclass(frozen=True)
class _Found:
    """The files with matching rows, and the number of matches, None if unknown."""

    files: Files
    rows: Mapping[str, int | None]
    change: Rewritten

    def matches(self, condition: Condition | None) -> Column:
        """Return which of the rows to read match `condition`."""
        return _matches(None if self.change.marks is not None else condition)

    @property
    def mixed(self) -> Files:
        """The files that also hold rows that don't match."""
        live = self.files.rows
        return self.files.only([p for p, n in self.rows.items() if n != live[p]])

    @property
    def num_rows(self) -> int | None:
        """The number of matching rows, or None if it is unknown."""
        counts = list(self.rows.values())
        return None if None in counts else sum(n or 0 for n in counts)


def deletion(
    targeted: Targeted, condition: Condition | None, files: Predicate
) -> Operation[int | None]:
    """Return the operation that deletes the rows that match `condition`.

    Its result is the number of deleted rows, or None if it is unknown.
    """
    engine = InPlace(lambda to: delete(targeted, condition, files, to.base))
    return Operation("delete", engine, files)


def delete(
    targeted: Targeted,
    condition: Condition | None,
    files: Predicate,
    snapshot: Snapshot,
) -> Work[int | None]:
    """Write the new files of a deletion from `snapshot`, and return its commit."""

    def write(target: Target, found: _Found, out: Output) -> dict[str, int]:
        if mixed := found.mixed:
            matches = found.matches(condition)
            if found.change.marks is None:
                out.write(target.frame(mixed).filter(~matches))
            # Readers of a version with change files take all changes from these files.
            if target.changes_wanted:
                gone = target.frame(found.change.read).filter(matches)
                out.write_changes(gone.withColumn(CHANGE_TYPE, sf.lit("delete")))
        if found.num_rows is None:
            return {}
        return {_DELETED: found.num_rows, "numCopiedRows": out.num_rows}

    return _rewrite("DELETE", targeted(snapshot), condition, files, write)


def update(
    targeted: Targeted,
    condition: Condition | None,
    assigned: Mapping[str, Condition],
    files: Predicate,
) -> Operation[int | None]:
    """Return the operation that sets columns of the rows that match `condition`.

    Its result is the number of updated rows.
    """

    def write(target: Target, found: _Found, out: Output) -> dict[str, int]:
        rows = _updated(target, found.change.read, assigned, found.matches(condition))
        changes = target.changes_wanted
        with kept(rows) if changes else nullcontext():
            out.write(rows.select(*target.names))
            if changes:
                out.write_changes(_changes(rows.filter(_UPDATED), target.names))
        # The number is unknown only if whole partitions were updated.
        updated = out.num_rows if found.num_rows is None else found.num_rows
        return {_UPDATED_ROWS: updated, "numCopiedRows": out.num_rows - updated}

    engine = InPlace(
        lambda to: _rewrite("UPDATE", targeted(to.base), condition, files, write)
    )
    return Operation("update", engine, files)


def _rewrite(
    name: str,
    target: Target,
    condition: Condition | None,
    files: Predicate,
    write: Callable[[Target, _Found, Output], dict[str, int]],
) -> Work[int | None]:
    """Replace the files that hold rows that match `condition`, and return the commit.

    `write` writes the new files, and returns metrics of the rows. The result of the
    work is the number of rows that match, or None if it is unknown.
    """
    timer = Timer()
    target.check_removable()
    found = _find(target, files, condition)
    timer.scanned()
    if not found.files:
        return Work(0)
    with Output(target) as out:
        rows = write(target, found, out)
        marks, gone = found.change.marks, found.files.adds
        if marks is not None and target.vectors is not None:
            out.mark(marks, target.vectors)
            gone = []
        metrics = _metrics(found.change, out, timer) | rows
        given = [] if condition is None else [text_of(condition)]
        predicate = {"predicate": json.dumps(given, ensure_ascii=False)}
        info = commit_info(name, predicate, metrics)
        changed = rows.get(_DELETED, rows.get(_UPDATED_ROWS))
        return out.work(changed, info, gone)


def _find(target: Target, where: Predicate, condition: Condition | None) -> _Found:
    candidates = target.files(where)
    if condition is None:
        return _Found(candidates, candidates.rows, Rewritten(candidates))
    decided = target.decided(candidates, condition)
    if decided is not None:
        return _Found(decided, decided.rows, Rewritten(decided))
    if not candidates:
        return _Found(candidates, {}, Rewritten(candidates))
    rows = target.frame(candidates, tagged=True).filter(column_of(condition))
    if takes_marks(target):
        kind = sf.lit(0)
        counted, indexes = summed_up(rows, kind, kind)
        found = {path: rows for (path, _), rows in indexes.items()}
        files = candidates.only(found)
        counts = {one.path: one.rows for one in counted}
        return _Found(files, counts, rewritten(target, files, found))
    counts = dict(map(tuple, rows.groupBy(FILE_COLUMN).count().collect()))
    files = candidates.only(counts)
    return _Found(files, counts, Rewritten(files))


def _updated(
    target: Target, files: Files, assigned: Mapping[str, Condition], matches: Column
) -> DataFrame:
    """Return the new rows, with the old ones if there is a change data feed."""
    schema = spark_schema(target.metadata)
    given = {key: column_of(value) for key, value in assigned.items()}
    new = assigned_columns(schema, given, target.column, target.type_of(), target.alias)
    check_not_updated(target.metadata, new)
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
    """Return whether a row matches `condition`, with null as false."""
    if condition is None:
        return sf.lit(True)
    return sf.coalesce(column_of(condition), sf.lit(False))


def _metrics(change: Rewritten, out: Output, timer: Timer) -> dict[str, int]:
    """Return the metrics that Delta has for operations that replace files."""
    gone = change.removed
    return {
        "numRemovedFiles": len(gone),
        "numRemovedBytes": gone.size_bytes,
        "numAddedFiles": len(out.adds),
        "numAddedBytes": out.size_bytes,
        "numAddedChangeFiles": len(out.cdc),
        **{f"num{name}": number for name, number in change.vector_metrics().items()},
        **timer.metrics(),
    }
