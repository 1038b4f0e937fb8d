"""Tasks that run in a separate process, to measure its memory or to run several.

Each task prints one JSON object. Usage: child.py TASK ARGUMENT...
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from measure import peak_bytes

_REPEATS = 3
_WARM_UP, _IN_TURN = 20, 5


def list_catalog(uri: str, name: str) -> dict[str, Any]:
    """List all files of a table with `Snapshot.files`."""
    import delkalakedb as dk

    with dk.connect(uri) as catalog:
        catalog.snapshot(name)
        return _listed(lambda: catalog.snapshot(name).files().read_all())


def list_catalog_typed(uri: str, name: str) -> dict[str, Any]:
    """List all files of a table with typed statistics and partition values."""
    import delkalakedb as dk

    with dk.connect(uri) as catalog:
        catalog.snapshot(name)
        return _listed(lambda: catalog.snapshot(name).add_actions().read_all())


def list_delta(path: str) -> dict[str, Any]:
    """List all files of a table with deltalake."""
    import deltalake

    return _listed(lambda: deltalake.DeltaTable(path).get_add_actions())


def checkpoint_catalog(uri: str, name: str, location: str) -> dict[str, Any]:
    """Write the checkpoint of a table's latest version, once."""
    import delkalakedb as dk
    from delkalakedb.mirror.checkpoint.checkpoint import write_checkpoint
    from delkalakedb.storage.store import open_store

    store, now_ms = open_store(location), time.time_ns() // 1_000_000
    with dk.connect(uri) as catalog:
        version = catalog.snapshot(name).version
        started = time.perf_counter()
        written = write_checkpoint(catalog, name, version, store, now_ms)
        seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "peak_bytes": peak_bytes(),
        "size": written.size,
        "size_bytes": written.size_bytes,
    }


def checkpoint_delta(path: str) -> dict[str, Any]:
    """Open a table with deltalake and write its checkpoint."""
    import deltalake

    started = time.perf_counter()
    deltalake.DeltaTable(path).create_checkpoint()
    return {"seconds": time.perf_counter() - started, "peak_bytes": peak_bytes()}


def import_log(location: str, uri: str, warm: str) -> dict[str, Any]:
    """Import a table, including verify; imports of libraries aren't timed."""
    import delkalakedb as dk

    dk.import_table(warm, "deltasql://duckdb/:memory:?table=warm", history=False)
    with dk.connect(uri.partition("?")[0]) as catalog:
        catalog._backend.warm_up()
    started = time.perf_counter()
    done = dk.import_table(location, uri)
    seconds = time.perf_counter() - started
    assert done.ok, done.report
    return {
        "seconds": seconds,
        "peak_bytes": peak_bytes(),
        "num_files": done.num_files,
        "versions": done.versions,
    }


def open_delta(path: str, warm: str) -> dict[str, Any]:
    """Open a table with deltalake."""
    import deltalake

    deltalake.DeltaTable(warm)
    started = time.perf_counter()
    version = deltalake.DeltaTable(path).version()
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "peak_bytes": peak_bytes(), "version": version}


def write(uri: str, name: str, writer: str, seconds: str) -> dict[str, Any]:
    """Commit one add; after a line on stdin, go on for some seconds."""
    import tables

    import delkalakedb as dk
    from delkalakedb.catalog.commit.outcome import Committed

    versions, failures = [], []
    number = int(writer) * 1_000_000
    with dk.connect(uri) as catalog:
        version = catalog.snapshot(name).version
        # The first commit imports libraries for a fifth of a second, which isn't timed.
        staged = tables.append([tables.add(number, tables.FILES_PER_DAY)], version)
        (outcome,) = catalog.commit(staged)
        assert isinstance(outcome, Committed)
        first = version = outcome.version
        print("ready", flush=True)
        sys.stdin.readline()
        deadline = time.monotonic() + float(seconds)
        while time.monotonic() < deadline:
            number += 1
            staged = tables.append([tables.add(number, tables.FILES_PER_DAY)], version)
            try:
                (outcome,) = catalog.commit(staged)
            except Exception as error:
                failures.append(repr(error))
                continue
            assert isinstance(outcome, Committed)
            version = outcome.version
            versions.append(version)
    return {"first": first, "versions": versions, "failures": failures}


