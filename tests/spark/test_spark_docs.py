"""The Spark guide's examples run, in the order of the page."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from delkalakedb import spark as dks
from tests.support.pages import SPARK_PAGE, blocks


@pytest.mark.since_pyspark("4.2")
def test_examples_of_the_spark_page_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": SPARK_PAGE.stem}
    try:
        for block in blocks(SPARK_PAGE):
            if block.language == "python":
                # Blank lines first, so that a traceback names the page's own line.
                code = compile("\n" * block.line + block.text, str(SPARK_PAGE), "exec")
                exec(code, namespace)
    finally:
        dks.use(spark, None)
