"""`head`, `query`, `append`, `export` and `diff`."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

import delkalakedb as dk
from delkalakedb.errors import QueryError
from delkalakedb.query.append import append_files
from delkalakedb.query.duck import sealed_duckdb
from delkalakedb.query.export import export_rows
from delkalakedb.query.selection import select
from tests.support.cli import Cli
from tests.support.examples import examples

COMMAND = shutil.which("deltasql", path=Path(sys.executable).parent)


def csv(cli: Cli, *words: str) -> list[str]:
    return cli(*words, "--output", "csv").stdout.splitlines()


def query(cli: Cli, sql: str, *words: str) -> Any:
    return cli.json("query", sql, *words)


# ---- query


def test_query_joins_tables_and_their_pasts(deltasql: Cli) -> None:
    prices = pa.table({"day": ["mon", "wed"], "price": [1.5, 2.5]})
    dk.write_deltalake(deltasql.table("prices"), prices)

    assert query(
        deltasql,
        "SELECT s.id, price, old.id AS before FROM sales s JOIN prices USING (day) "
        "LEFT JOIN sales AS old AT (VERSION => 0) ON old.id = s.id ORDER BY s.id",
    ) == [
        {"id": 1, "price": 1.5, "before": 1},
        {"id": 3, "price": 2.5, "before": None},
    ]


def test_query_reads_what_the_catalog_knows(deltasql: Cli) -> None:
    (table,) = query(deltasql, "FROM deltasql.tables")
    commits = query(
        deltasql,
        "SELECT version, operation, num_added_files FROM deltasql.history "
        "WHERE table_name = 'sales' ORDER BY version",
    )
    (files,) = query(
        deltasql,
        "SELECT count(*) AS n, sum(num_records) AS rows, sum(f.size_bytes) AS bytes "
        "FROM deltasql.files f JOIN deltasql.tables t ON t.name = table_name",
    )
    columns = query(deltasql, "SELECT name, partition_column FROM deltasql.columns")

    (listed,) = deltasql.json("tables")
    assert table["name"] == "sales"
    assert table["partition_columns"] == ["day"]
    assert (files["n"], files["rows"]) == (3, 3)
    assert files["bytes"] == table["size_bytes"] == listed["size_bytes"]
    assert [tuple(c.values()) for c in commits] == [(0, "WRITE", 2), (1, "WRITE", 1)]
    assert [tuple(c.values()) for c in columns] == [("id", False), ("day", True)]


def test_query_goes_back_to_a_time(on_sqlite: Cli) -> None:
    _, oldest = on_sqlite.json("history", "sales")
    sql = "SELECT count(*) AS n FROM sales AT (TIMESTAMP => {})"

    def rows(time: str) -> int:
        return int(query(on_sqlite, sql.format(time))[0]["n"])

    moment = datetime.fromtimestamp(oldest["timestamp_ms"] / 1000, UTC).isoformat()
    assert rows(f"'{moment}'") == 2
    assert rows("now() + INTERVAL 1 DAY") == 3
    on_sqlite("query", sql.format("'2001-01-01'"), code=5)


@pytest.mark.parametrize(
    "sql",
    [
        "WITH sales AS (SELECT 7 AS x) SELECT x FROM sales",
        "SELECT x FROM (SELECT 7 AS x) AS sales",
        "SELECT 7 AS x /* FROM nope */ -- FROM nope",
        "WITH a AS (SELECT 'FROM nope;' AS t), b AS (FROM a) SELECT 7 AS x FROM b",
        "SELECT (SELECT count(*) + 4 FROM sales) AS x",
        "SELECT count(*) + 4 AS x FROM SALES AS nope",
    ],
)
def test_only_tables_are_taken_for_tables(on_sqlite: Cli, sql: str) -> None:
    assert query(on_sqlite, sql) == [{"x": 7}]


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("COPY sales TO '{folder}/x.csv'", "only queries"),
        ("CREATE TABLE x AS FROM sales", "only queries"),
        ("INSERT INTO sales VALUES (1)", "only queries"),
        ("ATTACH '{folder}/meta.db' AS x", "only queries"),
        ("SET threads = 1", "only queries"),
        ("PRAGMA version", "only queries"),
        ("SELECT 1; SELECT 2", "give one query"),
        ("", "give one query"),
        ("SELEC 1", "can't parse"),
        ("SHOW TABLES", "deltasql.tables"),
        ("SELECT * FROM deltasql.tables AT (VERSION => 1)", "no versions"),
        ("SELECT * FROM sales AT (VERSION => NULL)", "not NULL"),
        ("SELECT nope FROM sales", '"nope" not found'),
        ("SELECT day::INT FROM sales", "Could not convert string"),
        ("SELECT * FROM read_csv('{folder}/secret.csv')", "disabled"),
        ("SELECT * FROM read_text('{folder}/secret.csv')", "disabled"),
        ("SELECT * FROM glob('{folder}/*')", "disabled"),
    ],
)
def test_anything_but_a_query_of_tables_is_refused(
    on_sqlite: Cli, tmp_path: Path, sql: str, words: str
) -> None:
    (tmp_path / "secret.csv").write_text("a\n1\n")
    result = on_sqlite("query", sql.format(folder=tmp_path), code=2)

    assert words in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sale", "did you mean sales"),
        ("deltasql.nope", "no table deltasql.nope"),
        ("'secret.csv'", "no table"),
    ],
)
def test_unknown_table_has_one_exit_code(on_sqlite: Cli, name: str, words: str) -> None:
    assert words in on_sqlite("query", f"SELECT * FROM {name}", code=5).stderr
    assert "did you mean sales" in on_sqlite("history", "sale", code=5).stderr


def test_query_comes_from_a_file_or_a_pipe(on_sqlite: Cli, tmp_path: Path) -> None:
    path = tmp_path / "q.sql"
    path.write_text("SELECT count(*)\nFROM sales -- all\n;\n")

    for words in (["--file", str(path)], ["-"], ["--file", "-"]):
        result = on_sqlite("query", *words, "-o", "csv", stdin=path.read_text())
        assert result.stdout == "count_star()\n3\n"
    on_sqlite("query", code=2)
    on_sqlite("query", "SELECT 1", "--file", str(path), code=2)


def test_values_without_a_form_in_json_are_text(on_sqlite: Cli) -> None:
    sql = (
        "SELECT 'nan'::DOUBLE AS a, DATE '2026-01-31' AS b, 1.50::DECIMAL(9,2) AS c, "
        "1 AS c, sum(id) AS d_ms, {'x': ['inf'::DOUBLE]} AS e FROM sales"
    )

    assert query(on_sqlite, sql) == [
        {
            "a": "nan",
            "b": "2026-01-31",
            "c": "1.50",
            "c_1": 1,
            "d_ms": 6,
            "e": {"x": ["inf"]},
        }
    ]
    shown = on_sqlite("query", sql).stdout.splitlines()
    assert shown[0].split() == ["a", "b", "c", "c_1", "d_ms", "e"]
    assert shown[1].split()[4] == "6"


def test_limit_bounds_rows_and_keeps_their_order(on_sqlite: Cli) -> None:
    sql = "SELECT id FROM sales ORDER BY id DESC"

    assert csv(on_sqlite, "query", sql, "--limit", "2") == ["id", "3", "2"]
    assert csv(on_sqlite, "query", sql, "--limit", "0") == ["id"]


@pytest.fixture
def many(tmp_path: Path) -> Cli:
    """A table of 200 files, each with one row."""
    cli = Cli(f"deltasql://sqlite/{tmp_path}/meta.db")
    rows = pa.table({"id": range(200), "p": range(200)})
    dk.write_deltalake(cli.table(), rows, partition_by=["p"])
    return cli


def keep_only(cli: Cli, wanted: set[str]) -> None:
    """Remove the table's data files, but for some."""
    for file in dk.DeltaTable(cli.table()).file_uris():
        if Path(file).parent.name not in wanted:
            Path(file).unlink()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id FROM sales WHERE id = 7",
        "SELECT id FROM sales WHERE id IN (7, 1000)",
        "SELECT id FROM sales WHERE p BETWEEN 7 AND 7 AND id > 0",
        "WITH s AS (FROM sales) SELECT id FROM s a JOIN s b USING (id) WHERE a.id = 7",
    ],
)
def test_query_reads_no_file_that_its_filter_rules_out(many: Cli, sql: str) -> None:
    keep_only(many, {"p=7"})

    assert query(many, sql) == [{"id": 7}]


