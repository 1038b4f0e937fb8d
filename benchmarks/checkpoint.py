"""Measure checkpoints against deltalake's: python benchmarks/checkpoint.py --help.

deltalake opens the plain table from a checkpoint that is one commit old.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import tables
from bars import MILLION, Run, short
from engines import ENGINES, Database, postgres_server
from measure import run_child
from report import finish

from delkalakedb.model.actions import encode_commit

_REPEATS = 3
_UNITS = {"k": 1000, "m": MILLION}


def main() -> int:
    """Run the requested benchmarks; exit with 1 if a bar was missed."""
    options = _options()
    runs: list[Run] = []
    temporary = tempfile.TemporaryDirectory(prefix="dk-bench-", dir=options.work)
    with temporary as folder:
        work = Path(folder)
        with postgres_server("postgres" in options.engines):
            for files in options.sizes:
                peer = _build_peer(work / f"delta-{short(files)}", files)
                for engine in options.engines:
                    run = Run(engine, work, (files,), {files: peer}, (0, 0), 0, None)
                    runs.append(run)
                    _measure(run, files)
    return finish(runs)


def _measure(run: Run, files: int) -> None:
    database = run.database(f"checkpoint-{short(files)}")
    _build(database, files)
    ours, theirs = [], []
    # Alternating, so that load on the machine affects both.
    for _ in range(_REPEATS):
        ours.append(_checkpoint_ours(run, database))
        theirs.append(_checkpoint_theirs(run.delta[files]))
    what, bar = f"{short(files)} files", f"checkpoint, {short(files)}"
    run.report(bar, f"{what}, ours", _median(ours, "seconds"), "s")
    run.report(bar, f"{what}, deltalake", _median(theirs, "seconds"), "s")
    run.report(bar, f"{what}, ours", _median(ours, "peak_bytes") / 1e6, "MB")
    run.report(bar, f"{what}, deltalake", _median(theirs, "peak_bytes") / 1e6, "MB")
    run.report(bar, f"{what}, ours on disk", ours[0]["size_bytes"] / 1e6, "MB")
    wanted = files == MILLION
    ratio = _median(theirs, "seconds") / _median(ours, "seconds")
    run.at_least(bar, "time, deltalake / ours", ratio, 1 if wanted else None)
    ratio = _median(ours, "peak_bytes") / _median(theirs, "peak_bytes")
    run.at_most(bar, "peak memory, ours / deltalake", ratio, 0.5 if wanted else None)


def _checkpoint_ours(run: Run, database: Database) -> dict[str, Any]:
    location = run.folder / "ours"
    answer = run_child("checkpoint_catalog", database.uri, tables.NAME, location)
    assert answer["size"] == run.largest + 3, answer
    shutil.rmtree(location)
    return answer


def _checkpoint_theirs(peer: Path) -> dict[str, Any]:
    log = peer / "_delta_log"
    hint = (log / "_last_checkpoint").read_bytes()
    answer = run_child("checkpoint_delta", peer)
    # An existing checkpoint would not be written again.
    log.joinpath(f"{tables.BATCHES + 1:020}.checkpoint.parquet").unlink()
    log.joinpath("_last_checkpoint").write_bytes(hint)
    return answer


def _build(database: Database, files: int) -> None:
    with database.connect() as catalog:
        tables.build_catalog(catalog, files)
        version = catalog.snapshot(tables.NAME).version
        catalog.commit(tables.append([tables.add(files, files)], version))
    database.settle()


def _build_peer(location: Path, files: int) -> Path:
    tables.build_delta(location, files)
    entry = location / "_delta_log" / f"{tables.BATCHES + 1:020}.json"
    entry.write_bytes(encode_commit([tables.add(files, files)]))
    return location


def _median(answers: list[dict[str, Any]], name: str) -> float:
    return float(statistics.median(answer[name] for answer in answers))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=_sizes, default=(100_000, MILLION))
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--work", type=Path, help="folder for the databases of the run")
    return parser.parse_args()


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(_size(part) for part in text.lower().split(","))


def _size(text: str) -> int:
    return int(text[:-1]) * _UNITS[text[-1]] if text[-1] in _UNITS else int(text)


if __name__ == "__main__":
    sys.exit(main())
