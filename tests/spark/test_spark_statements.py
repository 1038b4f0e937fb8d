"""The parts of SQL statements, without Spark."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from delkalakedb.errors import QueryError
from delkalakedb.spark.sparksql.relations import _local_names, _parsed
from delkalakedb.spark.sparksql.statement import (
    Cursor,
    Name,
    Statement,
    column_path,
    joined,
    literal,
    prefixed,
    whole_name,
)


def cursor(text: str, args: Any = None) -> Cursor:
    return Cursor(Statement(text, args).whole)


@pytest.mark.parametrize(
    "text",
    [
        "a = 'WHERE; -- no comment' /* WHERE */ AND b > 1L",
        "`WHERE` = \"it's\" -- 'open\nAND x'1F' = c",
        "CASE WHEN a THEN b WHERE_ END = r'\\' || (SELECT 1 WHERE 2)",
        "t.case = 'x' AND s.end < 3",
        "a = 'it\\'s WHERE' AND b[(1)] = 'é😀'",
        "a /* /* nested WHERE */ */ = 1",
    ],
)
def test_condition_is_kept_as_it_was_written(text: str) -> None:
    statement = cursor(f"{text} WHERE rest;")

    assert statement.until("WHERE").text == text
    statement.need("WHERE")
    assert statement.identifier() == "rest"
    statement.finish()


def test_clauses_of_a_merge_are_told_from_those_of_a_case() -> None:
    words = cursor("CASE WHEN a THEN CASE WHEN b THEN c END END WHEN MATCHED THEN x")

    assert words.until("WHEN").text == "CASE WHEN a THEN CASE WHEN b THEN c END END"
    words.need("WHEN MATCHED")
    assert words.until("THEN").raw == ""


def test_lists_are_split_outside_of_brackets() -> None:
    values = Statement("f(a, b), 'c, d', e[1], CASE WHEN x THEN g(1, 2) END").whole
    columns = Statement("a STRUCT<x: INT, y: MAP<INT, INT>>, b DECIMAL(3, 2)").whole

    assert [part.raw for part in values.split()] == [
        *("f(a, b)", "'c, d'", "e[1]", "CASE WHEN x THEN g(1, 2) END")
    ]
    assert [part.raw for part in columns.split(types=True)] == [
        *("a STRUCT<x: INT, y: MAP<INT, INT>>", "b DECIMAL(3, 2)")
    ]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a", ["a"]),
        ("`a.b`.`c``d`.update", ["a.b", "c`d", "update"]),
        ("delta.`/tmp/a b`", ["delta", "/tmp/a b"]),
        ("`'; DROP TABLE x`", ["'; DROP TABLE x"]),
        ("1a.é", ["1a", "é"]),
    ],
)
def test_names_are_read_as_spark_reads_them(text: str, parts: list[str]) -> None:
    name = cursor(text).name()

    assert list(name.parts) == parts
    assert cursor(column_path(name)).name() == name


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (True, "TRUE"),
        (7, "7"),
        (-7, "(-7)"),
        (2**40, "1099511627776L"),
        (2**70, f"{2**70}BD"),
        (1.5, "CAST('1.5' AS DOUBLE)"),
        (Decimal("-1.50"), "(-1.50BD)"),
        ("plain", "'plain'"),
        ("it's", f"CAST(X'{b'it'.hex()}2773' AS STRING)"),
        ("${HOME}\\", f"CAST(X'{b'${HOME}'.hex()}5c' AS STRING)"),
        (b"\x01", "X'01'"),
        (date(2026, 1, 2), "DATE'2026-01-02'"),
        (
            datetime(2026, 1, 2, tzinfo=UTC),
            "TIMESTAMP'2026-01-02 00:00:00+00:00'",
        ),
        ([1, "a"], "array(1, 'a')"),
    ],
)
def test_values_become_literals(value: Any, text: str) -> None:
    assert literal(value) == text


def test_value_without_a_literal_is_refused() -> None:
    with pytest.raises(QueryError, match="can't be a timedelta"):
        literal(timedelta(1))


def test_parameters_are_replaced_where_they_are_parameters() -> None:
    named = Statement("a = :x AND s.b:x = ':x' /* :x */ OR c = :y", {"x": 1, "y": "z"})
    listed = Statement("a = ? AND b = '?' AND c = ?", [1, 2])

    assert named.whole.text == "a = 1 AND s.b:x = ':x' /* :x */ OR c = 'z'"
    assert listed.whole.text == "a = 1 AND b = '?' AND c = 2"
    for statement, marker in ((Statement(":x"), ":x"), (Statement("?", []), "1")):
        with pytest.raises(QueryError, match=f"{marker} has no value"):
            _ = statement.whole.text


def test_positional_parameters_keep_to_their_part() -> None:
    statement = Statement("? AND ? AND ?", ["a", "b", "c"])
    words = Cursor(statement.whole)
    first = words.until("AND")
    words.need("AND")
    rest = words.rest()

    assert rest.args() == ["b", "c"]
    assert prefixed("SELECT", rest).text == "SELECT 'b' AND 'c'"
    assert joined(first, rest).args() == ["a", "b", "c"]
    place = rest.tokens[0].start, rest.tokens[0].end
    assert rest.args([place]) == ["c"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a; b", "one statement"),
        ("'open", "can't parse"),
        ("a b", "the end of the statement is expected at: b"),
        ("'a'", "a name is expected at: 'a'"),
    ],
)
def test_malformed_statement_is_refused(text: str, problem: str) -> None:
    with pytest.raises(QueryError, match=problem):
        whole_name(Statement(text).whole)


def test_names_of_common_table_expressions_end_with_their_query() -> None:
    query = """
        WITH a AS (SELECT * FROM b), b AS (SELECT * FROM a, c)
        SELECT * FROM a, (WITH c AS (SELECT * FROM d) SELECT * FROM c, b)
        UNION ALL SELECT * FROM c
    """
    tables = [
        (table.name, table.name in _local_names(table))
        for table in _parsed(Statement(query).whole).find_all(_table())
    ]

    assert sorted(tables) == [
        *[("a", True)] * 2,
        *[("b", False), ("b", True)],
        *[("c", False)] * 2,
        *[("c", True), ("d", False)],
    ]


def _table() -> Any:
    from sqlglot import exp

    return exp.Table


def test_no_error_and_no_alias_shows_a_password() -> None:
    uri = "deltasql://postgres/me:hunter2@127.0.0.1:1/db/public?table=t"
    words = cursor(f"deltasql.`{uri}` x")
    name = words.name()

    assert (name.place, name.alias) == (uri, "t")
    assert "hunter2" not in str(name)
    assert Name(("delta", "/tmp/t")).alias == "__dk_table"
    for refused in (
        lambda: cursor(f"`{uri}` x").need("SET"),
        lambda: _parsed(Statement(f"SELECT a FROM deltasql.`{uri}` x)").whole),
        lambda: Statement(f"deltasql.`{uri}` 'open").tokens,
    ):
        with pytest.raises(QueryError) as raised:
            refused()
        assert "hunter2" not in str(raised.value)
