"""One Spark session for every test here, on one worker."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import conninfo_to_dict

from delkalakedb.spark.session import check_pyspark
from tests.support.servers.stores import KEY, SECRET
from tests.support.sessions import CONFIG

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent
# what pyspark 3.5 has no parts for
collect_ignore = (
    []
    if check_pyspark() >= (4, 0)
    else [
        "test_spark_change_feed.py",
        "test_spark_connect.py",
        "test_spark_source.py",
        "test_spark_streaming.py",
    ]
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep Spark's tests on one worker, which then starts it once.

    They come first, because nothing takes longer. xdist's own hook writes the groups
    down after this one.
    """
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.xdist_group("spark"))
            for mark in item.iter_markers("since_pyspark"):
                (since,) = mark.args
                if check_pyspark() < tuple(map(int, since.split("."))):
                    item.add_marker(pytest.mark.skip(f"needs pyspark {since}"))
    items.sort(key=lambda item: not item.path.is_relative_to(HERE))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The run's classic session: two local cores and a capped heap."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java, which this machine doesn't have")
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # For the processes that Spark starts: no plan may show passwords.
    os.environ["DELKALAKEDB_TEST_S3_KEY"] = KEY
    os.environ["DELKALAKEDB_TEST_S3_SECRET"] = SECRET
    server = conninfo_to_dict(os.environ["DELKALAKEDB_TEST_PG_URL"])
    os.environ["DELKALAKEDB_TEST_PG_PASSWORD"] = str(server.get("password") or "")
    builder = SparkSession.builder.master("local[2]").config(map=CONFIG)
    warehouse = tmp_path_factory.mktemp("warehouse")
    session = builder.config("spark.sql.warehouse.dir", str(warehouse)).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
