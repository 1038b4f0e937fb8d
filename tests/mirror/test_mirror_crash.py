"""A process killed at any step of commit, publish and checkpoint loses nothing.

Steps are named in `STEPS`; each kill is of a process of its own, on a table of its own.
"""

import itertools
import random
import signal
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from delkalakedb import Catalog
from tests.support.actions import paths
from tests.support.mirror_workers import (
    brief,
    check_mirror,
    create_lake,
    due_at,
    grow,
    grow_stepwise,
    outlive,
    reconciler_of,
    temporary_files,
)
from tests.support.processes import CHILDREN

COMMITS, INTERVAL = 5, 2
STEPS = [
    f"{moment} {step}"
    for step in (
        "_try_commit",
        "put_new json",
        "link json",
        "set_modified json",
        "put_new crc",
        "link crc",
        "mark_published",
        "claim_checkpoint",
        "write_checkpoint",
        "put_file parquet",
        "replace parquet",
        "write_last_checkpoint",
        "put _last_checkpoint",
        "replace _last_checkpoint",
        "mark_checkpoint",
        "clean_log",
    )
    for moment in ("before", "after")
]
# Killed there, a process leaves a temporary file behind, which no reader minds.
TORN_OFF = {
    step for step in STEPS if "link" in step or step.startswith("before replace")
}
KILLS = 10
ENGINES = ("sqlite", "duckdb", "postgres")


@pytest.fixture
def steps(catalog_uri: str, tmp_path: Path) -> Counter[str]:
    """How often each step comes when nobody is killed."""
    create(catalog_uri, tmp_path, "whole")
    exitcode, told = run_writer(catalog_uri, "whole")
    assert exitcode == 0
    counted: Counter[str] = told.pop()
    assert told == [*range(1, COMMITS + 1)]
    assert sorted(counted) == sorted(STEPS)
    return counted


def test_writer_killed_at_a_named_step_leaves_a_mirror_that_converges(
    catalog_uri: str, tmp_path: Path, engine: str, steps: Counter[str]
) -> None:
    # The engines share the steps out: each is taken once in a run of all of them.
    named = STEPS[ENGINES.index(engine) :: len(ENGINES)]
    assert len(named) >= KILLS
    rng = random.Random(1)
    for number, step in enumerate(named):
        check_kill(catalog_uri, tmp_path, number, step, rng.randint(1, steps[step]))


@pytest.mark.soak
def test_writer_killed_two_hundred_times_leaves_mirrors_that_converge(
    catalog_uri: str, tmp_path: Path, steps: Counter[str]
) -> None:
    rng = random.Random(2)
    for number, step in zip(range(204), itertools.cycle(STEPS)):
        check_kill(catalog_uri, tmp_path, number, step, rng.randint(1, steps[step]))


def check_kill(uri: str, folder: Path, number: int, step: str, nth: int) -> None:
    name = f"t{number}"
    create(uri, folder, name)
    exitcode, told = run_writer(uri, name, (step, nth))
    assert exitcode == -signal.SIGKILL, (step, nth)

    with brief(uri) as catalog:
        check_commits(catalog, name, told, step)
        if number % 2:
            # The next writer waits for the dead one's lease, and publishes for both.
            grow(catalog, "next", 0, name)
            check_mirror(catalog, name)
        outlive(catalog, name)
        reconciler_of(catalog, table=name).run_once()
        version = catalog.table(name).version
        check_mirror(catalog, name, checkpoint=due_at(version, INTERVAL))
        left = temporary_files(catalog.table(name).location)
        assert len(left) == (step in TORN_OFF)


def check_commits(catalog: Catalog, name: str, told: list[int], step: str) -> None:
    """All that the writer told of is ratified, and at most the one it was at."""
    last = max(told, default=0)
    version = catalog.table(name).version
    assert version == (last if step == "before _try_commit" else last + 1)
    assert catalog.snapshot(name).txn_version("w") == (version - 1 if version else None)
    assert paths(catalog, name) == [f"w-{n}" for n in range(version)[-2:]]


def create(uri: str, folder: Path, name: str) -> None:
    with brief(uri) as catalog:
        create_lake(catalog, str(folder / name), name, INTERVAL)


def run_writer(
    uri: str, name: str, at: tuple[str, int] | None = None
) -> tuple[int | None, list[Any]]:
    """Have a process commit; its exit code and all that it told."""
    told, ours = CHILDREN.Pipe(duplex=False)
    arguments = (uri, name, COMMITS, ours, at)
    child = CHILDREN.Process(target=grow_stepwise, args=arguments)
    child.start()
    ours.close()
    with told:
        heard = [*_all_of(told)]
    child.join()
    return child.exitcode, heard


def _all_of(told: Connection) -> Iterator[Any]:
    while True:
        try:
            yield told.recv()
        except EOFError:
            return
