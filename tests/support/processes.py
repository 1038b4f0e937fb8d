"""Processes that tests start.

`CHILDREN` are forked by a server process that has imported everything and opened
nothing: a start costs milliseconds, and no connection or thread of the tests is
inherited. Every process finds this package by `PYTHONPATH`, which conftest.py sets.
"""

import multiprocessing
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
CHILDREN = multiprocessing.get_context("forkserver")
CHILDREN.set_forkserver_preload(["tests.support.preloads"])
_HEAD_START_S = 0.2


def program(name: str, *words: str, python: str | Path = sys.executable) -> list[str]:
    """Return the command that runs one of `tests.support.programs`."""
    return [str(python), "-m", f"tests.support.programs.{name}", *words]


def run_python(script: str) -> str:
    """Return the output of a script in a process of its own, which must end well."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


class Crew:
    """Processes that are up already and set out at the same moment."""

    def __init__(self, size: int) -> None:
        together = CHILDREN.Barrier(size)
        self._pool = ProcessPoolExecutor(size, CHILDREN, Barrier.wait, (together,))
        self.run(_arrive, count=size)

    def run(self, job: Callable[..., T], *arguments: Any, count: int) -> list[T]:
        """What `job(*arguments, i)` returns in each of `count` processes."""
        at = time.time() + _HEAD_START_S
        jobs = [
            self._pool.submit(_set_out, at, job, (*arguments, i)) for i in range(count)
        ]
        return [done.result() for done in jobs]

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown()


def _arrive(_: int) -> None:
    pass


def _set_out(at: float, job: Callable[..., T], arguments: tuple[Any, ...]) -> T:
    time.sleep(max(0, at - time.time()))
    return job(*arguments)
