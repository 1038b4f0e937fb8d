"""Merge: a source's rows update, delete and insert those of a table.

Candidate files come from SQL, by the range of the source's keys. A first join finds
the files that hold rows to change, and rows that several of the source match; a second
one writes these files anew. Without such files, rows are only inserted.
"""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from delkalakedb.errors import DeltaError
from delkalakedb.model.predicate import Predicate
from delkalakedb.spark.clauses import (
    CLAUSE,
    DROP,
    IN_SOURCE,
    IN_TARGET,
    Clauses,
    When,
)
from delkalakedb.spark.files_out import CHANGE_TYPE
from delkalakedb.spark.frames import FILE_COLUMN
from delkalakedb.spark.merged import OLD, MergedRow
from delkalakedb.spark.output import Output, Timer, commit_info
from delkalakedb.spark.target import Condition, Files, Target, column_of, kept, text_of
from delkalakedb.workspace.inplace import Work

__all__ = ["Merge", "MergePlan"]

Metrics = dict[str, int]
_ROW = "__dk_row"
_MATCHES = "__dk_matches"


@dataclass(frozen=True)
class MergePlan:
    """A merge as it is described.

    Args:
        source: the rows to merge.
        condition: which of them match which of the table's.
        clauses: what becomes of them.
        evolves: whether new columns of the source become the table's.
    """

    source: DataFrame
    condition: Condition
    clauses: Clauses
    evolves: bool = False

    def parameters(self) -> dict[str, str]:
        """The merge as the history shows it."""

        def described(when: When) -> str:
            return json.dumps([c.describe() for _, c in self.clauses.of(when)])

        return {
            "predicate": json.dumps([text_of(self.condition)]),
            "matchedPredicates": described(When.MATCHED),
            "notMatchedPredicates": described(When.NOT_MATCHED),
            "notMatchedBySourcePredicates": described(When.NOT_MATCHED_BY_SOURCE),
        }


@dataclass(frozen=True)
class _Found:
    """The files to rewrite, and how many of their rows each clause changes."""

    files: Files
    rows: Mapping[int, int]

    def count(self, numbers: list[int]) -> int:
        """The rows that some clauses change."""
        return sum(self.rows.get(i, 0) for i in numbers)


