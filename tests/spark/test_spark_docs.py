"""The examples of the pages on Spark run, in the order of the page."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from delkalakedb import spark as dks
from tests.support.pages import SPARK_PAGES, blocks


@pytest.mark.since_pyspark("4.2")
@pytest.mark.parametrize("page", SPARK_PAGES, ids=lambda page: page.name)
def test_examples_of_the_page_run(
    spark: SparkSession, page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    try:
        for block in blocks(page):
            if block.language == "python":
                # Blank lines first, so that a traceback names the page's own line.
                code = compile("\n" * block.line + block.text, str(page), "exec")
                exec(code, namespace)
    finally:
        dks.use(spark, None)
        for view in spark.sql("SHOW TABLES").filter("isTemporary").collect():
            spark.catalog.dropTempView(view.tableName)
