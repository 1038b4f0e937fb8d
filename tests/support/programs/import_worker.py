"""A process that imports a table, or writes to one, and may be killed at a point."""

import os
import signal
import sys
from typing import Any

import deltalake
import pyarrow as pa

import delkalakedb as dk
from delkalakedb.catalog.load.staged_table import StagedTable
from delkalakedb.migrate import importer as importing, loader as loading

# Where it dies, each time after it was done: `write` is inside a transaction.
POINTS: dict[str, tuple[Any, str]] = {
    "begin": (StagedTable, "_begin"),
    "write": (StagedTable, "write"),
    "check": (importing, "_check_whole"),
    "show": (StagedTable, "show"),
    "adopt": (importing, "adopt"),
}


def import_and_die(location: str, uri: str, where: str, count: str) -> None:
    """Import in small parts, and die at the n-th time of getting to a point."""
    loading._TOGETHER, loading._COMMITS_TOGETHER = 3, 2
    remaining = [int(count)]

    def die(*args: object) -> None:
        remaining[0] -= 1
        if not remaining[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    if where in POINTS:
        home, attribute = POINTS[where]
        function = getattr(home, attribute)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            die()
            return result

        setattr(home, attribute, call)
    dk.import_table(location, uri, progress=die if where == "part" else None)


def write_on(location: str, count: str) -> None:
    """Append to a plain table again and again, and say so."""
    for number in range(int(count)):
        table = pa.table({"id": [number]})
        deltalake.write_deltalake(location, table, mode="append")
        print(number, flush=True)


if __name__ == "__main__":
    run = {"import": import_and_die, "write": write_on}[sys.argv[1]]
    run(*sys.argv[2:])
