"""Measure the mirror against its bars: python benchmarks/mirror.py --help."""

import os
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import msgspec
import tables
from bars import Run, short
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from engines import postgres_server
from lag import measure_lag
from measure import Case, medians
from options import options_of, work_folder
from report import finish, write_json

import delkalakedb as dk
from delkalakedb.mirror.publisher.publication import publish_table
from delkalakedb.mirror.verify.verification import verify_table
from delkalakedb.model.log import Staged
from delkalakedb.storage.store import open_store
from delkalakedb.write.committer import commit

_BARS = ("requests", "commit", "verify", "lag")
_HERE = Path(__file__).parent
_FILES, _QUICK_FILES = 100_000, 10_000
_FASTER = 10
_COMMITS = 20
_CHECKPOINT_EVERY = 10  # versions
_VERSIONS, _QUICK_VERSIONS = 1_000, 200
_REQUEST_S = 0.05
# Setting the time of a local file; an object store has no such request.
_FREE = {"set_modified"}


def main() -> int:
    """Run the requested benchmarks; exit with 1 if a bar was missed."""
    options = options_of(__doc__, _BARS, "10k files, less of all").parse_args()
    runs: list[Run] = []
    with (
        work_folder(options) as work,
        postgres_server("postgres" in options.engines),
    ):
        for engine in options.engines:
            runs.append(_run(engine, work / engine, quick=options.quick))
            _measure(runs[-1], options.bars, quick=options.quick)
            shutil.rmtree(runs[-1].folder)
            write_json(runs, options.out / "mirror.json")
    return finish(runs)


def _run(engine: str, folder: Path, *, quick: bool) -> Run:
    folder.mkdir()
    files = _QUICK_FILES if quick else _FILES
    return Run(
        engine=engine,
        folder=folder,
        sizes=(files,),
        delta={files: folder / "delta"},
        commits=(0, 0),
        bulk=0,
        ducklake_python=None,
    )


def _measure(run: Run, bars: Collection[str], *, quick: bool) -> None:
    steps: dict[str, Callable[[], None]] = {
        "requests": lambda: measure_requests(run),
        "commit": lambda: measure_commit(run),
        "verify": lambda: measure_verify(run, _QUICK_VERSIONS if quick else _VERSIONS),
    }
    if run.engine == "postgres":
        steps["lag"] = lambda: measure_lag(run, quick=quick)
    run.measure(steps, bars)


class _Counted:
    """A store that counts its requests."""

    def __init__(self, store: Any, counts: Counter[str]) -> None:
        self._store = store
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        self._counts[name] += 1
        return getattr(self._store, name)


def measure_requests(run: Run) -> None:
    """Count the requests to the store for each of several commits."""
    location = str(run.folder / "requests")
    counts: Counter[str] = Counter()
    store: Any = _Counted(open_store(location), counts)
    with run.database("requests").connect() as catalog:
        version = _build(catalog, location, files=tables.BATCHES)
        for number in range(_COMMITS):
            catalog.commit(_append(number, version))
            version += 1
            done = publish_table(catalog, tables.NAME, lambda _: store, version)
            assert done.version == version
    asked = {name: n / _COMMITS for name, n in counts.items() if name not in _FREE}
    bar = "publish one commit"
    run.at_most(bar, "storage requests", sum(asked.values()), 2, "")
    run.at_most(bar, "of them listings", asked.get("list", 0), 0, "")


