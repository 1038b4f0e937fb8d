"""A catalog with one table, and the command to run on it."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.extend([str(HERE), str(HERE.parents[1] / "scripts")])

from calling import Cli, make_sales  # noqa: E402


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
