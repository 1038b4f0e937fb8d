"""What Spark there is: its version, its Java, and the stores that it can reach."""

import os
import re
import shutil
import subprocess
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from delkalakedb.errors import DeltaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "can_reach",
    "check_pyspark",
    "check_spark",
    "is_connect",
    "java_path",
    "spark_url",
]

_PYSPARK = (4, 2)
_JAVA = 17
_REMEDY = "pip install 'delkalakedb[spark]'"
_ALIASES = {"s3": "s3a"}
_ILLEGAL = re.compile(
    r"[^\w!.~'()*,;:$&+=@/\u00a1-\U0010ffff-]|[\u1680\u2000-\u200a\u2028\u2029"
    r"\u202f\u205f\u3000]",
    re.ASCII,
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
# What Spark reaches these stores with, which comes in JARs of their own.
_CLASSES = {
    "abfs": "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
    "abfss": "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",
    "gs": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "s3a": "org.apache.hadoop.fs.s3a.S3AFileSystem",
}


def check_spark(spark: Any = None) -> None:
    """Refuse a machine without a Spark that this package can use.

    Args:
        spark: the session, where there is one; its Java then works.
    """
    check_pyspark()
    if spark is None:
        _check_java()
    elif not hasattr(spark, "createDataFrame"):
        raise DeltaError(
            f"a Spark session is needed, not {type(spark).__name__}; make one by "
            "SparkSession.builder.getOrCreate()"
        )


@cache
def check_pyspark() -> None:
    """Refuse to go on without a supported pyspark."""
    wanted = ".".join(map(str, _PYSPARK))
    try:
        version = metadata.version("pyspark")
    except metadata.PackageNotFoundError:
        try:
            # The client alone, which speaks to a Connect server.
            version = metadata.version("pyspark-client")
        except metadata.PackageNotFoundError:
            raise ImportError(
                f"Spark needs pyspark {wanted} or newer, which isn't there: {_REMEDY}"
            ) from None
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _PYSPARK:
        raise ImportError(
            f"pyspark {version} is too old, {wanted} is the oldest: {_REMEDY}"
        )


def is_connect(spark: "SparkSession") -> bool:
    """Whether the session is a client of a Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def spark_url(url: str) -> str:
    """A URL as Spark calls it in what it tells of its files."""
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    path = java_path(path)
    if scheme == "file":
        return f"file:/{path}"
    return f"{_ALIASES.get(scheme, scheme)}://{authority}{slash}{path}"


def java_path(path: str) -> str:
    """A URL's path with what Java's URIs escape escaped, and nothing else."""
    return _ILLEGAL.sub(lambda found: quote(found[0]), unquote(path))


def can_reach(spark: "SparkSession", url: str) -> bool:
    """Whether Spark has what it takes to read from a store."""
    scheme = urlsplit(url).scheme
    scheme = _ALIASES.get(scheme, scheme)
    if scheme in ("az", "memory"):
        return False
    return scheme not in _CLASSES or _has_class(spark, _CLASSES[scheme])


def _has_class(spark: "SparkSession", name: str) -> bool:
    from pyspark.errors import AnalysisException

    try:
        # No class has such a method: Spark says whether it knew the class at all.
        spark.sql(f"SELECT java_method('{name}', 'none')").schema  # noqa: B018
    except AnalysisException as error:
        return error.getCondition() != "DATATYPE_MISMATCH.UNEXPECTED_CLASS_TYPE"
    return True


def _check_java() -> None:
    java = _find_java()
    if java is None:
        raise DeltaError(
            f"Spark needs Java {_JAVA} or newer, and no java was found: install a JDK "
            "and set JAVA_HOME to its folder"
        )
    version = _java_version(java)
    if version is not None and version < _JAVA:
        raise DeltaError(
            f"{java} is Java {version}, and Spark needs {_JAVA} or newer: install one "
            "and set JAVA_HOME to its folder"
        )


def _find_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=str(Path(home) / "bin") if home else None)


def _java_version(java: str) -> int | None:
    said = subprocess.run([java, "-version"], capture_output=True, text=True)
    found = _VERSION.search(said.stderr + said.stdout)
    return int(found[1]) if found else None
