"""Measure the Spark layer against its bars: python benchmarks/spark.py --help."""

import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import spark_reads
import spark_vectors
import spark_writes
from bars import MILLION, Run
from engines import postgres_server
from options import options_of, work_folder
from pyspark.sql import SparkSession
from report import finish, write_json

sys.path.append(str(Path(__file__).parents[1]))
from tests.support import delta_spark

_BARS = ("scan", "plan", "grow", "changes", "write", "merge", "vectors")
_ROWS, _MERGED = 40 * MILLION, 10 * MILLION
_SIZES, _QUICK_SIZES = (10_000, 50_000, MILLION), (1_000, 5_000, 10_000)
_CONFIG = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "6g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}


def main() -> int:
    """Run the requested benchmarks; exit with 1 if a bar was missed."""
    parser = options_of(__doc__, _BARS, "a hundredth of the rows, a tenth of the files")
    parser.set_defaults(engines=["sqlite"])
    parser.add_argument("--rows", type=int, help="40M by default; merges use a quarter")
    options = parser.parse_args()
    rows = options.rows or (_ROWS // 100 if options.quick else _ROWS)
    sizes = _QUICK_SIZES if options.quick else _SIZES
    runs: list[Run] = []
    with (
        work_folder(options) as work,
        postgres_server("postgres" in options.engines),
        _session(work) as (session, has_delta),
    ):
        for engine in options.engines:
            folder = work / engine
            folder.mkdir()
            run = Run(engine, folder, sizes, {}, (0, 0), rows, None)
            runs.append(run)
            _measure(run, session, has_delta, options.bars)
            shutil.rmtree(folder)
            write_json(runs, options.out / "spark.json")
    return finish(runs)


@contextmanager
def _session(work: Path) -> Iterator[tuple[SparkSession, bool]]:
    """Start a session with two local cores, and Delta Spark if it is available."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config(map=_CONFIG)
    builder = builder.config("spark.sql.warehouse.dir", str(work / "warehouse"))
    builder = builder.config("spark.local.dir", str(work / "spark"))
    try:
        jars = ",".join(map(str, delta_spark.find_jars(work / "jars")))
        builder = builder.config(map={"spark.jars": jars, **delta_spark.CONFIG})
        has_delta = True
    except delta_spark.UnavailableError as error:
        print(f"without Delta Spark: {error}", file=sys.stderr)
        has_delta = False
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session, has_delta
    finally:
        session.stop()


def _measure(
    run: Run, session: SparkSession, has_delta: bool, bars: Collection[str]
) -> None:
    steps: dict[str, Callable[[], None]] = {
        "scan": lambda: spark_reads.measure_scan(run, session),
        "plan": lambda: spark_reads.measure_plan(run, session),
        "grow": lambda: spark_reads.measure_growth(run, session),
        "changes": lambda: spark_reads.measure_changes(run, session, has_delta),
        "write": lambda: spark_writes.measure_write(run, session),
        "merge": lambda: spark_writes.measure_merge(run, session, has_delta),
        "vectors": lambda: spark_vectors.measure_vectors(run, session, has_delta),
    }
    run.measure(steps, bars)


if __name__ == "__main__":
    sys.exit(main())