def test_head_reads_no_more_files_than_it_takes(many: Cli) -> None:
    folders = [Path(f).parent.name for f in dk.DeltaTable(many.table()).file_uris()]
    keep_only(many, set(folders[:64]))

    assert len(many.json("head", "sales", "-n", "3")) == 3
    many("head", "sales", "-n", "100", code=5)


def test_file_that_is_gone_is_an_error_of_the_store(many: Cli) -> None:
    keep_only(many, set())

    assert "FileNotFoundError" in many("query", "FROM sales", code=5).stderr


def test_interrupted_query_ends_at_once(on_sqlite: Cli) -> None:
    assert COMMAND is not None
    sql = "SELECT sum(a * b) FROM range(100000000000) x(a), range(100) y(b)"
    running = subprocess.Popen(
        [COMMAND, "query", sql],
        env=os.environ | {"DELTASQL_CATALOG": str(on_sqlite.uri)},
        stderr=subprocess.PIPE,
        text=True,
    )
    # Interrupted again and again: once may be before the command has begun.
    while running.poll() is None:
        time.sleep(0.5)
        running.send_signal(signal.SIGINT)
    assert running.stderr is not None
    with running.stderr:
        text = running.stderr.read()
    assert running.returncode in (130, -signal.SIGINT), text


# ---- what a filter means

