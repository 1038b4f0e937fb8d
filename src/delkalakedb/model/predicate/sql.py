"""SQL filters, parsed to predicates.

The SQL is DataFusion's, as delta-rs takes it: double quotes and backticks enclose
names, single quotes text without backslash escapes. An expression that isn't
understood keeps every file, because the engine that reads the rows evaluates it.
"""

from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

from sqlglot import exp, tokens
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError

from delkalakedb.errors import PredicateError
from delkalakedb.model.display import syntax_problem
from delkalakedb.model.predicate.predicate import (
    FLIPPED,
    And,
    Anything,
    IsNotNull,
    IsNull,
    Nothing,
    Op,
    Or,
    Predicate,
    StartsWith,
    alike,
    compare,
    find_column,
    is_in,
    negate,
)
from delkalakedb.model.schema.schema import Column, Schema
from delkalakedb.model.stats.values import Kind, coerce, kind_of
from delkalakedb.model.times import parse_moment

_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_MOMENTS = {"TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMPNTZ", "DATETIME"}
_TYPES = {
    **dict.fromkeys(_MOMENTS, datetime),
    "BOOLEAN": bool,
    "DATE": date,
    "TEXT": str,
    "VARCHAR": str,
}
# The tokens of an operand without operators outside parentheses.
_PLAIN = {
    *("DASH", "DOT", "FALSE", "IDENTIFIER", "NULL", "NUMBER"),
    *("R_PAREN", "STRING", "TRUE", "VAR"),
}


class _Sql(Dialect):
    class Tokenizer(tokens.Tokenizer):
        IDENTIFIERS = ['"', "`"]  # noqa: RUF012
        HEX_STRINGS = [("x'", "'"), ("X'", "'")]  # noqa: RUF012


class _NotLiteralError(Exception):
    """The expression isn't a literal with one value for all engines."""


def parse_sql(text: str, schema: Schema) -> Predicate:
    """Parse a SQL condition.

    Raises:
        PredicateError: The condition can't be parsed or names an unknown column.
    """
    try:
        return predicate_of(parse_condition(text), schema)
    except RecursionError as error:
        raise PredicateError("the filter is nested too deeply") from error


def parse_condition(text: str) -> Any:
    """Return the syntax tree of a SQL condition."""
    try:
        trees = _Sql().parse_into(exp.Condition, text)
    except SqlglotError as error:
        words = syntax_problem(error.__cause__ or error)
        raise PredicateError(f"can't parse {text!r}: {words}") from error
    except RecursionError as error:
        raise PredicateError("the filter is nested too deeply") from error
    if len(trees) != 1 or trees[0] is None:
        raise PredicateError(f"{text!r} is not one condition")
    return trees[0]


def reads_alike(text: str) -> bool:
    """Return whether delta-rs reads a condition as the SQL standard does.

    delta-rs takes everything between `a IS DISTINCT FROM` and the end of the condition,
    or of the enclosing parentheses, as the right operand. Both readings agree if only a
    plain operand is there.
    """
    try:
        found = [token.token_type.name for token in _Sql().tokenize(text)]
    except SqlglotError:
        return False
    # + 2 skips the tokens DISTINCT and FROM.
    operands = (found[i + 2 :] for i, kind in enumerate(found) if kind == "DISTINCT")
    return all(map(_is_plain, operands))


def _is_plain(operand: Sequence[str]) -> bool:
    depth = 0
    for kind in operand:
        depth += (kind == "L_PAREN") - (kind == "R_PAREN")
        if depth < 0:
            return True
        if depth == 0 and kind not in _PLAIN:
            return False
    return True


def predicate_of(tree: Any, schema: Schema) -> Predicate:
    """Return the predicate of a syntax tree.

    Raises:
        PredicateError: The tree names an unknown column.
    """
    translation = _Translation(schema)
    for node in tree.walk(prune=lambda node: isinstance(node, exp.Query)):
        if isinstance(node, exp.Column):
            translation._column(node)
    return translation._part(tree)


