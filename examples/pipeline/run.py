"""One run of the pipeline: its stages, its checks and its report."""

from pyspark.sql import SparkSession

import delkalakedb as dk

from .checks import CHECKS, Check, Judge
from .display import Display
from .feed import Feed
from .layers import (
    TABLES,
    Lake,
    build_gold,
    fill_bronze,
    publish,
    stream_late,
    stream_silver,
)

__all__ = ["run"]


def run(spark: SparkSession, lake: Lake, feed: Feed, display: Display) -> list[Check]:
    """Fill the tables, check them and show a report.

    Args:
        spark: a session whose time zone is UTC.
        lake: the catalog and the folder, without the tables.
        feed: the events.
        display: prints progress and the report.
    """
    with display.stage("bronze: history", feed.history_rows) as advance:
        fill_bronze(spark, lake, feed, advance)
    with display.stage("silver: stream of bronze", feed.history_rows) as advance:
        stream_silver(spark, lake, feed, advance)
    with display.stage("gold: first totals", feed.history_rows):
        build_gold(spark, lake)
    with display.stage("bronze: stream of late", feed.late_rows) as advance:
        stream_late(spark, lake, feed, advance)
    with display.stage("silver, gold: publish", feed.late_rows):
        publish(spark, lake, feed)
    judge = Judge(spark, lake, feed)
    checks = []
    with display.stage("checks", CHECKS, "checks") as advance:
        for check in judge.checks():
            checks.append(check)
            advance(1)
    _report(display, judge, checks)
    return checks


def _report(display: Display, judge: Judge, checks: list[Check]) -> None:
    with dk.connect(judge.lake.catalog) as catalog:
        tables = [catalog.table(name) for name in TABLES]
    heads = ("table", "version", "rows", "files", "MB")
    rows = [
        (
            table.name,
            f"{table.version}",
            f"{judge.rows(table.name):,}",
            f"{table.num_files:,}",
            f"{table.size_bytes / 1e6:,.1f}",
        )
        for table in tables
    ]
    display.table(heads, rows)
    stages = [
        (s.name, f"{s.total:,} {s.unit}", f"{s.seconds:.1f}", s.rate)
        for s in display.stages
    ]
    display.table(("stage", "of", "seconds", "per second"), stages)
    display.line()
    display.line(judge.effect_of_late())
    for check in checks:
        display.line(f"{'ok    ' if check.passed else 'FAILED'} {check}")
    passed = sum(check.passed for check in checks)
    seconds = sum(stage.seconds for stage in display.stages)
    display.line(f"{passed} of {len(checks)} checks passed, {seconds:.1f} s in all")