def pace(uri: str, names: str, rate: str, commits: str) -> dict[str, Any]:
    """Commit one add at a time, each when it is due, in one thread per table."""
    import tables

    import delkalakedb as dk
    from delkalakedb.model.log import Reads, Staged
    from delkalakedb.write.committer import commit

    writers = names.split(",")

    def write_one(writer: int) -> int:
        name = writers[writer]
        version = catalog.snapshot(name).version
        for i in range(writer, int(commits), len(writers)):
            time.sleep(max(0.0, started + i / float(rate) - time.monotonic()))
            added = tables.add(version + 1, tables.FILES_PER_DAY)
            (outcome,) = commit(catalog, Staged(name, [added], Reads(version=version)))
            version = outcome.version
        return version

    size = len(writers)
    settings: dict[str, Any] = {"mirror": {"mode": "external"}, "pool": {"size": size}}
    with dk.connect(uri, **settings) as catalog, ThreadPoolExecutor(size) as threads:
        started = time.monotonic()
        versions = list(threads.map(write_one, range(size)))
        seconds = time.monotonic() - started
    by_table = dict(zip(writers, versions, strict=True))
    return {"versions": by_table, "rate": int(commits) / seconds}


def reconcile(uri: str) -> dict[str, Any]:
    """Publish the commits of other processes until SIGTERM."""
    from delkalakedb import mirror

    return {status.table: status.to_dict() for status in mirror.run(uri)}


def dataset(warm: str, table: str, where: str, low: str, high: str) -> dict[str, Any]:
    """Measure the CPU time of a pyarrow dataset, and list its files after a filter."""
    import pyarrow.dataset as ds

    import delkalakedb as dk

    # Before the measurement, because imports must not count.
    for predicate in ("id = 1", None):
        dk.DeltaTable(warm).to_pyarrow_dataset(file_pruning_predicate=predicate)
    started = time.process_time()
    made = dk.DeltaTable(table).to_pyarrow_dataset(file_pruning_predicate=where or None)
    cpu_s = time.process_time() - started
    column = ds.field("id")
    kept = made.get_fragments((column >= int(low)) & (column <= int(high)))
    return {"cpu_s": cpu_s, "kept": [fragment.path for fragment in kept]}


def open_handle(uri: str, small: str) -> dict[str, Any]:
    """Measure the memory after the imports, and after opening each of two tables."""
    import delkalakedb as dk
    from delkalakedb.catalog.engine.backend import load_backend
    from delkalakedb.settings.uri import parse_uri

    handles: list[Any] = [dk.DeltaTable, load_backend(parse_uri(uri).engine)]
    found = [_memory()]
    for table in (uri, small):
        handles.append(dk.DeltaTable(table))
        handles.append(handles[-1].schema())
        found.append(_memory())
    resident, own = zip(*found, strict=True)
    return {"resident": resident, "own": own}


def append(table: str, warm: str, seconds: str) -> dict[str, Any]:
    """Append one row after the other for some seconds, after a line on stdin."""
    from table_writes import ROW

    import delkalakedb as dk

    appended, failures = 0, []
    # Before the measurement: the first write and the first list import libraries.
    dk.write_deltalake(warm, ROW, mode="append")
    dk.DeltaTable(warm).file_uris()
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.monotonic()
    while time.monotonic() < started + float(seconds):
        try:
            dk.write_deltalake(table, ROW, mode="append")
        except Exception as error:
            failures.append(repr(error))
        else:
            appended += 1
    elapsed_s = time.monotonic() - started
    return {"appended": appended, "seconds": elapsed_s, "failures": failures}


def append_in_turns(table: str, location: str, kind: str) -> dict[str, Any]:
    """Append some rows, one by one, for each line on stdin, and print the CPU time."""
    _set_telemetry(kind)
    from table_writes import ROW

    import delkalakedb as dk

    dk.connect(table.partition("?")[0]).create_table("t", ROW.schema, location=location)
    for _ in range(_WARM_UP):
        dk.write_deltalake(table, ROW, mode="append")
    for _ in sys.stdin:
        started = time.process_time()
        for _ in range(_IN_TURN):
            dk.write_deltalake(table, ROW, mode="append")
        print((time.process_time() - started) / _IN_TURN, flush=True)
    return {"version": dk.DeltaTable(table).version()}


