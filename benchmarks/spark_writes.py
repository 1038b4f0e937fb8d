"""Measurements of writes against Parquet, and of merges against Delta Spark."""

import shutil
import time
import uuid
from collections.abc import Callable
from itertools import count
from pathlib import Path

from bars import MILLION, Run, short
from measure import Case, medians
from pyspark.sql import DataFrame, SparkSession
from spark_rows import made, rows

from delkalakedb import spark as dks
from delkalakedb.settings.uri import format_uri, parse_uri

_OVER_PARQUET = 1.15
_NO_SLOWER = 1
_ROUNDS = 5
_NEW_ROWS = 10


def measure_write(run: Run, session: SparkSession) -> None:
    """Measure a first write against `df.write.parquet` of the same rows."""
    catalog = run.database("write").uri
    for kind, partitions in (("plain", []), ("partitioned", ["day"])):
        data = rows(session, run.bulk)
        cases = {
            "ours": _written(run, catalog, data, partitions),
            "parquet": _parquet(run, data, partitions),
        }
        found = medians(cases, least=_ROUNDS, most=_ROUNDS, warm=1)
        bar = f"write {short(run.bulk)} rows, {kind}"
        for who, seconds in found.items():
            run.report(bar, who, seconds * 1000, "ms")
        ratio = found["ours"] / found["parquet"]
        run.at_most(bar, "ours / df.write.parquet", ratio, _OVER_PARQUET)


def _written(run: Run, catalog: str, data: DataFrame, partitions: list[str]) -> Case:
    def case() -> float:
        name = f"t{uuid.uuid4().hex}"
        uri = format_uri(parse_uri(catalog).with_table(name))
        folder = run.folder / name
        started = time.perf_counter()
        dks.write(data, uri, partition_by=partitions, location=str(folder))
        return _ended(started, folder)

    return case


def _parquet(run: Run, data: DataFrame, partitions: list[str]) -> Case:
    def case() -> float:
        folder = run.folder / f"p{uuid.uuid4().hex}"
        started = time.perf_counter()
        data.write.partitionBy(*partitions).parquet(str(folder))
        return _ended(started, folder)

    return case


def _ended(started: float, folder: Path) -> float:
    seconds = time.perf_counter() - started
    shutil.rmtree(folder)
    return seconds


def measure_merge(run: Run, session: SparkSession, has_delta: bool) -> None:
    """Measure a merge of 1% of the rows against Delta Spark on a copy."""
    size = run.bulk // 4
    catalog = run.database("merge").uri
    for kind, step in (("localised", 1), ("scattered", 100)):
        uri = format_uri(parse_uri(catalog).with_table(kind))
        folder = run.folder / f"merge-{kind}"
        data = rows(session, size).repartitionByRange(20, "id")
        dks.write(data, uri, location=str(folder))
        cases = {"ours": _merging(session, uri, size, step)}
        if has_delta:
            copy = run.folder / f"merge-{kind}-delta"
            shutil.copytree(folder, copy)
            cases["delta"] = delta_merging(
                session,
                copy,
                lambda number, s=step: _source(session, size, s, number),
            )
        found = medians(cases, least=_ROUNDS, most=_ROUNDS, warm=2)
        _report_merge(run, f"merge 1% of {short(size)} rows, {kind}", found)
        if has_delta:
            theirs = session.read.format("delta").load(str(copy))
            ours = dks.read(session, uri)
            odd = ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()
            run.at_most("merge", f"rows that differ, {kind}", odd, 0, "")
        for path in run.folder.glob("merge-*"):
            shutil.rmtree(path)


def _report_merge(run: Run, bar: str, found: dict[str, float]) -> None:
    for who, seconds in found.items():
        run.report(bar, who, seconds * 1000, "ms")
    if "delta" in found:
        ratio = found["delta"] / found["ours"]
        full = run.bulk >= 40 * MILLION
        run.at_least(bar, "Delta Spark / ours", ratio, _NO_SLOWER if full else None)
    else:
        run.notes.append("merges: no Delta Spark to compare with")


def _source(session: SparkSession, size: int, step: int, number: int) -> DataFrame:
    """Return 1% of the ids, consecutive or scattered; a tenth of them are new."""
    part = size // 100
    first = number if step > 1 else number * 13 % 90 * part
    old = part - part // _NEW_ROWS
    ids = session.range(first, first + old * step, step, 2)
    end = 2 * size + number * part
    new = session.range(end, end + part // _NEW_ROWS, 1, 1)
    return made(ids.union(new), salt=number + 1)


def _merging(session: SparkSession, uri: str, size: int, step: int) -> Case:
    numbers = count()

    def case() -> float:
        source = _source(session, size, step, next(numbers))
        started = time.perf_counter()
        table = dks.DeltaTable.forUri(session, uri).alias("t")
        merge = table.merge(source.alias("s"), "t.id = s.id")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
        return time.perf_counter() - started

    return case


def delta_merging(
    session: SparkSession, folder: Path, source: Callable[[int], DataFrame]
) -> Case:
    """Return a case in which Delta Spark merges `source` of the round's number."""
    numbers = count()

    def case() -> float:
        source(next(numbers)).createOrReplaceTempView("source")
        started = time.perf_counter()
        session.sql(
            f"MERGE INTO delta.`{folder}` t USING source s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        ).collect()
        return time.perf_counter() - started

    return case