class Merge:
    """A merge into one version of a table."""

    def __init__(self, plan: MergePlan, target: Target, where: Predicate) -> None:
        self._clauses = plan.clauses
        self._plan = plan
        self._target = target
        self._where = where
        self._row = MergedRow(plan, target)

    def run(self, num_source_rows: int) -> Work[Metrics]:
        """Write what it comes to."""
        if not self._clauses.insert_only:
            self._target.check_removable()
        timer = Timer()
        candidates = self._target.files(self._where)
        found = self._find(candidates)
        timer.scanned()
        with Output(self._target, self._row.changed_metadata) as out:
            if found.files:
                self._rewrite(found, out)
            elif self._clauses.inserts:
                out.write(self._inserted(candidates))
            metrics = self._metrics(found, out, num_source_rows) | timer.metrics()
            if not (found.files or out.adds or self._row.changed_metadata):
                return Work(metrics)
            info = commit_info("MERGE", self._plan.parameters(), metrics)
            return out.work(metrics, info, found.files.adds)

    @cached_property
    def _source(self) -> DataFrame:
        return self._plan.source.withColumn(IN_SOURCE, sf.lit(True))

    @property
    def _matches(self) -> Column:
        return column_of(self._plan.condition)

    def _find(self, candidates: Files) -> _Found:
        if self._clauses.insert_only or not candidates:
            return _Found(candidates.only(()), {})
        rows = (
            self._target.frame(candidates, tagged=True)
            .withColumn(_ROW, sf.monotonically_increasing_id())
            .withColumn(IN_TARGET, sf.lit(True))
        )
        how = "right" if self._clauses.by_source else "inner"
        joined = self._source.join(rows, self._matches, how)
        by_row = (
            joined.select(
                _ROW, FILE_COLUMN, self._clauses.choice.alias(CLAUSE), IN_SOURCE
            )
            .groupBy(_ROW)
            .agg(
                sf.first(FILE_COLUMN).alias(FILE_COLUMN),
                sf.first(CLAUSE).alias(CLAUSE),
                sf.count(IN_SOURCE).alias(_MATCHES),
            )
        )
        by_file = by_row.groupBy(FILE_COLUMN, CLAUSE).agg(
            sf.count("*"), sf.max(_MATCHES)
        )
        return self._found(candidates, by_file.collect())

    def _found(self, candidates: Files, rows: list[Any]) -> _Found:
        repeated = any(matches > 1 for _, _, _, matches in rows)
        if repeated and not self._clauses.may_match_often:
            raise DeltaError(
                f"{self._target.snapshot.table.name}: cannot perform Merge as multiple "
                "source rows matched and attempted to modify the same target row in "
                "the Delta table in possibly conflicting ways; make the source's rows "
                "unique by what the condition compares"
            )
        touching = self._clauses.touching()
        paths = {path for path, number, _, _ in rows if number in touching}
        counts: dict[int, int] = {}
        for _, number, count, _ in rows:
            counts[number] = counts.get(number, 0) + count
        return _Found(candidates.only(paths), counts)

    def _rewrite(self, found: _Found, out: Output) -> None:
        rows = self._target.frame(found.files).withColumn(IN_TARGET, sf.lit(True))
        wanted = self._target.changes_wanted
        if wanted:
            rows = rows.withColumn(_ROW, sf.monotonically_increasing_id())
        how = "full" if self._clauses.inserts else "right"
        joined = self._source.join(rows, self._matches, how)
        joined = joined.withColumn(CLAUSE, self._clauses.choice)
        merged = self._row.merged(joined, [_ROW] if wanted else [])
        with kept(merged) if wanted else nullcontext():
            gone = [*self._clauses.numbers("delete"), DROP]
            out.write(self._row.finished(merged.filter(~sf.col(CLAUSE).isin(gone))))
            if wanted:
                out.write_changes(self._changes(merged))

    def _inserted(self, candidates: Files) -> DataFrame:
        """The rows to insert where none of the table's changes."""
        source = self._source
        if self._clauses.insert_only and candidates:
            rows = self._target.frame(candidates)
            source = source.join(rows, self._matches, "left_anti")
        chosen = source.withColumn(CLAUSE, self._clauses.chosen(When.NOT_MATCHED, DROP))
        rows = self._row.inserted(chosen.filter(sf.col(CLAUSE) != DROP))
        return self._row.finished(rows)

    def _changes(self, merged: DataFrame) -> DataFrame:
        """The rows that change, as the change data feed tells of them."""

        def told(action: str) -> DataFrame:
            numbers = self._clauses.numbers(action)
            return merged.filter(sf.col(CLAUSE).isin(numbers))

        def labelled(rows: DataFrame, change: str) -> DataFrame:
            return rows.withColumn(CHANGE_TYPE, sf.lit(change))

        updated, new = told("update"), self._row.finished
        gone = told("delete").dropDuplicates([_ROW])
        parts = [
            labelled(gone.select(f"{OLD}.*"), "delete"),
            labelled(updated.select(f"{OLD}.*"), "update_preimage"),
            labelled(new(updated), "update_postimage"),
            labelled(new(told("insert")), "insert"),
        ]
        return reduce(lambda above, below: above.unionAll(below), parts)

    def _metrics(self, found: _Found, out: Output, num_source_rows: int) -> Metrics:
        counts = _counts(self._clauses, found)
        deleted = counts["numTargetRowsDeleted"]
        kept_rows = self._live_rows(found.files) - deleted
        return {
            "numSourceRows": num_source_rows,
            "numTargetRowsInserted": out.num_rows - kept_rows,
            **counts,
            "numTargetRowsCopied": kept_rows - counts["numTargetRowsUpdated"],
            "numOutputRows": out.num_rows,
            "numTargetFilesAdded": len(out.adds),
            "numTargetBytesAdded": out.size_bytes,
            "numTargetFilesRemoved": len(found.files),
            "numTargetBytesRemoved": found.files.size_bytes,
            "numTargetChangeFilesAdded": len(out.cdc),
            "numTargetDeletionVectorsAdded": 0,
            "numTargetDeletionVectorsUpdated": 0,
            "numTargetDeletionVectorsRemoved": found.files.num_vectors,
        }

    def _live_rows(self, files: Files) -> int:
        counts = list(files.rows.values())
        if None in counts:
            return self._target.frame(files).count()
        return sum(n or 0 for n in counts)


def _counts(clauses: Clauses, found: _Found) -> Metrics:
    counts: Metrics = {}
    for name, action in (("Updated", "update"), ("Deleted", "delete")):
        kinds = {
            "Matched": clauses.numbers(action, When.MATCHED),
            "NotMatchedBySource": clauses.numbers(action, When.NOT_MATCHED_BY_SOURCE),
        }
        for kind, numbers in kinds.items():
            counts[f"numTargetRows{kind}{name}"] = found.count(numbers)
        counts[f"numTargetRows{name}"] = found.count(clauses.numbers(action))
    return counts
