"""Measurements of commits: of one file, of many files, and by several processes."""

import statistics
import time
from typing import Any

import tables
from bars import MILLION, Run, short
from engines import Database
from measure import Case, medians, run_together

import delkalakedb as dk
from delkalakedb.catalog.commit.outcome import Committed

SMALL = 10
_OVER_BARE = {"sqlite": 3, "duckdb": 10, "postgres": 6}
_FLAT = 1.3
_OVER_LOAD = 1.5
_REPEATS = 3
_WRITERS = 8
_WRITING_S = 5


def measure_commit(run: Run, database: Database) -> None:
    """Measure commits of one add against a bare durable commit on the same disk."""
    with run.database("small").connect() as small, database.connect() as large:
        tables.build_catalog(small, SMALL)
        cases = {
            "bare": run.database("bare").bare_commit(),
            "small": _commit_one(small),
            "large": _commit_one(large),
        }
        found = medians(cases, budget_s=15, most=500, warm=20)
    run.time("commit of one row", 0, found["bare"], f"bare {run.engine}")
    run.time("commit of one add", SMALL, found["small"])
    run.time("commit of one add", run.largest, found["large"])
    for name, files in (("small", SMALL), ("large", run.largest)):
        what = f"into {short(files)} files / bare commit"
        ratio = found[name] / found["bare"]
        run.at_most("commit of one add", what, ratio, _OVER_BARE[run.engine])
    what = f"into {short(run.largest)} / {SMALL} files"
    run.at_most("commit of one add", what, found["large"] / found["small"], _FLAT)


def _commit_one(catalog: dk.Catalog) -> Case:
    numbers = iter(range(10 * MILLION, 1 << 40))

    def case() -> float:
        version = catalog.table(tables.NAME).version
        added = tables.add(next(numbers), tables.FILES_PER_DAY)
        staged = tables.append([added], version)
        started = time.perf_counter()
        (outcome,) = catalog.commit(staged)
        seconds = time.perf_counter() - started
        assert isinstance(outcome, Committed)
        return seconds

    return case


def measure_bulk(run: Run) -> None:
    """Measure a commit of many adds against a plain load of the rows it wrote."""
    actions = tables.adds(run.bulk)
    rows = None
    ours, plain, sizes = [], [], []
    for i in range(_REPEATS):
        target = run.database(f"bulk-{i}")
        with target.connect() as catalog:
            version = tables.build_empty(catalog)
            started = time.perf_counter()
            catalog.commit(tables.append(actions, version))
            ours.append(time.perf_counter() - started)
        sizes.append(target.size_bytes())
        rows = rows or target.dump(least=run.bulk)
        beside = run.database(f"plain-{i}")
        beside.connect().close()
        plain.append(beside.load(rows))
    seconds, loaded = statistics.median(ours), statistics.median(plain)
    run.time("commit of many adds", run.bulk, seconds)
    run.time("load of the same rows", run.bulk, loaded, f"bare {run.engine}")
    bar = f"commit of {short(run.bulk)} adds"
    run.at_most(bar, "over a plain load of the rows", seconds / loaded, _OVER_LOAD)
    run.report(bar, "per million files", seconds * MILLION / run.bulk, "s")
    megabytes = statistics.median(sizes) / run.bulk
    run.report(bar, "per million files", megabytes, "MB")


def measure_writers(run: Run) -> None:
    """Measure processes that commit to one table against a single process."""
    database = run.database("writers")
    with database.connect() as catalog:
        first = tables.build_empty(catalog) + 1
    rates: dict[int, list[float]] = {1: [], _WRITERS: []}
    versions: list[int] = []
    failures: list[str] = []
    for turn, writers in enumerate([1, _WRITERS] * 2):
        answers = _write(database.uri, writers, first_writer=turn * _WRITERS)
        for answer in answers:
            versions += [answer["first"], *answer["versions"]]
            failures += answer["failures"]
        commits = sum(len(answer["versions"]) for answer in answers)
        rates[writers].append(commits / _WRITING_S)
    run.notes += failures[:3]
    one, many = (statistics.median(rates[n]) for n in rates)
    missing = len(set(range(first, first + len(versions))) ^ set(versions))
    bar = f"{_WRITERS} writers"
    run.at_most(bar, "failures", len(failures), 0, "")
    run.at_most(bar, "versions missing or twice", missing, 0, "")
    run.at_least(bar, f"throughput at {_WRITERS} / at 1", many / one, 1)
    run.report(bar, "throughput at 1", one, "/s")
    run.report(bar, f"throughput at {_WRITERS}", many, "/s")


def _write(uri: str, writers: int, first_writer: int) -> list[dict[str, Any]]:
    numbers = range(first_writer, first_writer + writers)
    given = [(uri, tables.NAME, number, _WRITING_S) for number in numbers]
    return run_together("write", given)
