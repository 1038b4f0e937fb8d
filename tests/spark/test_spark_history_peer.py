"""Random histories give the tables that they give in Delta Spark."""

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support import delta_spark
from tests.support.processes import program


def check(seeds: Iterable[int], folder: Path) -> None:
    """Run the histories of seeds on both sides, in a driver of its own."""
    try:
        jars = delta_spark.find_jars(folder / "jars")
    except delta_spark.UnavailableError as error:
        pytest.skip(str(error))
    given = [",".join(map(str, jars)), str(folder), json.dumps(list(seeds))]

    done = subprocess.run(
        program("history_worker", *given), capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr[-4000:]
    told = dict(map(json.loads, done.stdout.splitlines()))
    assert [*told] == [*seeds]
    assert {seed: found for seed, found in told.items() if found} == {}


@pytest.mark.since_pyspark("4.0")
def test_histories_give_what_they_give_in_delta_spark(tmp_path: Path) -> None:
    check(range(5), tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_many_histories_give_what_they_give_in_delta_spark(
    tmp_path: Path, first: int
) -> None:
    check(range(first, first + 20), tmp_path)