COLUMNS: dict[str, list[Any]] = {
    "i": [1, 2, None, 4, 5, 6],
    "s": ["a", "b", None, "", "it's", "é"],
    "f": [0.5, None, float("nan"), -1.0, float("inf"), 2.0],
    "d": [date(2026, 1, day) for day in range(1, 6)] + [None],
    "n": [Decimal("1.10"), None, Decimal("-2.20"), Decimal("0.00")] * 1
    + [Decimal("3.30"), Decimal("4.40")],
    "b": [True, False, None, True, False, True],
    "t": [datetime(2026, 1, day, 12, 30, tzinfo=UTC) for day in range(1, 7)],
}
LITERALS = {
    "i": ["1", "2", "4.5", "100", "NULL"],
    "s": ["'a'", "'it''s'", "'é'", "''", "'z'"],
    "f": ["0.5", "'nan'::DOUBLE", "2", "-1.0"],
    "d": ["DATE '2026-01-03'", "DATE '2030-01-01'"],
    "n": ["1.10", "0", "-2.20::DECIMAL(9,2)"],
    "b": ["true", "false"],
    "t": ["TIMESTAMPTZ '2026-01-03 12:30:00Z'", "'2026-01-04'"],
}


def comparisons() -> st.SearchStrategy[str]:
    def of(column: str) -> st.SearchStrategy[str]:
        literal = st.sampled_from(LITERALS[column])
        op = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
        return st.one_of(
            st.builds(lambda o, v: f"{column} {o} {v}", op, literal),
            st.builds(lambda o, v: f"{v} {o} {column}", op, literal),
            st.builds(lambda v, w: f"{column} IN ({v}, {w})", literal, literal),
            st.builds(lambda v, w: f"{column} NOT IN ({v}, {w})", literal, literal),
            st.builds(lambda v, w: f"{column} BETWEEN {v} AND {w}", literal, literal),
            st.sampled_from([f"{column} IS NULL", f"{column} IS NOT NULL"]),
        )

    return st.sampled_from(sorted(COLUMNS)).flatmap(of)


CONDITIONS = st.recursive(
    comparisons(),
    lambda part: st.one_of(
        st.builds("({} AND {})".format, part, part),
        st.builds("({} OR {})".format, part, part),
        st.builds("NOT ({})".format, part),
    ),
    max_leaves=4,
)


@pytest.fixture(scope="module")
def rows_in_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, pa.Table]:
    """A table with a file for each row, and its rows."""
    uri = f"deltasql://sqlite/{tmp_path_factory.mktemp('filters')}/meta.db"
    kinds = {"d": pa.date32(), "n": pa.decimal128(9, 2), "f": pa.float64()}
    rows = pa.table(
        {name: pa.array(v, kinds.get(name)) for name, v in COLUMNS.items()}
    ).append_column("k", [list(range(6))])
    for i in range(6):
        dk.write_deltalake(Cli(uri).table("rows"), rows.slice(i, 1), mode="append")
    return dk.connect(uri), rows