def commit_in_turns(catalog: str) -> dict[str, Any]:
    """Commit a file for each line on stdin, and print when the call began and ended."""
    import engines  # noqa: F401  (finds the tests)

    import delkalakedb as dk
    from tests.support.actions import add, staged

    done = 0
    with dk.connect(catalog) as opened:
        for number, _ in enumerate(sys.stdin):
            write = staged(opened, add(f"{number}.parquet"))
            started = time.monotonic()
            opened.commit(write)
            print(started, time.monotonic(), flush=True)
            done += 1
    return {"commits": done}


def notify_in_turns(dsn: str) -> dict[str, Any]:
    """Send a NOTIFY for each line on stdin, and print when the call began and ended."""
    import psycopg

    done = 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        for _ in sys.stdin:
            started = time.monotonic()
            connection.execute("NOTIFY bare, 'x'")
            print(started, time.monotonic(), flush=True)
            done += 1
    return {"notifications": done}


def _set_telemetry(kind: str) -> None:
    """Take the measuring out, or set the SDK up, before the package loads."""
    if kind == "nothing measured":
        from contextlib import nullcontext

        from delkalakedb import telemetry
        from delkalakedb.telemetry import signals

        def measured(_: object, **known: Any) -> Any:
            return nullcontext(known)

        signals.measured = telemetry.measured = measured
        signals.Measure.record = lambda *_, **__: None  # type: ignore[method-assign]
    elif kind == "in-memory SDK":
        from opentelemetry import metrics, trace
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import (
            InMemorySpanExporter,
        )

        metrics.set_meter_provider(MeterProvider([InMemoryMetricReader()]))
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(InMemorySpanExporter()))
        trace.set_tracer_provider(provider)


def change(
    shape: str, kind: str, table: str, warm: str, seed: str, rows: str
) -> dict[str, Any]:
    """Change scattered rows of a table, after the same change of a small table."""
    from table_writes import CHANGES, SHAPES

    import delkalakedb as dk

    rows_of = SHAPES[shape]
    CHANGES[kind](dk.DeltaTable(warm), rows_of, int(seed), 1000)
    handle = dk.DeltaTable(table)
    idle = peak_bytes()
    started = time.perf_counter()
    CHANGES[kind](handle, rows_of, int(seed), int(rows))
    seconds = time.perf_counter() - started
    return {"seconds": seconds, "used_bytes": peak_bytes() - idle}


def delete(table: str, warm: str, number: str) -> dict[str, Any]:
    """Delete one row after the other, each in one attempt, after a line on stdin."""
    from deltalake import CommitProperties

    import delkalakedb as dk

    deleted, failures = 0, []
    once = CommitProperties(max_commit_retries=0)
    dk.DeltaTable(warm).delete(f"id = {number}")
    print("ready", flush=True)
    sys.stdin.readline()
    started = time.monotonic()
    for row in range(50):
        try:
            found = dk.DeltaTable(table).delete(
                f"id = {row * 100 + int(number)}", commit_properties=once
            )
        except Exception as error:
            failures.append(repr(error))
        else:
            deleted += found["num_deleted_rows"]
    elapsed_s = time.monotonic() - started
    return {"deleted": deleted, "seconds": elapsed_s, "failures": failures}


def _memory() -> tuple[int, int]:
    """Return the resident bytes, and those that aren't pages of mapped files."""
    status = Path("/proc/self/status")
    if not status.exists():
        raise NotImplementedError("memory is measured on Linux only")
    lines = (line.split() for line in status.read_text().splitlines())
    found = {words[0]: words[1] for words in lines if len(words) > 1}
    return int(found["VmRSS:"]) * 1024, int(found["RssAnon:"]) * 1024


def _listed(action: Callable[[], Any]) -> dict[str, Any]:
    idle = peak_bytes()
    seconds, peak, rows = [], 0, 0
    for _ in range(_REPEATS):
        started = time.perf_counter()
        table = action()
        seconds.append(time.perf_counter() - started)
        # Of the first run, because later runs reuse the memory that it freed.
        peak = peak or peak_bytes()
        rows = table.num_rows
        del table
    return {
        "seconds": statistics.median(seconds),
        "peak_bytes": peak,
        "idle_bytes": idle,
        "rows": rows,
    }


if __name__ == "__main__":
    task, *arguments = sys.argv[1:]
    print(json.dumps(globals()[task](*arguments)))
