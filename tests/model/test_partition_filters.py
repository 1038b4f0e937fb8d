"""Conditions on partition columns as deltalake's filters."""

from datetime import date

import pytest
from hypothesis import given, strategies as st

from delkalakedb.errors import PredicateError
from delkalakedb.model.predicate.predicate import (
    PartitionFilter,
    parse_predicate,
    partition_filters,
)
from delkalakedb.model.schema.partition import format_partition_value
from delkalakedb.model.schema.schema import parse_schema

TYPES = {
    "s": "string",
    "n": "long",
    "d": "date",
    "b": "boolean",
    "m": "decimal(10,2)",
    "x": "double",
    "t": "timestamp",
    "other": "long",
}
FIELDS = ",".join(
    f'{{"name":"{name}","type":"{kind}","nullable":true,"metadata":{{}}}}'
    for name, kind in TYPES.items()
)
SCHEMA = parse_schema(f'{{"type":"struct","fields":[{FIELDS}]}}')
PARTITIONS = ("s", "n", "d", "b", "m", "x", "t")


def filters(where: str) -> list[PartitionFilter]:
    return partition_filters(parse_predicate(where, SCHEMA, PARTITIONS), PARTITIONS)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("s = 'a'", [("s", "=", "a")]),
        ("s = 'a' AND n >= 3", [("s", "=", "a"), ("n", ">=", "3")]),
        ("s = 'a' AND (n < 3 AND b = true)", 3),
        ("n IN (1, 2)", [("n", "in", ["1", "2"])]),
        ("d != '2026-01-31'", [("d", "!=", "2026-01-31")]),
        ("b = false", [("b", "=", "false")]),
        ("m > 1.50", [("m", ">", "1.50")]),
        ("n BETWEEN 1 AND 5", [("n", ">=", "1"), ("n", "<=", "5")]),
        ("NOT n = 1", [("n", "!=", "1")]),
    ],
)
def test_conjunction_becomes_tuples(
    where: str, expected: list[PartitionFilter] | int
) -> None:
    found = filters(where)

    assert found == expected or len(found) == expected


@pytest.mark.parametrize(
    "where",
    [
        "other = 1",
        "s = 'a' AND other = 1",
        "s = 'a' OR n = 1",
        "s LIKE 'a%'",
        "length(s) = 1",
        "s IS NULL",
        "x = 1.5",
        "t = '2026-01-31 12:00:00'",
    ],
)
def test_anything_else_is_refused(where: str) -> None:
    with pytest.raises(PredicateError, match="partition"):
        filters(where)


@given(st.dates(date(1, 1, 1)))
def test_date_is_written_as_in_the_log(day: date) -> None:
    assert filters(f"d = '{day}'") == [("d", "=", format_partition_value(day, "date"))]


@given(st.integers(-(2**63), 2**63 - 1))
def test_number_is_written_as_in_the_log(number: int) -> None:
    assert filters(f"n = {number}") == [("n", "=", str(number))]
