"""Functions that measure times, memory and round trips.

Cases that are compared run one after the other in each round, so that load on the
machine affects all of them. The result is the median.
"""

import gc
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import delkalakedb as dk

K = TypeVar("K")
# A case runs once and returns its seconds.
Case = Callable[[], float]

_WARM_ROUNDS = 3
_HERE = Path(__file__).parent


def timed(action: Callable[[], object]) -> Case:
    """Return a case that times the whole of an action."""

    def case() -> float:
        started = time.perf_counter()
        action()
        return time.perf_counter() - started

    return case


def medians(
    cases: Mapping[K, Case],
    *,
    budget_s: float = 5.0,
    least: int = 3,
    most: int = 300,
    warm: int = _WARM_ROUNDS,
) -> dict[K, float]:
    """Return the median seconds of each case, in interleaved rounds.

    Args:
        cases: the cases to run in each round.
        budget_s: seconds after which no new round starts.
        least: the minimum number of rounds, whatever the budget.
        most: the maximum number of rounds.
        warm: the number of rounds before the first that counts.
    """
    times: dict[K, list[float]] = {name: [] for name in cases}
    order = random.Random(0)
    with _no_garbage_collection():
        for _ in range(warm):
            for case in cases.values():
                case()
        deadline = time.monotonic() + budget_s
        for done in range(most):
            if done >= least and time.monotonic() > deadline:
                break
            # Shuffled, because a case can be slowed down by the one before it.
            for name in order.sample(list(cases), len(cases)):
                times[name].append(cases[name]())
    return {name: statistics.median(found) for name, found in times.items()}


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss, because a child inherits its parent's value.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def count_round_trips(catalog: dk.Catalog, action: Callable[[], object]) -> int:
    """Count the round trips of an action; statements in one pipeline are one."""
    backend, counts = catalog._backend, [0]
    reading = backend.reading

    @contextmanager
    def counted() -> Iterator[Any]:
        with reading() as session:
            yield _Counted(session, counts)

    # On the instance, where it hides the class's method.
    backend.__dict__["reading"] = counted
    try:
        action()
    finally:
        del backend.__dict__["reading"]
    return counts[0]


class _Counted:
    def __init__(self, session: Any, counts: list[int]) -> None:
        self._session = session
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        self._counts[0] += 1
        return getattr(self._session, name)


def cpu_seconds(command: Sequence[str]) -> float:
    """Run a process, and return its user and system CPU time."""
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=silent)
    _, status, used = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime


def run_child(*arguments: object) -> dict[str, Any]:
    """Run a task of `child.py` in a separate process, and return its report."""
    command = [sys.executable, str(_HERE / "child.py"), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def start_child(*arguments: object) -> "subprocess.Popen[str]":
    """Start a task of `child.py`, which waits for a line before it begins."""
    command = [sys.executable, str(_HERE / "child.py"), *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def run_together(task: str, given: Iterable[Sequence[object]]) -> list[dict[str, Any]]:
    """Run a task of `child.py` with each arguments at once; return the answers."""
    children = [start_child(task, *arguments) for arguments in given]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    return [json.loads(child.communicate()[0]) for child in children]
