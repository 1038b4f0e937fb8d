"""The API reference is complete, and its examples run."""

from pathlib import Path

import pyarrow as pa
import pytest

import delkalakedb as dk
from tests.support.reference import (
    Public,
    make_shop,
    opened_shop,
    reference,
    run_examples,
)

# Spark's examples run where Spark does, in tests/spark.
EXAMPLES = [
    public
    for public in reference()
    if public.needs_example and not public.name.startswith("delkalakedb.spark.")
]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the examples."""
    folder = tmp_path_factory.mktemp("reference") / "shop"
    make_shop(folder)
    return folder


def test_public_names_are_described() -> None:
    assert [problem for public in reference() for problem in public.problems()] == []


@pytest.mark.parametrize("public", EXAMPLES, ids=lambda public: public.name[12:])
def test_examples_of_the_reference_run(public: Public, shop: Path) -> None:
    with opened_shop(shop):
        assert run_examples(public, {"dk": dk, "pa": pa}) > 0