@settings(max_examples=examples(80))
@given(condition=CONDITIONS)
def test_filter_on_files_finds_what_a_filter_on_rows_finds(
    rows_in_files: tuple[dk.Catalog, pa.Table], condition: str
) -> None:
    catalog, rows = rows_in_files
    with sealed_duckdb() as connection:
        connection.register("rows", pa.Table.from_batches(rows.to_batches()))
        sql = f"SELECT k FROM (FROM rows LIMIT 100) WHERE {condition} ORDER BY k"
        expected = [k for (k,) in connection.sql(sql).fetchall()]
    with select(catalog, f"SELECT k FROM rows WHERE {condition} ORDER BY k") as found:
        assert [k for b in found.batches for k in b["k"].to_pylist()] == expected


# ---- head


def test_head_shows_columns_of_rows_that_match(deltasql: Cli) -> None:
    assert len(deltasql.json("head", "sales", "-n", "2")) == 2
    words = ["head", "sales", "--where", "id > 2 -- more", "--columns", "day"]
    assert deltasql.json(*words) == [{"day": "wed"}]
    assert deltasql.json(*words, "--version", "0") == []
    refused = deltasql("head", "sales", "--columns", "nope", code=2)
    assert "no column nope" in refused.stderr


# ---- append


def write_file(path: Path, rows: pa.Table) -> str:
    """Write rows in the format that a name says, as others would."""
    if path.suffix == ".parquet":
        pq.write_table(rows, path)
    elif path.suffix == ".arrow":
        feather.write_feather(rows, path, compression="uncompressed")
    elif path.suffix == ".csv":
        lines = [",".join(rows.column_names)]
        lines += [
            ",".join("" if v is None else str(v) for v in row.values())
            for row in rows.to_pylist()
        ]
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    return str(path)


def test_append_takes_every_format_in_one_commit(deltasql: Cli, tmp_path: Path) -> None:
    suffixes = ["parquet", "csv", "jsonl", "arrow"]
    files = [
        write_file(tmp_path / f"{i}.{suffix}", pa.table({"day": ["0x"], "id": [i]}))
        for i, suffix in enumerate(suffixes)
    ]
    done = deltasql.json("append", "sales", *files)

    assert (done["version"], done["files"], done["rows"]) == (2, 4, 4)
    sql = "SELECT id FROM sales WHERE day = '0x' ORDER BY id"
    assert csv(deltasql, "query", sql) == ["id", "0", "1", "2", "3"]


def test_append_takes_patterns_and_may_commit_each(
    on_sqlite: Cli, tmp_path: Path
) -> None:
    for i in range(3):
        rows = pa.table({"id": pa.array([i], pa.int8()), "day": ["x"]})
        write_file(tmp_path / f"in-{i}.parquet", rows)
    pattern = f"{tmp_path}/in-*.parquet"

    assert on_sqlite.json("append", "sales", pattern, "--dry-run")["version"] == 1
    assert on_sqlite.json("append", "sales", pattern, "--each")["version"] == 4
    assert "no such file" in on_sqlite("append", "sales", "nope*", code=5).stderr
    assert "format" in on_sqlite("append", "sales", __file__, code=5).stderr


