"""A query reads the files that its filter leaves, and finds the rows that match.

Each row is in a file of its own, so that a file left out wrongly is a row lost.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import delkalakedb as dk
from delkalakedb.deltalake import predicate_from
from delkalakedb.model.predicate.predicate import Anything, Predicate
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.query import sources
from delkalakedb.query.selection import select

NAN, INF = float("nan"), float("inf")
# more digits than a double has, or Python's sums
BIG = Decimal("1234567890123456789012345678.0123456789")
BIGGER = Decimal("1234567890123456789012345678.0123456790")
SCHEMA = pa.schema(
    [
        ("k", pa.int64()),
        ("i", pa.int32()),
        ("x", pa.int8()),
        ("f", pa.float64()),
        ("g", pa.float32()),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("n", pa.decimal128(38, 10)),
        ("b", pa.bool_()),
        ("t", pa.timestamp("us", "UTC")),
        ("z", pa.timestamp("us")),
        ("y", pa.binary()),
        ("st", pa.struct([("a", pa.int32()), ("s", pa.string())])),
        ("l", pa.list_(pa.int32())),
        ("p", pa.string()),
    ]
)
COLUMNS: dict[str, list[Any]] = {
    "k": [0, 1, 2, 3, 4, 5, 6, 7],
    "i": [1, 2, None, 4, -5, 6, 7, 2_147_483_647],
    "x": [1, -128, None, 127, 0, 5, 6, 7],
    "f": [0.5, None, NAN, -1.0, INF, -INF, -0.0, 1e300],
    "g": [0.1, None, NAN, -1.5, INF, 3.4e38, 0.0, 16_777_217.0],
    "s": ["a", "b", None, "", "it's", "é", "a%b", "A"],
    "d": [date(1969, 12, 31), *(date(2026, 1, day) for day in range(2, 8)), None],
    "n": [
        Decimal("1.1"),
        None,
        Decimal("-2.2"),
        Decimal(0),
        BIG,
        BIGGER,
        1,
        Decimal(7),
    ],
    "b": [True, False, None, True, False, True, None, False],
    "t": [
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        *(datetime(2026, 1, d, 12, 30, 0, d, tzinfo=UTC) for d in range(2, 8)),
        None,
    ],
    "z": [
        None,
        *(datetime(2026, 3, 29, 2, 30, 0, 1000 * n + 1) for n in range(6)),
        datetime(1, 1, 1),
    ],
    "y": [b"a", b"", None, b"\xff\x00", b"b", b"c", b"d", b"e"],
    "st": [
        {"a": 1, "s": "x"},
        {"a": None, "s": "y"},
        None,
        {"a": 4, "s": None},
        *({"a": n, "s": "z"} for n in (5, 6, 7, 8)),
    ],
    "l": [[1], [], None, [None], [1, 2], [3], [4], [5]],
    "p": ["a", "b", None, "a", "c d", "é/", "b", "a%b"],
}
OTHER = pa.table({"k": [0, 4, 4, 9], "i": [4, 4, None, 1], "s": ["a", "x", None, "z"]})


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dk.Catalog]:
    """A table with a file for each row, another one, and a past of the first."""
    uri = f"deltasql://sqlite/{tmp_path_factory.mktemp('filters')}/meta.db"
    rows = pa.table(COLUMNS, SCHEMA)
    for i in range(rows.num_rows):
        dk.write_deltalake(
            f"{uri}?table=rows", rows.slice(i, 1), mode="append", partition_by=["p"]
        )
    for i in range(OTHER.num_rows):
        dk.write_deltalake(f"{uri}?table=other", OTHER.slice(i, 1), mode="append")
    with dk.connect(uri) as opened:
        yield opened


@pytest.fixture(scope="module")
def plain() -> Iterator[duckdb.DuckDBPyConnection]:
    """The rows in DuckDB's own tables, which know nothing of files."""
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        tables = {"rows": pa.table(COLUMNS, SCHEMA), "other": OTHER}
        for name, table in tables.items():
            connection.register("given", table)
            connection.execute(f"CREATE TABLE {name} AS FROM given")
        yield connection


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many files were chosen for each scan."""
    found: list[int] = []
    load = sources.load_files

    def counted(*args: Any) -> Any:
        files = load(*args)
        found.append(files.table.num_rows)
        return files

    monkeypatch.setattr(sources, "load_files", counted)
    return found


def answer(catalog: dk.Catalog, sql: str) -> list[Any]:
    with select(catalog, sql) as found:
        return sorted(
            (tuple(r.values()) for b in found.batches for r in b.to_pylist()), key=str
        )


CONDITIONS = [
    # NaN, which DuckDB takes for the greatest number, and infinities
    "f = 'nan'::DOUBLE",
    "f <> 'nan'::DOUBLE",
    "f > 1",
    "f >= 'inf'::DOUBLE",
    "f < 'nan'::DOUBLE",
    "f <= -1",
    "NOT (f > 1)",
    "NOT (f < 1)",
    "f IN ('nan'::DOUBLE, 0.5)",
    "f NOT IN ('nan'::DOUBLE, 0.5)",
    "f BETWEEN -1 AND 'nan'::DOUBLE",
    "f = 0 OR f IS NULL",
    "f = -0.0",
    "isnan(f)",
    "g = 0.1::FLOAT",
    "g = 0.1",
    "g < 0.1",
    "g <= 3.4e38",
    "g = 16777216",
    "g > 'inf'::FLOAT",
    # casts, on either side
    "i::VARCHAR = '4'",
    "CAST(i AS DOUBLE) = 4.0",
    "i = '4'",
    "i = 4.0",
    "i = 4.5",
    "i > 3.9 AND i < 4.1",
    "x = 300",
    "x > 126",
    "x::INTEGER = -128",
    "i = 2147483647::BIGINT",
    "i < 2147483648",
    "s = 4::VARCHAR",
    "encode(s) = 'a'::BLOB",
    "d::TIMESTAMP = '2026-01-03'",
    "d = '2026-01-03 12:00:00'::TIMESTAMP::DATE",
    "t::DATE = '2026-01-03'",
    "b::INTEGER = 1",
    "k + 1 = 4",
    "-k < -6",
    # NOT, OR, IN, and null in lists
    "NOT (i = 4)",
    "NOT (i = 4 OR i IS NULL)",
    "NOT (i IN (1, 2))",
    "NOT (i > 4 AND s = 'é')",
    "NOT NOT (i = 4)",
    "NOT b",
    "b",
    "b IS NOT TRUE",
    "b = false OR i = 4",
    "i IN (1, 4, NULL)",
    "i NOT IN (1, NULL)",
    "i IN (1, 2, 4, 6, 7, -5, 100, 101, 102)",
    "i = 1 OR s = 'b' OR f = 'nan'::DOUBLE",
    "(i = 1 AND k = 0) OR (i = 4 AND k = 99)",
    "i = 1 AND i = 2",
    "i = NULL",
    "i IS DISTINCT FROM 4",
    "i IS NOT DISTINCT FROM NULL",
    "coalesce(i, 4) = 4",
    "CASE WHEN i = 4 THEN true ELSE s = 'a' END",
    "true",
    "false",
    # LIKE and texts
    "s LIKE 'a%'",
    "s LIKE 'a!%b' ESCAPE '!'",
    "s NOT LIKE 'a%'",
    "s ILIKE 'A'",
    "s LIKE '_'",
    "starts_with(s, 'it')",
    "s = ''",
    "s > 'a'",
    "s BETWEEN 'A' AND 'a'",
    "s IN ('é', 'it''s')",
    "s >= 'é'",
    "lower(s) = 'a'",
    # null
    "i IS NULL",
    "i IS NOT NULL",
    "f IS NULL",
    "s IS NULL OR k = 7",
    "st IS NULL",
    "st.a IS NULL",
    "st.a IS NOT NULL",
    "l IS NULL",
    # dates and times, in zones and beyond what Python knows
    "d < '1970-01-01'",
    "d > 'infinity'::DATE",
    "d < 'infinity'::DATE",
    "d <> '-infinity'::DATE",
    "t = TIMESTAMPTZ '2026-01-03 14:30:00.000003+02'",
    "t > TIMESTAMPTZ '2026-01-05 12:30:00.000005Z'",
    "t >= TIMESTAMPTZ '2026-01-05 12:30:00.000005Z'",
    "t < '1970-01-01'",
    "t <= 'infinity'::TIMESTAMPTZ",
    "t > '-infinity'::TIMESTAMPTZ",
    "t AT TIME ZONE 'America/New_York' < TIMESTAMP '2026-01-03 12:00:00'",
    "t BETWEEN TIMESTAMPTZ '2026-01-04 00:00:00-05' AND '2026-01-06 00:00:00+14'",
    "date_trunc('day', t) = TIMESTAMPTZ '2026-01-03'",
    "z = TIMESTAMP '2026-03-29 02:30:00.001001'",
    "z < TIMESTAMP '2026-03-29 02:30:00.002'",
    "z < '0002-01-01'",
    "z = 'infinity'::TIMESTAMP OR z > '2026-03-29 02:30:00.005'",
    "t IN (TIMESTAMPTZ '2026-01-03 12:30:00.000003Z', 'infinity'::TIMESTAMPTZ)",
    # decimals beyond a double
    f"n = {BIG}",
    f"n < {BIG}",
    f"n >= {BIG}",
    f"n = {BIGGER}",
    f"n = {BIG.copy_negate()}",
    f"n > {BIG}",
    "n = 1",
    "n = 1.1",
    "n::DOUBLE = 1.1",
    "n > 1.1::DOUBLE",
    "n IN (0, 7, -2.2)",
    "n NOT IN (0, 7)",
    # other types
    "y = 'a'::BLOB",
    "y > '\\xFE'::BLOB",
    "st.a = 4",
    "st.a IN (1, 5)",
    "st.s < 'y'",
    "st.a > 4 AND st.s = 'z'",
    "l = [1]",
    "list_contains(l, 1)",
    # partitions
    "p = 'a'",
    "p IS NULL",
    "p IN ('é/', 'c d')",
    "p > 'a' AND i > 0",
    "p = 'a' OR k = 6",
    "p LIKE 'a!%%' ESCAPE '!'",
    "NOT (p = 'a')",
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_query_finds_all_rows_for_which_its_condition_holds(
    catalog: dk.Catalog, plain: duckdb.DuckDBPyConnection, condition: str
) -> None:
    sql = f"SELECT k FROM rows WHERE {condition}"

    assert answer(catalog, sql) == sorted(plain.sql(sql).fetchall(), key=str)


# More than the catalog gets to see, so that pyarrow skips files.
DEEP = " AND ".join(f"(k <> {n} OR x = {n})" for n in range(100, 112))


@pytest.mark.parametrize("condition", CONDITIONS[::3])
def test_query_with_many_conditions_finds_all_rows(
    catalog: dk.Catalog, plain: duckdb.DuckDBPyConnection, condition: str
) -> None:
    sql = f"SELECT k FROM rows WHERE ({condition}) AND {DEEP}"

    assert answer(catalog, sql) == sorted(plain.sql(sql).fetchall(), key=str)


QUERIES = [
    # a column of another table that has the same name
    "SELECT rows.k FROM rows, other WHERE other.i = 4",
    "SELECT r.k, o.k FROM rows r, other o WHERE r.i = 4 AND o.i IS NULL",
    "SELECT r.k, o.k FROM rows r JOIN other o ON r.k = o.k WHERE o.i = 4",
    "SELECT r.k FROM rows r JOIN other o ON r.i = o.i WHERE r.i = 4",
    "SELECT k FROM rows JOIN other USING (k) WHERE other.s = 'x'",
    "SELECT count(*) FROM rows NATURAL JOIN other",
    "SELECT r.k FROM rows r JOIN other o ON r.k = o.k AND r.i < o.i",
    "SELECT r.k, q.k FROM rows r, rows q WHERE r.i = 4 AND q.i = 1",
    # outer joins: a condition on the side that may be missing
    "SELECT r.k, o.s FROM rows r LEFT JOIN other o ON r.k = o.k AND o.i = 4",
    "SELECT r.k, o.s FROM rows r LEFT JOIN other o ON r.k = o.k WHERE o.i IS NULL",
    "SELECT r.k FROM rows r LEFT JOIN other o ON r.k = o.k AND r.i = 4",
    "SELECT r.k, o.k FROM rows r RIGHT JOIN other o ON r.k = o.k AND r.i = 1",
    "SELECT r.k, o.k FROM rows r FULL JOIN other o ON r.k = o.k AND r.i = 1",
    "SELECT o.k FROM other o LEFT JOIN rows r ON r.k = o.k WHERE r.k IS NULL",
    "SELECT r.k FROM rows r SEMI JOIN other o ON r.k = o.k",
    "SELECT r.k FROM rows r ANTI JOIN other o ON r.k = o.k AND o.i = 4",
    "SELECT r.k FROM rows r ASOF JOIN other o ON r.k >= o.k",
    # subqueries
    "SELECT k FROM rows WHERE k IN (SELECT k FROM other WHERE i = 4)",
    "SELECT k FROM rows WHERE k NOT IN (SELECT k FROM other WHERE i = 4)",
    "SELECT k FROM rows r WHERE EXISTS (FROM other o WHERE o.k = r.k AND o.i = 4)",
    "SELECT k FROM rows r WHERE NOT EXISTS (FROM other WHERE k = r.k AND i = 4)",
    "SELECT k FROM rows WHERE i = (SELECT max(i) FROM other)",
    "SELECT k FROM rows WHERE i > ALL (SELECT i FROM other WHERE i IS NOT NULL)",
    "SELECT (SELECT max(i) FROM other WHERE other.k = rows.k AND i = 4) FROM rows",
    "SELECT k FROM (SELECT k, i AS s, s AS i FROM rows) WHERE s = 4",
    "SELECT k FROM (SELECT k, k + 1 AS i FROM rows) WHERE i = 5",
    # aliases
    "SELECT k, i AS s FROM rows WHERE s = 'a'",
    "SELECT other.k FROM rows AS other WHERE other.i = 4",
    "SELECT a.k FROM rows AS a(k, s, i) WHERE a.s = 4",
    "SELECT k AS i FROM rows WHERE i = 4 ORDER BY i",
    "SELECT i AS v, count(*) FROM rows GROUP BY v HAVING v = 4",
    "SELECT k FROM rows QUALIFY row_number() OVER (ORDER BY k DESC) = 1",
    # common table expressions, and tables that they hide
    "WITH other AS (FROM rows WHERE i > 1) SELECT k FROM other WHERE i < 7",
    "WITH c AS (FROM rows) SELECT c.k FROM c JOIN c AS e USING (k) WHERE c.i = 4",
    "WITH c AS MATERIALIZED (FROM rows) SELECT k FROM c WHERE i = 4",
    "WITH c AS (SELECT i AS k, k AS i FROM rows) SELECT k FROM c WHERE i = 4",
    "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 4) "
    "SELECT rows.k FROM rows JOIN c ON rows.k = c.n WHERE c.n > 2",
    # sets, limits and pasts
    "SELECT k FROM rows WHERE i = 4 UNION ALL SELECT k FROM other WHERE i = 4",
    "SELECT k FROM rows EXCEPT SELECT k FROM other WHERE i = 4",
    "SELECT max(k), min(i), count(f) FROM rows WHERE i > 1",
    "SELECT k FROM rows ORDER BY i DESC NULLS LAST LIMIT 2",
    "SELECT count(*) FROM rows WHERE i > 1 OR rows.k IN (SELECT k FROM other)",
]


@pytest.mark.parametrize("sql", QUERIES)
def test_query_finds_what_it_finds_in_plain_tables(
    catalog: dk.Catalog, plain: duckdb.DuckDBPyConnection, sql: str
) -> None:
    assert answer(catalog, sql) == sorted(plain.sql(sql).fetchall(), key=str)


def test_condition_of_hundreds_of_parts_is_answered(catalog: dk.Catalog) -> None:
    parts = " OR ".join(f"(i = {n} AND k = {n - 1})" for n in range(1, 420))
    either = " AND ".join(f"(i <> {n} OR s = 'none')" for n in range(20, 120))

    assert answer(catalog, f"SELECT k FROM rows WHERE {parts}") == [
        (0,),
        (1,),
        (3,),
        (5,),
        (6,),
    ]
    assert len(answer(catalog, f"SELECT k FROM rows WHERE {either}")) == 7


def test_files_are_left_out_by_a_condition_of_many_parts(tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db"
    for n in range(4):
        rows = pa.table({"k": [n], "x": [n], "p": [str(n)]})
        dk.write_deltalake(f"{uri}?table=t", rows, mode="append", partition_by=["p"])
    for file in dk.DeltaTable(f"{uri}?table=t").file_uris():
        if "p=2" not in file:
            Path(file).unlink()

    with dk.connect(uri) as catalog:
        for condition in ("k = 2", "p = '2'", "k > 1 AND x < 3"):
            sql = f"SELECT k FROM t WHERE {condition} AND {DEEP}"
            assert answer(catalog, sql) == [(2,)]


@pytest.mark.parametrize(
    ("condition", "files"),
    [
        ("i = 4", 1),
        ("4 = i", 1),
        ("i IN (1, 4, 1000)", 2),
        ("i BETWEEN 4 AND 6", 2),
        ("i > 1000", 1),
        ("i IS NULL", 1),
        ("i = 4 OR i IS NULL", 2),
        ("NOT (i < 7) AND i IS NOT NULL", 2),
        ("s = 'it''s'", 1),
        ("d = '2026-01-04'", 1),
        ("t = TIMESTAMPTZ '2026-01-03 14:30:00.000003+02'", 1),
        ("z < '0002-01-01'", 1),
        ("b = true", 3),
        ("f < 0", 5),
        (f"n = {BIG}", 2),
        ("st.a = 4", 1),
        ("st.a IN (1, 5)", 2),
        ("p = 'a'", 2),
        ("p IS NULL", 1),
        ("p IN ('é/', 'c d') AND i > 0", 1),
        ("x = 127 OR p = 'c d'", 2),
    ],
)
def test_files_that_cannot_match_are_left_out(
    catalog: dk.Catalog, chosen: list[int], condition: str, files: int
) -> None:
    answer(catalog, f"SELECT k FROM rows WHERE {condition}")

    assert chosen == [files]


def test_condition_reaches_the_table_that_it_is_on(
    catalog: dk.Catalog, chosen: list[int]
) -> None:
    answer(catalog, "SELECT r.k FROM rows r, other o WHERE r.i = 4 AND o.i IS NULL")
    assert sorted(chosen) == [1, 1]
    chosen.clear()
    answer(catalog, "SELECT r.k FROM rows r LEFT JOIN other o ON r.k = o.k AND o.i = 1")
    assert sorted(chosen) == [1, 8]
    chosen.clear()
    answer(catalog, "WITH c AS (SELECT i AS a FROM rows) SELECT a FROM c WHERE a = 4")
    assert chosen == [1]


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("FROM deltasql.files WHERE table_name = 'rows'", {"rows"}),
        ("FROM deltasql.files WHERE table_name <> 'rows'", {"other"}),
        ("FROM deltasql.files WHERE table_name > 'p' AND size_bytes > 0", {"rows"}),
        ("FROM deltasql.files WHERE table_name IN ('rows', 'none')", {"rows"}),
        ("FROM deltasql.files WHERE path = 'none' OR table_name = 'rows'", None),
        ("FROM deltasql.files WHERE table_name = 'none'", set()),
        (
            "FROM deltasql.history WHERE table_name = 'rows' "
            "AND timestamp > TIMESTAMPTZ '2020-01-01' AND version > 1",
            {"rows"},
        ),
        (
            "FROM deltasql.history WHERE is_blind_append AND table_name = 'rows'",
            {"rows"},
        ),
        ("FROM deltasql.history", None),
    ],
)
def test_tables_of_the_catalog_are_read_for_the_tables_asked_for(
    catalog: dk.Catalog,
    monkeypatch: pytest.MonkeyPatch,
    sql: str,
    names: set[str] | None,
) -> None:
    read: set[str] = set()
    snapshot = dk.Catalog.snapshot

    def noted(self: dk.Catalog, name: str, *args: Any, **options: Any) -> Any:
        read.add(name)
        return snapshot(self, name, *args, **options)

    monkeypatch.setattr(dk.Catalog, "snapshot", noted)
    found = {row[0] for row in answer(catalog, f"SELECT table_name {sql}")}

    assert read == ({"rows", "other"} if names is None else names)
    assert found <= read


# ---- expressions that no engine makes


def predicate(expression: pc.Expression) -> Predicate:
    schema = parse_schema(
        '{"type":"struct","fields":[{"name":"i","type":"integer","nullable":true,'
        '"metadata":{}},{"name":"f","type":"double","nullable":true,"metadata":{}}]}'
    )
    columns = pa.schema([("i", pa.int32()), ("f", pa.float64()), ("s", pa.string())])
    return predicate_from(expression, columns, schema)


@pytest.mark.parametrize(
    "expression",
    [
        pc.field("f").is_null(nan_is_null=True),
        pc.is_in(pc.field("i"), pa.array([1, None], pa.int32())),
        pc.field("i").cast(pa.int64(), safe=False) == 4,
        pc.field("i") == pc.field("i"),
        pc.field("s") == "a",
        pc.field("i") + 1 == 4,
        pc.if_else(pc.field("i") == 1, pc.field("f") == 1, pc.field("f") == 2),
        pc.field("nowhere") == 1,
        pc.starts_with(pc.field("s"), "a"),
        pc.scalar(True),
    ],
    ids=lambda expression: str(expression)[:80],
)
def test_expression_that_is_not_understood_keeps_every_file(
    expression: pc.Expression,
) -> None:
    assert predicate(expression) == Anything()


@pytest.mark.parametrize("levels", [11, 2000])
def test_expression_nested_deeply_keeps_every_file(levels: int) -> None:
    nested = pc.field("i") == 1
    for _ in range(levels):
        nested = ~nested

    assert predicate(nested) == Anything()


def test_expression_of_ten_levels_is_understood() -> None:
    chain = pc.field("i") == 0
    for n in range(1, 11):
        chain |= pc.field("i") == n

    assert predicate(chain) != Anything()
