"""Measure the deltalake face against its bars: python benchmarks/table.py --help."""

import shutil
import sys
from collections.abc import Callable, Collection
from pathlib import Path

import table_reads
import table_writes
from bars import Run
from engines import postgres_server
from options import options_of, work_folder
from report import finish, write_json

_BARS = (
    *("append", "dataset", "sql", "bulk", "merge", "rows"),
    *("writers", "deleters", "memory"),
)
_HERE = Path(__file__).parent


def main() -> int:
    """Run the requested benchmarks; exit with 1 if a bar was missed."""
    options = options_of(__doc__, _BARS, "a hundredth of all").parse_args()
    runs: list[Run] = []
    with (
        work_folder(options) as work,
        postgres_server("postgres" in options.engines),
    ):
        for engine in options.engines:
            runs.append(_run(engine, work / engine, quick=options.quick))
            _measure(runs[-1], options.bars, work)
            shutil.rmtree(runs[-1].folder)
            write_json(runs, options.out / "table.json")
    return finish(runs)


def _run(engine: str, folder: Path, *, quick: bool) -> Run:
    folder.mkdir()
    sizes = (1_000, 10_000) if quick else (100_000, 1_000_000)
    return Run(
        engine=engine,
        folder=folder,
        sizes=sizes,
        delta={},
        commits=(0, 0),
        bulk=100_000 if quick else 10_000_000,
        ducklake_python=None,
    )


def _measure(run: Run, bars: Collection[str], work: Path) -> None:
    peer = table_reads.Peer(work / "delta", run.peer_size)
    steps: dict[str, Callable[[], None]] = {
        "append": lambda: table_writes.measure_append(run, peer.path),
        "dataset": lambda: table_reads.measure_dataset(run, peer),
        "sql": lambda: table_reads.measure_sql(run),
        "bulk": lambda: table_writes.measure_bulk(run),
        "merge": lambda: table_writes.measure_merge(run),
        "rows": lambda: table_writes.measure_rows(run),
        "memory": lambda: table_reads.measure_memory(run),
    }
    if run.engine == "postgres":
        steps["writers"] = lambda: table_writes.measure_writers(run)
        steps["deleters"] = lambda: table_writes.measure_deleters(run)
    run.measure(steps, bars)


if __name__ == "__main__":
    sys.exit(main())