def test_append_creates_a_table_only_when_told(on_sqlite: Cli, tmp_path: Path) -> None:
    file = write_file(tmp_path / "a.csv", pa.table({"id": [1], "zip": ["x01"]}))

    assert "--create" in on_sqlite("append", "new", file, code=5).stderr
    assert on_sqlite.json("append", "new", file, "--create", "--dry-run")["created"]
    assert [t["name"] for t in on_sqlite.json("tables")] == ["sales"]
    words = ["append", "new", file, "--create"]
    assert on_sqlite.json(*words, "--partition-by", "zip")["version"] == 0
    assert not on_sqlite.json(*words)["created"]
    table = on_sqlite.json("tables")[0]
    assert (table["name"], table["partition_columns"]) == ("new", ["zip"])


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
def test_columns_must_be_those_of_the_table_unless_merged(
    on_sqlite: Cli, tmp_path: Path, suffix: str
) -> None:
    rows = pa.table({"id": [4], "more": ["m"]})
    file = write_file(tmp_path / f"a.{suffix}", rows)
    words = ["append", "sales", file]

    assert "has no column more" in on_sqlite(*words, code=5).stderr
    assert "has no column more" in on_sqlite(*words, "--dry-run", code=5).stderr
    done = on_sqlite.json(*words, "--schema-mode", "merge")
    assert done["new_columns"] == ["more"]
    (row,) = query(on_sqlite, "FROM sales WHERE id = 4")
    assert row == {"id": 4, "day": None, "more": "m"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "id,day\n1,mon\nx,tue\n"),
        ("a.csv", "id,day\n1,mon\n99999999999999999999,tue\n"),
        ("a.jsonl", '{"id": 1, "day": "mon"}\n{"id": "x", "day": "tue"}\n'),
    ],
)
def test_value_of_another_type_appends_nothing(
    on_sqlite: Cli, tmp_path: Path, name: str, text: str
) -> None:
    file = tmp_path / name
    file.write_text(text)
    before = sorted(tmp_path.rglob("*.parquet"))
    result = on_sqlite("append", "sales", str(file), code=5)

    assert str(file) in result.stderr
    assert on_sqlite.json("tables")[0]["version"] == 1
    assert sorted(tmp_path.rglob("*.parquet")) == before


def test_number_that_does_not_fit_appends_nothing(
    on_sqlite: Cli, tmp_path: Path
) -> None:
    file = write_file(tmp_path / "a.parquet", pa.table({"id": [1.5], "day": ["x"]}))

    assert "column id is a double" in on_sqlite("append", "sales", file, code=5).stderr


def test_interrupted_append_leaves_nothing(on_sqlite: Cli, tmp_path: Path) -> None:
    rows = pa.table({"id": range(1000), "day": ["x"] * 1000})
    files = [write_file(tmp_path / f"{i}.parquet", rows) for i in range(20)]
    before = sorted(tmp_path.rglob("*.parquet"))
    seen = threading.Event()

    def interrupt(done: int, total: int | None) -> None:
        if not seen.is_set():
            seen.set()
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt):
        append_files(on_sqlite.table(), files, advance=interrupt)
    assert on_sqlite.json("tables")[0]["version"] == 1
    assert sorted(tmp_path.rglob("*.parquet")) == before


# ---- export

TYPES = pa.schema(
    [
        ("i", pa.int32()),
        ("b", pa.bool_()),
        ("f", pa.float64()),
        ("n", pa.decimal128(38, 4)),
        ("s", pa.string()),
        ("d", pa.date32()),
        ("t", pa.timestamp("us", "UTC")),
        ("u", pa.timestamp("us")),
    ]
)
ROWS = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "b": st.none() | st.booleans(),
        "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "n": st.none() | st.decimals(-(10**33), 10**33, places=4),
        "s": st.none()
        | st.text(st.characters(codec="utf-8", exclude_characters="\x00")),
        "d": st.none() | st.dates(date(1, 1, 1), date(9999, 12, 31)),
        "t": st.none() | st.datetimes(timezones=st.just(UTC)),
        "u": st.none() | st.datetimes(),
    }
)


@pytest.mark.parametrize("suffix", ["parquet", "csv", "jsonl"])
@settings(max_examples=8)
@given(rows=st.lists(ROWS, min_size=1, max_size=20))
def test_exported_rows_come_back(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, rows: list[dict[str, Any]]
) -> None:
    folder = tmp_path_factory.mktemp("export")
    cli = Cli(f"deltasql://sqlite/{folder}/meta.db")
    given_rows = pa.Table.from_pylist(rows, TYPES)
    dk.write_deltalake(cli.table("a"), given_rows)
    dk.DeltaTable.create(cli.table("b"), TYPES)
    out = f"{folder}/out.{suffix}"
    with dk.connect(str(cli.uri)) as catalog:
        kind = "jsonl" if suffix == "jsonl" else suffix
        export_rows(catalog, catalog.snapshot("a"), out, kind)
    append_files(cli.table("b"), [out])

    assert dk.DeltaTable(cli.table("b")).to_pyarrow_table().to_pylist() == rows


