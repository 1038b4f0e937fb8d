"""Measurements of opening, time travel, planning and listing."""

import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import tables
from bars import MILLION, Run, short
from engines import Database
from measure import Case, count_round_trips, medians, run_child, timed
from peers import DuckLake, delta_open, delta_plan

import delkalakedb as dk

_OPEN_FASTER = {100_000: 200, MILLION: 1000}
_PLAN_FASTER = {100_000: 50}
_DUCKLAKE_FILES = 100_000
_DUCKLAKE_FASTER = {"sqlite": 10, "duckdb": 4, "postgres": 10}
_LIST_FASTER = {"sqlite": 1, "duckdb": 2, "postgres": 2}
_LIST_TYPED_FASTER = {"sqlite": 1.5, "duckdb": 1.5, "postgres": 2}
_FLAT = 1.5
_PLAN_FLAT = 3
_Key = tuple[object, ...]


def open_table(catalog: dk.Catalog, version: int | None = None) -> object:
    """Open a table and return its version, protocol, metadata and head."""
    snapshot = catalog.snapshot(tables.NAME, version)
    return snapshot.version, snapshot.protocol, snapshot.metadata, snapshot.table


def plan(catalog: dk.Catalog, query: tables.Query, version: int | None = None) -> int:
    """Open a table and list the files that may match."""
    snapshot = catalog.snapshot(tables.NAME, version)
    return int(snapshot.files(query.where, columns=["path"]).read_all().num_rows)


def measure_open(run: Run, catalogs: Mapping[int, dk.Catalog]) -> None:
    """Measure opening the latest and the middle version, at every size."""
    cases: dict[_Key, Case] = {}
    for files, catalog in catalogs.items():
        cases["open", files] = _open_case(catalog)
        cases["open at N/2", files] = _open_case(catalog, _half(catalog))
    found = _medians(run, cases)
    last = run.largest
    trips = count_round_trips(catalogs[last], lambda: open_table(catalogs[last]))
    run.at_most("open", "round trips", trips, 1, "")
    for files in run.sizes:
        peer = _peer_median(delta_open(run.delta[files]))
        run.time("open", files, peer, "deltalake")
        what = f"{short(files)} files, deltalake / ours"
        ratio = peer / found["open", files]
        run.at_least("open", what, ratio, _OPEN_FASTER.get(files))
    what = f"{short(last)} / {short(run.sizes[0])} files"
    ratio = found["open", last] / found["open", run.sizes[0]]
    run.at_most("open", what, ratio, _FLAT)
    ratio = found["open at N/2", last] / found["open", last]
    run.at_most("time travel", f"open at N/2 / latest, {short(last)}", ratio, _FLAT)


def measure_history(run: Run) -> None:
    """Measure opening a table of many commits."""
    few, many = run.commits
    with ExitStack() as stack:
        cases: dict[_Key, Case] = {}
        for commits in run.commits:
            database = run.database(f"commits-{commits}")
            catalog = stack.enter_context(database.connect())
            tables.build_commits(catalog, commits)
            database.settle()
            cases["open of commits", commits] = _open_case(catalog)
        found = _medians(run, cases)
    ratio = found["open of commits", many] / found["open of commits", few]
    run.at_most("open", f"{short(many)} / {few} commits", ratio, _FLAT)


def measure_plan(run: Run, catalogs: Mapping[int, dk.Catalog]) -> None:
    """Measure selective plans of the latest and the middle version, at every size."""
    base = 10_000 if 10_000 in run.sizes[:-1] else run.sizes[0]
    for i in range(len(tables.queries(base))):
        _measure_query(run, catalogs, i, base)


def _measure_query(
    run: Run, catalogs: Mapping[int, dk.Catalog], number: int, base: int
) -> None:
    asked = {files: tables.queries(files)[number] for files in run.sizes}
    label = asked[base].label
    latest, half = f"plan a {label}", f"plan a {label} at N/2"
    cases: dict[_Key, Case] = {}
    for files, catalog in catalogs.items():
        query = asked[files]
        assert plan(catalog, query) == query.matches, (query, plan(catalog, query))
        cases[latest, files] = _plan_case(query, catalog)
        cases[half, files] = _plan_case(query, catalog, _half(catalog))
    last = run.largest
    what = f"{label}: {short(last)} / {short(base)} files"
    found = _medians(run, cases)
    ratio = found[latest, last] / found[latest, base]
    run.at_most("selective plan", what, ratio, _PLAN_FLAT)
    for files in run.sizes:
        peer = _peer_median(delta_plan(run.delta[files], asked[files]))
        run.time(latest, files, peer, "deltalake")
        what = f"{label}: {short(files)} files, deltalake / ours"
        ratio = peer / found[latest, files]
        run.at_least("selective plan", what, ratio, _PLAN_FASTER.get(files))
    ratio = found[half, last] / found[latest, last]
    what = f"{label}: plan at N/2 / latest, {short(last)}"
    run.at_most("time travel", what, ratio, _FLAT)


