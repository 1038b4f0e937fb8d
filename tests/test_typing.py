"""The package as a consumer's type checker sees it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONSUMER = Path(__file__).parent / "typing" / "consumer.py"
MISUSE = """\
from delkalakedb.uri import parse_uri

port: str = parse_uri("deltasql://sqlite/m.db").port
"""
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
    assert len(errors) == 1, done.stdout + done.stderr
    assert "misuse.py:3" in errors[0]
