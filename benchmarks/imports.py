"""Measure imports against their bars: python benchmarks/imports.py --help."""

import gc
import shutil
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import tables
from bars import Run, short
from engines import Database, postgres_server
from measure import run_child
from options import options_of, work_folder
from report import finish, write_json

from delkalakedb.model.actions import CommitInfo, encode_commit

_COMMITS, _QUICK_COMMITS = 50_000, 2_000
_FILES, _QUICK_FILES = 1_000_000, 20_000
_FASTER, _OVER_LOAD, _MEMORY_MB = 2, 2, 1000
_ROUNDS = 3
_NAME = "imported"


@dataclass(frozen=True)
class Log:
    """A table to import: its folder, and its number of commits or files."""

    location: Path
    size: int
    warm: Path


def main() -> int:
    """Run the requested benchmarks; exit with 1 if a bar was missed."""
    options = options_of(__doc__, _BARS, "2k commits, 20k files").parse_args()
    with work_folder(options) as work:
        runs = {engine: _run(engine, work / engine) for engine in options.engines}
        tables.build_delta(work / "warm", tables.BATCHES)
        with postgres_server("postgres" in options.engines):
            for name in options.bars:
                bar = _BARS[name]
                log = Log(work / name, bar.sizes[options.quick], work / "warm")
                bar.build(log)
                for run in runs.values():
                    step = partial(bar.measure, run, log)
                    run.measure({name: step}, [name])
                    write_json(list(runs.values()), options.out / "imports.json")
                shutil.rmtree(log.location)
    return finish(runs.values())


def _run(engine: str, folder: Path) -> Run:
    folder.mkdir()
    return Run(engine, folder, (0,), {}, (0, 0), 0, None)


def measure_commits(run: Run, log: Log) -> None:
    """Measure the import of a log of JSON commits against deltalake's open."""
    ours, theirs = [], []
    # Alternating, so that load on the machine affects both.
    for number in range(_ROUNDS):
        ours.append(_import(run.database(f"commits-{number}"), log))
        theirs.append(run_child("open_delta", log.location, log.warm))
        assert ours[-1]["versions"] == theirs[-1]["version"] + 1 == log.size
    bar = f"import of {short(log.size)} commits"
    seconds, opened = _median(ours, "seconds"), _median(theirs, "seconds")
    run.report(bar, "ours, verified", seconds, "s")
    run.report(bar, "deltalake's open", opened, "s")
    limit = _FASTER if log.size == _COMMITS else None
    run.at_least(bar, "deltalake's open / ours", opened / seconds, limit)
    run.report(bar, "peak memory", _median(ours, "peak_bytes") / 1e6, "MB")


def measure_checkpoint(run: Run, log: Log) -> None:
    """Measure the import of a large checkpoint against a plain load of its rows."""
    database = run.database("checkpoint")
    ours = _import(database, log)
    assert ours["num_files"] == log.size, ours
    plain = _load_plain(run, database.dump(least=log.size))
    bar = f"import of a checkpoint of {short(log.size)} files"
    run.report(bar, "ours, verified", ours["seconds"], "s")
    run.report(bar, "plain load of the same rows", plain, "s")
    counts = log.size == _FILES
    limit = _OVER_LOAD if counts else None
    run.at_most(bar, "ours / plain load", ours["seconds"] / plain, limit)
    limit = _MEMORY_MB if counts else None
    run.at_most(bar, "peak memory", ours["peak_bytes"] / 1e6, limit, "MB")


def _import(database: Database, log: Log) -> dict[str, Any]:
    uri = f"{database.uri}?table={_NAME}"
    return run_child("import_log", log.location, uri, log.warm)


def _load_plain(run: Run, rows: dict[str, Any]) -> float:
    beside = run.database("plain")
    beside.connect().close()
    gc.collect()
    # Otherwise the garbage collector would traverse millions of rows.
    gc.freeze()
    try:
        return beside.load(rows)
    finally:
        gc.unfreeze()


def _build_commits(log: Log) -> None:
    """Write a log with one file per commit, as delta-rs writes appends."""
    folder = log.location / "_delta_log"
    folder.mkdir(parents=True)
    for version in range(log.size):
        first = [] if version else tables.first_actions()
        info = CommitInfo(
            {
                "timestamp": 1_700_000_000_000 + version,
                "operation": "WRITE",
                "operationParameters": {"mode": "Append"},
                "engineInfo": "delta-rs:py-1.6.6",
                "clientVersion": "delta-rs.py-1.6.6",
                "operationMetrics": {
                    "execution_time_ms": 5,
                    "num_added_files": 1,
                    "num_added_rows": tables.ROWS_PER_FILE,
                    "num_partitions": 0,
                    "num_removed_files": 0,
                },
            }
        )
        actions = [*first, tables.add(version, log.size), info]
        (folder / f"{version:020}.json").write_bytes(encode_commit(actions))


def _build_checkpoint(log: Log) -> None:
    """Write a checkpoint with delta-rs, and delete all older commits."""
    tables.build_delta(log.location, log.size)
    for version in range(tables.BATCHES):
        (log.location / "_delta_log" / f"{version:020}.json").unlink()


def _median(answers: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(answer[name] for answer in answers))


@dataclass(frozen=True)
class Bar:
    """A bar: how its log is built and measured, and its sizes, full and quick."""

    build: Callable[[Log], None]
    measure: Callable[[Run, Log], None]
    sizes: tuple[int, int]


_BARS = {
    "commits": Bar(_build_commits, measure_commits, (_COMMITS, _QUICK_COMMITS)),
    "checkpoint": Bar(_build_checkpoint, measure_checkpoint, (_FILES, _QUICK_FILES)),
}

if __name__ == "__main__":
    sys.exit(main())
