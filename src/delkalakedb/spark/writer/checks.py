"""The rules of a table for its rows, which Spark checks as it writes rows."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import and_
from typing import cast

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, functions as sf
from pyspark.sql.types import (
    ArrayType,
    DataType,
    MapType,
    StructField,
    StructType,
)

from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import Metadata, known
from delkalakedb.spark.schemas import quoted, table_schema

Check = tuple[Column, str]

CURRENT_DEFAULT = "CURRENT_DEFAULT"
_CONSTRAINT = "delta.constraints."
_GENERATED = "delta.generationExpression"
_INVARIANTS = "delta.invariants"
# tells errors of these checks from errors in users' expressions
_MARK = "a row breaks a rule of the table: "


def finished(
    rows: DataFrame, metadata: Metadata, given: Collection[str] | None = None
) -> DataFrame:
    """Return `rows` with generated columns, which fail to be written if invalid.

    Args:
        rows: the table's columns, and maybe other columns.
        metadata: the metadata of the version that the rows are for.
        given: the generated columns whose values are checked instead of computed; by
            default all.
    """
    generated = generated_columns(metadata)
    computed = {
        name: value
        for name, value in generated.items()
        if given is not None and name not in given
    }
    if computed:
        rows = rows.withColumns(computed)
    stated = {name: generated[name] for name in generated.keys() - computed.keys()}
    return required(rows, _checks(metadata, stated), metadata)


def generated_columns(metadata: Metadata) -> dict[str, Column]:
    """Return the expressions of the table's generated columns."""
    return {
        field.name: sf.expr(field.metadata[_GENERATED]).cast(field.dataType)
        for field in table_schema(metadata)
        if _GENERATED in field.metadata
    }


def default_columns(schema: StructType) -> dict[str, Column]:
    """Return the values that columns have in rows without a value for them."""
    return {
        field.name: sf.expr(field.metadata[CURRENT_DEFAULT]).cast(field.dataType)
        for field in schema
        if CURRENT_DEFAULT in field.metadata
    }


def check_defaults(spark: SparkSession, schema: StructType) -> None:
    """Raise `DeltaError` if Spark can't evaluate a column's default by itself."""
    for name, value in default_columns(schema).items():
        try:
            spark.range(1).drop("id").select(value).schema  # noqa: B018
        except PySparkException as error:
            given = schema[name].metadata[CURRENT_DEFAULT]
            raise DeltaError(
                f"column {name}: {given!r} can't be a default; give a constant "
                f"expression: {error}"
            ) from error


def required(rows: DataFrame, checks: Iterable[Check], metadata: Metadata) -> DataFrame:
    """Return `rows`, which fail to be written unless all conditions are true."""
    checks = list(checks)
    if not checks:
        return rows
    # the first stored column, because Spark must evaluate its value
    column = next(
        field
        for field in table_schema(metadata)
        if field.name not in metadata.partition_columns
    )
    value = sf.col(quoted(column.name))
    for condition, message in reversed(checks):
        failure = sf.raise_error(sf.lit(f"{_MARK}{message}")).cast(column.dataType)
        value = sf.when(sf.coalesce(condition, sf.lit(False)), value).otherwise(failure)
    return rows.withColumn(column.name, value)


@contextmanager
def violations_explained() -> Iterator[None]:
    """Turn Spark's error for a row that breaks a rule into a `DeltaError`."""
    try:
        yield
    except Exception as error:  # of py4j, too, with pyspark 3.5
        _, mark, message = str(error).partition(_MARK)
        if not mark:
            raise
        said = message.splitlines()[0].partition(" SQLSTATE:")[0]
        raise DeltaError(f"{_MARK}{said}") from error


def _checks(metadata: Metadata, generated: dict[str, Column]) -> Iterator[Check]:
    for field in table_schema(metadata):
        column = sf.col(quoted(field.name))
        yield from _not_null(column, field)
        if field.name in generated:
            expression = field.metadata[_GENERATED]
            same = column.eqNullSafe(generated[field.name])
            yield same, f"generated column {field.name} isn't {expression}"
        if _INVARIANTS in field.metadata:
            invariant = msgspec.json.decode(field.metadata[_INVARIANTS])
            expression = str(invariant["expression"]["expression"])
            yield sf.expr(expression), f"invariant {expression} of {field.name}"
    for key, expression in (known(metadata.configuration) or {}).items():
        if key.lower().startswith(_CONSTRAINT) and expression is not None:
            name = key[len(_CONSTRAINT) :]
            yield sf.expr(expression), f"CHECK constraint {name} ({expression})"


def _not_null(column: Column, field: StructField) -> Iterator[Check]:
    if not field.nullable:
        yield column.isNotNull(), f"column {field.name} is NOT NULL"
    if (sound := _sound(column, field.dataType)) is not None:
        yield column.isNull() | sound, f"a part of column {field.name} is NOT NULL"


def _sound(value: Column, kind: DataType) -> Column | None:
    """Return the condition that `value` has no null in a place that is NOT NULL."""
    if isinstance(kind, StructType):
        return _both(
            *(_allowed(value.getField(f.name), f.dataType, f.nullable) for f in kind)
        )
    if isinstance(kind, ArrayType):
        return _each(value, kind.elementType, kind.containsNull)
    if isinstance(kind, MapType):
        return _both(
            _each(sf.map_keys(value), kind.keyType, True),
            _each(sf.map_values(value), kind.valueType, kind.valueContainsNull),
        )
    return None


def _allowed(value: Column, kind: DataType, nullable: bool) -> Column | None:
    sound = _sound(value, kind)
    if nullable:
        return None if sound is None else value.isNull() | sound
    return _both(value.isNotNull(), sound)


def _each(items: Column, kind: DataType, nullable: bool) -> Column | None:
    if _allowed(sf.lit(None), kind, nullable) is None:
        return None
    return sf.forall(items, lambda item: cast(Column, _allowed(item, kind, nullable)))


def _both(*conditions: Column | None) -> Column | None:
    found = [condition for condition in conditions if condition is not None]
    return reduce(and_, found) if found else None
