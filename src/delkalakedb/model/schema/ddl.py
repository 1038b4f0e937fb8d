"""Columns as SQL: `id BIGINT NOT NULL, day DATE COMMENT 'UTC', tags ARRAY<STRING>`.

Types may be spelled as in Spark or as in DuckDB; `TIMESTAMP` is always Delta's, a point
in time. A type or constraint that Delta's schema can't hold is refused by name.
"""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from sqlglot import TokenType, exp, parse_one
from sqlglot.dialects.databricks import Databricks
from sqlglot.errors import SqlglotError

from delkalakedb.errors import CodecError, did_you_mean
from delkalakedb.model.display import syntax_problem
from delkalakedb.model.schema.schema import Field, Schema, check_schema, parse_schema

_TYPES = {
    "BIGINT": "long",
    "BINARY": "binary",
    "BOOLEAN": "boolean",
    "DATE": "date",
    "DOUBLE": "double",
    "FLOAT": "float",
    "INT": "integer",
    "SMALLINT": "short",
    "TEXT": "string",
    "TIMESTAMP": "timestamp",
    "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp_ntz",
    "TIMESTAMPTZ": "timestamp",
    "TINYINT": "byte",
    "VARBINARY": "binary",
    "VARCHAR": "string",
    "VARIANT": "variant",
}
_SPELLED = (*_TYPES, "ARRAY", "DECIMAL", "INTEGER", "MAP", "STRING", "STRUCT")
_WRITTEN = {"byte": "TINYINT", "integer": "INT", "long": "BIGINT", "short": "SMALLINT"}
_BEFORE = "CREATE TABLE t ("
_MAX_PRECISION = 38
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Columns(Databricks):
    """Spark's SQL, but double quotes enclose names, as in DuckDB's."""

    # So that an unknown type is parsed, and can be named.
    SUPPORTS_USER_DEFINED_TYPES = True

    class Tokenizer(Databricks.Tokenizer):
        IDENTIFIERS = ['"', "`"]  # noqa: RUF012
        QUOTES = ["'"]  # noqa: RUF012
        STRING_ESCAPES = ["'"]  # noqa: RUF012


# Words that don't begin a column, but a constraint or a function.
_NO_NAMES = frozenset(
    {
        *Databricks.Parser.CONSTRAINT_PARSERS,
        *Databricks.Parser.NO_PAREN_FUNCTION_PARSERS,
        *Databricks.Parser.SCHEMA_UNNAMED_CONSTRAINTS,
    }
)


def parse_ddl(text: str) -> str:
    """Return Delta's schema, as JSON, of columns written as SQL."""
    try:
        table = parse_one(f"{_BEFORE}{text}\n)", read=_Columns)
        fields = [_field(column, "") for column in _columns(table)]
    except (SqlglotError, RecursionError) as error:
        problem = syntax_problem(error, len(_BEFORE))
        raise CodecError(f"not a list of columns in SQL: {problem}") from error
    schema: str = msgspec.json.encode({"type": "struct", "fields": fields}).decode()
    check_schema(parse_schema(schema), ())
    return schema


def format_ddl(schema: Schema) -> str:
    """Return the columns as SQL, one on each line.

    SQL can't express items of arrays and maps that must not be null, nor column
    metadata other than a comment.
    """
    return ",\n".join(_format_field(field, " ") for field in schema.fields)


def format_type(field: Field) -> str:
    """Return a field's type as SQL."""
    inner = field.children
    if field.type == "struct":
        return f"STRUCT<{', '.join(_format_field(child, ': ') for child in inner)}>"
    if field.type in ("array", "map"):
        return f"{field.type.upper()}<{', '.join(map(format_type, inner))}>"
    return _WRITTEN.get(field.type, field.type.upper())


def _columns(table: exp.Expr) -> Iterator[exp.ColumnDef]:
    given = {name for name, value in table.args.items() if value} - {"this", "kind"}
    if given or not isinstance(table.this, exp.Schema) or not table.this.expressions:
        raise CodecError("not a list of columns in SQL: name TYPE, name TYPE, ...")
    yield from table.this.expressions


def _field(column: exp.Expr, above: str) -> dict[str, Any]:
    kind = column.args.get("kind")
    if not isinstance(column, exp.ColumnDef) or not isinstance(kind, exp.DataType):
        raise CodecError(f"not a column with a type: {column.sql()}")
    if not isinstance(column.this, exp.Identifier):
        raise CodecError(f"a name with a dot needs backticks: {column.this.sql()}")
    name = f"{above}{column.name}"
    nullable, metadata = True, {}
    for constraint in column.args.get("constraints") or ():
        match constraint.kind:
            case exp.NotNullColumnConstraint() as rule:
                nullable = bool(rule.args.get("allow_null"))
            case exp.CommentColumnConstraint(this=exp.Literal() as comment):
                metadata = {"comment": comment.this}
            case other:
                raise CodecError(f"column {name}: {other.sql()} isn't supported")
    return {
        "name": column.name,
        "type": _type(kind, name),
        "nullable": nullable,
        "metadata": metadata,
    }


def _type(kind: exp.Expr, name: str) -> Any:
    inner = kind.expressions
    match getattr(kind.this, "value", None), len(inner):
        case "STRUCT", count if count:
            fields = [_field(child, f"{name}.") for child in inner]
            return {"type": "struct", "fields": fields}
        case "ARRAY", 1 if not kind.args.get("values"):
            element = {"elementType": _type(inner[0], f"{name}.element")}
            return {"type": "array", **element, "containsNull": True}
        case "MAP", 2:
            key = {"keyType": _type(inner[0], f"{name}.key")}
            value = {"valueType": _type(inner[1], f"{name}.value")}
            return {"type": "map", **key, **value, "valueContainsNull": True}
        case "DECIMAL", _:
            return _decimal([param.this for param in inner], name)
        case word, 0 if word in _TYPES:
            return _TYPES[word]
    if kind.this is exp.DType.USERDEFINED:
        near = did_you_mean(kind.sql(), _SPELLED)
        raise CodecError(f"unknown type {kind.sql()} for column {name}{near}")
    raise CodecError(f"column {name}: Delta has no type {kind.sql()}")


def _decimal(given: list[exp.Expr], name: str) -> str:
    if len(given) > 2 or not all(p.is_int for p in given):
        raise CodecError(f"column {name}: a decimal is DECIMAL(precision, scale)")
    precision, scale = (*(int(p.this) for p in given), *(10, 0)[len(given) :])
    if not 0 < precision <= _MAX_PRECISION or not 0 <= scale <= precision:
        raise CodecError(
            f"column {name}: a decimal has 1 to {_MAX_PRECISION} digits, and its scale "
            "is at most their number"
        )
    return f"decimal({precision},{scale})"


def _format_field(field: Field, between: str) -> str:
    text = f"{_format_name(field.name)}{between}{format_type(field)}"
    if not field.nullable:
        text += " NOT NULL"
    if isinstance(comment := field.metadata.get("comment"), str):
        text += " COMMENT '" + comment.replace("'", "''") + "'"
    return text


def _format_name(name: str) -> str:
    if _PLAIN.fullmatch(name) and name.upper() not in _NO_NAMES:
        (token,) = _Columns().tokenize(name)
        if token.token_type is TokenType.VAR:
            return name
    return "`" + name.replace("`", "``") + "`"
