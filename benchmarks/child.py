"""Tasks that need a process of their own: for its memory, or as one of many writers.

Each prints one JSON object. Usage: child.py TASK ARGUMENT...
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from measure import peak_bytes

_REPEATS = 3
_STATS = pa.struct(
    [
        ("id", pa.int64()),
        ("ts", pa.timestamp("us", "UTC")),
        ("amount", pa.float64()),
        ("city", pa.string()),
    ]
)
_COUNTS = pa.struct([(field.name, pa.int64()) for field in _STATS])
_STATS_SCHEMA = pa.schema(
    [("nullCount", _COUNTS), ("minValues", _STATS), ("maxValues", _STATS)]
)
_PARTITION_SCHEMA = pa.schema([("day", pa.string())])
_COLUMNS = ["path", "size_bytes", "modification_time_ms", "num_records"]


def list_catalog(uri: str, name: str) -> dict[str, Any]:
    """All files of a table, as `Snapshot.files` gives them."""
    import delkalakedb as dk

    with dk.connect(uri) as catalog:
        catalog.snapshot(name)
        return _listed(lambda: catalog.snapshot(name).files().read_all())


def list_catalog_typed(uri: str, name: str) -> dict[str, Any]:
    """All files of a table, with statistics and partition values in typed columns."""
    import delkalakedb as dk

    with dk.connect(uri) as catalog:
        catalog.snapshot(name)
        return _listed(lambda: _typed(catalog.snapshot(name).files()))


def list_delta(path: str) -> dict[str, Any]:
    """All files of a table, as deltalake gives them."""
    import deltalake

    return _listed(lambda: deltalake.DeltaTable(path).get_add_actions())


def write(uri: str, name: str, writer: str, seconds: str) -> dict[str, Any]:
    """Commit one add after the other for a time; starts when told to."""
    import tables

    import delkalakedb as dk
    from delkalakedb.model.txnlog import Committed

    versions, failures = [], []
    with dk.connect(uri) as catalog:
        version = catalog.snapshot(name).version
        print("ready", flush=True)
        sys.stdin.readline()
        number = int(writer) * 1_000_000
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
    return {"versions": versions, "failures": failures}


def _listed(action: Callable[[], Any]) -> dict[str, Any]:
    idle = peak_bytes()
    seconds, peak, rows = [], 0, 0
    for _ in range(_REPEATS):
        started = time.perf_counter()
        table = action()
        seconds.append(time.perf_counter() - started)
        # Later runs reuse memory that the first one left behind.
        peak = peak or peak_bytes()
        rows = table.num_rows
        del table
    return {
        "seconds": statistics.median(seconds),
        "peak_bytes": peak,
        "idle_bytes": idle,
        "rows": rows,
    }


def _typed(batches: pa.RecordBatchReader) -> pa.Table:
    return pa.concat_tables([_typed_batch(batch) for batch in batches])


def _typed_batch(batch: pa.RecordBatch) -> pa.Table:
    stats = _parsed(batch.column("stats"), _STATS_SCHEMA)
    partition = _parsed(batch.column("partition_values"), _PARTITION_SCHEMA)
    days = partition.cast(pa.schema([("day", pa.date32())])).to_struct_array()
    table = pa.Table.from_batches([batch.select(_COLUMNS)])
    for name in _STATS_SCHEMA.names:
        table = table.append_column(name, stats.column(name))
    return table.append_column("partition", days)


def _parsed(texts: pa.Array, schema: pa.Schema) -> pa.Table:
    lines = pa.ListArray.from_arrays(pa.array([0, len(texts)], pa.int32()), texts)
    joined = pc.binary_join(lines, "\n")[0].as_buffer()
    options = pj.ParseOptions(
        explicit_schema=schema, unexpected_field_behavior="ignore"
    )
    return pj.read_json(pa.BufferReader(joined), parse_options=options)


if __name__ == "__main__":
    task, *arguments = sys.argv[1:]
    print(json.dumps(globals()[task](*arguments)))