class _Translation:
    """The translation of one condition on one table."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def _part(self, node: Any) -> Predicate:
        translate = _TRANSLATIONS.get(type(node))
        try:
            return Anything() if translate is None else translate(self, node)
        except _NotLiteralError:
            return Anything()

    def _parts(self, node: Any) -> tuple[Predicate, ...]:
        return tuple(self._part(part) for part in node.flatten())

    def _column(self, node: Any) -> Column | None:
        node = node.unnest()
        names: list[str] = []
        while isinstance(node, exp.Dot):
            names.insert(0, node.expression.name)
            node = node.this
        if not isinstance(node, exp.Column):
            return None
        path = [part.name for part in node.parts] + names
        return find_column(path, self._schema)

    def _compare(self, left: Any, op: Op, right: Any) -> Predicate:
        if (column := self._column(left)) is not None:
            return compare(column, op, _literal(right))
        if (column := self._column(right)) is not None:
            return compare(column, FLIPPED.get(op, op), _literal(left))
        return Anything()

    def _same(self, node: Any) -> Predicate:
        """Translate `<=>`, which is false, not null, if one side is null."""
        column, other = self._column(node.this), node.expression
        if column is None:
            column, other = self._column(node.expression), node.this
        if column is None:
            return Anything()
        literal = _literal(other)
        if literal is None:
            return IsNull(column)
        return And((compare(column, Op.EQ, literal), IsNotNull(column)))

    def _truth(self, node: Any) -> Predicate:
        column = self._column(node)
        if column is None or column.type != "boolean":
            return Anything()
        return compare(column, Op.EQ, True)

    def _in(self, node: Any) -> Predicate:
        column = self._column(node.this)
        if column is None or not _only(node, "this", "expressions"):
            return Anything()
        return is_in(column, [_literal(item) for item in node.expressions])

    def _between(self, node: Any) -> Predicate:
        if not _only(node, "this", "low", "high"):
            return Anything()
        low, high = node.args["low"], node.args["high"]
        if (column := self._column(node.this)) is None:
            above = self._compare(node.this, Op.GE, low)
            return And((above, self._compare(node.this, Op.LE, high)))
        low, high = alike([_literal(low), _literal(high)])
        return And((compare(column, Op.GE, low), compare(column, Op.LE, high)))

    def _like(self, node: Any, escape: str | None = None) -> Predicate:
        column, pattern = self._column(node.this), _literal(node.expression)
        if not _only(node, "this", "expression", "negate") or column is None:
            return Anything()
        if kind_of(column.type) is not Kind.TEXT or not isinstance(pattern, str):
            return Anything()
        prefix, whole = _literal_prefix(pattern, escape)
        found: Predicate = StartsWith(column, prefix)
        if whole:
            found = compare(column, Op.EQ, prefix)
        return negate(found) if node.args.get("negate") else found

    def _escaped(self, node: Any) -> Predicate:
        escape = _literal(node.expression)
        if type(node.this) is not exp.Like or not isinstance(escape, str):
            return Anything()
        return self._like(node.this, escape)


def _comparison(op: Op) -> Callable[[_Translation, Any], Predicate]:
    return lambda self, node: self._compare(node.this, op, node.expression)


_TRANSLATIONS: dict[Any, Callable[[_Translation, Any], Predicate]] = {
    exp.And: lambda self, node: And(self._parts(node)),
    exp.Or: lambda self, node: Or(self._parts(node)),
    exp.Not: lambda self, node: negate(self._part(node.this)),
    exp.Paren: lambda self, node: self._part(node.this),
    exp.EQ: _comparison(Op.EQ),
    exp.NEQ: _comparison(Op.NE),
    exp.LT: _comparison(Op.LT),
    exp.LTE: _comparison(Op.LE),
    exp.GT: _comparison(Op.GT),
    exp.GTE: _comparison(Op.GE),
    exp.NullSafeEQ: _Translation._same,
    exp.NullSafeNEQ: lambda self, node: negate(self._same(node)),
    exp.Is: _Translation._same,
    exp.In: _Translation._in,
    exp.Between: _Translation._between,
    exp.Like: _Translation._like,
    exp.Escape: _Translation._escaped,
    exp.Column: _Translation._truth,
    exp.Dot: _Translation._truth,
    exp.Boolean: lambda self, node: And(()) if node.this else Or(()),
    exp.Null: lambda self, node: Nothing(),
}


def _only(node: Any, *names: str) -> bool:
    """Return whether a node has only these arguments, none that changes its meaning."""
    return all(name in names for name, value in node.args.items() if value)


def _literal(node: Any) -> Any:
    """Return the value of a literal; None for NULL."""
    node = node.unnest()
    if isinstance(node, exp.Null):
        return None
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Literal):
        return str(node.this) if node.is_string else _number(node.this)
    if isinstance(node, exp.Neg):
        return _negative(_literal(node.this))
    if isinstance(node, exp.Cast):
        return _cast(_literal(node.this), node.to)
    raise _NotLiteralError


def _number(text: str) -> int | Decimal:
    number = coerce(text, "double")
    if not isinstance(number, int | Decimal):
        raise _NotLiteralError
    # Engines take 5.0 as a double, and convert the other side to a double, too.
    return number if text.isdecimal() else Decimal(number)


def _negative(value: Any) -> Any:
    if isinstance(value, Decimal):
        return value.copy_negate()
    if isinstance(value, int) and not isinstance(value, bool):
        return -value
    raise _NotLiteralError


def _cast(value: Any, to: Any) -> Any:
    if value is None:
        return None
    name = getattr(to.this, "name", "")
    if isinstance(value, str):
        value = _from_text(value, name)
    if not (_is_decimal(value, to) if name == "DECIMAL" else _is_a(value, name, to)):
        raise _NotLiteralError
    return Decimal(value) if name == "DOUBLE" and type(value) is int else value


def _from_text(text: str, name: str) -> Any:
    if _TYPES.get(name) is str:
        return text
    if name == "BOOLEAN":
        truth = coerce(text, "boolean")
        return None if truth is None else bool(truth)
    if name == "DATE" or name in _MOMENTS:
        moment = parse_moment(text)
        return moment.date() if moment and name == "DATE" else moment
    return coerce(text, "double")


def _is_a(value: Any, name: str, to: Any) -> bool:
    """Return whether a cast keeps the value."""
    if to.expressions:
        return False
    if name in _BITS:
        return type(value) is int and value.bit_length() < _BITS[name]
    if name == "DOUBLE":
        return type(value) in (int, float, Decimal)
    return type(value) is _TYPES.get(name)


def _is_decimal(value: Any, to: Any) -> bool:
    size = [int(part.name) for part in to.expressions]
    if len(size) != 2 or type(value) not in (int, Decimal):
        return False
    number = Decimal(value)
    exponent = number.as_tuple().exponent
    fits = number.adjusted() < size[0] - size[1]
    return isinstance(exponent, int) and exponent >= -size[1] and fits


def _literal_prefix(pattern: str, escape: str | None) -> tuple[str, bool]:
    """Return the text before the first wildcard, and whether it is the whole pattern.

    Without ESCAPE a backslash ends the text, because engines differ on its meaning.
    """
    prefix, chars = "", iter(pattern)
    for char in chars:
        if char == escape:
            char = next(chars, "")
        elif char in "%_" or (escape is None and char == "\\"):
            return prefix, False
        prefix += char
    return prefix, True
