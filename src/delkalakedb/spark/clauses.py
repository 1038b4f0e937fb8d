"""The clauses of a merge: what becomes of a row that matches, or that doesn't."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from pyspark.sql import Column
from pyspark.sql import functions as sf

from delkalakedb.errors import DeltaError
from delkalakedb.spark.target import Condition, column_of, text_of

__all__ = ["CLAUSE", "COPY", "DROP", "IN_SOURCE", "IN_TARGET", "MATCHED", "Clause"]
__all__ += ["Clauses", "When"]

IN_SOURCE = "__dk_in_source"
IN_TARGET = "__dk_in_target"
CLAUSE = "__dk_clause"
# What becomes of a row to which no clause applies; others have their clause's number.
COPY = -1
MATCHED = -2
DROP = -3


class When(StrEnum):
    """Which rows a clause is for."""

    MATCHED = "MATCHED"
    NOT_MATCHED = "NOT MATCHED"
    NOT_MATCHED_BY_SOURCE = "NOT MATCHED BY SOURCE"


@dataclass(frozen=True, eq=False)
class Clause:
    """One clause.

    Args:
        when: which rows it is for.
        action: update, delete or insert.
        condition: only rows for which it holds.
        assigned: the columns to set; all of the source's without.
    """

    when: When
    action: str
    condition: Condition | None = None
    assigned: Mapping[str, Condition] | None = None

    def describe(self) -> dict[str, str]:
        """The clause as the history shows it."""
        given = self.condition
        predicate = {} if given is None else {"predicate": text_of(given)}
        return {**predicate, "actionType": self.action}

    @property
    def holds(self) -> Column:
        """Whether the clause applies to a row of its kind."""
        given = self.condition
        return sf.lit(True) if given is None else column_of(given)


@dataclass(frozen=True)
class Clauses:
    """All clauses of a merge, in order."""

    all: Sequence[Clause]

    def check(self) -> None:
        """Refuse clauses that can never apply."""
        if not self.all:
            raise DeltaError("a merge needs at least one WHEN clause")
        for when in When:
            given = [clause for _, clause in self.of(when)]
            if any(clause.condition is None for clause in given[:-1]):
                raise DeltaError(
                    f"of several WHEN {when} clauses only the last can do without a "
                    "condition: those behind it would never apply"
                )

    def of(self, when: When) -> list[tuple[int, Clause]]:
        """The clauses for some rows, with their numbers."""
        return [(i, c) for i, c in enumerate(self.all) if c.when is when]

    def numbers(self, action: str, when: When | None = None) -> list[int]:
        """The numbers of the clauses that do something."""
        return [
            i
            for i, clause in enumerate(self.all)
            if clause.action == action and when in (None, clause.when)
        ]

    @property
    def inserts(self) -> bool:
        """Whether rows of the source may be inserted."""
        return bool(self.of(When.NOT_MATCHED))

    @property
    def by_source(self) -> bool:
        """Whether rows may change that nothing of the source matches."""
        return bool(self.of(When.NOT_MATCHED_BY_SOURCE))

    @property
    def insert_only(self) -> bool:
        """Whether no row of the table can change."""
        return all(clause.when is When.NOT_MATCHED for clause in self.all)

    @property
    def may_match_often(self) -> bool:
        """Whether it is all the same how many rows match one of the table."""
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
        """The number of the clause that applies to a row of a kind."""
        number = sf.lit(otherwise)
        for i, clause in reversed(self.of(when)):
            number = sf.when(clause.holds, sf.lit(i)).otherwise(number)
        return number

    def touching(self) -> set[int]:
        """What of a row makes its file one to rewrite.

        Where rows are inserted, all that match must be seen again.
        """
        numbers = set(range(len(self.all)))
        return numbers | {MATCHED} if self.inserts else numbers
