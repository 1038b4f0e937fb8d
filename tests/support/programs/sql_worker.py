"""SQL statements, run by Delta Spark's own SQL and by `dks.sql`, and what each gave."""

import json
import sys
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame

from delkalakedb import spark as dks
from tests.support.delta_spark import start_session

# Columns whose values are times, sizes, paths or names of one side alone.
OWN = {
    *("timestamp", "userName", "engineInfo", "operationMetrics", "id", "location"),
    *("createdAt", "lastModified", "path", "metrics", "sizeInBytes", "clusterId"),
    *("table_size_after_restore", "removed_files_size", "restored_files_size"),
    *("_commit_timestamp", "operationParameters", "name"),
}


def outcome(run: Callable[[str], DataFrame], statement: str) -> dict[str, Any]:
    """The columns and rows that a statement gives, or that it fails."""
    try:
        found = run(statement)
        shared = [name for name in found.columns if name not in OWN]
        rows = found.select(*(f"`{name}`" for name in shared)).collect()
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)[:300]}
    return {
        "columns": found.columns,
        "types": [field.dataType.simpleString() for field in found.schema],
        "rows": sorted(map(repr, map(tuple, rows))),
    }


def main(jars: str, folder: str, statements: str) -> None:
    """Run statements on both sides, and print what each gave as JSON."""
    spark = start_session(jars, folder)
    ours = spark.newSession()
    dks.use(ours, f"deltasql://sqlite/{folder}/meta.db")
    for session in (spark, ours):
        session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", False)
    told = [
        [
            outcome(spark.sql, statement),
            outcome(lambda text: dks.sql(ours, text), statement),
        ]
        for statement in json.loads(statements)
    ]
    print(json.dumps(told))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
