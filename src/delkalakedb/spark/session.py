"""Checks of the Spark installation, and the object stores that Spark can read."""

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from delkalakedb.errors import DeltaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PYSPARK = (3, 5)
# Java's oldest version by the oldest version of pyspark that needs it
_JAVA = {(4, 0): 17, (3, 5): 8}
_PYTHON = Path(sys.executable)
_REMEDY = "pip install 'delkalakedb[spark]'"
_ALIASES = {"s3": "s3a"}
_ILLEGAL = re.compile(
    r"[^\w!.~'()*,;:$&+=@/\u00a1-\U0010ffff-]|[\u1680\u2000-\u200a\u2028\u2029"
    r"\u202f\u205f\u3000]",
    re.ASCII,
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
# file system classes that are in separate JARs, by scheme
_CLASSES = {
    "abfs": "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
    "abfss": "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",
    "gs": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",
    "s3a": "org.apache.hadoop.fs.s3a.S3AFileSystem",
}


def check_spark(spark: Any = None) -> None:
    """Raise an error unless the machine has a Spark that this package supports.

    Args:
        spark: the session, if one exists; then Java isn't checked, because Spark has
            started Java.
    """
    check_pyspark()
    if spark is None:
        _check_java()
    elif not hasattr(spark, "createDataFrame"):
        raise DeltaError(
            f"expected a Spark session, not {type(spark).__name__}; create one with "
            "SparkSession.builder.getOrCreate()"
        )
    elif is_connect(spark) and is_spark_3():
        raise DeltaError(
            "Spark Connect needs pyspark 4.0 or newer; with an older one, use a "
            "classic session"
        )
    elif not is_connect(spark):
        _register_source(spark)


@cache
def check_pyspark() -> tuple[int, int]:
    """Return the version of pyspark.

    Raises:
        ImportError: No pyspark is installed, or one that is too old.
    """
    wanted = ".".join(map(str, _PYSPARK))
    # pyspark-client suffices for a Connect server
    for package in ("pyspark", "pyspark-client"):
        with suppress(metadata.PackageNotFoundError):
            version = metadata.version(package)
            break
    else:
        raise ImportError(f"pyspark {wanted} or newer isn't installed: {_REMEDY}")
    major, minor = map(int, re.findall(r"\d+", version)[:2])
    if (major, minor) < _PYSPARK:
        raise ImportError(f"pyspark {version} is older than {wanted}: {_REMEDY}")
    return major, minor


def is_spark_3() -> bool:
    """Return whether Spark is older than 4.0; it is then of the version of pyspark."""
    return check_pyspark() < (4, 0)


def choose_python() -> None:
    """Make Spark look for data sources in this Python's environment.

    Spark runs `python3`, which may be another Python if the environment isn't
    activated. Spark reads the variable when Java starts.
    """
    found = shutil.which("python3")
    chosen = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"} & os.environ.keys()
    if not chosen and (found is None or Path(found).parent != _PYTHON.parent):
        os.environ["PYSPARK_DRIVER_PYTHON"] = str(_PYTHON)


# the ids of the sessions that have been looked at
_sources: set[str] = set()


def _register_source(spark: Any) -> None:
    """Register the data source in a session whose Java has another Python.

    Such a session was running before `choose_python` was called, so Spark can't find
    the data source by itself.
    """
    if is_spark_3() or (session := session_id(spark)) in _sources:
        return
    _sources.add(session)
    context = spark.sparkContext
    env = context._jvm.java.lang.System.getenv
    given = env("PYSPARK_DRIVER_PYTHON") or env("PYSPARK_PYTHON") or "python3"
    found = shutil.which(given)
    if found is not None and Path(found).parent == _PYTHON.parent:
        return
    from pyspark.errors import PySparkException

    from pyspark_deltasql import DefaultSource

    python = context.pythonExec
    if "PYSPARK_PYTHON" not in os.environ and context.master.startswith("local"):
        context.pythonExec = str(_PYTHON)
    try:
        spark.dataSource.register(DefaultSource)
    except PySparkException:
        return  # that Python has the data source, too, which can't be replaced
    finally:
        context.pythonExec = python


def is_connect(spark: "SparkSession") -> bool:
    """Return whether `spark` is a client of a Spark Connect server."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def session_id(spark: Any) -> str:
    """Return an id, because Python may have several objects for one session."""
    return str(
        spark.session_id if is_connect(spark) else spark._jsparkSession.sessionUUID()
    )


def spark_url(url: str) -> str:
    """Return `url` in the spelling of Spark's `_metadata.file_path`."""
    scheme, _, rest = url.partition("://")
    authority, slash, path = rest.partition("/")
    path = java_path(path)
    if scheme == "file":
        return f"file:/{path}"
    return f"{_ALIASES.get(scheme, scheme)}://{authority}{slash}{path}"


def java_path(path: str) -> str:
    """Return a URL's path, escaped exactly as Java's `URI` class escapes it."""
    return _ILLEGAL.sub(lambda found: quote(found[0]), unquote(path))


def can_reach(spark: "SparkSession", url: str) -> bool:
    """Return whether Spark has the classes to read from the store at `url`."""
    scheme = urlsplit(url).scheme
    scheme = _ALIASES.get(scheme, scheme)
    if scheme in ("az", "memory"):
        return False
    return scheme not in _CLASSES or _has_class(spark, _CLASSES[scheme])


def _has_class(spark: Any, name: str) -> bool:
    if not is_connect(spark):
        # quietly, unlike the query below, whose error Spark logs with a stack trace
        utils = spark.sparkContext._jvm.org.apache.spark.util.Utils
        return bool(utils.classIsLoadable(name))
    known = _classes.setdefault(session_id(spark), {})
    if name not in known:
        known[name] = _server_has_class(spark, name)
    return known[name]


# by session id and name
_classes: dict[str, dict[str, bool]] = {}


def _server_has_class(spark: "SparkSession", name: str) -> bool:
    from pyspark.errors import AnalysisException

    from delkalakedb.spark.pyspark_api import condition_of

    try:
        # No class has this method, so the error tells whether the class exists.
        spark.sql(f"SELECT java_method('{name}', 'none')").schema  # noqa: B018
    except AnalysisException as error:
        return condition_of(error) != "DATATYPE_MISMATCH.UNEXPECTED_CLASS_TYPE"
    return True


def _check_java() -> None:
    wanted = next(java for since, java in _JAVA.items() if check_pyspark() >= since)
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin") if home else None)
    if java is None:
        raise DeltaError(
            f"Spark needs Java {wanted} or newer, and no java was found: install a JDK "
            "and set JAVA_HOME to its folder"
        )
    said = subprocess.run([java, "-version"], capture_output=True, text=True)
    found = _VERSION.search(said.stderr + said.stdout)
    if found and int(found[1]) < wanted:
        raise DeltaError(
            f"{java} is Java {found[1]}, but Spark needs {wanted} or newer: install it "
            "and set JAVA_HOME to its folder"
        )
