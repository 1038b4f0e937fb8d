"""Predicates: SQL and tuples in, one normal form out."""

import json
from contextlib import suppress
from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from delkalakedb.errors import PredicateError
from delkalakedb.model.predicate.predicate import (
    And,
    Anything,
    Comparison,
    In,
    IsNotNull,
    IsNull,
    Nothing,
    Op,
    Or,
    Predicate,
    StartsWith,
    negate,
    parse_predicate,
)
from delkalakedb.model.predicate.sql import reads_alike
from delkalakedb.model.schema.schema import Column, parse_schema
from tests.support.examples import examples


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


LIST = {"type": "array", "elementType": "long", "containsNull": True}
DEEPER = struct(field("x", "long"), field("y", LIST))
SCHEMA = parse_schema(
    json.dumps(
        struct(
            field("id", "long"),
            field("name", "string"),
            field("price", "decimal(10,2)"),
            field("ratio", "double"),
            field("day", "date"),
            field("at", "timestamp"),
            field("local", "timestamp_ntz"),
            field("ok", "boolean"),
            field("raw", "binary"),
            field("tags", LIST),
            field("a.b", "long"),
            field(
                "deep",
                struct(field("er", struct(field("x", "long"), field("y", LIST)))),
            ),
            field("group", "string"),
        )
    )
)
DAY = 86_400_000_000


def col(name: str) -> Column:
    found = SCHEMA.column(name)
    assert found is not None
    return found


def parse(text: Any) -> Predicate:
    return parse_predicate(text, SCHEMA, ["group"])


