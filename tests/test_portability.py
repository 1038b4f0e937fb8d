"""The package on systems and Pythons other than the one that develops it."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import program, run_python
from tests.support.run import ROOT


def test_main_path_needs_nothing_that_windows_lacks(tmp_path: Path) -> None:
    done = subprocess.run(
        program("bare_system", str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.stdout == "done\n", done.stderr


def find_python(version: str) -> str:
    """Return another Python of this machine, on the PATH or among pyenv's."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    folders = [*map(str, pyenv.glob(f"{version}.*/bin")), os.environ["PATH"]]
    found = shutil.which(f"python{version}", path=os.pathsep.join(folders))
    if found is None:
        pytest.skip(f"this machine has no Python {version}")
    return found


@pytest.mark.soak
@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_quickstart_runs_on_another_python(version: str, tmp_path: Path) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt"]
    for command in (
        [find_python(version), "-m", "venv", tmp_path / "venv"],
        [*pip, ROOT],
        [python, ROOT / "examples" / "quickstart.py"],
    ):
        subprocess.run(command, check=True, cwd=tmp_path, timeout=600)


SEEN = """
import select, socket
from delkalakedb.catalog.engine.postgres import _has_data
if {without}:
    del select.poll
here, there = socket.socketpair()
assert not _has_data(here.fileno())
there.send(b"x")
assert _has_data(here.fileno())
"""


@pytest.mark.parametrize("without", [False, True])
def test_data_on_a_socket_is_seen_with_and_without_poll(without: bool) -> None:
    # In a process of its own: here sockets may have numbers that select can't take.
    run_python(SEEN.format(without=without))
