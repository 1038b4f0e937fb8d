"""Tasks that need a process of their own: for its memory, or as one of many writers.

Each prints one JSON object. Usage: child.py TASK ARGUMENT...
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from measure import peak_bytes

_REPEATS = 3


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
        return _listed(lambda: catalog.snapshot(name).add_actions().read_all())


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


if __name__ == "__main__":
    task, *arguments = sys.argv[1:]
    print(json.dumps(globals()[task](*arguments)))