class _Slow:
    """A store that delays each request, and adds up the time of all requests."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.url = store.url
        self.spent: list[float] = []

    def __getattr__(self, name: str) -> Any:
        ask = getattr(self.store, name)

        def answer(*args: Any, **given: Any) -> Any:
            started = time.perf_counter()
            time.sleep(_REQUEST_S)
            found = ask(*args, **given)
            self.spent.append(time.perf_counter() - started)
            return found

        return answer


def measure_verify(run: Run, versions: int) -> None:
    """Measure a deep verify against the sum of the times of its requests."""
    folder = run.folder / "verify"
    with run.database("verify").connect() as catalog:
        protocol, metadata = tables.first_actions()
        often = {"delta.checkpointInterval": str(_CHECKPOINT_EVERY)}
        metadata = msgspec.structs.replace(metadata, configuration=often)
        first = Staged(tables.NAME, (protocol, metadata), location=str(folder))
        commit(catalog, first)
        for version in range(versions - 1):
            add = tables.add(version, tables.FILES_PER_DAY, 1)
            commit(catalog, tables.append([add], version))
            file = folder / unquote(add.path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            os.truncate(file, add.size)
        # Once before, for what is imported on first use.
        assert verify_table(catalog, tables.NAME, open_store(str(folder))).ok
        store = _Slow(open_store(str(folder)))
        started = time.perf_counter()
        report = verify_table(catalog, tables.NAME, store, deep=True)
        seconds = time.perf_counter() - started
    assert report.ok, str(report)
    assert report.versions_checked == versions
    bar = f"verify --deep of {short(versions)} versions, 50 ms a request"
    run.report(bar, "requests", len(store.spent), "")
    run.report(bar, "ours", seconds, "s")
    limit = _FASTER if versions == _VERSIONS else None
    run.at_least(bar, "one by one / ours", sum(store.spent) / seconds, limit)


def measure_commit(run: Run) -> None:
    """Measure committing and publishing one add against deltalake's commit."""
    files = run.largest
    tables.build_delta(run.delta[files], files)
    database = run.database("commit")
    with database.connect() as catalog:
        _build(catalog, str(run.folder / "commit"), files)
    database.settle()
    with database.connect() as catalog:
        ours = medians({"": _commit_one(catalog)}, budget_s=20, most=300, warm=20)[""]
    peers = {
        "open + commit": _delta_commit(run.delta[files], reopen=True),
        "commit": _delta_commit(run.delta[files], reopen=False),
    }
    bar = "commit + publish one add"
    run.report(bar, f"into {short(files)} files, ours", ours * 1000, "ms")
    for what, seconds in medians(peers, budget_s=20, most=30).items():
        run.report(bar, f"deltalake, {what}", seconds * 1000, "ms")
        # The bar is for open + commit, because an append job opens the table first.
        limit = _FASTER if what == "open + commit" and files == _FILES else None
        run.at_least(bar, f"deltalake, {what} / ours", seconds / ours, limit)


def _build(catalog: dk.Catalog, location: str, files: int) -> int:
    """Build a published table in ten appends, and return its version."""
    commit(catalog, Staged(tables.NAME, tables.first_actions(), location=location))
    for version, actions in enumerate(tables.batches(files)):
        commit(catalog, tables.append(actions, version))
    return tables.BATCHES


def _append(number: int, version: int) -> Staged:
    # Generation 1, so that no other add has these paths.
    return tables.append([tables.add(number, tables.FILES_PER_DAY, 1)], version)


def _commit_one(catalog: dk.Catalog) -> Case:
    version = catalog.snapshot(tables.NAME).version

    def case() -> float:
        nonlocal version
        staged = _append(version, version)
        started = time.perf_counter()
        (outcome,) = commit(catalog, staged)
        seconds = time.perf_counter() - started
        version = outcome.version
        assert catalog._mirror_state(tables.NAME)[0] == version
        return seconds

    return case


def _delta_commit(path: Path, *, reopen: bool) -> Case:
    table = DeltaTable(path)
    schema = table.schema()

    def case() -> float:
        nonlocal table
        table.update_incremental()
        added = tables.add(table.version(), tables.FILES_PER_DAY, 1)
        action = AddAction(
            path=added.path,
            size=added.size,
            partition_values=added.partition_values,
            modification_time=added.modification_time,
            data_change=True,
            stats=str(added.stats),
        )
        started = time.perf_counter()
        if reopen:
            table = DeltaTable(path)
        table.create_write_transaction([action], "append", schema, ["day"])
        return time.perf_counter() - started

    return case


if __name__ == "__main__":
    sys.exit(main())
