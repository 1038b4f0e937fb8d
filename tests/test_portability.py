"""The package on systems and Pythons other than the one that develops it."""

import subprocess
from pathlib import Path

import pytest

from tests.support.processes import program, run_python


def test_main_path_needs_nothing_that_windows_lacks(tmp_path: Path) -> None:
    done = subprocess.run(
        program("bare_system", str(tmp_path)),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.stdout == "done\n", done.stderr


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
