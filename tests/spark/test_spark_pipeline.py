"""The worked pipeline, end to end at a reduced size."""

import io
import json
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import deltalake
import polars as pl
import pytest
from click.testing import CliRunner
from pipeline import __main__ as command, layers
from pipeline.checks import CHECKS, Check, Judge
from pipeline.display import Display
from pipeline.feed import Feed
from pipeline.layers import Lake
from pipeline.run import run
from polars.testing import assert_frame_equal
from pyspark.sql import SparkSession
from rich.console import Console

import delkalakedb as dk
from delkalakedb.settings.uri import parse_uri

FEED = Feed(rows=4000, days=4, files=2)


@pytest.fixture
def lake(catalog_uri: str, tmp_path: Path) -> Lake:
    if password := parse_uri(catalog_uri).password:
        variable = ":${DELKALAKEDB_TEST_PG_PASSWORD}@"
        catalog_uri = catalog_uri.replace(f":{password}@", variable)
    catalog = catalog_uri.partition("?")[0]
    return Lake(f"{catalog}?data_path={tmp_path}/tables", tmp_path)


# ---- the same by polars, from what plain deltalake sees


def mirrored(lake: Lake, name: str, version: int | None = None) -> pl.DataFrame:
    location = dk.DeltaTable(lake.uri(name)).table_uri
    table = deltalake.DeltaTable(location, version=version)
    rows = pl.from_arrow(table.to_pyarrow_table())
    assert isinstance(rows, pl.DataFrame)
    return rows


def expected_silver(events: pl.DataFrame) -> pl.DataFrame:
    amount = pl.col("amount").cast(pl.Decimal(12, 2), strict=False)
    return (
        events.with_columns(
            amount=amount,
            shop=pl.col("shop").str.to_lowercase().str.strip_chars(),
            channel=pl.col("channel").fill_null("unknown"),
            day=pl.col("ordered_at").dt.date(),
        )
        .filter(pl.col("order_id").is_not_null(), pl.col("amount").is_not_null())
        .sort("changed_at")
        .unique("order_id", keep="last")
        .drop("arrived")
    )


def expected_gold(orders: pl.DataFrame) -> pl.DataFrame:
    return orders.group_by("day", "shop").agg(
        orders=pl.len(),
        web_orders=(pl.col("channel") == "web").sum(),
        customers=pl.col("customer_id").n_unique(),
        revenue=pl.col("amount").sum(),
    )


def assert_same(found: pl.DataFrame, expected: pl.DataFrame) -> None:
    assert_frame_equal(
        found,
        expected,
        check_row_order=False,
        check_column_order=False,
        check_dtypes=False,
    )


def last_commit(lake: Lake, name: str) -> dict[str, Any]:
    table = dk.DeltaTable(lake.uri(name))
    log = Path(urlsplit(table.table_uri).path) / "_delta_log"
    lines = (log / f"{table.version():020}.json").read_text().splitlines()
    (info,) = (json.loads(line)["commitInfo"] for line in lines if "commitInfo" in line)
    return dict(info)


