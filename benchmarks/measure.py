"""Times, memory and counts.

Cases that are compared run in turns, one after the other in each round, so that a busy
moment of the machine falls on all of them; what counts is the median.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import delkalakedb as dk

K = TypeVar("K")
# Runs once and returns its seconds.
Case = Callable[[], float]

_WARM_ROUNDS = 3
_HERE = Path(__file__).parent


def timed(action: Callable[[], object]) -> Case:
    """A case that is all of an action."""

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
    """The median seconds of each case, in interleaved rounds.

    Args:
        cases: what to run in each round.
        budget_s: no new round after so many seconds.
        least: so many rounds whatever they take.
        most: never more rounds.
        warm: rounds before the first that counts.
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
            # Shuffled: a case must not always suffer from the one before it.
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
    """The most memory this process has held at once."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not ru_maxrss: a child starts with its parent's there.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def count_round_trips(catalog: dk.Catalog, action: Callable[[], object]) -> int:
    """How often an action asks the database; statements in one pipeline are one."""
    backend, counts = catalog.backend, [0]
    reading = backend.reading

    @contextmanager
    def counted() -> Iterator[Any]:
        with reading() as session:
            yield _Counted(session, counts)

    # On the instance, in front of the class's method.
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
    """The CPU time, user and system, of a process from its start to its end."""
    silent = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=silent)
    _, status, used = os.wait4(pid, 0)
    if status:
        raise RuntimeError(f"{command} ended with {os.waitstatus_to_exitcode(status)}")
    return used.ru_utime + used.ru_stime


def run_child(*arguments: object) -> dict[str, Any]:
    """What a task of `child.py` reports, in a process of its own."""
    command = [sys.executable, str(_HERE / "child.py"), *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def start_child(*arguments: object) -> "subprocess.Popen[str]":
    """A task of `child.py` that waits for a line before it begins."""
    command = [sys.executable, str(_HERE / "child.py"), *map(str, arguments)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
