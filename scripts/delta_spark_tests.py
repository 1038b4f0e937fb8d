# ruff: noqa: N802 - names of unittest and of Delta Spark
"""Run Delta Spark's own Python tests on this package's Spark API.

Usage: python scripts/delta_spark_tests.py CHECKOUT [--connect] [--json FILE] [-k TEXT]

CHECKOUT is a checkout of delta-io/delta. Its test modules are loaded from there as
they are. `delkalakedb.spark.install()` resolves their imports of `delta`, and every
test gets an empty catalog of its own. Calls of Spark that need Delta Spark's JAR are
mapped to calls of this package:

- `format("delta")` with `load` or `table` reads with `dks.read`, and with options that
  `dks.read` doesn't have, by the data source `deltasql`;
- `format("delta")` with `save` or `saveAsTable` writes with `dks.write`;
- `spark.sql` is `dks.sql`, except for `SET`.

A path is the location of a table, which gets the name of its folder unless another
table has this name.
"""

import argparse
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
import unittest
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

FOLDER = Path("python", "delta", "tests")
MODULES = ("test_deltatable", "test_sql")
CONFIG = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
}
_RECORDED = ("format", "option", "options", "mode", "partitionBy")


class Formats:
    """Calls of Spark's readers and writers whose format is `delta`."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        frame = spark.range(1)
        for kind in (type(spark.read), type(frame.write)):
            for name in _RECORDED:
                if hasattr(kind, name):
                    _replace(kind, name, self._recording(name))
        _record_frames(type(frame))
        _replace(type(spark.read), "load", self._loading)
        _replace(type(spark.read), "table", self._reading)
        _replace(type(frame.write), "save", self._saving)
        _replace(type(frame.write), "saveAsTable", self._saving_as)
        _replace(type(spark), "sql", self._running)

    def _recording(self, name: str) -> Callable[..., Any]:
        def record(real: Any, one: Any, *given: Any, **options: Any) -> Any:
            said = one.__dict__.setdefault("_said", {"options": {}})
            if name == "option":
                said["options"][given[0]] = given[1]
            elif name == "options":
                said["options"] |= options
            else:
                said[name] = given[0] if len(given) == 1 else list(given)
            return real(one, *given, **options)

        return record

    def _loading(
        self, real: Any, reader: Any, path: Any = None, *given: Any, **more: Any
    ) -> Any:
        said = getattr(reader, "_said", {})
        if said.get("format") != "delta":
            return real(reader, path, *given, **more)
        return self._read(_identifier(path), said["options"])

    def _reading(self, real: Any, reader: Any, name: str) -> Any:
        said = getattr(reader, "_said", {})
        if said.get("format") != "delta":
            return real(reader, name)
        return self._read(name, said["options"])

    def _read(self, identifier: str, options: dict[str, Any]) -> Any:
        from delkalakedb import spark as dks
        from delkalakedb.settings import format_uri
        from delkalakedb.spark.session_catalog import uri_of

        if not options:
            return dks.read(self._spark, identifier)
        source = self._spark.read.format("deltasql").options(**options)
        return source.load(format_uri(uri_of(self._spark, identifier)))

    def _saving(
        self,
        real: Any,
        writer: Any,
        path: Any = None,
        mode: str | None = None,
        **more: Any,
    ) -> Any:
        said = getattr(writer, "_said", {})
        if said.get("format") != "delta":
            return real(writer, path, mode=mode, **more)
        name = _name_of(self._spark, path)
        return self._write(writer, said, name, mode, location=path)

    def _saving_as(
        self, real: Any, writer: Any, name: str, mode: str | None = None, **more: Any
    ) -> Any:
        said = getattr(writer, "_said", {})
        if said.get("format") != "delta":
            return real(writer, name, mode=mode, **more)
        return self._write(writer, said, name, mode)

    def _write(
        self, writer: Any, said: dict[str, Any], name: str, mode: Any, **more: Any
    ) -> None:
        from delkalakedb import spark as dks

        options = {name.lower(): str(v).lower() for name, v in said["options"].items()}
        dks.write(
            writer._frame,
            name,
            mode or said.get("mode", "error"),
            partition_by=said.get("partitionBy"),
            overwrite_schema=options.get("overwriteschema") == "true",
            merge_schema=options.get("mergeschema") == "true",
            **more,
        )

    def _running(
        self, real: Any, spark: Any, text: str, *given: Any, **more: Any
    ) -> Any:
        from delkalakedb import spark as dks

        # this package's own statements, and settings, are Spark's
        caller = sys._getframe(2).f_globals.get("__name__")
        if caller not in MODULES or text.split()[0].lower() == "set":
            return real(spark, text, *given, **more)
        if not hasattr(dks, "sql"):
            raise NotImplementedError(f"needs dks.sql: {text}")
        return dks.sql(spark, text, *given, **more)


def _replace(kind: type, name: str, by: Callable[..., Any]) -> None:
    real = getattr(kind, name)

    def replaced(one: Any, *given: Any, **options: Any) -> Any:
        return by(real, one, *given, **options)

    setattr(kind, name, replaced)


def _record_frames(kind: type) -> None:
    """Let the writers of DataFrames know their rows."""
    real: Any = kind.__dict__["write"]

    def write(frame: Any) -> Any:
        writer = real.fget(frame)
        writer._frame = frame
        return writer

    kind.write = property(write)  # type: ignore[attr-defined]


def _identifier(path: str) -> str:
    return f"delta.`{path}`"


def _name_of(spark: Any, path: str) -> str:
    """Return the name of the table at a location, or a new name if there is none."""
    from delkalakedb.errors import TableNotFoundError
    from delkalakedb.migrate import name_of
    from delkalakedb.settings import require_table
    from delkalakedb.spark.session_catalog import catalog_of, tables_of, uri_at

    try:
        return require_table(uri_at(spark, path))
    except TableNotFoundError:
        names = {table.name for table in tables_of(catalog_of(spark))}
        return uuid.uuid4().hex if name_of(path) in names else name_of(path)


class DeltaTestCase(unittest.TestCase):
    """The base of the checkout's tests: a session whose catalog is new for each."""

    spark: ClassVar[Any]

    def setUp(self) -> None:
        """Make the catalog and a path for a table."""
        from delkalakedb import spark as dks

        self.tempPath = tempfile.mkdtemp(prefix="delta-tests-")
        self.tempFile = os.path.join(self.tempPath, "tempFile")
        self._meta = tempfile.mkdtemp(prefix="delta-tests-")
        dks.use(self.spark, f"deltasql://sqlite/{self._meta}/meta.db")

    def tearDown(self) -> None:
        """Delete the catalog and the tables."""
        import delkalakedb as dk
        from delkalakedb import spark as dks

        dks.use(self.spark, None)
        dk.close()
        for folder in (self.tempPath, self._meta):
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def table(self, *names: str) -> Iterator[None]:
        """Do nothing: the names are in the test's catalog, which is deleted."""
        yield

    @contextmanager
    def tempTable(self) -> Iterator[str]:
        """Yield a new name."""
        yield f"table_{uuid.uuid4().hex}"


