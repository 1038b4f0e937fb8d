"""The mirror: how far it is, publishing, and what others wrote."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import delkalakedb as dk
from delkalakedb.model.actions import CommitInfo
from delkalakedb.model.log import Reads, Staged
from tests.support.cli import Cli


def location(cli: Cli) -> Path:
    return Path(dk.DeltaTable(cli.table()).table_uri.removeprefix("file://"))


def ids(cli: Cli) -> list[int]:
    return sorted(dk.DeltaTable(cli.table()).to_pyarrow_table()["id"].to_pylist())


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "day": ["mon"] * len(ids)})


def append_foreign(cli: Cli, *ids: int) -> None:
    deltalake.write_deltalake(str(location(cli)), rows(*ids), mode="append")


@contextmanager
def blocked(folder: Path) -> Iterator[None]:
    """A log that nobody can write to; root may do so whatever its permissions are."""
    hidden = folder.with_name("hidden")
    folder.rename(hidden)
    folder.write_text("")
    try:
        yield
    finally:
        folder.unlink()
        hidden.rename(folder)


def test_status_of_a_published_table_is_fine(deltasql: Cli) -> None:
    (found,) = deltasql.json("mirror", "status")

    assert found["table"] == "sales"
    assert found["state"] == "published"
    assert (found["ratified_version"], found["published_version"]) == (1, 1)
    assert found["versions_behind"] == found["seconds_behind"] == 0


def test_failed_publish_shows_and_retry_mends_it(deltasql: Cli) -> None:
    with blocked(location(deltasql) / "_delta_log"):
        dk.write_deltalake(deltasql.table(), rows(4), mode="append")
        (found,) = deltasql.json("mirror", "status", "sales")
        assert (found["state"], found["versions_behind"]) == ("failed", 1)
        assert found["attempts"] == 1
        assert found["next_try_ms"] > 0
        assert "_delta_log" in found["last_error"]
        again = deltasql("mirror", "retry", "sales", code=1)
        assert "not published yet" in again.stderr

    (found,) = deltasql.json("mirror", "retry", "sales")
    assert (found["state"], found["versions_behind"]) == ("published", 0)
    assert deltalake.DeltaTable(str(location(deltasql))).version() == 2


def test_lag_past_the_alert_is_a_finding(
    on_sqlite: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_MIRROR__LAG_WARN", "0.001")
    monkeypatch.setenv("DELKALAKEDB_MIRROR__LAG_ALERT", "0.01")
    with blocked(location(on_sqlite) / "_delta_log"):
        dk.write_deltalake(on_sqlite.table(), rows(4), mode="append")
        time.sleep(0.05)
        on_sqlite("mirror", "status", code=1)
    on_sqlite("mirror", "run", "--once")
    on_sqlite("mirror", "status")


def test_foreign_commits_are_shown_then_adopted(deltasql: Cli) -> None:
    append_foreign(deltasql, 7)
    append_foreign(deltasql, 8)
    deltasql("mirror", "run", "--once", code=1)
    (found,) = deltasql.json("mirror", "status", code=1)
    assert found["state"] == "diverged"

    words = ["mirror", "adopt", "sales"]
    would = deltasql.json(*words, "--dry-run")
    assert [(c["version"], c["operation"]) for c in would] == [
        (2, "WRITE"),
        (3, "WRITE"),
    ]
    assert "Add --yes" in deltasql(*words, code=2).stderr
    assert ids(deltasql) == [1, 2, 3]

    done = deltasql.json("mirror", "adopt", "--all", "--yes")
    assert done == [{**commit, "adopted": True} for commit in would]
    assert ids(deltasql) == [1, 2, 3, 7, 8]
    deltasql("mirror", "status")
    deltasql("verify", "--deep")
    assert deltasql.json(*words) == []


def test_foreign_commits_are_discarded_if_asked(on_sqlite: Cli) -> None:
    append_foreign(on_sqlite, 7)

    (done,) = on_sqlite.json("mirror", "adopt", "sales", "--discard", "--yes")
    assert (done["version"], done["discarded"]) == (2, True)
    assert deltalake.DeltaTable(str(location(on_sqlite))).version() == 1
    assert len(list((location(on_sqlite) / "_delta_log/_discarded").iterdir())) == 1


def test_fence_shuts_others_out(deltasql: Cli) -> None:
    assert "Add --yes" in deltasql("mirror", "fence", "sales", code=2).stderr

    done = deltasql.json("mirror", "fence", "sales", "--yes")
    assert done == {"table": "sales", "published_version": 2, "dry_run": False}
    with pytest.raises(deltalake.exceptions.DeltaError, match="catalog"):
        append_foreign(deltasql, 7)


@pytest.mark.parametrize(
    ("engine", "ending"),
    [("sqlite", signal.SIGINT), ("postgres", signal.SIGTERM)],
    indirect=["engine"],
)
def test_run_publishes_until_a_signal(deltasql: Cli, ending: signal.Signals) -> None:
    code = "from delkalakedb.cli import main; main()"
    command = [sys.executable, "-c", code, "mirror", "run", "--output", "json"]
    daemon = subprocess.Popen(
        command,
        env=os.environ | {"DELTASQL_CATALOG": str(deltasql.uri)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = location(deltasql) / "_delta_log" / f"{2:020}.json"
    try:
        assert daemon.stderr is not None
        assert "publishing" in daemon.stderr.readline()
        _commit_without_publishing(deltasql)
        deadline = time.monotonic() + 60
        while not log.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        daemon.send_signal(ending)
        out, err = daemon.communicate(timeout=60)
    finally:
        daemon.kill()

    assert daemon.returncode == 0, err
    assert log.exists()
    assert '"state": "published"' in out
    assert "Traceback" not in err


def _commit_without_publishing(cli: Cli) -> None:
    info = CommitInfo({"operation": "NOTHING"})
    with dk.connect(str(cli.uri)) as catalog:
        catalog.commit(Staged("sales", [info], Reads(version=1)))


# ---- commits that couldn't be published

COMMITTING = {
    "set": ["set", "sales", "delta.checkpointInterval=50"],
    "append": ["append", "sales", "{folder}/more.parquet"],
    "restore": ["restore", "sales", "--version", "0", "--yes"],
    "fence": ["mirror", "fence", "sales", "--yes"],
    "optimize": ["optimize", "sales", "--z-order", "id"],
}


@pytest.mark.parametrize("name", COMMITTING)
def test_commit_that_is_not_published_is_told_and_exits_with_1(
    on_sqlite: Cli, name: str, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"id": [4], "day": ["thu"]}), tmp_path / "more.parquet")
    words = [word.format(folder=tmp_path) for word in COMMITTING[name]]

    with blocked(location(on_sqlite) / "_delta_log"):
        done = on_sqlite("--quiet", "--output", "json", *words, code=1)

    assert done.stderr.startswith("Warning: sales: version 2 is committed but not pub")
    assert "deltasql mirror run" in done.stderr
    assert json.loads(done.stdout)
    assert on_sqlite.json("describe", "sales")["version"] == 2


def test_several_tables_are_all_done_though_one_is_not_published(
    deltasql: Cli,
) -> None:
    dk.write_deltalake(deltasql.table("other"), pa.table({"id": [1]}))
    dk.write_deltalake(deltasql.table("other"), pa.table({"id": [2]}), mode="append")
    words = ["--output", "json", "optimize", "--all", "--z-order", "id"]

    with blocked(location(deltasql) / "_delta_log"):
        done = deltasql(*words, code=1)

    found = {one["table"]: one["version"] for one in json.loads(done.stdout)}
    assert found == {"other": 2, "sales": 2}
    (line,) = [line for line in done.stderr.splitlines() if "Warning" in line]
    assert line.startswith("Warning: sales: version 2 is committed")


def test_background_publisher_of_a_command_is_waited_for(
    on_sqlite: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_MIRROR__MODE", "background")
    on_sqlite("set", "sales", "owner=a")
    assert dk.verify(on_sqlite.table()).published_version == 2

    with blocked(location(on_sqlite) / "_delta_log"):
        done = on_sqlite("set", "sales", "owner=b", code=1)

    assert "Warning: sales: version 3 is committed" in done.stderr


def test_fence_is_tried_without_a_commit(on_sqlite: Cli) -> None:
    tried = on_sqlite.json("mirror", "fence", "sales", "--dry-run")

    assert tried == {"table": "sales", "published_version": 1, "dry_run": True}
    assert on_sqlite.json("tables")[0]["version"] == 1
    on_sqlite("mirror", "fence", "sales", "--yes")
    assert "is fenced already" in on_sqlite("mirror", "fence", "sales").stdout


def test_status_is_watched_until_it_is_interrupted(on_sqlite: Cli) -> None:
    words = ["-c", "from delkalakedb.cli import main; main()", "mirror", "status"]
    watching = subprocess.Popen(
        [sys.executable, *words, "--watch", "0.2s", "-o", "csv"],
        env=os.environ | {"DELTASQL_CATALOG": str(on_sqlite.uri)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    lines = [watching.stdout.readline() for _ in range(6)]
    watching.send_signal(signal.SIGINT)
    watching.communicate(timeout=60)

    assert watching.returncode == 130
    assert [line.startswith("sales,published") for line in lines[1::2]] == [True] * 3
