"""Columns as SQL become Delta's schema, and Delta's schema becomes SQL again."""

import json
from typing import Any

import pytest
from deltalake import Schema as DeltaSchema
from hypothesis import given, strategies as st

from delkalakedb.errors import CodecError, SchemaMismatchError
from delkalakedb.model.schema.ddl import format_ddl, format_type, parse_ddl
from delkalakedb.model.schema.schema import parse_schema

PRIMITIVES = (
    "binary",
    "boolean",
    "byte",
    "date",
    "double",
    "float",
    "integer",
    "long",
    "short",
    "string",
    "timestamp",
    "timestamp_ntz",
)
WORDS = ("check", "comment", "date", "from", "if", "like", "primary", "select")


def columns(text: str) -> list[tuple[str, Any, bool]]:
    fields = json.loads(parse_ddl(text))["fields"]
    return [(field["name"], field["type"], field["nullable"]) for field in fields]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("TINYINT", "byte"),
        ("SHORT", "short"),
        ("INTEGER", "integer"),
        ("LONG", "long"),
        ("REAL", "float"),
        ("DOUBLE", "double"),
        ("VARCHAR", "string"),
        ("STRING", "string"),
        ("BLOB", "binary"),
        ("BOOLEAN", "boolean"),
        ("DATE", "date"),
        ("TIMESTAMP", "timestamp"),
        ("TIMESTAMPTZ", "timestamp"),
        ("TIMESTAMP_NTZ", "timestamp_ntz"),
        ("VARIANT", "variant"),
        ("DECIMAL", "decimal(10,0)"),
        ("DECIMAL(5)", "decimal(5,0)"),
        ("NUMERIC(38, 10)", "decimal(38,10)"),
    ],
)
def test_type_is_that_of_delta(written: str, expected: str) -> None:
    assert columns(f"a {written}") == [("a", expected, True)]


@pytest.mark.parametrize(
    ("spark", "duckdb"),
    [
        ("a ARRAY<INT>", "a INTEGER[]"),
        ("a ARRAY<ARRAY<STRING>>", "a VARCHAR[][]"),
        ("a MAP<STRING, BIGINT>", "a MAP(VARCHAR, BIGINT)"),
        ("a STRUCT<b: INT, `c d`: STRING>", 'a STRUCT(b INTEGER, "c d" VARCHAR)'),
    ],
)
def test_nested_types_are_read_as_spark_and_as_duckdb_write_them(
    spark: str, duckdb: str
) -> None:
    assert parse_ddl(spark) == parse_ddl(duckdb)


def test_nullability_and_comments_are_kept() -> None:
    text = "id BIGINT NOT NULL COMMENT 'it''s \\ it', s STRUCT<x: INT NOT NULL>"
    first, second = json.loads(parse_ddl(text))["fields"]

    assert (first["nullable"], first["metadata"]) == (False, {"comment": "it's \\ it"})
    assert second["nullable"]
    assert second["type"]["fields"][0]["nullable"] is False


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "name TYPE"),
        ("a", "not a column with a type: a"),
        ("a INT, PRIMARY KEY (a)", "not a column with a type: PRIMARY KEY"),
        ("a INT) AS SELECT (1", "name TYPE"),
        ("a INT); DROP TABLE x; --", "not a list of columns in SQL"),
        ("a NOPE", "unknown type NOPE for column a"),
        ("a INT DEFAULT 3", "column a: DEFAULT 3 isn't supported"),
        ("a INT UNIQUE", "column a: UNIQUE isn't supported"),
        ("a VARCHAR(10)", r"column a: Delta has no type VARCHAR\(10\)"),
        ("a TIME", "column a: Delta has no type TIME"),
        ("a ARRAY", "column a: Delta has no type ARRAY"),
        ("a INTEGER[3]", "column a: Delta has no type"),
        ("a STRUCT<b: MAP<INT, UUID>>", "column a.b.value: Delta has no type UUID"),
        ("a STRUCT<INT>", "not a column with a type"),
        ("a INTERVAL YEAR", "column a: Delta has no type"),
        ("a DECIMAL(39,0)", "1 to 38 digits"),
        ("a DECIMAL(2,3)", "1 to 38 digits"),
        ("a DECIMAL(x)", "DECIMAL\\(precision, scale\\)"),
        ("a DECIMAL(1,1,1)", "DECIMAL\\(precision, scale\\)"),
        ("a.b INT", "needs backticks"),
        pytest.param(
            "a " + "ARRAY<" * 5000 + "INT", "not a list of columns in SQL", id="deep"
        ),
    ],
)
def test_what_delta_cannot_hold_is_refused_by_name(text: str, problem: str) -> None:
    with pytest.raises(CodecError, match=problem):
        parse_ddl(text)


def test_column_that_is_there_twice_is_refused() -> None:
    with pytest.raises(SchemaMismatchError, match="has the column A twice"):
        parse_ddl("a INT, A INT")


# ---- properties

text = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8)
names = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from([word.upper() for word in WORDS]),
    st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_]{0,5}\Z"),
    text.filter(bool),
)
decimals = st.integers(1, 38).flatmap(
    lambda p: st.integers(0, p).map(lambda s: f"decimal({p},{s})")
)


def fields(types: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    one = st.fixed_dictionaries(
        {
            "name": names,
            "type": types,
            "nullable": st.booleans(),
            "metadata": st.one_of(
                st.just({}), st.fixed_dictionaries({"comment": text})
            ),
        }
    )
    return st.lists(
        one, min_size=1, max_size=3, unique_by=lambda field: field["name"].lower()
    )


def nested(types: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(
            lambda t: {"type": "array", "elementType": t, "containsNull": True}, types
        ),
        st.builds(
            lambda k, v: {
                "type": "map",
                "keyType": k,
                "valueType": v,
                "valueContainsNull": True,
            },
            types,
            types,
        ),
        fields(types).map(lambda inner: {"type": "struct", "fields": inner}),
    )


types = st.recursive(st.sampled_from(PRIMITIVES) | decimals, nested, max_leaves=6)


@given(fields(types))
def test_schema_survives_the_way_through_sql(schema: list[dict[str, Any]]) -> None:
    written = json.dumps({"type": "struct", "fields": schema})
    ddl = format_ddl(parse_schema(written))

    assert json.loads(parse_ddl(ddl)) == {"type": "struct", "fields": schema}


@given(fields(types))
def test_parsed_schema_is_one_that_deltalake_reads(
    schema: list[dict[str, Any]],
) -> None:
    written = json.dumps({"type": "struct", "fields": schema})
    parsed = parse_ddl(format_ddl(parse_schema(written)))

    assert DeltaSchema.from_json(parsed) == DeltaSchema.from_json(written)


def test_type_is_written_as_create_takes_it() -> None:
    (field,) = parse_schema(parse_ddl("a STRUCT<b: ARRAY<LONG> NOT NULL>")).fields

    assert format_type(field) == "STRUCT<b: ARRAY<BIGINT> NOT NULL>"
