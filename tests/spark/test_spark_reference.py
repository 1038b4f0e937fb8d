"""The examples of the API reference that need Spark."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import delkalakedb as dk
from delkalakedb import spark as dks
from tests.support.reference import make_shop, opened_shop, reference, run_examples


def test_examples_of_the_reference_run(spark: SparkSession, tmp_path: Path) -> None:
    shop = tmp_path / "shop"
    make_shop(shop)
    names = {"dk": dk, "dks": dks, "pa": pa, "spark": spark}
    for public in reference():
        if public.needs_example and public.name.startswith("delkalakedb.spark."):
            with opened_shop(shop), ExitStack() as after:
                after.callback(dks.use, spark, None)
                after.callback(_forget_stand_ins)
                assert run_examples(public, {**names}) > 0


def _forget_stand_ins() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "delta"]:
        del sys.modules[name]
