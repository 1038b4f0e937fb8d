"""The tests of this folder with the newest pyspark there is."""

import subprocess
from pathlib import Path

import pytest

from tests.support.environments import ensure_environment

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.newest_spark
def test_everything_here_passes_with_the_newest_pyspark() -> None:
    python = ensure_environment("spark", "--editable", f"{ROOT}[postgres,spark]")

    ran = subprocess.run([str(python), "-m", "pytest", "-q", str(HERE)], cwd=ROOT)

    assert ran.returncode == 0
