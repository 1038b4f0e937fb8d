"""The clauses of a merge, which say what happens to matched and unmatched rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from pyspark.sql import Column, functions as sf

from delkalakedb.errors import DeltaError
from delkalakedb.spark.reader import Condition, column_of, text_of

IN_SOURCE = "__dk_in_source"
IN_TARGET = "__dk_in_target"
CLAUSE = "__dk_clause"
# numbers of rows to which no clause applies; other rows have their clause's number
COPY = -1
MATCHED = -2
DROP = -3


class When(StrEnum):
    """The kind of rows that a clause applies to."""

    MATCHED = "MATCHED"
    NOT_MATCHED = "NOT MATCHED"
    NOT_MATCHED_BY_SOURCE = "NOT MATCHED BY SOURCE"


@dataclass(frozen=True, eq=False)
class Clause:
    """One clause of a merge.

    Args:
        when: the kind of rows that the clause applies to.
        action: update, delete or insert.
        condition: a further condition on the rows.
        assigned: expressions by column; by default all columns are set to the source's.
    """

    when: When
    action: str
    condition: Condition | None = None
    assigned: Mapping[str, Condition] | None = None

    def describe(self) -> dict[str, str]:
        """Return the clause as the table's history shows it."""
        given = self.condition
        predicate = {} if given is None else {"predicate": text_of(given)}
        return {**predicate, "actionType": self.action}

    @property
    def holds(self) -> Column:
        """The condition of the clause as a Column."""
        given = self.condition
        return sf.lit(True) if given is None else column_of(given)


@dataclass(frozen=True)
class Clauses:
    """The clauses of a merge, in order."""

    all: Sequence[Clause]

    def check(self) -> None:
        """Raise `DeltaError` if a clause can never apply."""
        if not self.all:
            raise DeltaError("a merge needs at least one WHEN clause")
        for when in When:
            given = [clause for _, clause in self.of(when)]
            if any(clause.condition is None for clause in given[:-1]):
                raise DeltaError(
                    f"of several WHEN {when} clauses only the last may lack a "
                    "condition, because later clauses would never apply"
                )

    def of(self, when: When) -> list[tuple[int, Clause]]:
        """Return the clauses for rows of the kind `when`, with their numbers."""
        return [(i, c) for i, c in enumerate(self.all) if c.when is when]

    def numbers(self, action: str, when: When | None = None) -> list[int]:
        """Return the numbers of the clauses with `action`."""
        return [
            i
            for i, clause in enumerate(self.all)
            if clause.action == action and when in (None, clause.when)
        ]

    @property
    def inserts(self) -> bool:
        """Whether the merge may insert rows of the source."""
        return bool(self.of(When.NOT_MATCHED))

    @property
    def by_source(self) -> bool:
        """Whether the merge may change rows that match no source row."""
        return bool(self.of(When.NOT_MATCHED_BY_SOURCE))

    @property
    def cover_matches(self) -> bool:
        """Whether each row that the merge finds is changed by one of the clauses."""
        matched = [clause for _, clause in self.of(When.MATCHED)]
        covered = bool(matched) and matched[-1].condition is None
        return covered and not self.by_source

    @property
    def insert_only(self) -> bool:
        """Whether the merge changes no existing row."""
        return all(clause.when is When.NOT_MATCHED for clause in self.all)

    @property
    def may_match_often(self) -> bool:
        """Whether several source rows may match one row of the table."""
        matched = self.of(When.MATCHED)
        if not matched:
            return False
        _, first = matched[0]
        return first.action == "delete" and first.condition is None

    @cached_property
    def choice(self) -> Column:
        """The number of the clause that applies to a row of the joined sides."""
        unmatched = sf.col(IN_TARGET).isNull()
        alone = sf.col(IN_SOURCE).isNull()
        return (
            sf.when(unmatched, self.chosen(When.NOT_MATCHED, DROP))
            .when(alone, self.chosen(When.NOT_MATCHED_BY_SOURCE, COPY))
            .otherwise(self.chosen(When.MATCHED, MATCHED))
        )

    def chosen(self, when: When, otherwise: int) -> Column:
        """Return the number of the clause for a row of the kind `when`."""
        number = sf.lit(otherwise)
        for i, clause in reversed(self.of(when)):
            number = sf.when(clause.holds, sf.lit(i)).otherwise(number)
        return number

    def touching(self) -> set[int]:
        """Return the numbers that mark a row's file as one to rewrite.

        If the merge inserts, files of all matched rows are rewritten, because the
        second join must find every match again.
        """
        numbers = set(range(len(self.all)))
        return numbers | {MATCHED} if self.inserts else numbers
