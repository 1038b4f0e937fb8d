"""Measure a fresh process against its bars: python benchmarks/startup.py --help.

The figures are user and system CPU time of whole processes, including the start of
Python and all imports. Each figure is the minimum of several alternating runs, because
other work on the machine can only add time.
"""

import sys
import sysconfig
from collections.abc import Collection, Mapping
from pathlib import Path

import tables
from bars import Run, short
from engines import postgres_server
from measure import cpu_seconds
from options import options_of, work_folder
from report import finish, write_json

from delkalakedb.model.log import Staged
from delkalakedb.settings.uri import format_uri, parse_uri

_BARS = ("open", "tables", "query")
_FILES, _QUICK_FILES = 20_000, 1_000
# files of a table of three versions, without a checkpoint
_FEW_FILES = 2
_ROUNDS, _QUICK_ROUNDS = 15, 3
# Ratios to deltalake's import and open; SQLite only, because the drivers of the other
# databases alone take about as much.
_MOST = {
    ("sqlite", "open"): 1.5,
    ("sqlite", "tables"): 2.0,
    ("sqlite", "query"): 3.0,
}
_DRIVERS = {"sqlite": "sqlite3", "duckdb": "duckdb", "postgres": "psycopg"}
_PEER = "import deltalake; deltalake.DeltaTable({!r})"
_OURS = "import delkalakedb as dk; assert len(dk.DeltaTable({!r}).file_uris()) == {}"


def main() -> int:
    """Run the requested benchmarks; exit with 1 if a bar was missed."""
    options = options_of(__doc__, _BARS, "1k files, few rounds").parse_args()
    files = _QUICK_FILES if options.quick else _FILES
    rounds = _QUICK_ROUNDS if options.quick else _ROUNDS
    runs: list[Run] = []
    with work_folder(options) as work:
        delta = {size: work / f"delta-{size}" for size in (_FEW_FILES, files)}
        for size, folder in delta.items():
            tables.build_delta(folder, size, checkpoint=size > _FEW_FILES)
        with postgres_server("postgres" in options.engines):
            for engine in options.engines:
                for size, folder in delta.items():
                    run = Run(engine, work, (size,), {}, (0, 0), 0, None)
                    runs.append(run)
                    _measure(run, folder, options.bars, rounds)
        write_json(runs, options.out / "startup.json")
    return finish(runs)


def _measure(run: Run, peer: Path, bars: Collection[str], rounds: int) -> None:
    uri = _built(run)
    python, deltasql = [sys.executable, "-c"], _command(uri)
    cases = {
        "open": [*python, _OURS.format(uri, run.largest)],
        "tables": [*deltasql, "tables"],
        "query": [*deltasql, "query", "select 1"],
    }
    beside = {
        "deltalake": [*python, _PEER.format(str(peer))],
        "driver": [*python, f"import {_DRIVERS[run.engine]}"],
    }
    found = _least({**beside, **{name: cases[name] for name in bars}}, rounds)
    bar = f"start-up, {short(run.largest)} files"
    run.report(bar, "import + open, deltalake", found["deltalake"], "s")
    run.report(bar, f"import {_DRIVERS[run.engine]}", found["driver"], "s")
    whats = {
        "open": "import + open + file_uris()",
        "tables": "deltasql tables",
        "query": "deltasql query 'select 1'",
    }
    for name in bars:
        run.report(bar, whats[name], found[name], "s")
        ratio = found[name] / found["deltalake"]
        most = _MOST.get((run.engine, name)) if run.largest != _QUICK_FILES else None
        run.at_most(bar, f"{whats[name]}, ours / deltalake", ratio, most)


def _least(cases: Mapping[str, list[str]], rounds: int) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in cases}
    # The first round fills the system's cache, and writes bytecode.
    for _ in range(rounds + 1):
        for name, command in cases.items():
            found[name].append(cpu_seconds(command))
    return {name: min(times[1:]) for name, times in found.items()}


def _built(run: Run) -> str:
    """Build an unpublished table without data files."""
    database = run.database(f"startup{run.largest}")
    location = run.folder / f"files-{run.engine}-{run.largest}"
    location.mkdir()
    with database.connect() as catalog:
        first = Staged(tables.NAME, tables.first_actions(), location=str(location))
        catalog.commit(first)
        for version, actions in enumerate(tables.batches(run.largest)):
            catalog.commit(tables.append(actions, version))
    database.settle()
    return format_uri(parse_uri(database.uri).with_table(tables.NAME))


def _command(uri: str) -> list[str]:
    folder = Path(sysconfig.get_path("scripts"))
    return [str(folder / "deltasql"), "--catalog", format_uri(parse_uri(uri).catalog)]


if __name__ == "__main__":
    sys.exit(main())