def test_export_writes_chosen_rows_of_a_version(deltasql: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    words = ["export", "sales", str(out), "--version", "0"]
    done = deltasql.json(*words, "--where", "id > 1", "--columns", "id")

    assert (done["rows"], done["version"]) == (1, 0)
    assert out.read_text() == '"id"\n2\n'
    assert "--force" in deltasql(*words, code=5).stderr
    assert deltasql.json(*words, "--force", "--format", "jsonl")["rows"] == 2
    assert sorted(map(json.loads, out.read_text().splitlines()), key=str) == [
        {"id": 1, "day": "mon"},
        {"id": 2, "day": "tue"},
    ]


def test_nested_values_are_exported_as_json(on_sqlite: Cli, tmp_path: Path) -> None:
    rows = pa.table({"a": [{"x": [1, 2]}], "b": [b"\x00\xff"]})
    dk.write_deltalake(on_sqlite.table("nested"), rows)
    on_sqlite("export", "nested", f"{tmp_path}/out.csv")
    on_sqlite("export", "nested", f"{tmp_path}/out.jsonl")

    text = (tmp_path / "out.csv").read_text()
    assert text == '"a","b"\n"{""x"":[1,2]}","\\x00\\xFF"\n'
    assert json.loads((tmp_path / "out.jsonl").read_text())["a"] == {"x": [1, 2]}


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_export_that_ends_early_leaves_no_file(
    on_sqlite: Cli, tmp_path: Path, error: type[BaseException]
) -> None:
    def fail(done: int, total: int | None) -> None:
        raise error

    before = set(tmp_path.iterdir())
    with dk.connect(str(on_sqlite.uri)) as catalog:
        snapshot = catalog.snapshot("sales")
        with pytest.raises((KeyboardInterrupt, dk.errors.StorageError)):
            export_rows(catalog, snapshot, tmp_path / "o.csv", "csv", advance=fail)
    assert {path for path in tmp_path.iterdir() if "o.csv" in path.name} <= before


# ---- diff


def test_diff_lists_files_and_counts_rows(deltasql: Cli) -> None:
    changes = deltasql.json("diff", "sales", "0", "1", code=1)

    (count,) = (c for c in changes if c["kind"] == "rows")
    (file,) = (c for c in changes if c["kind"] == "file")
    assert (count["before"], count["after"]) == (2, 3)
    assert (file["change"], file["after"]["num_records"]) == ("added", 1)
    assert len(changes) == 2
    assert deltasql.json("diff", "sales", "1", "1") == []
    back = deltasql.json("diff", "sales", "1", "0", code=1)
    assert {c["change"] for c in back if c["kind"] == "file"} == {"removed"}


def test_diff_of_rows_is_that_of_multisets(on_sqlite: Cli) -> None:
    table = dk.DeltaTable(on_sqlite.table())
    more = pa.table({"id": [3, 3, 9], "day": ["wed", "wed", "wed"]})
    dk.write_deltalake(on_sqlite.table(), more, mode="append")
    table.update_incremental()
    table.delete("id = 1")

    changes = on_sqlite.json("diff", "sales", "1", "3", "--rows", code=1)
    rows = [
        (c["change"], c["before"] or c["after"]) for c in changes if c["kind"] == "row"
    ]
    found = [(change, row["id"]) for change, row in rows]
    assert sorted(found) == [("added", 3), ("added", 3), ("added", 9), ("removed", 1)]
    compacted = dk.DeltaTable(on_sqlite.table())
    compacted.optimize.compact()
    again = on_sqlite.json("diff", "sales", "3", "4", "--rows", code=1)
    assert {c["kind"] for c in again} == {"file"}


def test_diff_tells_columns_properties_and_protocol(on_sqlite: Cli) -> None:
    table = dk.DeltaTable(on_sqlite.table())
    table.alter.set_table_properties({"delta.appendOnly": "true"})
    wider = pa.table({"id": [5], "day": ["x"], "more": [1]})
    dk.write_deltalake(on_sqlite.table(), wider, mode="append", schema_mode="merge")

    changes = on_sqlite.json("diff", "sales", "1", "3", code=1)
    named = {(c["kind"], c["name"]): c for c in changes}
    assert named["column", "more"]["after"] == "long"
    assert named["property", "delta.appendOnly"]["after"] == "true"


def test_query_error_is_a_value_error(on_sqlite: Cli) -> None:
    with (
        dk.connect(str(on_sqlite.uri)) as catalog,
        pytest.raises(QueryError),
        select(catalog, "SELECT nope FROM sales"),
    ):
        pass
