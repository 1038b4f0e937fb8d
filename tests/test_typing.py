"""The package as a consumer's type checker sees it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONSUMER = Path(__file__).parent / "typing" / "consumer.py"
MISUSE = """\
import delkalakedb as dk
from delkalakedb.settings import PoolSettings
from delkalakedb.settings import parse_uri

port: str = parse_uri("deltasql://sqlite/m.db").port
dk.connect("deltasql://sqlite/m.db", poool={"size": 2})
dk.connect("deltasql://sqlite/m.db", pool={"sise": 2})
dk.connect("deltasql://sqlite/m.db", mirror={"mode": "outlook"})
dk.connect("deltasql://sqlite/m.db", settings=3)
PoolSettings(sise=2)
"""
# The first line of `MISUSE` that is wrong, and the last.
WRONG = range(5, 11)
CHECKERS = {
    "mypy": ["mypy", "--strict", "--no-error-summary"],
    "pyright": ["pyright", "--pythonpath", sys.executable],
}
# pyright's wheel holds pyright itself; with these it uses the node that is there
OFFLINE = {"PYRIGHT_PYTHON_GLOBAL_NODE": "1", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}


@pytest.mark.parametrize("checker", sorted(CHECKERS))
def test_consumer_is_well_typed_and_misuse_reported(
    checker: str, tmp_path: Path
) -> None:
    if checker == "pyright" and shutil.which("node") is None:
        pytest.skip("pyright needs node, which isn't on PATH")
    shutil.copy(CONSUMER, tmp_path)
    (tmp_path / "misuse.py").write_text(MISUSE)
    command = [sys.executable, "-m", *CHECKERS[checker], "consumer.py", "misuse.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | OFFLINE, cwd=tmp_path
    )

    errors = [line for line in done.stdout.splitlines() if "error:" in line]
    lines = [int(error.partition("misuse.py:")[2].split(":")[0]) for error in errors]
    assert sorted(set(lines)) == [*WRONG], done.stdout + done.stderr