def eq(name: str, value: Any, op: Op = Op.EQ) -> Comparison:
    return Comparison(col(name), op, value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 5", eq("id", 5)),
        ("ID == 5", eq("id", 5)),
        ("5 < id", eq("id", 5, Op.GT)),
        ("5 >= (id)", eq("id", 5, Op.LE)),
        ("id <> -5", eq("id", -5, Op.NE)),
        ("id = - -5", eq("id", 5)),
        ("id = '5'", eq("id", 5)),
        ("id < 5.5", eq("id", Decimal("5.5"), Op.LT)),
        ("id = CAST('5' AS BIGINT)", eq("id", 5)),
        ("price >= 0.10", eq("price", Decimal("0.10"), Op.GE)),
        ("price = CAST(1.5 AS DECIMAL(10,2))", eq("price", Decimal("1.5"))),
        ("ratio = 1e3", eq("ratio", 1000)),
        ("ratio > 'Infinity'", eq("ratio", float("inf"), Op.GT)),
        ("name = 'it''s'", eq("name", "it's")),
        ("name = 'back\\slash'", eq("name", "back\\slash")),
        ("\"name\" = 'x'", eq("name", "x")),
        ("`a.b` = 1", eq("a.b", 1)),
        ('"a.b" = 1', eq("a.b", 1)),
        ("deep.er.x = 1", eq("deep.er.x", 1)),
        ("`deep`.er.`x` = 1", eq("deep.er.x", 1)),
        ("day = '1970-01-02'", eq("day", 1)),
        ("day = DATE '1970-01-02'", eq("day", 1)),
        ("day = '1970-01-02'::date", eq("day", 1)),
        ("CAST('1970-01-02' AS DATE) = day", eq("day", 1)),
        ("day < TIMESTAMP '1970-01-02 12:00:00'", eq("day", Decimal("1.5"), Op.LT)),
        ("at = '1970-01-02'", eq("at", DAY)),
        ("at = TIMESTAMP '1970-01-02 00:00:00.000001'", eq("at", DAY + 1)),
        ("at = '1970-01-02T01:00:00+01:00'", eq("at", DAY)),
        ("local > '1970-01-02 00:00:00'", eq("local", DAY, Op.GT)),
        ("ok", eq("ok", 1)),
        ("NOT ok", eq("ok", 1, Op.NE)),
        ("ok = false", eq("ok", 0)),
        ("ok = 'true'", eq("ok", 1)),
        ("id IS NULL", IsNull(col("id"))),
        ("id IS NOT NULL", IsNotNull(col("id"))),
        ("tags IS NULL", IsNull(col("tags"))),
        ("id IN (1, 2)", In(col("id"), (1, 2))),
        ("id NOT IN (1, 2)", And((eq("id", 1, Op.NE), eq("id", 2, Op.NE)))),
        ("id IN (1, NULL)", Or((In(col("id"), (1,)), Nothing()))),
        ("id NOT IN (1, NULL)", And((And((eq("id", 1, Op.NE),)), Nothing()))),
        ("id BETWEEN 1 AND 2", And((eq("id", 1, Op.GE), eq("id", 2, Op.LE)))),
        ("id NOT BETWEEN 1 AND 2", Or((eq("id", 1, Op.LT), eq("id", 2, Op.GT)))),
        ("name LIKE 'ab%c'", StartsWith(col("name"), "ab")),
        ("name LIKE 'ab_'", StartsWith(col("name"), "ab")),
        ("name LIKE 'ab'", eq("name", "ab")),
        ("name LIKE 'a!_b!!%' ESCAPE '!'", StartsWith(col("name"), "a_b!")),
        ("name LIKE 'a\\_b%'", StartsWith(col("name"), "a")),
        ("name NOT LIKE 'ab%'", Anything()),
        ("NOT name LIKE 'ab%'", Anything()),
        ("id = NULL", Nothing()),
        ("NOT id = NULL", Nothing()),
        ("id <=> NULL", IsNull(col("id"))),
        ("id <=> 5", And((eq("id", 5), IsNotNull(col("id"))))),
        ("id IS DISTINCT FROM 5", Or((eq("id", 5, Op.NE), IsNull(col("id"))))),
        ("ok IS NOT TRUE", Or((eq("ok", 1, Op.NE), IsNull(col("ok"))))),
        ("id = 1 AND id = 2 AND ok", And((eq("id", 1), eq("id", 2), eq("ok", 1)))),
        ("NOT (id = 1 OR ok)", And((eq("id", 1, Op.NE), eq("ok", 1, Op.NE)))),
        ("TRUE", And(())),
        ("NOT TRUE", Or(())),
        ("NULL", Nothing()),
    ],
)
def test_sql_is_understood(text: str, expected: Predicate) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "lower(name) = 'x'",
        "id = price",
        "id + 1 = 2",
        "CAST(id AS INT) = 2",
        "name = 5",
        "name = DATE '1970-01-01'",
        "id = 'five'",
        "id = TRUE",
        "ratio = CAST('NaN' AS DOUBLE)",
        "ratio = CAST(0.1 AS FLOAT)",
        "id = CAST(300 AS TINYINT)",
        "id = CAST(1.5 AS INT)",
        "price = CAST(1.567 AS DECIMAL(10,2))",
        "at = CAST('1970-01-01 00:00:00.5' AS TIMESTAMP(0))",
        "at = '1970-01-01 00:00:00.1234567'",
        "day = '70-1-1'",
        "day = 5",
        "local = '1970-01-01T00:00:00Z'",
        "raw = X'ff'",
        "raw = 'x'",
        "tags = 5",
        "tags[0] = 5",
        "deep.er.y.z = 5",
        "name ILIKE 'x%'",
        "id LIKE '5%'",
        "id IN (1, price)",
        "id IN (SELECT other FROM elsewhere)",
        "id = 1e999999999",
        "CASE WHEN ok THEN TRUE END",
        "day > current_date",
    ],
)
def test_sql_that_is_not_understood_keeps_everything(text: str) -> None:
    found = parse(text)
    leaves = found.parts if isinstance(found, And) else (found,)
    assert all(leaf == Anything() for leaf in leaves)
    assert negate(Anything()) == Anything()


def test_a_string_literal_is_not_read_as_a_name() -> None:
    with pytest.raises(PredicateError, match="no column x"):
        parse('name = "x"')


@pytest.mark.parametrize("text", ["nope = 1", "abs(nope) = 1", "deep.nope = 1"])
def test_an_unknown_column_is_named_along_with_those_there_are(text: str) -> None:
    with pytest.raises(PredicateError, match=r"no column .*nope; .*deep\.er\.x"):
        parse(text)


@pytest.mark.parametrize("text", ["id =", "id = 1 2", "name = 'x", "", "id = 1; ok"])
def test_sql_that_is_not_a_condition_is_refused(text: str) -> None:
    with pytest.raises(PredicateError):
        parse(text)


def test_a_syntax_error_says_where() -> None:
    with pytest.raises(PredicateError, match=r"unexpected text at '2', column 8"):
        parse("id = 1 2")


def test_a_filter_nested_too_deeply_is_refused() -> None:
    with pytest.raises(PredicateError, match="too deeply"):
        parse("(" * 5000 + "ok" + ")" * 5000)


