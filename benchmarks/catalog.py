"""Measure the catalog against its bars: python benchmarks/catalog.py --help."""

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import reads
import tables
import writes
from bars import MILLION, Run, short
from engines import Database, postgres_server
from options import options_of, work_folder
from report import finish, write_json, write_plots

_BARS = (
    "open",
    "history",
    "plan",
    "ducklake",
    "dead",
    "list",
    "commit",
    "bulk",
    "writers",
)
_HERE = Path(__file__).parent
_UNITS = {"k": 1000, "m": MILLION}


def main() -> int:
    """Run the requested benchmarks; exit with 1 if a bar was missed."""
    options = _options()
    runs: list[Run] = []
    with work_folder(options) as work:
        delta = {n: work / f"delta-{short(n)}" for n in options.sizes}
        for files, path in delta.items():
            _step(f"delta, {short(files)} files", tables.build_delta, path, files)
        with postgres_server("postgres" in options.engines):
            for engine in options.engines:
                run = _run(options, engine, work / engine, delta)
                runs.append(run)
                _measure(run, set(options.bars))
                shutil.rmtree(run.folder)
                write_json(runs, options.out / "catalog.json")
    for path in write_plots(runs, options.out):
        _say(str(path))
    return finish(runs)


def _measure(run: Run, bars: set[str]) -> None:
    databases = {files: run.database(f"t{short(files)}") for files in run.sizes}
    for files, database in databases.items():
        _step(f"{run.engine}, {short(files)} files", _build, database, files)
    with ExitStack() as stack:
        catalogs = {
            files: stack.enter_context(database.connect())
            for files, database in databases.items()
        }
        steps: dict[str, Callable[[], None]] = {
            "open": lambda: reads.measure_open(run, catalogs),
            "history": lambda: reads.measure_history(run),
            "plan": lambda: reads.measure_plan(run, catalogs),
            "ducklake": lambda: reads.measure_ducklake(run, catalogs),
            "dead": lambda: reads.measure_dead(run, catalogs[run.peer_size]),
        }
        run.measure(steps, bars)
    steps = {
        # In separate processes, because only one process can open a DuckDB file.
        "list": lambda: reads.measure_list(run, databases[run.largest]),
        "commit": lambda: writes.measure_commit(run, databases[run.largest]),
        "bulk": lambda: writes.measure_bulk(run),
    }
    if run.engine == "postgres":
        steps["writers"] = lambda: writes.measure_writers(run)
    run.measure(steps, bars)


def _build(database: Database, files: int) -> None:
    with database.connect() as catalog:
        tables.build_catalog(catalog, files)
    database.settle()


def _run(
    options: argparse.Namespace, engine: str, folder: Path, delta: Mapping[int, Path]
) -> Run:
    folder.mkdir()
    return Run(
        engine=engine,
        folder=folder,
        sizes=options.sizes,
        delta=delta,
        commits=(10, options.commits or (1000 if options.quick else 50_000)),
        bulk=10_000 if options.quick else 100_000,
        ducklake_python=options.ducklake_python,
    )


def _step(what: str, action: Callable[..., object], *arguments: object) -> None:
    started = time.monotonic()
    action(*arguments)
    _say(f"{what}: {time.monotonic() - started:.1f} s")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = options_of(__doc__, _BARS, "1k,10k, and less of all")
    parser.add_argument(
        "--sizes", type=_sizes, help="sizes in files; 1k,10k,100k,1m by default"
    )
    parser.add_argument(
        "--commits", type=int, help="length of the long history; 50000 by default"
    )
    parser.add_argument(
        "--ducklake-python",
        help="the Python of an environment with requirements-ducklake.txt",
    )
    options = parser.parse_args()
    if options.sizes is None:
        options.sizes = _sizes("1k,10k" if options.quick else "1k,10k,100k,1m")
    return options


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(sorted({_size(part) for part in text.lower().split(",")}))


def _size(text: str) -> int:
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else int(text)


if __name__ == "__main__":
    sys.exit(main())