class Outcomes(unittest.TestResult):
    """Prints each test's outcome with its reason, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, dict[str, Any]] = {}

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._start = time.monotonic()

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._add(test, "passed", "")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._add(test, "skipped", reason)

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._add(test, "failed", _reason(err))

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._add(test, "failed", _reason(err))

    def _add(self, test: unittest.TestCase, outcome: str, reason: str) -> None:
        seconds = round(time.monotonic() - self._start, 1)
        module = type(test).__module__.rpartition(".")[2]
        name = f"{module}.{test.id().rpartition('.')[2]}"
        self.outcomes[name] = {
            "outcome": outcome,
            "reason": reason,
            "seconds": seconds,
        }
        print(
            f"{outcome:8}{seconds:6.1f} s  {name}{reason and ': '}{reason}", flush=True
        )


def _reason(err: Any) -> str:
    """Return the error in a line, and the line of the test that failed."""
    kind, error, trace = err
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(trace)
        if Path(frame.filename).stem in MODULES
    ]
    text = str(error).strip().split("\n")[0][:300]
    if os.environ.get("DELTA_TESTS_TRACE"):
        traceback.print_exception(kind, error, trace)
    return f"line {lines[-1] if lines else '?'}: {kind.__name__}: {text}"


def start(connect: bool) -> Any:
    """Return the session that the tests run on."""
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.config(map=CONFIG)
    warehouse = tempfile.mkdtemp(prefix="delta-tests-")
    builder = builder.config("spark.sql.warehouse.dir", warehouse)
    if connect:
        return builder.remote("local[2]").getOrCreate()
    session = builder.master("local[2]").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


def load_tests(checkout: Path) -> Iterator[ModuleType]:
    """Yield the checkout's modules of tests."""
    from delkalakedb import spark as dks

    dks.install()
    for name in ("delta.testing", "delta.testing.utils"):
        sys.modules[name] = ModuleType(name)
    sys.modules["delta.testing.utils"].DeltaTestCase = DeltaTestCase  # type: ignore[attr-defined]
    for name in MODULES:
        path = checkout / FOLDER / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None or not path.exists():
            raise SystemExit(f"{path} doesn't exist; give a checkout of delta-io/delta")
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module


def main() -> int:
    """Run the tests; return 1 if any failed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=Path, help="a checkout of delta-io/delta")
    parser.add_argument("--connect", action="store_true", help="over Spark Connect")
    parser.add_argument("--json", type=Path, help="a file for the outcomes")
    parser.add_argument("-k", metavar="TEXT", help="only tests with this text")
    given = parser.parse_args()
    spark = DeltaTestCase.spark = start(given.connect)
    Formats(spark)
    loader, result = unittest.TestLoader(), Outcomes()
    loader.testNamePatterns = [f"*{given.k}*"] if given.k else None
    for module in load_tests(given.checkout):
        loader.loadTestsFromModule(module).run(result)
    spark.stop()
    counts = [each["outcome"] for each in result.outcomes.values()]
    print(
        f"{counts.count('passed')} of {len(counts)} passed, "
        f"{counts.count('skipped')} skipped"
    )
    if given.json is not None:
        given.json.write_text(json.dumps(result.outcomes, indent=1))
    return int("failed" in counts)


if __name__ == "__main__":
    sys.exit(main())
