"""A process that copies a table to another catalog and is killed at a point."""

import os
import signal
import sys
from typing import Any

import delkalakedb as dk
from delkalakedb.catalog.load import copies
from delkalakedb.catalog.load.staged_table import StagedTable
from delkalakedb.migrate import copier as copying

# Where it dies, each time after it was done; `row` and `rows` are in the middle.
POINTS: dict[str, tuple[Any, str, int]] = {
    "held": (copying, "set_hold", 1),
    "begun": (copying, "StagedTable", 1),
    "row": (copying, "inserts", 2),
    "rows": (copying, "inserts", 8),
    "compared": (copying, "find_difference", 1),
    "shown": (StagedTable, "show", 1),
    "let go": (copying, "set_hold", 1),
}


def copy_and_die(source: str, target: str, table: str, point: str) -> None:
    """Copy in small parts, and die at the n-th time of getting to a point."""
    copies._BATCH_ROWS = 3
    home, attribute, count = POINTS[point]
    function = getattr(home, attribute)
    remaining = [count]

    def call(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        remaining[0] -= 1
        if not remaining[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(home, attribute, call)
    dk.copy_catalog(source, target, [table])


if __name__ == "__main__":
    copy_and_die(*sys.argv[1:])
