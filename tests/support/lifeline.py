"""A process that outlives a test run, ends what the run has left, and goes.

    python lifeline.py PID FOLDER

PID is pytest's, FOLDER the run's. A killed pytest can't stop its servers. Every process
of a run has the folder in its environment, and by that it is found: servers, JVMs, and
children of children. The folder is removed last.
"""

import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

VARIABLE = "DELKALAKEDB_TEST_RUN"
_GRACE_S = 5.0
_PAUSE_S = 0.1


def main(pid: int, folder: str) -> None:
    """Wait for the end of a process, and then end all others of its run."""
    _wait_for_end(pid)
    deadline = time.monotonic() + _GRACE_S
    asked: set[int] = set()
    while left := set(processes_of(folder)):
        late = time.monotonic() > deadline
        for process in left if late else left - asked:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL if late else signal.SIGTERM)
        asked |= left
        time.sleep(_PAUSE_S)
    shutil.rmtree(folder, ignore_errors=True)


def processes_of(folder: str) -> Iterator[int]:
    """Yield the processes of a run, and of runs inside that run."""
    mark = f"{VARIABLE}={folder}".encode()
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            variables = (place / "environ").read_bytes().split(b"\0")
            if any(v == mark or v.startswith(mark + b"/") for v in variables):
                yield int(place.name)


def _wait_for_end(pid: int) -> None:
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        poll.poll()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
