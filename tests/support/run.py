"""One run of the tests: a folder that its processes share.

The folder ends with the run, and so do processes that the run has left: see `lifeline`.
The folder is in memory where there is room, and temporary files are in it, because each
test makes a database, and a Postgres one has 300 files (25 instead of 160 ms of CPU).
With `TMPDIR` they go there, and the files of failed tests are kept.
"""

import fcntl
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import lifeline

ROOT = Path(__file__).parents[2]
_MEMORY = "/dev/shm"
_ROOM_BYTES = 8 << 30  # four times what a whole run has there at its peak


def begin(config: pytest.Config) -> None:
    """Make the run's folder, and have it watched; in pytest's first process only."""
    # A run inside a run is the outer one's, too.
    outer = os.environ.get(lifeline.VARIABLE)
    in_memory = "TMPDIR" not in os.environ and _has_room(_MEMORY)
    place = _MEMORY if in_memory else outer
    folder = tempfile.mkdtemp(prefix="dk-tests-", dir=place)
    os.chmod(folder, 0o755)
    if in_memory:
        # As /tmp, for tests that run programs as other users.
        os.chmod(folder, 0o1777)
        os.environ["TMPDIR"] = tempfile.tempdir = folder
        config.add_cleanup(_leave_memory)
    command = [sys.executable, "-I", "-S", lifeline.__file__, str(os.getpid()), folder]
    subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ).returncode = 0  # It is waited for by nobody.
    os.environ[lifeline.VARIABLE] = folder
    config.add_cleanup(lambda: _restore(lifeline.VARIABLE, outer))
    # Processes of every kind find this package, Spark's Python workers included.
    paths = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), paths)))
    config.add_cleanup(lambda: _restore("PYTHONPATH", paths))


def folder() -> Path | None:
    """Return the run's folder, if this is one."""
    found = os.environ.get(lifeline.VARIABLE)
    return Path(found) if found else None


def once(name: str, make: Callable[[Path], str]) -> tuple[Path, str]:
    """Return a folder of the run's, and what `make` said of it.

    The first process that asks calls `make`, and the others wait for it.
    """
    home = folder()
    assert home is not None, "only a run of the tests has a folder"
    place = home / name
    place.mkdir(exist_ok=True)
    said = place / "said"
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            text = make(place)
            said.write_text(text)
    return place, said.read_text()


def _has_room(folder: str) -> bool:
    """Return whether a run fits into a folder, from which programs can be started."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    found = os.statvfs(folder)
    startable = not found.f_flag & os.ST_NOEXEC
    return startable and found.f_bavail * found.f_frsize >= _ROOM_BYTES


def _leave_memory() -> None:
    _restore("TMPDIR", None)
    tempfile.tempdir = None


def _restore(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
