"""Delta Spark itself, if its JARs are installed or Maven can download them.

`DELKALAKEDB_TEST_DELTA_JARS` names a folder with them. Without it, Maven is asked, if
this machine has it.
"""

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.sessions import CONFIG as SMALL

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VARIABLE = "DELKALAKEDB_TEST_DELTA_JARS"
_DELTA = "org.apache.spark.sql.delta"
CONFIG = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": f"{_DELTA}.catalog.DeltaCatalog",
}
_VERSION = "4.4.0"
_PATIENCE_S = 60
# What Spark doesn't have by itself.
_GROUPS = "io.delta,io.unitycatalog"
_POM = """
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>referee</groupId><artifactId>referee</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>io.delta</groupId><artifactId>{name}</artifactId><version>{version}</version>
  </dependency></dependencies>
</project>
"""


class UnavailableError(Exception):
    """Says why there are no JARs."""


def find_jars(folder: Path) -> list[Path]:
    """The JARs of Delta Spark, which Maven puts into a folder."""
    if given := os.environ.get(VARIABLE):
        folder = Path(given)
    else:
        _download(folder)
    if not (found := sorted(folder.glob("*.jar"))):
        raise UnavailableError(f"no JAR of Delta Spark is in {folder}")
    return found


def _download(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise UnavailableError(f"set {VARIABLE}, or install Maven, for Delta Spark")
    name = "delta-spark_{}.{}_2.13".format(*version("pyspark").split(".")[:2])
    folder.mkdir(parents=True, exist_ok=True)
    pom = folder / "pom.xml"
    pom.write_text(_POM.format(name=name, version=_VERSION))
    command = [maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"]
    command += [f"-DincludeGroupIds={_GROUPS}", f"-DoutputDirectory={folder}"]
    try:
        subprocess.run(command, capture_output=True, check=True, timeout=_PATIENCE_S)
    except (subprocess.SubprocessError, OSError) as error:
        raise UnavailableError(
            f"Maven can't bring {name} {_VERSION}; {VARIABLE} may name a folder with "
            "its JARs"
        ) from error


def start_session(jars: str, folder: str) -> "SparkSession":
    """Start Spark with Delta Spark's JARs, and with its own tables in `folder`."""
    from pyspark.sql import SparkSession

    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").config(map={**SMALL, **CONFIG})
    builder = builder.config("spark.jars", jars)
    builder = builder.config("spark.databricks.delta.snapshotPartitions", "1")
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark
