"""Measurements of SQL, and of datasets and memory in separate processes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tables
from bars import Run, short
from measure import medians, run_child, timed

import delkalakedb as dk
from delkalakedb.model.log import Staged
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.storage import local_folder

_FULL_FILES = 100_000
_LESS_CPU, _LESS_CPU_SELECTIVE = 4, 100
_HANDLE_BYTES = 20_000_000
_RUNS = 3
_SQL = 1.3
# rows in a data file; about 0.4 MB
_SQL_ROWS = 25_000
# Cached, because it takes minutes and is the same for every engine.
_answers: dict[str, dict[str, Any]] = {}


class Peer:
    """The equivalent plain Delta table, which is built when it is first needed."""

    def __init__(self, folder: Path, files: int) -> None:
        self._folder = folder
        self._files = files

    @property
    def path(self) -> Path:
        """The folder of the table."""
        return self._made(self._files)

    def dataset(self, where: str) -> dict[str, Any]:
        """Measure deltalake's dataset of the table."""
        if where not in _answers:
            small = self._made(tables.BATCHES)
            _answers[where] = _dataset(str(small), str(self.path), where, self._files)
        return _answers[where]

    def _made(self, files: int) -> Path:
        path = self._folder / short(files)
        if not path.exists():
            tables.build_delta(path, files)
        return path


def measure_dataset(run: Run, peer: Peer) -> None:
    """Measure `to_pyarrow_dataset`, with and without a selective predicate."""
    files = run.peer_size
    large = _built(run, files)
    small = _beside(large, run.folder / "beside")
    query = tables.queries(files)[0]
    bar = f"open + dataset of {short(files)} files"
    for where, least in (("", _LESS_CPU), (query.where, _LESS_CPU_SELECTIVE)):
        what = "selective predicate" if where else "all files"
        ours, theirs = _dataset(small, large, where, files), peer.dataset(where)
        run.report(bar, f"{what}, ours", ours["cpu_s"], "s")
        run.report(bar, f"{what}, deltalake", theirs["cpu_s"], "s")
        limit = least if files == _FULL_FILES else None
        ratio = theirs["cpu_s"] / ours["cpu_s"]
        run.at_least(bar, f"{what}, deltalake / ours, CPU", ratio, limit)
        only_one = len(set(ours["kept"]) ^ set(theirs["kept"]))
        run.at_most(bar, f"{what}, fragments that only one keeps", only_one, 0, "")


def measure_sql(run: Run) -> None:
    """Measure `Catalog.sql` against `read_parquet` of the files that a query needs."""
    files = run.peer_size
    uri = _built(run, files)
    catalog_uri = format_uri(parse_uri(uri).catalog)
    with dk.connect(catalog_uri) as catalog, duckdb.connect() as warm:
        for query in tables.queries(files):
            snapshot = catalog.snapshot(tables.NAME)
            paths = [
                f"{local_folder(snapshot.location)}/{p}"
                for p in _paths(snapshot, query)
            ]
            for path in paths:
                _write_rows(Path(path), files)
            select = "SELECT city, count(*), sum(amount) FROM {} WHERE {} GROUP BY city"
            ours = select.format(tables.NAME, query.where)
            theirs = select.format("read_parquet($1)", query.where)

            def bare(sql: str = theirs, given: list[str] = paths) -> None:
                warm.sql(sql, params=[given]).to_arrow_table()

            def opened(sql: str = theirs, given: list[str] = paths) -> None:
                with duckdb.connect() as cold:
                    cold.sql(sql, params=[given]).to_arrow_table()

            def answered(sql: str = ours) -> None:
                catalog.sql(sql).arrow()

            found = medians(
                {name: timed(f) for name, f in _named(answered, bare, opened).items()}
            )
            bar = f"SQL, {short(files)} files, {len(paths)} of them needed"
            run.report(bar, "catalog.sql", found["answered"] * 1000, "ms")
            large = query.matches >= tables.FILES_PER_DAY and files == _FULL_FILES
            limit = _SQL if large else None
            ratio = found["answered"] / found["bare"]
            run.at_most(bar, "ours / read_parquet", ratio, limit)
            ratio = found["answered"] / found["opened"]
            run.at_most(bar, "ours / duckdb.connect + read_parquet", ratio, None)


def measure_memory(run: Run) -> None:
    """Measure the memory of an open handle on a large table."""
    small, large = (_built(run, n) for n in (tables.BATCHES, run.largest))
    found = run_child("open_handle", large, small)
    imported, opened, both = found["resident"]
    bar = f"handle on {short(run.largest)} files"
    over = (opened - imported) / 1e6
    run.at_most(bar, "memory over the imports", over, _HANDLE_BYTES / 1e6, "MB")
    own = (found["own"][1] - found["own"][0]) / 1e6
    run.report(bar, "of which no file of a library", own, "MB")
    run.report(bar, "another one, on a small table", (both - opened) / 1e6, "MB")


def _named(*actions: Callable[[], None]) -> dict[str, Callable[[], None]]:
    return {action.__name__: action for action in actions}


def _paths(snapshot: Any, query: tables.Query) -> list[str]:
    planned = snapshot.files(query.where, columns=["path"]).read_all()
    return list(planned["path"].to_pylist())


def _write_rows(path: Path, files: int) -> None:
    """Write a data file of the synthetic table, with more rows than its statistics."""
    number = int(path.name.split("-")[1])
    file = tables.file(number, files)
    random = np.random.default_rng(number)
    first, last = (int(city.removeprefix("city-")) for city in file.city)
    rows = pa.table(
        {
            "id": random.integers(file.id[0], file.id[1], _SQL_ROWS, endpoint=True),
            "ts": pa.array([file.ts[0]] * _SQL_ROWS, pa.timestamp("us", "UTC")),
            "amount": random.uniform(*file.amount, _SQL_ROWS),
            "city": [f"city-{n:04}" for n in random.integers(first, last, _SQL_ROWS)],
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path)


def _built(run: Run, files: int) -> str:
    """Build an unpublished table in a new database."""
    database = run.database(f"read{short(files)}")
    location = run.folder / f"tables{short(files)}"
    location.mkdir(exist_ok=True)
    with database.connect() as catalog:
        catalog.init()
        if not catalog.tables():
            first = Staged(tables.NAME, tables.first_actions(), location=str(location))
            catalog.commit(first)
            for version, actions in enumerate(tables.batches(files)):
                catalog.commit(tables.append(actions, version))
    database.settle()
    return format_uri(parse_uri(database.uri).with_table(tables.NAME))


def _beside(uri: str, location: Path) -> str:
    """Build a small table in the same database, to connect before measuring."""
    name = "beside"
    location.mkdir(exist_ok=True)
    with dk.connect(uri) as catalog:
        if name not in {table.name for table in catalog.tables()}:
            actions = [*tables.first_actions(), *tables.adds(tables.BATCHES)]
            catalog.commit(Staged(name, actions, location=str(location)))
    return format_uri(parse_uri(uri).with_table(name))


def _dataset(small: str, large: str, where: str, files: int) -> dict[str, Any]:
    """Run the measurement several times, and return the run of median CPU time."""
    first = files // 2 * tables.ROWS_PER_FILE
    arguments = (small, large, where, first, first + 1)
    runs = [run_child("dataset", *arguments) for _ in range(_RUNS)]
    return sorted(runs, key=lambda run: float(run["cpu_s"]))[_RUNS // 2]
