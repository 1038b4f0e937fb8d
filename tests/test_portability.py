"""The package on systems and Pythons other than the one that develops it."""

import select
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from delkalakedb.catalog.postgres import _has_data

SCRIPT = str(Path(__file__).with_name("bare_system.py"))


def test_main_path_needs_nothing_that_windows_lacks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.stdout == "done\n", done.stderr


@pytest.mark.parametrize("poll", [True, False])
def test_data_on_a_socket_is_seen_with_and_without_poll(
    monkeypatch: pytest.MonkeyPatch, poll: bool
) -> None:
    if not poll:
        monkeypatch.delattr(select, "poll")
    here, there = socket.socketpair()
    with here, there:
        assert not _has_data(here.fileno())
        there.send(b"x")
        assert _has_data(here.fileno())