def test_a_long_disjunction_is_understood() -> None:
    found = parse(" OR ".join(f"id = {number}" for number in range(3000)))
    assert isinstance(found, Or)
    assert len(found.parts) == 3000


@pytest.mark.parametrize("filters", [None, []])
def test_no_filter_keeps_everything(filters: Any) -> None:
    assert parse(filters) == Anything()


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([("id", "=", 5)], And((eq("id", 5),))),
        ([("id", "==", "5")], And((eq("id", 5),))),
        ([("group", ">=", 12)], And((eq("group", "12", Op.GE),))),
        ([("group", "=", True)], And((eq("group", "true"),))),
        ([("day", "<", date(1970, 1, 2))], And((eq("day", 1, Op.LT),))),
        ([("id", "in", {5})], And((In(col("id"), (5,)),))),
        ([("id", "not in", [5])], And((And((eq("id", 5, Op.NE),)),))),
        ([("id", "=", "")], And((IsNull(col("id")),))),
        ([("id", "!=", "")], And((IsNotNull(col("id")),))),
        ([("id", ">", "")], And((Nothing(),))),
        ([("deep.er.x", "=", 5)], And((eq("deep.er.x", 5),))),
        ([("raw", "=", b"x")], And((Anything(),))),
        ([("group", "=", "")], And((IsNull(col("group")),))),
        (
            [("group", "in", ["a", ""])],
            And((Or((In(col("group"), ("a",)), Nothing())),)),
        ),
        ([("name", "=", "")], And((Or((IsNull(col("name")), eq("name", ""))),))),
        ([("name", "!=", "")], And((IsNotNull(col("name")),))),
        ([("name", "in", ["a", ""])], And((In(col("name"), ("a", "")),))),
        (
            [[("id", "=", 1), ("ok", "=", False)], [("id", "=", 2)]],
            Or((And((eq("id", 1), eq("ok", 0))), And((eq("id", 2),)))),
        ),
    ],
)
def test_tuples_are_understood(filters: Any, expected: Predicate) -> None:
    assert parse(filters) == expected


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        ([("nope", "=", 1)], "no column nope"),
        ([("id", "~", 1)], "unknown operator '~'"),
        ([("id", "in", "abc")], "not a list"),
        ([("id", "=")], "not a \\(column, op, value\\)"),
        ([("id", "=", "five")], "can't be compared with a long"),
        ([[]], "empty"),
        ([[("id", "=", 1)], []], "empty"),
        ([5], "not a \\(column, op, value\\)"),
    ],
)
def test_tuples_that_make_no_sense_are_refused(filters: Any, words: str) -> None:
    with pytest.raises(PredicateError, match=words):
        parse(filters)


@settings(max_examples=examples(300), deadline=None)
@given(st.text(st.sampled_from("id=<>'\"`().,%;:[]*-+ 0NOTinANDlike\\\n"), max_size=25))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with suppress(PredicateError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "alike"),
    [
        ("ok IS NOT DISTINCT FROM true AND id = 5", False),
        ("id = 5 AND ok IS DISTINCT FROM true AND name = 'a'", False),
        ("ok IS DISTINCT FROM true OR id = 5", False),
        ("NOT ok IS DISTINCT FROM true AND id = 5", False),
        ("ok\nIS NOT\tDISTINCT /* ( */ FROM true\nAND id = 5", False),
        ("ok IS DISTINCT FROM (id = 5) AND id = 5", False),
        ("(ok IS DISTINCT FROM true AND id = 5) OR id = 6", False),
        ("id IS DISTINCT FROM 5 = ok", False),
        ("ok IS DISTINCT FROM ok IS DISTINCT FROM ok", False),
        ("id = 5 AND (NOT (ok IS DISTINCT FROM (ok AND ok))) AND id < 9", True),
        ("id = 5 AND ok IS DISTINCT FROM true", True),
        ("(id IS NOT DISTINCT FROM 5) AND id < 9", True),
        ("id IS DISTINCT FROM 5", True),
    ],
)
def test_comparison_that_delta_rs_takes_for_more_is_known(
    text: str, alike: bool
) -> None:
    assert reads_alike(text) is alike


def test_partitions_of_a_type_that_does_not_sort_are_not_chosen_by_tuples() -> None:
    with pytest.raises(PredicateError, match="can't use tags of type array"):
        parse_predicate([("tags", "=", "x")], SCHEMA, ["tags"])
