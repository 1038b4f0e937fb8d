"""A catalog with one table, and the command to run on it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Cli, make_sales
from tests.support.servers.postgres import find_binaries


@pytest.fixture(autouse=True)
def postgres_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """pg_dump and pg_restore, where the server's own are the only ones there are."""
    places = os.pathsep.join([os.environ["PATH"], str(find_binaries())])
    monkeypatch.setenv("PATH", places)


@pytest.fixture(autouse=True)
def heeding_interrupts() -> Iterator[None]:
    """Ctrl-C is heeded, even if the tests run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def deltasql(catalog_uri: str) -> Cli:
    """The command on a catalog with the table `sales`, on each engine."""
    command = Cli(catalog_uri)
    make_sales(command.table())
    return command


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Cli:
    """The same, on SQLite only: for what no engine can change."""
    command = Cli(f"deltasql://sqlite/{tmp_path}/meta.db")
    make_sales(command.table())
    return command
