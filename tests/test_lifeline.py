"""A run that is cut off leaves no server, no process and no folder behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.lifeline import VARIABLE, processes_of
from tests.support.run import ROOT

# Starts one server of each kind, and a process that only SIGKILL ends.
ENDLESS = """
import os, signal, subprocess, sys, time
from pathlib import Path
from tests.support.lifeline import VARIABLE
from tests.support.servers import pgbouncer, stores

STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"

def test_endless():
    # As at a terminal: a run that a script starts in the background ignores SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    stores.fresh_place("careless")
    if pgbouncer.PROGRAM is not None:
        pgbouncer.PgBouncer(os.environ["DELKALAKEDB_TEST_PG_URL"], "session").start()
    subprocess.Popen([sys.executable, "-c", STUBBORN], start_new_session=True)
    Path(os.environ["TOLD"]).write_text(os.environ[VARIABLE])
    time.sleep(600)
"""


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        pytest.param(signal.SIGKILL, ["-n", "1"], id="killed"),
        pytest.param(signal.SIGINT, ["-n", "0"], id="interrupted"),
    ],
)
def test_run_that_is_cut_off_leaves_nothing(
    tmp_path: Path, sent: signal.Signals, words: Sequence[str]
) -> None:
    (tmp_path / "test_endless.py").write_text(ENDLESS)
    told = tmp_path / "told"
    own = {VARIABLE, "DELKALAKEDB_TEST_PG_URL"}
    environment = {k: v for k, v in os.environ.items() if k not in own}
    environment = {k: v for k, v in environment.items() if "PYTEST" not in k}
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", "-c", os.devnull]
    with subprocess.Popen(
        [sys.executable, "-m", "pytest", *options, *words, str(tmp_path)],
        cwd=ROOT,
        env=environment | {"TOLD": str(told), "TMPDIR": "/tmp"},
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    ) as run:
        wait_until(lambda: told.exists() and told.read_text() != "")
        folder = told.read_text()
        names = {name_of(pid) for pid in processes_of(folder)}
        assert {"postgres", "rclone"} < names
        os.kill(run.pid, sent)

    wait_until(lambda: not [*processes_of(folder)] and not Path(folder).exists())


def name_of(pid: int) -> str:
    return Path("/proc", str(pid), "comm").read_text().strip()


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)
