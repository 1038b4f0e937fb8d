"""Spark's writes as part of a transaction over several tables."""

from typing import Any

from pyspark.sql import DataFrame

from delkalakedb.commits import Together
from delkalakedb.spark.session import check_spark
from delkalakedb.spark.writing import Write
from delkalakedb.workspace.inplace import stage, stage_new

__all__ = ["write_in"]


def write_in(
    tables: Together,
    name: str,
    df: DataFrame,
    mode: str = "error",
    *,
    location: str | None = None,
    **options: Any,
) -> None:
    """Stage a write of a DataFrame; `write` has the options."""
    check_spark(df.sparkSession)
    plan = Write(df, name, mode, storage_options=tables.storage_options, **options)
    if not tables.has(name):
        tables.stage_new(name, plan.creation(), location, stage=stage_new)
    elif (operation := plan.operation(tables.snapshot(name))) is not None:
        tables.stage(name, operation, stage=stage)
