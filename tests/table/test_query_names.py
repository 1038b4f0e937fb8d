"""Which words of a query name tables and versions, and which don't."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import delkalakedb as dk
from delkalakedb.errors import CodecError, PredicateError, QueryError
from delkalakedb.model.schema.ddl import parse_ddl

# The table of each name has one row more in its version 1 than in version 0.
TABLES = {"sales": 2, "version": 3, "as": 4, "a.b": 5, "x@1": 6, "Ünï": 7, 'q"t': 8}


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dk.Catalog]:
    folder = tmp_path_factory.mktemp("names")
    with dk.connect(f"deltasql://sqlite/{folder}/meta.db") as catalog:
        for name, count in TABLES.items():
            catalog.write(name, pa.table({"id": range(count)}))
            catalog.write(name, pa.table({"id": [count]}), mode="append")
        yield catalog


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        # common table expressions of a table's name
        ("WITH sales AS (SELECT 9 AS q) FROM sales", [(9,)]),
        ("WITH sales AS (FROM sales) SELECT count(*) FROM sales", [(3,)]),
        ("WITH sales AS (FROM sales@0) SELECT count(*) FROM sales", [(2,)]),
        ("WITH sales AS (SELECT 9) SELECT count(*) FROM sales@0", [(2,)]),
        ("WITH a AS (FROM sales), b AS (FROM a) SELECT count(*) FROM b", [(3,)]),
        (
            "WITH RECURSIVE sales(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM sales "
            "WHERE n < 3) SELECT count(*) FROM sales, version@0",
            [(9,)],
        ),
        (
            "SELECT * FROM (WITH sales AS (SELECT 9) FROM sales), sales@0",
            [(9, 0), (9, 1)],
        ),
        # names that are used within
        (
            "WITH dk1 AS (SELECT 9 AS q) SELECT count(*), max(q) FROM sales, dk1",
            [(3, 9)],
        ),
        (
            "WITH t0 AS (SELECT 9 AS q) SELECT max(q) FROM sales, t0 WHERE id > 1",
            [(9,)],
        ),
        ("SELECT dk1.id AS t0c0 FROM sales dk1 WHERE dk1.id = 2", [(2,)]),
        # subqueries and lateral joins
        (
            "SELECT (SELECT count(*) FROM sales@0), (SELECT count(*) FROM sales)",
            [(2, 3)],
        ),
        (
            "SELECT count(*) FROM sales s, LATERAL (FROM version@0 v "
            "WHERE v.id = s.id)",
            [(3,)],
        ),
        ("SELECT count(*) FROM sales WHERE id IN (FROM sales@0)", [(2,)]),
        # what follows a version
        ("SELECT s.a FROM sales@0 AS s(a) WHERE a > 0", [(1,)]),
        ("SELECT count(*) FROM sales@0 s JOIN sales@1 USING (id)", [(2,)]),
        ("FROM sales@0 SEMI JOIN version USING (id) SELECT count(*)", [(2,)]),
        ("SELECT id FROM sales@0 QUALIFY row_number() OVER (ORDER BY id) = 1", [(0,)]),
        ("SELECT count(*) FROM sales/**/VERSION -- at\nAS /* a */ OF 0", [(2,)]),
        ("SELECT count(*) FROM sales FOR SYSTEM_VERSION AS OF 0 WHERE true", [(2,)]),
        ("SELECT count(*) FROM sales FOR SYSTEM_TIME AS OF '2999-01-01'", [(3,)]),
        ("SELECT count(*) FROM SALES@0;", [(2,)]),
    ],
)
def test_tables_are_found_wherever_they_are_named(
    lake: dk.Catalog, sql: str, rows: list[Any]
) -> None:
    assert sorted(lake.sql(sql).fetchall()) == rows


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# Texts that look like versions of tables.
ODD = st.sampled_from(
    [
        "sales@0",
        "sales VERSION AS OF 0",
        "it's",
        '"',
        "--",
        "/*",
        "*/",
        "$$",
        "\\",
        "@1",
    ]
) | st.text(st.sampled_from("sales@0 '\"$-/*\\;é\n"), max_size=8)
TEXTS = ODD.map(lambda text: (f"'{text.replace(chr(39), chr(39) * 2)}'", text)) | (
    ODD.filter(lambda t: "$" not in t).map(lambda text: (f"$a$ {text}$a$", f" {text}"))
)
COMMENTS = (
    st.just(" ")
    | ODD.map(lambda text: f" -- {text}".replace("\n", " ") + "\n")
    | ODD.map(lambda t: f" /* {t.replace('*', '').replace('/', '')} */ ")
)
ALIASES = st.sampled_from(["", " AS s", " s", ' AS "sales@1"', ' "x VERSION AS OF 1"'])
VERSIONS = st.sampled_from(["", "@0", "@1", " VERSION AS OF 0", " FOR VERSION AS OF 1"])


@given(
    table=st.sampled_from([*TABLES]),
    version=VERSIONS,
    alias=ALIASES,
    text=TEXTS,
    gaps=st.tuples(COMMENTS, COMMENTS, COMMENTS),
    shadow=st.sampled_from(["", "WITH other AS (SELECT 'sales@0')"]),
)
def test_texts_comments_and_quotes_hide_what_looks_like_a_table(
    lake: dk.Catalog,
    table: str,
    version: str,
    alias: str,
    text: tuple[str, str],
    gaps: tuple[str, str, str],
    shadow: str,
) -> None:
    one, two, three = gaps
    sql = (
        f"{shadow}{one}SELECT {text[0]} AS {quoted('c ' + table)},{two}count(*){one}"
        f"FROM{two}{quoted(table)}{version}{alias}{three}WHERE {text[0]} IS NOT NULL"
    )
    count = TABLES[table] + (not version.endswith("0"))

    assert lake.sql(sql).fetchall() == [(text[1], count)], sql


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT idd FROM sales", 'column "idd" not found; did you mean id?'),
        ("SELECT s.idd FROM sales s", '"s": column "idd" not found; did you mean id?'),
        ("SELECT price FROM sales", 'column "price" not found; there are id'),
        ("SELECT slaes.id FROM sales", 'table "slaes" not found; did you mean sales?'),
        ("SELECT 'x'::INT", "Could not convert string 'x'"),
        ("SELECT id FROM sales AT (VERSION => ?)", "a version or a time is written in"),
    ],
)
def test_errors_name_what_is_near_and_no_class_of_duckdb(
    lake: dk.Catalog, sql: str, words: str
) -> None:
    with pytest.raises(QueryError) as caught:
        lake.sql(sql, params=[0] if "?" in sql else None).fetchall()

    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id INTT", "unknown type INTT for column id; did you mean INT"),
        ("a MAP<STRING, STRNG>", "unknown type STRNG for column a.value; did you mean"),
        ("id INT, a INT b INT", "not a list of columns in SQL: expected ) at 'b', col"),
    ],
)
def test_wrong_columns_are_named(text: str, words: str) -> None:
    with pytest.raises(CodecError) as caught:
        parse_ddl(text)

    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("id =", "can't parse 'id =': an operand is missing at '=', column 4"),
        ("id = 1 AND", "can't parse 'id = 1 AND': an operand is missing at 'AND', col"),
        ("(id", "can't parse '(id': expected ) at 'id', column 2"),
        ("SELECT 1", "can't parse 'SELECT 1': unexpected text at 'SELECT', column 1"),
    ],
)
def test_wrong_filter_says_where(lake: dk.Catalog, where: str, words: str) -> None:
    with pytest.raises(PredicateError) as caught:
        list(lake.snapshot("sales").iter_files(where))

    assert str(caught.value).startswith(words)
