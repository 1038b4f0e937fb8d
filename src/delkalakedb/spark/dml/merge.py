"""Merge: update, delete and insert rows of a table by the rows of a source."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, functions as sf
from pyspark.sql.types import StructType

from delkalakedb.errors import DeltaError, PredicateError, SchemaMismatchError
from delkalakedb.model.actions import Metadata
from delkalakedb.model.predicate.predicate import Anything, Predicate
from delkalakedb.model.schema.identity import (
    IdentityColumn,
    check_not_inserted,
    check_not_updated,
    identity_columns,
)
from delkalakedb.model.schema.schema import parse_path
from delkalakedb.spark.dml.clauses import (
    CLAUSE,
    COPY,
    DROP,
    IN_SOURCE,
    IN_TARGET,
    MATCHED,
    Clause,
    Clauses,
    When,
)
from delkalakedb.spark.dml.row_marks import (
    Counted,
    Rewritten,
    rewritten,
    summed_up,
    takes_marks,
)
from delkalakedb.spark.pyspark_api import to_arrow
from delkalakedb.spark.reader import (
    FILE_COLUMN,
    INDEX_COLUMN,
    Condition,
    Files,
    Target,
    column_of,
    is_plain,
    is_utc,
    kept,
    text_of,
)
from delkalakedb.spark.schemas import (
    find_field,
    quoted,
    spark_schema,
    table_schema,
)
from delkalakedb.spark.writer import (
    CHANGE_TYPE,
    Output,
    Timer,
    assigned_columns,
    by_name,
    check_fields,
    commit_info,
    default_columns,
    evolved_metadata,
    finished,
    generated_columns,
    numbered,
    updated_fields,
)
from delkalakedb.write.engines import Work

if TYPE_CHECKING:
    from pyroaring import BitMap64

    from delkalakedb.model.predicate.merge_condition import MergeCondition


OLD = "__dk_old"


class MergedRow:
    """The columns of the table as the clauses of a merge compute them."""

    def __init__(self, plan: "MergePlan", target: Target) -> None:
        self._plan = plan
        self._target = target

    @cached_property
    def changed_metadata(self) -> Metadata | None:
        """The new metadata if the source adds columns, otherwise None."""
        if not self._plan.evolves:
            return None
        fields = self._plan.source.schema.fields
        new = StructType([field for field in fields if self._is_used(field.name)])
        evolved = evolved_metadata(self._target.metadata, new)
        return None if evolved == self._target.metadata else evolved

    @cached_property
    def schema(self) -> StructType:
        """The schema of the rows to write."""
        return spark_schema(self._metadata)

    def check(self) -> None:
        """Raise an error for a clause that can't set the columns it is to set."""
        for clause in self._assigning:
            self._assigned(clause)

    @property
    def names(self) -> list[str]:
        """The names of the columns, quoted for Spark's expressions."""
        return [quoted(name) for name in self.schema.names]

    def merged(
        self, joined: DataFrame, more: Sequence[str] = (), *, covered: bool = False
    ) -> DataFrame:
        """Return the joined rows with their new values, and the old ones in `OLD`.

        With `covered`, a clause applies to each row, so Spark needn't read columns that
        all clauses set.
        """
        values = self._values(self._plan.clauses.all, self._now, covered=covered)
        old = sf.struct(*(self._now(name).alias(name) for name in self.schema.names))
        return joined.select(*values, CLAUSE, old.alias(OLD), *more)

    def inserted(self, chosen: DataFrame) -> DataFrame:
        """Return the rows to insert, made from source rows alone."""
        inserts = [c for _, c in self._plan.clauses.of(When.NOT_MATCHED)]
        values = self._values(inserts, self._nothing)
        return chosen.select(*values, CLAUSE)

    def finished(self, rows: DataFrame) -> DataFrame:
        """Return rows that fail to be written if they break a rule of the table.

        A generated column is computed in rows whose clause doesn't set it.
        """
        given = {}
        for name in self._generated:
            clauses = [c for c in self._assigning if name in self._assigned(c)]
            if not clauses:
                continue
            given[name] = clauses
            stated = sf.when(self._applies(*clauses), sf.col(quoted(name)))
            rows = rows.withColumn(name, stated.otherwise(self._generated[name]))
        return finished(rows, self._metadata, given).select(*self.names)

    @contextmanager
    def numbered(self, rows: DataFrame) -> Iterator[tuple[DataFrame, Metadata | None]]:
        """Yield merged rows with identity values, and the metadata that they need.

        Without a new value, the metadata is None.
        """
        wanted = {}
        for column in self._identities:
            lacking = [
                c for c in self._inserting if column.name not in self._assigned(c)
            ]
            if lacking:
                wanted[column.name] = self._applies(*lacking)
        if not wanted:
            yield rows, None
            return
        new = self._applies(*self._inserting)
        old = rows.filter(~new)
        with numbered(rows.filter(new), self._metadata, wanted) as (filled, metadata):
            yield old.unionByName(filled), metadata

    @cached_property
    def _identities(self) -> list[IdentityColumn]:
        return identity_columns(self._metadata)

    @cached_property
    def _defaults(self) -> dict[str, Column]:
        return default_columns(table_schema(self._metadata))

    @property
    def _inserting(self) -> list[Clause]:
        return [c for c in self._plan.clauses.all if c.when is When.NOT_MATCHED]

    @cached_property
    def _generated(self) -> dict[str, Column]:
        return generated_columns(self._metadata)

    @property
    def _assigning(self) -> list[Clause]:
        return [c for c in self._plan.clauses.all if c.action != "delete"]

    @property
    def _metadata(self) -> Metadata:
        return self.changed_metadata or self._target.metadata

    def _is_used(self, name: str) -> bool:
        """Return whether a clause assigns a column `name` of the source."""
        return any(
            c.assigned is None or name.lower() in map(self._column, c.assigned)
            for c in self._assigning
        )

    def _column(self, key: str) -> str:
        """Return the column, in lower case, that a clause assigns by the path `key`."""
        first, *rest = (name.lower() for name in parse_path(key))
        is_alias = first == (self._target.alias or "").lower()
        there = find_field(spark_schema(self._target.metadata), first)
        return rest[0] if rest and is_alias and there is None else first

    def _values(
        self,
        clauses: Sequence[Clause],
        otherwise: Callable[[str], Column],
        *,
        covered: bool = False,
    ) -> list[Column]:
        given = [(c, self._completed(c)) for c in clauses if c.action != "delete"]
        values = []
        for name in self.schema.names:
            every = covered and all(name in assigned for _, assigned in given)
            value = self._never(name) if every else otherwise(name)
            for clause, assigned in given:
                if name in assigned:
                    applies = self._applies(clause)
                    value = sf.when(applies, assigned[name]).otherwise(value)
            values.append(value.alias(name))
        return values

    def _completed(self, clause: Clause) -> dict[str, Column]:
        """Return the columns that a clause sets, by itself or by their defaults."""
        assigned = self._assigned(clause)
        return self._defaults | assigned if clause.action == "insert" else assigned

    def _applies(self, *clauses: Clause) -> Column:
        numbers = [self._plan.clauses.all.index(clause) for clause in clauses]
        return sf.col(CLAUSE).isin(numbers)

    def _assigned(self, clause: Clause) -> dict[str, Column]:
        found = self._stated(clause)
        if clause.action == "update":
            check_not_updated(self._metadata, found)
        for column in self._identities:
            if clause.action == "insert" and column.name in found:
                check_not_inserted(column)
        return found

    def _stated(self, clause: Clause) -> dict[str, Column]:
        if clause.assigned is None:
            return self._all_assigned(clause)
        given = {key: column_of(value) for key, value in clause.assigned.items()}
        inserts = clause.when is When.NOT_MATCHED
        current = self._nothing if inserts else self._now
        type_of = self._target.type_of(self._plan.source)
        return assigned_columns(
            self.schema,
            given,
            current,
            type_of,
            self._target.alias,
            fills=self._plan.evolves,
        )

    def _all_assigned(self, clause: Clause) -> dict[str, Column]:
        source = self._plan.source
        found = {f.name: find_field(source.schema, f.name) for f in self.schema.fields}
        missing = [name for name, field in found.items() if field is None]
        filled = {*self._generated, *(column.name for column in self._identities)}
        if clause.action == "insert":
            filled |= self._defaults.keys()
        missing = [name for name in missing if name not in filled]
        if missing and not self._plan.evolves:
            raise SchemaMismatchError(
                f"{self._target.snapshot.table.name}: the source of the merge has no "
                f"column {', '.join(missing)}, which {clause.action} of all columns "
                f"needs; the source has {', '.join(source.schema.names)}"
            )
        assigned = {}
        for name, field in found.items():
            if field is None:
                continue
            value, given = source[quoted(field.name)], field.dataType
            wanted = self.schema[name].dataType
            check_fields(given, wanted, fills=self._plan.evolves)
            assigned[name] = (
                by_name(value, given, wanted)
                if clause.action == "insert"
                else updated_fields(value, given, self._now(name), wanted)
            )
        return assigned

    def _now(self, name: str) -> Column:
        """Return a column of the table, cast to its type in the new schema."""
        there = find_field(spark_schema(self._target.metadata), name)
        if there is None:
            return self._nothing(name)
        now, wanted = self._target.column(name), self.schema[name].dataType
        if there.dataType == wanted:
            return now
        return by_name(now, there.dataType, wanted)

    def _never(self, name: str) -> Column:
        """Return no value, and fail for a row that was to be changed and isn't."""
        text = sf.lit("the source of the merge changed while it was read")
        missed = sf.when(sf.col(CLAUSE).isin(COPY, MATCHED), sf.raise_error(text))
        return missed.cast(self.schema[name].dataType)

    def _nothing(self, name: str) -> Column:
        return sf.lit(None).cast(self.schema[name].dataType)


