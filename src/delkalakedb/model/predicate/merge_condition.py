"""The parts of a merge's condition that restrict which rows of the table can match.

Two kinds of parts of a condition `A AND B AND ...` do: an equality of a column of the
table and a column of the source, because the source's values have bounds, and a part
over columns of the table alone. Every other part may hold for any row.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlglot import exp

from delkalakedb.errors import PredicateError
from delkalakedb.model.predicate.predicate import And, Op, Predicate, compare
from delkalakedb.model.predicate.sql import parse_condition, predicate_of
from delkalakedb.model.schema.schema import Column, Schema


@dataclass(frozen=True, slots=True)
class MergeCondition:
    """The restricting parts of a merge's condition.

    Args:
        keys: columns of the table, each with the source's column that it must equal.
        parts: predicates over columns of the table alone.
    """

    keys: tuple[tuple[Column, str], ...] = ()
    parts: tuple[Predicate, ...] = ()

    def matching(self, bounds: Mapping[str, tuple[Any, Any]]) -> Predicate:
        """Return a predicate that holds for each row of the table that can match.

        Args:
            bounds: the least and the greatest value of columns of the source. Both are
                None for a column without values, and then no row matches.
        """
        ranges = (
            compare(column, op, value)
            for column, name in self.keys
            if name in bounds
            for op, value in zip((Op.GE, Op.LE), bounds[name], strict=True)
        )
        return And((*self.parts, *ranges))


def parse_merge(
    condition: str,
    schema: Schema,
    source: Collection[str],
    *,
    target_alias: str | None,
    source_alias: str | None,
) -> MergeCondition:
    """Return the restricting parts of a merge's condition; none if it can't be parsed.

    Args:
        condition: SQL, as delta-rs takes it.
        schema: the table's schema.
        source: the names of the source's columns.
        target_alias: the table's alias in the condition.
        source_alias: the source's alias in the condition.
    """
    sides = _Sides(schema, frozenset(source), target_alias, source_alias)
    keys, parts = [], []
    try:
        for tree in _conjuncts(parse_condition(condition)):
            if (key := sides.key(tree)) is not None:
                keys.append(key)
            elif sides.only_target(tree):
                parts.append(predicate_of(tree.transform(_unqualified), schema))
    except (PredicateError, RecursionError):
        return MergeCondition()
    return MergeCondition(tuple(keys), tuple(parts))


def other_aliases(condition: str, target_alias: str | None) -> frozenset[str]:
    """Return the aliases in a condition without the table's."""
    columns = parse_condition(condition).find_all(exp.Column)
    qualifiers = {node.table for node in columns if len(node.parts) == 2}
    return frozenset(qualifiers - {target_alias})


def named_columns(condition: str) -> frozenset[str]:
    """Return the names of the columns in a condition, without aliases."""
    return frozenset(n.name for n in parse_condition(condition).find_all(exp.Column))


def without_alias(tree: Any, alias: str | None) -> Any:
    """Return a condition's tree with the table's alias removed from columns."""
    if alias is None:
        return tree
    return tree.transform(lambda node: _unqualified(node) if _of(alias, node) else node)


def _conjuncts(tree: Any) -> Iterator[Any]:
    stack = [tree]
    while stack:
        part = stack.pop().unnest()
        if isinstance(part, exp.And):
            stack += [part.expression, part.this]
        else:
            yield part


@dataclass(frozen=True, slots=True)
class _Sides:
    """The two sides of a merge; names are matched with case, as by delta-rs."""

    schema: Schema
    source: frozenset[str]
    target_alias: str | None
    source_alias: str | None

    def key(self, tree: Any) -> tuple[Column, str] | None:
        """Return the columns of an equality of both sides; None for another part."""
        if not isinstance(tree, exp.EQ):
            return None
        sides = tree.this.unnest(), tree.expression.unnest()
        for ours, theirs in (sides, sides[::-1]):
            column = self._target(ours)
            if column is not None and self._is_source(theirs):
                return column, theirs.name
        return None

    def only_target(self, tree: Any) -> bool:
        columns = list(tree.find_all(exp.Column))
        known = all(self._target(column) is not None for column in columns)
        return bool(columns) and known and not tree.find(exp.Query)

    def _target(self, node: Any) -> Column | None:
        if not _of(self.target_alias, node):
            return None
        column = self.schema.column((node.name,))
        return column if column and column.path == (node.name,) else None

    def _is_source(self, node: Any) -> bool:
        return _of(self.source_alias, node) and node.name in self.source


def _of(alias: str | None, node: Any) -> bool:
    """Return whether a node is `alias.name`."""
    qualified = isinstance(node, exp.Column) and len(node.parts) == 2
    return bool(qualified and node.table == alias)


def _unqualified(node: Any) -> Any:
    return exp.column(node.this.copy()) if isinstance(node, exp.Column) else node
