"""The versions of pyspark, each in an environment of its own."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.environments import (
    OLDEST_PYSPARK,
    ensure_environment,
    ensure_pyspark,
)
from tests.support.processes import program

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCE = ROOT / "src" / "delkalakedb" / "spark"
# The other tests run with 4.2.
OTHERS = (OLDEST_PYSPARK, "4.0", "4.1", "4.3")
# what pyspark 3.5 lacks, and the module that may use it
LATER = r"\.toArrow\(|metadataColumn|getCondition|repartitionById|fromDDL"
GUARD = "pyspark_api.py"
# modules of the data source, which nothing else imports
DATA_SOURCE = {"reader/source.py", "stream.py", "writer/sink.py", GUARD}


def worked(version: str, folder: Path) -> dict[str, Any]:
    """What a program reads and writes with a version of pyspark."""
    done = subprocess.run(
        program("pyspark_worker", str(folder), python=ensure_pyspark(version)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("pyspark").startswith(f"{version}.")
    return found


def check(found: dict[str, Any], by_format: object, more: list[list[int]]) -> None:
    kept = [[i, i % 2] for i in range(15, 38) if i not in (18, 19)]
    changes = ["OPTIMIZE", "DELETE", "UPDATE", "MERGE", "WRITE"]
    assert found == {
        "written": [10, 2, 40],
        "changed": {
            "num_affected_rows": 20,
            "num_updated_rows": 2,
            "num_deleted_rows": 0,
            "num_inserted_rows": 18,
        },
        "queried": [
            *[[1, "home!"], [2, "home"], [4, "home"]],
            ["DELETE", "MERGE", "UPDATE", "WRITE", "CREATE TABLE"],
        ],
        "streamed": [0, 1, 2, 3, 4, 5],
        "format": by_format,
        "rows": sorted([*kept, [18, 7], [19, 7], *more]),
        "operations": ["WRITE", *changes] if more else changes,
    }


def test_oldest_pyspark_does_all_but_the_data_source(tmp_path: Path) -> None:
    check(
        worked(OLDEST_PYSPARK, tmp_path),
        'format("deltasql") needs pyspark 4.0 or newer; with an older one, use '
        "delkalakedb.spark.read, write and foreach_batch",
        more=[],
    )


@pytest.mark.every_pyspark
@pytest.mark.parametrize("version", OTHERS[1:])
def test_newer_pyspark_has_the_data_source_too(tmp_path: Path, version: str) -> None:
    check(worked(version, tmp_path), [23, 25, 25], more=[[90, 0], [91, 1]])


@pytest.mark.every_pyspark
@pytest.mark.parametrize("version", OTHERS)
def test_everything_here_passes_with_another_pyspark(version: str) -> None:
    package = f"{ROOT}[postgres,spark]"
    python = ensure_environment(
        f"spark-{version}", f"pyspark=={version}.*", "--editable", package
    )
    command = [str(python), "-m", "pytest", "-q", "-n", "0", str(HERE)]

    ran = subprocess.run(command, cwd=ROOT)

    assert ran.returncode == 0


def test_one_module_uses_what_the_oldest_pyspark_lacks() -> None:
    def users(pattern: str) -> set[str]:
        return {
            path.relative_to(SOURCE).as_posix()
            for path in SOURCE.rglob("*.py")
            if re.search(pattern, path.read_text())
        }

    assert users(LATER) == {GUARD}
    assert users(r"pyspark\.sql\.datasource") <= DATA_SOURCE
    assert users(r"pyspark\.sql\.streaming\.datasource") == {GUARD}
