"""Measurements of scans and plans against Spark's own Parquet reader."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import tables
from bars import Run, short
from measure import medians, timed
from pyspark.sql import DataFrame, SparkSession
from spark_rows import made, rows

from delkalakedb import spark as dks
from delkalakedb.model.actions import Action, Add
from delkalakedb.model.log import Staged
from delkalakedb.settings.uri import format_uri, parse_uri

_OVER_PARQUET = 1.15
_OVER_DELTA = 1.5
# versions that have the changes of the second table
_VERSIONS = 50
_PLANNED, _FASTER = 50_000, 20
_FLAT = 3
_ROUNDS = 5
_SUMS = {"amount": "sum", "count": "sum"}
QUERIES: dict[str, Callable[[DataFrame], object]] = {
    "full scan": lambda df: df.write.format("noop").mode("overwrite").save(),
    "sum of 2 of 8 columns": lambda df: df.agg(_SUMS).first(),
    "count": lambda df: df.count(),
}


def measure_scan(run: Run, session: SparkSession) -> None:
    """Measure opening and reading against `spark.read.parquet` of the folder."""
    for kind, partitions in (("plain", None), ("partitioned", ["day"])):
        database = run.database(f"scan_{kind}")
        uri = format_uri(parse_uri(database.uri).with_table(kind))
        folder = run.folder / f"scan-{kind}"
        data = rows(session, run.bulk)
        dks.write(data, uri, partition_by=partitions, location=str(folder))
        bar = f"read {short(run.bulk)} rows, {kind}"
        run.report(bar, "size", _size_bytes(folder) / 1e6, "MB")
        for name, query in QUERIES.items():
            cases = {
                "ours": timed(lambda q=query, u=uri: q(dks.read(session, u))),
                "parquet": timed(
                    lambda q=query, f=folder: q(session.read.parquet(str(f)))
                ),
            }
            _report(run, bar, name, medians(cases, least=_ROUNDS, most=_ROUNDS, warm=2))
        shutil.rmtree(folder)


def _report(run: Run, bar: str, name: str, found: dict[str, float]) -> None:
    for who, seconds in found.items():
        run.report(bar, f"{name}, {who}", seconds * 1000, "ms")
    ratio = found["ours"] / found["parquet"]
    run.at_most(bar, f"{name}, ours / spark.read.parquet", ratio, _OVER_PARQUET)


def measure_changes(run: Run, session: SparkSession, has_delta: bool) -> None:
    """Measure reading changes against Delta Spark on the same log."""
    size = run.bulk // 40
    catalog = run.database("changes").uri
    for kind in ("updated rows", f"{_VERSIONS} appends"):
        name = kind.replace(" ", "_")
        uri = format_uri(parse_uri(catalog).with_table(name))
        folder = run.folder / name
        _changed(session, uri, folder, size, appends=kind != "updated rows")
        changes = {"ours": lambda u=uri: dks.read(session, u, changes_from=1)}
        if has_delta:
            reader = session.read.format("delta").option("readChangeFeed", "true")
            delta = reader.option("startingVersion", 1)
            changes["delta"] = lambda f=folder, r=delta: r.load(str(f))
        else:
            run.notes.append("changes: no Delta Spark to compare with")
        bar = f"read {short(size)} changes, {kind}"
        for what, query in list(QUERIES.items())[:2]:
            cases = {
                who: timed(lambda q=query, r=read: q(r()))
                for who, read in changes.items()
            }
            found = medians(cases, least=_ROUNDS, most=_ROUNDS, warm=2)
            for who, seconds in found.items():
                run.report(bar, f"{what}, {who}", seconds * 1000, "ms")
            if has_delta:
                ratio = found["ours"] / found["delta"]
                run.at_most(bar, f"{what}, ours / Delta Spark", ratio, _OVER_DELTA)
        if has_delta:
            ours, theirs = (read() for read in changes.values())
            odd = ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()
            run.at_most(bar, "rows that differ", odd, 0, "")
        missing = size - changes["ours"]().count()
        run.at_most(bar, "rows missing", missing, 0, "")
        shutil.rmtree(folder)


def _changed(
    session: SparkSession, uri: str, folder: Path, size: int, *, appends: bool
) -> None:
    """Make a table with `size` changes since version 1."""
    feed = {"delta.enableChangeDataFeed": "true"}
    first = rows(session, size)
    dks.write(first, uri, location=str(folder), configuration=feed)
    if not appends:
        # both images of half of the rows
        dks.DeltaTable.forUri(session, uri).update("id % 2 = 0", {"count": "count + 1"})
        return
    part = size // _VERSIONS
    for number in range(_VERSIONS):
        ids = session.range(number * part, (number + 1) * part, 1, 1)
        dks.write(made(ids), uri)


def measure_plan(run: Run, session: SparkSession) -> None:
    """Measure planning a scan down to its tasks, by table and by file names."""
    few, many, _ = run.sizes
    folder = run.folder / "planned"
    paths = _files(folder, many)
    database = run.database("planned")
    with database.connect() as catalog:
        actions: list[Action] = [_add(path) for path in paths]
        first = [*tables.first_actions(), *actions]
        catalog.commit(Staged(tables.NAME, first, location=str(folder)))
    uri = format_uri(parse_uri(database.uri).with_table(tables.NAME))
    ours = timed(lambda: _tasks(dks.read(session, uri)))
    bar = f"plan {short(many)} files"
    seconds = medians({"": ours}, least=_ROUNDS, most=_ROUNDS, warm=2)[""]
    run.report(bar, "ours", seconds * 1000, "ms")
    for size in (few, many):
        names = [str(path) for path in paths[:size]]
        theirs = timed(lambda names=names: _tasks(session.read.parquet(*names)))
        run.report(bar, f"parquet(*paths), {short(size)}", theirs() * 1000, "ms")
    ratio = run.rows[-1].value / 1000 / seconds
    limit = _FASTER if many == _PLANNED else None
    run.at_least(bar, "spark.read.parquet(*paths) / ours", ratio, limit)
    shutil.rmtree(folder)


def measure_growth(run: Run, session: SparkSession) -> None:
    """Measure a plan of few files in tables of 10k and of 1M files."""
    few, _, many = run.sizes
    cases = {}
    for size in (few, many):
        database = run.database(f"grow_{size}")
        with database.connect() as catalog:
            tables.build_catalog(catalog, size)
        database.settle()
        uri = format_uri(parse_uri(database.uri).with_table(tables.NAME))
        for query in tables.queries(size):
            where = query.where
            cases[query.label, size] = timed(
                lambda u=uri, w=where: _tasks(dks.read(session, u, where=w))
            )
    found = medians(cases, budget_s=20, least=10, most=20)
    bar = "plan with where"
    for (label, size), seconds in found.items():
        run.report(bar, f"{label}, {short(size)} files", seconds * 1000, "ms")
    for label in dict.fromkeys(label for label, _ in found):
        ratio = found[label, many] / found[label, few]
        run.at_most(bar, f"{label}, {short(many)} / {short(few)} files", ratio, _FLAT)


def _tasks(df: DataFrame) -> int:
    """Plan a scan down to its tasks."""
    return df.rdd.getNumPartitions()


def _files(folder: Path, count: int) -> list[Path]:
    """Write `count` files of one row each, and return their paths."""
    one = folder / "one"
    one.mkdir(parents=True)
    columns = {"id": pa.array([1], pa.int64()), "amount": pa.array([1.5])}
    pq.write_table(pa.table(columns), one / "row.parquet")
    data = (one / "row.parquet").read_bytes()
    shutil.rmtree(one)
    paths = []
    for number in range(count):
        path = folder / tables.file(number, count).path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        paths.append(path)
    return paths


def _add(path: Path) -> Add:
    day = path.parent.name.removeprefix("day=")
    return Add(
        path=f"{path.parent.name}/{path.name}",
        partition_values={"day": day},
        size=path.stat().st_size,
        modification_time=path.stat().st_mtime_ns // 1_000_000,
        data_change=True,
        stats='{"numRecords":1}',
    )


def _size_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))