@pytest.mark.since_pyspark("4.2")
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_pipeline_fills_three_tables_that_agree(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    merge, failures = layers.merge_orders, [True]

    def merge_orders(*args: Any) -> None:
        merge(*args)
        if failures:
            raise RuntimeError(
                f"{failures.pop()}: Python worker failed to connect back"
            )

    monkeypatch.setattr(layers, "merge_orders", merge_orders)
    checks = run(spark, lake, FEED, Display(Console(file=shown)))
    monkeypatch.undo()

    assert [check for check in checks if not check.passed] == []
    assert len(checks) == CHECKS
    assert f"{CHECKS} of {CHECKS} checks passed" in shown.getvalue()
    assert shown.getvalue().count("the stage resumes: a Python process of Spark") == 1

    bronze = mirrored(lake, "bronze")
    assert len(bronze) == FEED.rows
    assert "channel" not in mirrored(lake, "bronze", version=1).columns
    assert bronze["channel"].null_count() == sum(len(FEED.day_rows(d)) for d in (0, 1))
    assert_same(mirrored(lake, "silver"), expected_silver(bronze))
    assert_same(mirrored(lake, "gold"), expected_gold(expected_silver(bronze)))

    in_time = expected_silver(bronze.filter(pl.col("arrived") < FEED.late_day))
    before = mirrored(lake, "gold", version=0)
    assert_same(before, expected_gold(in_time))
    unlike = mirrored(lake, "gold").join(before, on=before.columns, how="anti")
    assert set(unlike["day"]) == {date(2026, 1, 3), date(2026, 1, 4)}

    silver, gold = last_commit(lake, "silver"), last_commit(lake, "gold")
    assert silver["txnId"] == gold["txnId"]
    assert len(gold["participants"]) == 2

    dk.DeltaTable(lake.uri("gold")).delete("day = '2026-01-01'")
    assert [c.name for c in Judge(spark, lake, FEED).checks() if not c.passed] == [
        "gold adds up to silver",
        "silver and gold changed together",
        "DuckDB adds up the same gold",
    ]


# ---- the command


@pytest.fixture
def runner(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """Runs the command on the session that is there, which it would stop."""
    monkeypatch.setattr(command, "_session", lambda *_: nullcontext(spark))
    return CliRunner()


@pytest.mark.parametrize(("passed", "status"), [(True, 0), (False, 1)])
def test_status_tells_whether_all_checks_passed(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch, passed: bool, status: int
) -> None:
    checks = [Check("one", True, ""), Check("another", passed, "")]
    monkeypatch.setattr(command, "run", lambda *args: checks)

    assert runner.invoke(command.main, []).exit_code == status


@pytest.mark.parametrize(
    ("text", "attempts", "remedies"),
    [
        ("Timed out while waiting for the Python worker to connect back", 4, 4),
        ("a column is missing", 1, 0),
    ],
)
def test_slow_start_of_python_is_said_with_the_remedy_after_some_attempts(
    runner: CliRunner,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    attempts: int,
    remedies: int,
) -> None:
    fill = Mock(side_effect=RuntimeError(text))
    monkeypatch.setattr("pipeline.run.fill_bronze", fill)

    result = runner.invoke(command.main, [])

    assert result.exit_code == 1
    assert fill.call_count == attempts
    assert " ".join(result.output.split()).count("set --cores to a smaller") == remedies


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rows", "999"], "x>=1000"),
        (["--catalog", "deltasql://sqlite/x.db"], "--catalog needs --data"),
        (["--data", "."], "isn't empty"),
        (["--data", "taken"], "is a file"),
        (["--data", "new", "--catalog", "x.db"], "the scheme must be deltasql"),
        (
            ["--data", "new", "--catalog", "deltasql://sqlite/x?table=t"],
            "give a catalog",
        ),
        (["--data", "new", "--catalog", "deltasql://duckdb/x"], "serves one process"),
        (["--data", "new", "--catalog", "deltasql://sqlite/used.db"], "gold already"),
    ],
)
def test_bad_input_is_refused_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("taken").touch()
    dk.write_deltalake("deltasql://sqlite/used.db?table=gold", pl.DataFrame({"x": [1]}))

    result = CliRunner().invoke(command.main, words)

    assert result.exit_code == 2, result.output
    assert said in " ".join(result.output.split())
    assert "Traceback" not in result.output


def test_password_is_handed_on_without_being_part_of_a_uri(
    tmp_path: Path, postgres_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_SQL__PASSWORD", "to be replaced")
    password = parse_uri(postgres_uri).password
    assert password is not None

    lake = command._lake(tmp_path, postgres_uri)

    assert password not in lake.uri("gold")
    dk.write_deltalake(lake.uri("gold"), pl.DataFrame({"x": [1]}))
    assert (tmp_path / "tables" / "gold").is_dir()


# ---- what is shown


def test_terminal_shows_how_far_a_stage_is_and_a_pipe_when_it_is_done() -> None:
    terminal, pipe = io.StringIO(), io.StringIO()
    for file in (terminal, pipe):
        console = Console(
            file=file, force_terminal=file is terminal, no_color=True, width=120
        )
        with Display(console).stage("bronze", 4000) as advance:
            advance(4000)

    assert "4,000/4,000 rows" in terminal.getvalue()
    assert "left 0:00:00" in terminal.getvalue()
    assert pipe.getvalue().split() == ["bronze", "0.0", "s"]
