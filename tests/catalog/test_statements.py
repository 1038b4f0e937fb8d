"""The `.sql` files: every statement runs on its engine, is used and says why."""

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import delkalakedb
from delkalakedb import Catalog
from delkalakedb.catalog.engine.backend import Run, Session
from delkalakedb.catalog.load.copies import PARTS
from delkalakedb.catalog.read.action_rows import FILES_SCHEMA
from delkalakedb.catalog.read.stat_index import STAT_TABLES
from delkalakedb.model.stats.values import Kind
from tests.support.actions import add, create, stats

ENGINES = ("sqlite", "duckdb", "postgres")
SOURCE = Path(delkalakedb.__file__).parent
SQL = SOURCE / "catalog" / "engine" / "sql"
FILES = sorted(SQL.glob("*.sql"))
HEADER = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
PLACEHOLDER = re.compile(r"\{\w+\}")
PARAMETER = re.compile(r"(?<![:\w]):([a-z_]\w*)")
COLUMNS = ", ".join(FILES_SCHEMA.names)
FIRST_VERSION = ("insert_table", "move_head")
# A plan is one of each, and the test of plans prepares them all.
PLANS = ("plan_files", "plan_probe")
CANDIDATES = ("plan_nulls", "plan_overlap", "plan_uncovered")
LIVES = ("plan_alive", "plan_died")
FRAGMENTS = {*CANDIDATES, *LIVES, "now_ms"}
JSON = {"names", "hashes", "ids", "removes", "stat_columns"}
TEXTS = {"name", "location", "app_id", "domain", "operation", "actor", "sha256"}
TEXTS |= {"transaction_id", "client", "schema", "table", "metadata", "protocol"}
TEXTS |= {"before", "hold", "new", "old", "owner", "event", "table_name", "detail"}
TEXTS |= {"reconciler_id", "os_user", "host"}


class RollBack(Exception):  # noqa: N818
    """Ends a transaction that must leave nothing."""


def statements(file: Path) -> dict[str, str]:
    """The statements of a file by name, as they are written."""
    _, *parts = HEADER.split(file.read_text())
    return dict(zip(parts[::2], parts[1::2], strict=True))


def shared() -> dict[str, str]:
    """The statements of the files that aren't named after an engine."""
    files = [file for file in FILES if file.stem not in ENGINES]
    return {name: sql for file in files for name, sql in statements(file).items()}


def fillings(name: str, known: Mapping[str, str]) -> list[dict[str, str]]:
    """What the placeholders of a statement stand for, in each way there is."""
    if name in ("copy_rows", "count_copied"):
        return [
            {
                "table": part.table,
                "key": part.key,
                "order": part.order,
                "columns": ", ".join(part.schema.names),
            }
            for part in PARTS
        ]
    if name == "plan_named":
        ways = ("1, 2", "NULL", known["plan_ids"])
        return [{"columns": COLUMNS, "ids": ids} for ids in ways]
    return [{"columns": COLUMNS, "now_ms": known.get("now_ms", "")}]


def fill(sql: str, pieces: Mapping[str, str]) -> str:
    for name, piece in pieces.items():
        sql = sql.replace(f"{{{name}}}", piece)
    return sql


def wholes(name: str, known: Mapping[str, str]) -> list[str]:
    """A statement with nothing left to fill in, in each way there is."""
    return [fill(known[name], pieces) for pieces in fillings(name, known)]


def parameters(sql: str) -> set[str]:
    return set(PARAMETER.findall(re.sub(r"--.*", "", sql)))


def value(name: str) -> Any:
    if name == "data_change":
        return True
    if name == "version":
        return 0
    return "[]" if name in JSON else "x" if name in TEXTS else 7


def run(name: str, sql: str) -> Run:
    return Run(name, {parameter: value(parameter) for parameter in parameters(sql)})


def execute(session: Session, statement: Run, sql: str) -> None:
    if sql.startswith("SELECT"):
        session.query_sql(sql, statement.params)
    else:
        session.apply([statement])
        # An engine may hold writes back until something is asked.
        session.query("load_schema_version", {})


def test_every_statement_runs_on_every_engine(catalog: Catalog, engine: str) -> None:
    written = shared() | statements(SQL / f"{engine}.sql")
    ready = catalog._backend.statements
    assert set(ready) == written.keys() - {"now_ms"}

    for name in sorted(ready.keys() - FRAGMENTS - set(PLANS)):
        both = zip(wholes(name, written), wholes(name, ready), strict=True)
        for source, sql in both:
            assert not PLACEHOLDER.search(sql), name
            with suppress(RollBack), catalog._backend.writing() as session:
                if name != "insert_table":
                    session.apply([run(n, written[n]) for n in FIRST_VERSION])
                execute(session, run(name, source), sql)
                raise RollBack


@pytest.mark.parametrize("table", sorted(STAT_TABLES.values()))
@pytest.mark.parametrize("part", CANDIDATES)
def test_every_plan_runs_on_every_engine(
    catalog: Catalog, engine: str, table: str, part: str
) -> None:
    create(catalog, "t", add("a", stats=stats(1, x=(1, 2, 0), s=("a", "b", 0))))
    known, mark = catalog._backend.statements, catalog._backend.placeholder.format
    values = (1.5, 2.5, 3.5) if table == STAT_TABLES[Kind.NUMBER] else ("a", "b", "c")
    bounds = dict(zip(("lo", "hi", "reach"), values, strict=True))
    pieces = {
        "table": table,
        "column": mark("column"),
        "columns": COLUMNS,
        "since": mark("since"),
        "ranges": f"({mark('class')}, {mark('lo')}, {mark('hi')}, {mark('reach')})",
        "overlaps": f"s.hi >= {mark('lo')} AND s.lo <= {mark('hi')}",
    }
    params = {
        "column": 1,
        "since": 1,
        "class": 0,
        "table_id": 1,
        "version": 0,
        **bounds,
    }

    for whole in PLANS:
        for alive in LIVES:
            composed = known[whole].replace("{candidates}", known[part])
            sql = fill(composed, {**pieces, "alive": known[alive]})
            used = {n: v for n, v in params.items() if mark(n) in sql}
            with catalog._backend.reading() as session:
                assert isinstance(session.query_sql(sql, used), list)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_statement_has_one_line_of_why(file: Path) -> None:
    for name, text in statements(file).items():
        first, second = text.split("\n")[:2]
        assert re.fullmatch(r"-- [A-Z].*\.", first), name
        assert second, name
        assert not second.startswith("--"), name


def test_every_statement_is_used() -> None:
    code = "".join(path.read_text() for path in SOURCE.rglob("*.py"))
    named = {name for file in FILES for name in statements(file)}

    assert {name for name in named if f'"{name}"' not in code} == set()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_override_takes_the_parameters_of_what_it_overrides(file: Path) -> None:
    common = shared()

    for name, text in statements(file).items():
        if name in common.keys() - FRAGMENTS:
            assert parameters(text) == parameters(common[name]), name


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_statement_names_are_unique_in_their_file(file: Path) -> None:
    names = HEADER.findall(file.read_text())

    assert len(names) == len(set(names))