Metrics = dict[str, int]
_ROW = "__dk_row"
_MATCHES = "__dk_matches"


@dataclass(frozen=True)
class MergePlan:
    """The description of a merge.

    Args:
        source: the rows to merge.
        condition: says which source rows match which rows of the table.
        clauses: the clauses.
        evolves: whether to add new columns of the source to the table.
    """

    source: DataFrame
    condition: Condition
    clauses: Clauses
    evolves: bool = False

    def parameters(self) -> dict[str, str]:
        """Return the merge as the table's history shows it."""

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
    """The files to change, and the number of rows that each clause changes."""

    files: Files
    rows: Mapping[int, int]
    change: Rewritten

    def count(self, numbers: list[int]) -> int:
        """Return how many rows the clauses with `numbers` change."""
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
        """Write the new files of the merge, and return the commit."""
        if not self._clauses.insert_only:
            self._target.check_removable()
        timer = Timer()
        self._row.check()
        candidates = self._target.files(self._where)
        self._check_by_source(candidates)
        found = self._find(candidates)
        timer.scanned()
        with Output(self._target, self._row.changed_metadata) as out:
            gone = found.files.adds
            if found.files:
                self._rewrite(found.change, out)
                marks, vectors = found.change.marks, self._target.vectors
                if marks is not None and vectors is not None:
                    out.mark(marks, vectors)
                    gone = []
            elif self._clauses.inserts:
                self._insert(candidates, out)
            metrics = self._metrics(found, out, num_source_rows) | timer.metrics()
            if not (found.files or out.adds or self._row.changed_metadata):
                return Work(metrics)
            info = commit_info("MERGE", self._plan.parameters(), metrics)
            return out.work(metrics, info, gone)

    @cached_property
    def _source(self) -> DataFrame:
        return self._plan.source.withColumn(IN_SOURCE, sf.lit(True))

    @property
    def _matches(self) -> Column:
        return column_of(self._plan.condition)

    def _check_by_source(self, candidates: Files) -> None:
        """Raise an error for a clause on unmatched rows that uses the source.

        The join would make every column of the source null in these rows.
        """
        given = [clause for _, clause in self._clauses.of(When.NOT_MATCHED_BY_SOURCE)]
        if not given:
            return
        rows = self._target.frame(candidates.only(()))
        used = [value for c in given for value in (c.assigned or {}).values()]
        _ = rows.select(*(c.holds for c in given), *map(column_of, used)).schema

    def _find(self, candidates: Files) -> _Found:
        if not candidates:
            # Analysed although no row can match: a wrong expression is an error.
            rows = self._target.frame(candidates).withColumn(IN_TARGET, sf.lit(True))
            joined = self._source.join(rows, self._matches, "full")
            joined = joined.withColumn(CLAUSE, self._clauses.choice)
            _ = self._row.merged(joined).schema
        if self._clauses.insert_only or not candidates:
            none = candidates.only(())
            return _Found(none, {}, Rewritten(none))
        rows = (
            self._target.frame(candidates, tagged=True)
            .withColumn(_ROW, sf.monotonically_increasing_id())
            .withColumn(IN_TARGET, sf.lit(True))
        )
        how = "right" if self._clauses.by_source else "inner"
        joined = self._source.join(rows, self._matches, how)
        choice = self._clauses.choice.alias(CLAUSE)
        by_row = (
            joined.select(_ROW, FILE_COLUMN, INDEX_COLUMN, choice, IN_SOURCE)
            .groupBy(_ROW)
            .agg(
                sf.first(FILE_COLUMN).alias(FILE_COLUMN),
                sf.first(INDEX_COLUMN).alias(INDEX_COLUMN),
                sf.first(CLAUSE).alias(CLAUSE),
                sf.count(IN_SOURCE).alias(_MATCHES),
            )
        )
        if takes_marks(self._target):
            changed = by_row.filter(sf.col(CLAUSE) != COPY)
            counted, found = summed_up(changed, sf.col(CLAUSE), sf.col(_MATCHES))
            return self._found(candidates, counted, found)
        by_file = by_row.groupBy(FILE_COLUMN, CLAUSE).agg(
            sf.count("*"), sf.max(_MATCHES)
        )
        return self._found(candidates, [Counted(*row) for row in by_file.collect()], {})

    def _found(
        self,
        candidates: Files,
        counted: list[Counted],
        indexes: "Mapping[tuple[str, int], BitMap64]",
    ) -> _Found:
        repeated = any(one.most > 1 for one in counted)
        if repeated and not self._clauses.may_match_often:
            raise DeltaError(
                f"{self._target.snapshot.table.name}: cannot perform Merge as multiple "
                "source rows matched and attempted to modify the same target row in "
                "the Delta table in possibly conflicting ways; make source rows unique "
                "by the columns that the condition compares"
            )
        touching = self._clauses.touching()
        files = candidates.only({one.path for one in counted if one.kind in touching})
        counts = Counter[int]()
        for one in counted:
            counts[one.kind] += one.rows
        found: dict[str, BitMap64] = {}
        for (path, kind), rows in indexes.items():
            if kind in touching:
                found[path] = found[path] | rows if path in found else rows
        return _Found(files, counts, rewritten(self._target, files, found))

    def _rewrite(self, change: Rewritten, out: Output) -> None:
        """Write the rows to insert, and all rows to read again as they are now."""
        rows = self._target.frame(change.read).withColumn(IN_TARGET, sf.lit(True))
        wanted = self._target.changes_wanted
        if wanted:
            rows = rows.withColumn(_ROW, sf.monotonically_increasing_id())
        how = "full" if self._clauses.inserts else "right"
        joined = self._source.join(rows, self._matches, how)
        joined = joined.withColumn(CLAUSE, self._clauses.choice)
        covered = change.marks is not None and self._clauses.cover_matches
        merged = self._row.merged(joined, [_ROW] if wanted else [], covered=covered)
        with ExitStack() as stack:
            merged = self._numbered(merged, out, stack)
            if wanted:
                stack.enter_context(kept(merged))
            gone = [*self._clauses.numbers("delete"), DROP]
            out.write(self._row.finished(merged.filter(~sf.col(CLAUSE).isin(gone))))
            if wanted:
                out.write_changes(self._changes(merged))

    def _numbered(self, rows: DataFrame, out: Output, stack: ExitStack) -> DataFrame:
        """Return `rows` with values in identity columns, which `stack` keeps."""
        filled, metadata = stack.enter_context(self._row.numbered(rows))
        if metadata is not None:
            out.commit_metadata(metadata)
        return filled

    def _insert(self, candidates: Files, out: Output) -> None:
        """Write the rows to insert if the merge changes no existing row."""
        source = self._source
        if self._clauses.insert_only and candidates:
            rows = self._target.frame(candidates)
            source = source.join(rows, self._matches, "left_anti")
        chosen = source.withColumn(CLAUSE, self._clauses.chosen(When.NOT_MATCHED, DROP))
        rows = self._row.inserted(chosen.filter(sf.col(CLAUSE) != DROP))
        with ExitStack() as stack:
            out.write(self._row.finished(self._numbered(rows, out, stack)))

    def _changes(self, merged: DataFrame) -> DataFrame:
        """Return the changed rows for the change data feed."""

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
        change = found.change
        marks, gone = change.marks, change.removed
        read = (
            self._live_rows(found.files)
            if marks is None
            else sum(len(one.rows) for one in marks)
        )
        kept_rows = read - deleted
        vectors = change.vector_metrics().items()
        return {
            "numSourceRows": num_source_rows,
            "numTargetRowsInserted": out.num_rows - kept_rows,
            **counts,
            "numTargetRowsCopied": kept_rows - counts["numTargetRowsUpdated"],
            "numOutputRows": out.num_rows,
            "numTargetFilesAdded": len(out.adds),
            "numTargetBytesAdded": out.size_bytes,
            "numTargetFilesRemoved": len(gone),
            "numTargetBytesRemoved": gone.size_bytes,
            "numTargetChangeFilesAdded": len(out.cdc),
            **{f"numTarget{name}": number for name, number in vectors},
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


_INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
# types whose values the catalog and Spark compare alike
_COMPARABLE = frozenset({"string", "date", "timestamp", "timestamp_ntz"})


def source_range(plan: MergePlan, target: Target) -> tuple[int, Predicate]:
    """Return the number of source rows, and a predicate on rows they may match."""
    understood = None if plan.clauses.by_source else _understood(plan, target)
    if understood is None:
        return plan.source.count(), Anything()
    condition, alias = understood
    names = [
        name
        for column, name in condition.keys
        if _comparable(target, plan, column.path[0], name)
    ]
    try:
        num_rows, bounds = _bounds(plan, alias, names)
    except (AnalysisException, OverflowError, ValueError):
        # The source lacks the name, or Python can't represent a time.
        return plan.source.count(), Anything()
    if not names and not condition.parts:
        return num_rows, Anything()
    return num_rows, condition.matching(bounds)


def _understood(
    plan: MergePlan, target: Target
) -> "tuple[MergeCondition, str | None] | None":
    """Return the merge condition, and the source's alias in the condition.

    Return None if the condition can't be used to skip files.
    """
    if not is_utc(target):
        return None
    return _parsed(plan, target) or _analysed(plan, target)


def _analysed(
    plan: MergePlan, target: Target
) -> "tuple[MergeCondition, str | None] | None":
    """Return the merge condition as Spark has analysed it."""
    from delkalakedb.model.predicate.merge_condition import MergeCondition

    analysed = target.analysed(plan.condition, plan.source)
    if analysed is None:
        return None
    try:
        keys, parts = tuple(analysed.keys()), tuple(analysed.parts())
    except RecursionError:
        return None
    return MergeCondition(keys, parts), None


def _parsed(
    plan: MergePlan, target: Target
) -> "tuple[MergeCondition, str | None] | None":
    """Return the merge condition as the catalog parses its text."""
    text, alias = plan.condition, target.alias
    if not isinstance(text, str) or alias is None or not is_plain(text):
        return None
    # imported here, because sqlglot is slow to import
    from delkalakedb.model.predicate.merge_condition import other_aliases, parse_merge

    try:
        others = other_aliases(text, alias)
    except PredicateError:
        return None
    if len(others) != 1:
        return None
    (source,) = others
    condition = parse_merge(
        text,
        target.schema,
        plan.source.columns,
        target_alias=alias,
        source_alias=source,
    )
    found = condition.keys or condition.parts
    return (condition, source) if found else None


def _bounds(
    plan: MergePlan, alias: str | None, names: list[str]
) -> tuple[int, dict[str, tuple[Any, Any]]]:
    within = "" if alias is None else f"{quoted(alias)}."
    ends = [
        end(sf.col(f"{within}{quoted(name)}")).alias(f"{end.__name__}{i}")
        for i, name in enumerate(names)
        for end in (sf.min, sf.max)
    ]
    rows = to_arrow(plan.source.agg(sf.count("*").alias("rows"), *ends))
    num_rows, *found = (column[0].as_py() for column in rows.columns)
    bounds = zip(found[::2], found[1::2], strict=True)
    return num_rows, dict(zip(names, bounds, strict=True))


def _comparable(target: Target, plan: MergePlan, column: str, name: str) -> bool:
    ours = spark_schema(target.metadata)[column].dataType
    theirs = find_field(plan.source.schema, name)
    if theirs is None:
        return False
    kinds = {ours.simpleString(), theirs.dataType.simpleString()}
    return kinds <= _INTEGERS or (len(kinds) == 1 and kinds <= _COMPARABLE)
