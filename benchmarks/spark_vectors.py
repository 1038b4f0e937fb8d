"""Measurements of reads and merges of tables with deletion vectors."""

import shutil
import time
from itertools import count

from bars import MILLION, Run, short
from measure import Case, medians, timed
from pyspark.sql import DataFrame, SparkSession
from spark_reads import QUERIES
from spark_rows import made, rows
from spark_writes import delta_merging

from delkalakedb import spark as dks
from delkalakedb.settings.uri import format_uri, parse_uri

_OVER_NONE = 1.3
_OVER_COPIES, _NO_SLOWER = 5, 1
_ROUNDS = 5
_SHARE, _NEW_ROWS = 10_000, 10
_ON = {"delta.enableDeletionVectors": "true"}


def measure_vectors(run: Run, session: SparkSession, has_delta: bool) -> None:
    """Measure a table with 1% of its rows in vectors, and merges of 0.01%."""
    size = run.bulk // 4
    _measure_reads(run, session, size)
    _measure_merges(run, session, size, has_delta)


def _measure_reads(run: Run, session: SparkSession, size: int) -> None:
    uri = format_uri(parse_uri(run.database("vectors_read").uri).with_table("t"))
    folder = run.folder / "vectors-read"
    data = rows(session, size)
    dks.write(data, uri, location=str(folder), configuration=_ON)
    dks.DeltaTable.forUri(session, uri).delete("pmod(xxhash64(id), 100) = 0")
    bar = f"read {short(size)} rows, 1% in vectors"
    for name, query in QUERIES.items():
        cases = {
            who: timed(lambda q=query, v=version: q(dks.read(session, uri, version=v)))
            for who, version in (("with", 1), ("without", 0))
        }
        found = medians(cases, least=_ROUNDS, most=_ROUNDS, warm=2)
        for who, seconds in found.items():
            run.report(bar, f"{name}, {who} vectors", seconds * 1000, "ms")
        ratio = found["with"] / found["without"]
        # Spark alone counts a file's rows by its footer.
        limit = None if name == "count" else _OVER_NONE
        run.at_most(bar, f"{name}, with / without vectors", ratio, limit)
    expected = data.filter("pmod(xxhash64(id), 100) <> 0").count()
    run.at_most(bar, "rows missing", expected - dks.read(session, uri).count(), 0, "")
    shutil.rmtree(folder)


def _measure_merges(
    run: Run, session: SparkSession, size: int, has_delta: bool
) -> None:
    uri = format_uri(parse_uri(run.database("vectors_merge").uri).with_table("t"))
    folder = run.folder / "vectors-merge"
    data = rows(session, size).repartitionByRange(20, "id")
    dks.write(data, uri, location=str(folder), configuration=_ON)
    cases = {"ours": _merging(session, uri, size)}
    if has_delta:
        for who, on in (("delta, vectors", "true"), ("delta, copies", "false")):
            copy = run.folder / f"vectors-merge-{on}"
            shutil.copytree(folder, copy)
            session.sql(
                f"ALTER TABLE delta.`{copy}` "
                f"SET TBLPROPERTIES ('delta.enableDeletionVectors' = '{on}')"
            )
            cases[who] = delta_merging(
                session, copy, lambda number: _source(session, size, number)
            )
    found = medians(cases, least=_ROUNDS, most=_ROUNDS, warm=2)
    bar = f"merge 0.01% of {short(size)} rows, scattered"
    for who, seconds in found.items():
        run.report(bar, who, seconds * 1000, "ms")
    full = run.bulk >= 40 * MILLION
    if has_delta:
        for who, limit in (
            ("delta, copies", _OVER_COPIES),
            ("delta, vectors", _NO_SLOWER),
        ):
            ratio = found[who] / found["ours"]
            run.at_least(bar, f"{who} / ours", ratio, limit if full else None)
        theirs = session.read.format("delta").load(str(copy))
        ours = dks.read(session, uri)
        odd = ours.exceptAll(theirs).count() + theirs.exceptAll(ours).count()
        run.at_most(bar, "rows that differ", odd, 0, "")
    else:
        run.notes.append("merges with vectors: no Delta Spark to compare with")
    for path in run.folder.glob("vectors-merge*"):
        shutil.rmtree(path)


def _source(session: SparkSession, size: int, number: int) -> DataFrame:
    """Return 0.01% of the ids, scattered; a tenth of them are new."""
    part = size // _SHARE
    new = part // _NEW_ROWS
    first = number * 7 + 1
    ids = session.range(first, first + (part - new) * _SHARE, _SHARE, 2)
    end = 2 * size + number * part
    return made(ids.union(session.range(end, end + new, 1, 1)), salt=number + 1)


def _merging(session: SparkSession, uri: str, size: int) -> Case:
    numbers = count()

    def case() -> float:
        source = _source(session, size, next(numbers))
        started = time.perf_counter()
        table = dks.DeltaTable.forUri(session, uri).alias("t")
        merge = table.merge(source.alias("s"), "t.id = s.id")
        merge.whenMatchedUpdateAll().whenNotMatchedInsertAll().execute()
        return time.perf_counter() - started

    return case