def measure_ducklake(run: Run, catalogs: Mapping[int, dk.Catalog]) -> None:
    """Measure selective plans against DuckLake on the same engine, alternating."""
    if run.ducklake_python is None:
        run.notes.append("DuckLake left out: no --ducklake-python")
        return
    files = run.peer_size
    with DuckLake(run.ducklake_python, run.database("ducklake"), files) as lake:
        for query in tables.queries(files):
            scans: list[float] = []
            cases = {
                "ours": _plan_case(query, catalogs[files]),
                "lake": lake.query(query, scans),
            }
            found = medians(cases, most=50)
            planned = found["lake"] - statistics.median(scans)
            run.time(f"plan a {query.label}", files, planned, f"DuckLake, {run.engine}")
            bar, what = (
                "selective plan",
                f"{query.label}: {short(files)} files, DuckLake",
            )
            ratio = planned / found["ours"]
            least = _DUCKLAKE_FASTER[run.engine] if files == _DUCKLAKE_FILES else None
            run.at_least(bar, f"{what} / ours", ratio, least)
            query_ratio = found["lake"] / found["ours"]
            run.report(bar, f"{what}'s query / ours", query_ratio, "x")


def measure_dead(run: Run, clean: dk.Catalog) -> None:
    """Measure opening and planning with ten dead files for each live one."""
    database = run.database("dead")
    with database.connect() as dead:
        tables.build_dead(dead, run.peer_size)
        database.settle()
        _compare_dead(run, "open", _open_case, clean, dead)
        for query in tables.queries(run.peer_size):
            for catalog in (clean, dead):
                assert plan(catalog, query) == query.matches, query
            case = partial(_plan_case, query)
            _compare_dead(run, f"plan a {query.label}", case, clean, dead)


def _compare_dead(
    run: Run,
    operation: str,
    case: Callable[..., Case],
    clean: dk.Catalog,
    dead: dk.Catalog,
) -> None:
    found = medians(
        {
            "clean": case(clean),
            "dead": case(dead),
            "half": case(dead, _half(dead)),
        }
    )
    files = run.peer_size
    run.time(f"{operation} with dead files", files, found["dead"])
    run.time(f"{operation} at N/2 with dead files", files, found["half"])
    what = f"{operation}: with / without, {short(files)} live"
    run.at_most("10 dead per live", what, found["dead"] / found["clean"], _FLAT)
    what = f"{operation}: at N/2 / latest, {short(files)} live"
    run.at_most("10 dead per live", what, found["half"] / found["dead"], _FLAT)


def measure_list(run: Run, database: Database) -> None:
    """Measure listing all files as Arrow, in separate processes."""
    files = run.largest
    wanted = files == MILLION
    peer = _listed(run, "deltalake", "list_delta", run.delta[files])
    for label, task, faster in (
        ("as files() gives it", "list_catalog", _LIST_FASTER),
        ("statistics in typed columns", "list_catalog_typed", _LIST_TYPED_FASTER),
    ):
        ours = _listed(run, run.engine, task, database.uri, tables.NAME)
        assert ours["rows"] == peer["rows"], (ours, peer)
        limit = faster[run.engine] if wanted else None
        what = f"{label}: {short(files)} files, deltalake / ours"
        run.at_least("list", what, peer["seconds"] / ours["seconds"], limit)
        what = f"{label}: peak memory, ours / deltalake"
        ratio = ours["peak_bytes"] / peer["peak_bytes"]
        run.at_most("list", what, ratio, 1 if wanted else None)


def _listed(run: Run, who: str, task: str, *arguments: object) -> dict[str, Any]:
    answer = run_child(task, *arguments)
    run.time(task, run.largest, answer["seconds"], who)
    run.memory(task, run.largest, answer["peak_bytes"], who)
    return answer


def _open_case(catalog: dk.Catalog, version: int | None = None) -> Case:
    return timed(lambda: open_table(catalog, version))


def _plan_case(
    query: tables.Query, catalog: dk.Catalog, version: int | None = None
) -> Case:
    return timed(lambda: plan(catalog, query, version))


def _peer_median(case: Case) -> float:
    return medians({"": case}, budget_s=3, most=20, warm=1)[""]


def _half(catalog: dk.Catalog) -> int:
    return catalog.snapshot(tables.NAME).version // 2


def _medians(run: Run, cases: dict[_Key, Case]) -> dict[_Key, float]:
    found = medians(cases, budget_s=10)
    for (operation, size), seconds in found.items():
        assert isinstance(size, int)
        run.time(str(operation), size, seconds)
    return found
