"""`deltasql import`, `convert`, `sync`, `copy` and `detach`."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import delkalakedb as dk
from tests.support.cli import Cli

SECRET = "hunter2-Zq"
WRITER = """
import sys, time, deltalake, pyarrow as pa
while True:
    deltalake.write_deltalake(sys.argv[1], pa.table({"id": [1]}), mode="append")
    print("wrote", flush=True)
"""


def write(folder: Path, *starts: int) -> None:
    """A plain Delta table, one commit for each number."""
    for start in starts:
        rows = pa.table({"id": [start, start + 1]})
        deltalake.write_deltalake(folder, rows, mode="append")


def refuse(folder: Path) -> None:
    """Give a plain table a feature that nobody can honour."""
    features = {"readerFeatures": ["fromMars"], "writerFeatures": ["fromMars"]}
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, **features}
    version = deltalake.DeltaTable(folder).version() + 1
    entry = folder / "_delta_log" / f"{version:020}.json"
    entry.write_text(json.dumps({"protocol": protocol}))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def new(tmp_path: Path) -> Cli:
    """The command on a catalog that isn't there yet."""
    return Cli(f"deltasql://sqlite/{tmp_path}/new.db")


def start(command: Cli, *words: str) -> "subprocess.Popen[str]":
    """The command as a process of its own."""
    script = shutil.which("deltasql", path=Path(sys.executable).parent)
    assert script is not None
    return subprocess.Popen(
        [script, *words],
        env=os.environ | {"DELTASQL_CATALOG": str(command.uri)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A process that appends to a plain table all the time."""
    command = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        try:
            yield
        finally:
            writer.terminate()


# ---- import


def test_imported_table_is_there_at_its_version(deltasql: Cli, lake: Path) -> None:
    write(lake / "orders", 1, 3, 5)

    (done,) = deltasql.json("import", str(lake / "orders"))

    assert done.pop("seconds") >= 0
    assert done == {
        "name": "orders",
        "location": f"file://{lake}/orders",
        "state": "imported",
        "version": 2,
        "versions": 3,
        "num_files": 3,
        "newer": [],
        "message": None,
    }
    rows = dk.DeltaTable(deltasql.table("orders")).to_pyarrow_table()
    assert sorted(rows["id"].to_pylist()) == [1, 2, 3, 4, 5, 6]


def test_import_again_brings_in_what_is_new(new: Cli, lake: Path) -> None:
    write(lake / "orders", 1)
    words = ("import", str(lake / "orders"), "--name", "o")
    new(*words)

    assert new.json(*words)[0]["state"] == "already there"
    write(lake / "orders", 3)
    (done,) = new.json("import", str(lake / "orders"))
    assert (done["name"], done["state"], done["version"]) == ("o", "caught up", 1)
    assert "already there" in new(*words).stdout


def test_tree_goes_on_when_a_table_is_refused(deltasql: Cli, lake: Path) -> None:
    for path in ("a/t", "b/t", "c/odd"):
        write(lake / path, 1)
    refuse(lake / "c/odd")

    result = deltasql("import", str(lake), "-r", "-o", "json", code=5)

    states = {o["name"]: o["state"] for o in json.loads(result.stdout)}
    assert states == {"a.t": "imported", "b.t": "imported", "odd": "refused"}
    assert "odd: refused" in result.stderr
    assert "fromMars" in result.stderr
    assert "2 imported, 1 refused" in result.stderr
    names = [table["name"] for table in deltasql.json("tables")]
    assert names == ["a.t", "b.t", "sales"]


def test_dry_run_tells_and_does_nothing(on_sqlite: Cli, lake: Path) -> None:
    write(lake / "a", 1, 3)
    write(lake / "b", 1)
    write(lake / "odd", 1)
    refuse(lake / "odd")
    on_sqlite("import", str(lake / "b"))

    done = on_sqlite.json("import", str(lake), "--recursive", "--dry-run", code=5)

    assert [(o["name"], o["state"], o["versions"]) for o in done] == [
        ("a", "would import", 2),
        ("b", "already there", 0),
        ("odd", "refused", None),
    ]
    assert [t["name"] for t in on_sqlite.json("tables")] == ["b", "sales"]


def test_log_that_differs_is_a_finding(new: Cli, lake: Path) -> None:
    write(lake / "t", 1)
    new("import", str(lake / "t"))
    commit = lake / "t" / "_delta_log" / f"{0:020}.json"
    commit.write_text(commit.read_text().replace("WRITE", "WROTE"))

    result = new("import", str(lake / "t"), code=1)

    assert "differs" in result.stdout
    assert "was changed" in result.stderr


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (
            ["import", "{lake}", "-r", "--name", "x"],
            2,
            "give --prefix instead",
        ),
        (["import", "{lake}/nowhere"], 5, "no"),
        (["import", "{lake}", "-r"], 5, "no such object"),
        (["import", "ftp://x/y"], 5, "aren't supported"),
        (["import", "x", "--storage-option", SECRET], 2, "NAME=VALUE"),
        (["sync", "sales"], 5, "the table is this catalog's own"),
        (["sync", "sales", "--cut-over", "--watch", "1s"], 2, "give either --watch or"),
        (["detach", "sales"], 2, "Add --yes"),
        (["detach", "nope", "--yes"], 5, "no such table"),
        (["copy", "--to", "deltasql://sqlite/x.db"], 2, "Add --yes"),
        (["copy"], 2, "Missing option '--to'"),
    ],
)
def test_wrong_calls_say_what_is_wrong(
    on_sqlite: Cli, lake: Path, words: list[str], code: int, message: str
) -> None:
    result = on_sqlite(*[word.format(lake=lake) for word in words], code=code)

    assert message in result.stderr
    assert SECRET not in result.output
    assert "Traceback" not in result.output


def test_empty_tree_is_an_error(on_sqlite: Cli, lake: Path) -> None:
    lake.mkdir()

    result = on_sqlite("import", str(lake), "-r", code=5)

    assert "there is no Delta table below this folder" in result.stderr


def test_ten_tables_come_in_while_one_is_written(
    deltasql: Cli, lake: Path, tmp_path: Path
) -> None:
    for number in range(10):
        write(lake / f"t{number}", number, number + 2)
    words = ("import", str(lake), "--recursive")

    with writing(lake / "t3"):
        first = deltasql.json(*words)
        second = deltasql.json(*words)

    assert [o["state"] for o in first] == ["imported"] * 10
    assert {o["state"] for o in second if o["name"] != "t3"} == {"already there"}
    # The writer is gone: this is the cut-over.
    last = deltasql.json(*words)
    assert {o["state"] for o in last} <= {"caught up", "already there"}
    assert last[3]["version"] == deltalake.DeltaTable(lake / "t3").version()
    assert [o["newer"] for o in last] == [[]] * 10
    for number in range(10):
        uri = deltasql.table(f"t{number}")
        dk.write_deltalake(uri, pa.table({"id": [100]}), mode="append")
        plain = deltalake.DeltaTable(lake / f"t{number}").to_pyarrow_table()
        ours = dk.DeltaTable(uri).to_pyarrow_table()
        assert ours.sort_by("id") == plain.sort_by("id")


def kill_imports(command: Cli, folder: Path, times: int) -> int:
    """Import again and again, killed after a while; how often it wasn't over yet."""
    seed = random.Random(folder.name)
    killed = 0
    for turn in range(times):
        process = start(command, "import", str(folder), "--recursive")
        try:
            process.wait(timeout=seed.uniform(0.5, 2.5) if turn else 0.3)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            killed += 1
        process.communicate()
    return killed


@pytest.mark.parametrize(
    "times", [3, pytest.param(40, marks=pytest.mark.soak)], ids=["few", "many"]
)
def test_import_killed_at_any_time_goes_on(
    deltasql: Cli, lake: Path, times: int
) -> None:
    for number in range(3):
        write(lake / f"t{number}", *range(0, 20, 2))
    # A DuckDB file is open in this process, which made its table.
    command = (
        Cli(deltasql.uri)
        if "duckdb" not in str(deltasql.uri)
        else Cli(str(deltasql.uri).replace("meta.", "killed."))
    )

    assert kill_imports(command, lake, times)
    done = command.json("import", str(lake), "--recursive", "--deep")

    assert {o["state"] for o in done} <= {"imported", "already there"}
    assert [o["version"] for o in done] == [9, 9, 9]
    for number in range(3):
        rows = dk.DeltaTable(command.table(f"t{number}")).to_pyarrow_table()
        assert rows.num_rows == 20


# ---- convert


def test_parquet_files_become_a_table(deltasql: Cli, lake: Path) -> None:
    for day in ("2026-01-01", "2026-01-02"):
        folder = lake / "events" / f"day={day}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1, 2]}), folder / "x.parquet")

    words = ("convert", str(lake / "events"), "--partition-by", "day:date")
    done = deltasql.json(*words)

    assert (done["name"], done["version"], done["num_files"]) == ("events", 0, 2)
    assert done["partition_columns"] == ["day"]
    files = deltasql.json("files", "events", "--where", "day > '2026-01-01'")
    assert [f["path"] for f in files] == ["day=2026-01-02/x.parquet"]
    assert deltalake.DeltaTable(lake / "events").to_pyarrow_table().num_rows == 4
    assert "Delta table already; import it" in deltasql(*words, code=5).stderr


# ---- sync


def test_sync_follows_until_the_cut_over(deltasql: Cli, lake: Path) -> None:
    write(lake / "orders", 1)
    location = str(lake / "orders")

    first = deltasql.json("sync", location, "--name", "o")
    write(lake / "orders", 3, 5)
    second = deltasql.json("sync", "o")

    assert (first["table"], first["version"], first["hold"]) == ("o", 0, "following")
    assert (second["version"], second["versions"], second["hold"]) == (
        2,
        2,
        "following",
    )
    with pytest.raises(dk.errors.ReadOnlyError):
        dk.write_deltalake(deltasql.table("o"), pa.table({"id": [9]}), mode="append")
    assert "stopped? Add --yes" in deltasql("sync", "o", "--cut-over", code=2).stderr
    over = deltasql.json("sync", location, "--cut-over", "--yes")
    assert (over["version"], over["hold"]) == (2, None)
    dk.write_deltalake(deltasql.table("o"), pa.table({"id": [9]}), mode="append")
    assert deltalake.DeltaTable(location).version() == 3


def test_watched_table_is_followed_until_it_is_interrupted(
    on_sqlite: Cli, lake: Path
) -> None:
    write(lake / "orders", 1)
    process = start(on_sqlite, "sync", str(lake / "orders"), "--watch", "0.1s")
    assert process.stderr is not None
    assert "orders: version 0, 0 new" in process.stderr.readline()

    write(lake / "orders", 3)
    seen = ""
    while "version 1, 1 new" not in seen:
        seen = process.stderr.readline()
        assert seen, "it ended"
    process.send_signal(signal.SIGINT)

    process.communicate(timeout=30)
    assert process.returncode == 130
    assert dk.DeltaTable(on_sqlite.table("orders")).version() == 1


# ---- copy


def test_copied_catalog_has_all_and_the_first_is_read_only(
    deltasql: Cli, tmp_path: Path
) -> None:
    other = Cli(f"deltasql://sqlite/{tmp_path}/other.db")
    before = deltasql.json("history", "sales")

    (done,) = deltasql.json("copy", "--to", str(other.uri), "--yes")

    assert (done["table"], done["state"], done["versions"]) == ("sales", "copied", 2)
    assert other.json("history", "sales") == before
    assert other.json("files", "sales", "--where", "id = 3")[0]["num_records"] == 1
    with pytest.raises(dk.errors.ReadOnlyError, match="moved to"):
        dk.DeltaTable(deltasql.table()).delete("id = 1")
    dk.DeltaTable(other.table()).delete("id = 1")
    assert other("verify", "sales").exit_code == 0
    (again,) = deltasql.json("copy", "--to", str(other.uri), "--yes", "--move")
    assert again["state"] == "already there"
    assert deltasql.json("tables") == []


# ---- detach, and the whole way


def test_detached_table_is_forgotten_and_goes_on(deltasql: Cli) -> None:
    left = deltasql.json("detach", "sales", "--yes")

    assert (left["table"], left["version"], left["report"]["ok"]) == ("sales", 1, True)
    assert deltasql.json("tables") == []
    rows = pa.table({"id": [4], "day": ["thu"]})
    deltalake.write_deltalake(left["location"], rows, mode="append")
    assert deltalake.DeltaTable(left["location"]).to_pyarrow_table().num_rows == 4


def test_project_goes_in_and_out_again(deltasql: Cli, lake: Path) -> None:
    for name in ("orders", "customers"):
        write(lake / name, 1, 3)
    deltasql("import", str(lake), "--recursive")
    write(lake / "orders", 5)
    deltasql("import", str(lake), "--recursive")
    for name in ("orders", "customers"):
        rows = pa.table({"id": [100]})
        dk.write_deltalake(deltasql.table(name), rows, mode="append")

    deltasql("verify", "--all", "--deep")
    for name in ("orders", "customers"):
        deltasql("detach", name, "--yes")

    for name, version in (("orders", 4), ("customers", 3)):
        write(lake / name, 200)
        table = deltalake.DeltaTable(lake / name)
        assert table.version() == version
        assert {1, 100, 200} <= set(table.to_pyarrow_table()["id"].to_pylist())


def test_dry_runs_of_convert_and_sync_change_nothing(
    on_sqlite: Cli, tmp_path: Path
) -> None:
    plain, other = tmp_path / "plain", tmp_path / "other"
    plain.mkdir()
    pq.write_table(pa.table({"id": [1]}), plain / "a.parquet")
    deltalake.write_deltalake(other, pa.table({"id": [1]}))
    size = (plain / "a.parquet").stat().st_size

    tried = on_sqlite.json("convert", str(plain), "--dry-run")
    assert (tried["name"], tried["num_files"], tried["size_bytes"]) == (
        "plain",
        1,
        size,
    )
    (would,) = on_sqlite.json("sync", str(other), "--dry-run")
    assert (would["state"], would["versions"]) == ("would import", 1)
    assert [table["name"] for table in on_sqlite.json("tables")] == ["sales"]
    assert not (plain / "_delta_log").exists()

    on_sqlite("sync", str(other))
    deltalake.write_deltalake(other, pa.table({"id": [2]}), mode="append")
    (would,) = on_sqlite.json("sync", "other", "--dry-run")
    assert (would["state"], would["versions"]) == ("would import", 1)
    assert on_sqlite.json("sync", "other")["versions"] == 1


@pytest.mark.parametrize("dry_run", [["--dry-run"], ["--yes"]])
def test_catalog_is_not_copied_to_itself(
    deltasql: Cli, dry_run: list[str], tmp_path: Path
) -> None:
    result = deltasql("copy", "--to", str(deltasql.uri), *dry_run, code=2)

    assert "--to is this catalog" in result.stderr
    assert deltasql.json("mirror", "status")[0]["state"] == "published"
