"""What is missing is said in one sentence, and lists of files don't pile up."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import DeltaError
from delkalakedb.spark.reader import layout as lists
from delkalakedb.spark.session import can_reach, check_pyspark, check_spark, spark_url


@pytest.fixture
def unchecked() -> Iterator[None]:
    """The version of pyspark is looked at again, now and afterwards."""
    check_pyspark.cache_clear()
    yield
    check_pyspark.cache_clear()


def test_spark_of_this_machine_is_accepted(unchecked: None) -> None:
    check_spark()


def test_missing_java_is_said_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(DeltaError, match=r"needs Java \d+ .* set JAVA_HOME"):
        check_spark()


@pytest.mark.since_pyspark("4.0")
@pytest.mark.parametrize(
    ("version", "old"), [("1.8.0_392", "8"), ("11.0.2", "11"), ("25", None)]
)
def test_old_java_is_said_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, old: str | None
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    if old is None:
        check_spark()
    else:
        with pytest.raises(DeltaError, match=f"is Java {old}, .* JAVA_HOME"):
            check_spark()


def test_old_pyspark_is_said_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, unchecked: None
) -> None:
    found = tmp_path / "pyspark-3.4.4.dist-info" / "METADATA"
    found.parent.mkdir()
    found.write_text("Metadata-Version: 2.1\nName: pyspark\nVersion: 3.4.4\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ImportError, match=r"3.4.4 is older than 3.5: pip install"):
        check_spark()


def test_missing_pyspark_is_said_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, unchecked: None
) -> None:
    monkeypatch.setattr(sys, "path", [])

    with pytest.raises(ImportError, match=r"pyspark 3.5 or newer.*pip install"):
        check_spark()


def test_package_is_imported_without_pyspark_which_is_asked_for_on_first_use() -> None:
    code = (
        "import sys, delkalakedb.spark as dks; print('pyspark' in sys.modules)\n"
        "sys.path = []; dks.read"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert said.stdout.strip() == "False"
    assert said.stderr.splitlines()[-1].endswith("pip install 'delkalakedb[spark]'")


def test_anything_but_a_session_is_refused() -> None:
    with pytest.raises(DeltaError, match="expected a Spark session, not str"):
        dks.read("spark", "deltasql://sqlite/x.db?table=t")  # type: ignore[arg-type]


def test_names_that_are_not_there_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = dks.nonsense
    assert set(dks.__all__) <= set(dir(dks))


@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("file:///a%20b/%C3%A9%25", "file:/a%20b/é%25"),
        ("s3://bucket/a%3Db", "s3a://bucket/a=b"),
        ("abfss://c@account.example/x", "abfss://c@account.example/x"),
    ],
)
def test_urls_are_those_that_spark_gives_back(url: str, known: str) -> None:
    assert spark_url(url) == known


def test_stores_without_a_jar_are_out_of_reach(spark: SparkSession) -> None:
    assert can_reach(spark, "file:///x")
    assert not can_reach(spark, "s3://bucket/x")
    assert not can_reach(spark, "az://container/x")


# ---- lists of files


def write(spark: SparkSession, *uris: str) -> Path:
    numbers = pa.array([1] * len(uris), pa.int64())
    files = pa.table({"size_bytes": numbers, "modification_time_ms": numbers})
    with lists.listed(spark, pa.chunked_array([list(uris)]), files) as url:
        folder = Path(url.removeprefix("file:"))
        assert folder.is_dir() or spark.conf.get(lists.LISTS, None)
    return folder


def test_equal_lists_are_kept_once_and_old_ones_let_go(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = write(spark, "file:/a", "file:/b")
    text = (first / "_spark_metadata" / "0").read_text().splitlines()

    assert text[0] == "v1"
    assert [line.split(",")[0] for line in text[1:]] == [
        '{"path":"file:/a"',
        '{"path":"file:/b"',
    ]
    assert write(spark, "file:/a", "file:/b") == first
    write(spark, "file:/c")
    assert first.is_dir()
    monkeypatch.setattr(lists, "_KEPT_BYTES", 0)
    last = write(spark, "file:/d")
    assert last.is_dir()
    assert not first.exists()
    one = pa.table({"size_bytes": [1], "modification_time_ms": [1]})
    with lists.listed(spark, pa.chunked_array([["file:/e"]]), one) as used:
        write(spark, "file:/f")
        assert Path(used.removeprefix("file:")).is_dir()
    write(spark, "file:/g")
    assert not Path(used.removeprefix("file:")).exists()


def test_lists_can_be_in_a_folder_that_others_reach(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set(lists.LISTS, str(tmp_path / "shared"))
    try:
        folder = write(spark, "file:/a")
    finally:
        spark.conf.unset(lists.LISTS)

    assert folder.is_relative_to(tmp_path / "shared")
    assert (folder / "_spark_metadata" / "0").is_file()


def test_lists_go_with_their_process_and_stale_ones_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code = "from delkalakedb.spark.reader import layout; print(layout._home().path)"
    killed = "; import os, signal; os.kill(os.getpid(), signal.SIGKILL)"

    def run(code: str) -> Path:
        command = [sys.executable, "-u", "-c", code]
        return Path(
            subprocess.run(command, capture_output=True, text=True).stdout.strip()
        )

    stale = run(code + killed)
    assert stale.is_dir()
    ended = run(code)

    assert stale.parent == ended.parent
    assert not stale.exists()
    assert not ended.exists()


CHOSEN = """
import os
from delkalakedb import spark
print(os.environ.get("PYSPARK_DRIVER_PYTHON"))
"""


@pytest.mark.parametrize(
    ("given", "chosen"),
    [
        ({"PATH": "/nowhere"}, sys.executable),
        ({"PATH": str(Path(sys.executable).parent)}, None),
        ({"PATH": "/nowhere", "PYSPARK_PYTHON": "python3"}, None),
        ({"PATH": "/nowhere", "PYSPARK_DRIVER_PYTHON": "other"}, "other"),
    ],
)
def test_import_chooses_this_python_if_its_environment_is_not_activated(
    given: dict[str, str], chosen: str | None
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHOSEN],
        env=given,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == f"{chosen}\n"


START = """
from pyspark.sql import SparkSession
session = SparkSession.builder.master("local[1]").getOrCreate()
"""
IMPORT = "from delkalakedb import spark as dks\n"
LOAD = """
print(session.read.format("deltasql").load({uri!r}).count())
"""


@pytest.mark.soak
@pytest.mark.since_pyspark("4.0")
@pytest.mark.parametrize(
    "code",
    [
        f"{IMPORT}{START}{LOAD}",
        f"{START}{IMPORT}dks.read(session, {{uri!r}}){LOAD}",
    ],
    ids=["before the session starts", "in a running session"],
)
def test_data_source_is_found_in_an_environment_that_is_not_activated(
    tmp_path: Path, code: str
) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    dk.write_deltalake(uri, pa.table({"x": [1, 2]}))
    kept = {k: v for k, v in os.environ.items() if k in ("HOME", "JAVA_HOME")}
    java = Path(shutil.which("java") or "/usr/bin/java").resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code.format(uri=uri)],
        env={
            "JAVA_HOME": str(java),
            **kept,
            "PATH": "/usr/bin:/bin",
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == "2\n"
