"""One run of the pipeline: its stages, its checks and its report."""

import re
from collections.abc import Callable
from functools import partial

from pyspark.sql import SparkSession

import delkalakedb as dk

from .checks import CHECKS, Check, Judge
from .display import Display
from .feed import Feed
from .layers import (
    TABLES,
    Advance,
    Lake,
    build_gold,
    fill_bronze,
    publish,
    stream_late,
    stream_silver,
)

__all__ = ["SLOW", "is_slow_start", "run"]

SLOW = (
    "a Python process of Spark took longer than 10 seconds to start, and Spark gave it "
    "up; set --cores to a smaller number, so that fewer processes start at once"
)
_SLOW = re.compile("Python worker.*to connect back|(Accept|Read) timed out")
_RESUMED = 3


def run(spark: SparkSession, lake: Lake, feed: Feed, display: Display) -> list[Check]:
    """Fill the tables, check them and show a report.

    Args:
        spark: a session whose time zone is UTC.
        lake: the catalog and the folder, without the tables.
        feed: the events.
        display: prints progress and the report.
    """

    def perform(name: str, rows: int, stage: Callable[[Advance], None]) -> None:
        with display.stage(name, rows) as advance:
            _resumed(lambda: stage(advance), display)

    history, late = feed.history_rows, feed.late_rows
    perform("bronze: history", history, partial(fill_bronze, spark, lake, feed))
    silver = partial(stream_silver, spark, lake, feed)
    perform("silver: stream of bronze", history, silver)
    perform("gold: first totals", history, lambda _: build_gold(spark, lake))
    perform("bronze: stream of late", late, partial(stream_late, spark, lake, feed))
    perform("silver, gold: publish", late, lambda _: publish(spark, lake, feed))
    judge = Judge(spark, lake, feed)
    checks = []
    with display.stage("checks", CHECKS, "checks") as advance:
        for check in judge.checks():
            checks.append(check)
            advance(1)
    _report(display, judge, checks)
    return checks


def is_slow_start(error: Exception) -> bool:
    """Return whether Spark gave up a Python process that was slow to start."""
    return bool(_SLOW.search(str(error)))


def _resumed(stage: Callable[[], None], display: Display) -> None:
    """Perform a stage, and resume it after a slow start of a Python process.

    A stage that is performed again skips what it has committed.
    """
    for _ in range(_RESUMED):
        try:
            stage()
        except Exception as error:
            if not is_slow_start(error):
                raise
            display.line(f"the stage resumes: {SLOW}")
        else:
            return
    stage()


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
