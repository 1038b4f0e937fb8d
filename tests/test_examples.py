"""The scripts in `examples/` run as they are."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_leaves_nothing_behind(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", example],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "plain deltalake reads the same rows from _delta_log" in done.stdout
    assert list(tmp_path.iterdir()) == []
