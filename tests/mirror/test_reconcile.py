"""The reconciler, lag, and the modes of publishing."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.catalog.commit.outbox import Mirror, Outbox
from delkalakedb.errors import CatalogUnavailableError
from delkalakedb.mirror.publisher import delivery as background
from delkalakedb.mirror.publisher.delivery import drain
from delkalakedb.mirror.publisher.reconciler import LagAlert, Reconciler
from delkalakedb.mirror.publisher.statuses import MirrorStatus
from delkalakedb.write.committer import commit as deliver
from tests.support.actions import add, commit, create, staged

FOREIGN = '{"commitInfo":{"operation":"WRITE"}}\n'


def tables(catalog: dk.Catalog, folder: Path, count: int = 3) -> list[Path]:
    """Tables with two versions each, none of them published."""
    locations = [folder / f"t{number}" for number in range(count)]
    for location in locations:
        create(catalog, location.name, location=str(location))
        commit(catalog, add("a"), table=location.name)
    return locations


def versions(location: Path) -> int:
    return len(list((location / "_delta_log").glob("*.json")))


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def block(location: Path) -> None:
    """Nothing can be written to a log whose folder is a file."""
    location.mkdir(exist_ok=True)
    (location / "_delta_log").write_text("")


def test_once_publishes_every_table(catalog: dk.Catalog, tmp_path: Path) -> None:
    locations = tables(catalog, tmp_path)

    statuses = dk.mirror.run(catalog.uri, once=True)

    assert [s.state for s in statuses] == ["published"] * 3
    assert [versions(location) for location in locations] == [2, 2, 2]


def test_once_with_a_table_publishes_that_one(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    tables(catalog, tmp_path)

    Reconciler(catalog, table="t1").run_once()

    states = {s.table: s.state for s in dk.mirror.status(catalog.uri)}
    assert states == {"t0": "pending", "t1": "published", "t2": "pending"}


def test_table_that_fails_keeps_no_other_from_being_published(
    catalog: dk.Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    locations = tables(catalog, tmp_path)
    block(locations[1])

    statuses = Reconciler(catalog).run_once()

    assert [s.state for s in statuses] == ["published", "failed", "published"]
    assert statuses[1].versions_behind == 2
    assert "t1: not published yet" in caplog.text


def test_mirror_converges_after_an_outage(catalog: dk.Catalog, tmp_path: Path) -> None:
    (location,) = tables(catalog, tmp_path, 1)
    block(location)
    retry = {"backoff_initial": 0.05, "backoff_max": 0.1}
    with dk.connect(catalog.uri, mirror={"retry": retry, "poll": 0.02}) as fast:
        reconciler = Reconciler(fast)
        thread = threading.Thread(target=reconciler.run_forever)
        thread.start()
        wait_for(lambda: dk.mirror.status(catalog.uri)[0].attempts > 1)
        (location / "_delta_log").unlink()

        wait_for(lambda: dk.mirror.status(catalog.uri)[0].state == "published")
        reconciler.stop()
        thread.join()

    assert versions(location) == 2


def test_foreign_commit_is_noticed_though_nothing_is_to_be_published(
    catalog: dk.Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (location,) = tables(catalog, tmp_path, 1)
    Reconciler(catalog).run_once()
    foreign = location / "_delta_log" / f"{2:020}.json"
    foreign.write_text(FOREIGN)

    (status,) = Reconciler(catalog).run_once()

    assert status.state == "diverged"
    assert foreign.name in str(status.last_error)
    assert "was written by a writer that bypassed the catalog" in caplog.text


def test_due_checkpoint_of_another_writer_is_made(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    (location,) = tables(catalog, tmp_path, 1)
    with dk.connect(catalog.uri, mirror={"checkpoint_interval": 1}) as eager:
        (status,) = Reconciler(eager).run_once()

    assert status.checkpoint_version == 1
    assert (location / "_delta_log" / "_last_checkpoint").exists()


def test_running_reconciler_makes_a_checkpoint_that_is_due(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    (location,) = tables(catalog, tmp_path, 1)
    settings = {"checkpoint_interval": 1, "poll": 0.02}
    with dk.connect(catalog.uri, mirror=settings) as eager:
        reconciler = Reconciler(eager)
        thread = threading.Thread(target=reconciler.run_forever)
        thread.start()
        wait_for(lambda: dk.mirror.status(catalog.uri)[0].checkpoint_version == 1)
        reconciler.stop()
        thread.join()

    assert (location / "_delta_log" / f"{1:020}.checkpoint.parquet").exists()


def test_lag_is_told_when_it_passes_a_threshold_and_when_it_is_over(
    catalog: dk.Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "delkalakedb.mirror")
    (location,) = tables(catalog, tmp_path, 1)
    block(location)
    alerts: list[LagAlert] = []
    limits = {"lag_warn": 0.1, "lag_alert": 0.3, "poll": 0.02}
    retry = {"backoff_initial": 0.05, "backoff_max": 0.05}
    with dk.connect(catalog.uri, mirror={**limits, "retry": retry}) as fast:
        reconciler = Reconciler(fast, on_lag=alerts.append)
        thread = threading.Thread(target=reconciler.run_forever)
        thread.start()
        wait_for(lambda: "alert" in [alert.level for alert in alerts])
        (location / "_delta_log").unlink()
        wait_for(lambda: "ok" in [alert.level for alert in alerts])
        reconciler.stop()
        thread.join()

    levels = [alert.level for alert in alerts]
    assert levels[-2:] == ["alert", "ok"]
    assert alerts[-2].status.versions_behind == 2
    assert alerts[-2].status.seconds_behind >= 0.3
    told = [r for r in caplog.records if getattr(r, "delta_event", "") == "mirror lag"]
    assert [r.levelno for r in told][-2:] == [logging.ERROR, logging.INFO]


@pytest.mark.parametrize("blocked", [False, True])
def test_once_tells_of_lag_before_and_after(
    catalog: dk.Catalog,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    blocked: bool,
) -> None:
    caplog.set_level(logging.INFO, "delkalakedb.mirror")
    (location,) = tables(catalog, tmp_path, 1)
    if blocked:
        block(location)
    monkeypatch.setenv("DELKALAKEDB_MIRROR__LAG_WARN", "0.01")
    alerts: list[LagAlert] = []
    time.sleep(0.05)

    (status,) = dk.mirror.run(catalog.uri, once=True, on_lag=alerts.append)

    levels = [alert.level for alert in alerts]
    assert levels == (["warn"] if blocked else ["warn", "ok"])
    assert alerts[0].status.versions_behind == 2
    assert alerts[-1].status.versions_behind == status.versions_behind
    told = [r for r in caplog.records if getattr(r, "delta_event", "") == "mirror lag"]
    assert len(told) == len(alerts)


def test_once_tells_of_no_lag_where_there_is_none(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    tables(catalog, tmp_path, 1)
    alerts: list[LagAlert] = []

    dk.mirror.run(catalog.uri, once=True, on_lag=alerts.append)

    assert alerts == []


def test_status_counts_versions_and_seconds(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    tables(catalog, tmp_path, 1)
    time.sleep(0.05)

    (status,) = dk.mirror.status(catalog.uri)

    assert (status.ratified_version, status.published_version) == (1, -1)
    assert (status.versions_behind, status.state) == (2, "pending")
    assert 0.05 <= status.seconds_behind < 60
    assert MirrorStatus(**status.to_dict()) == status


def test_status_of_an_empty_catalog_is_empty(catalog: dk.Catalog) -> None:
    assert dk.mirror.status(catalog.uri) == []


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_run_ends_cleanly_on_sigterm(
    catalog: dk.Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    (location,) = tables(catalog, tmp_path, 1)
    script = "import os, delkalakedb as dk; dk.mirror.run(os.environ['CATALOG'])"
    process = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "CATALOG": catalog_uri}
    )
    try:
        wait_for(lambda: dk.mirror.status(catalog.uri)[0].state == "published")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()

    assert Outbox(catalog._backend).load("t0").lease_owner is None
    assert versions(location) == 2


def test_external_mode_leaves_publishing_to_the_reconciler(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    with dk.connect(catalog.uri, mirror={"mode": "external"}) as external:
        (location,) = tables(external, tmp_path, 1)
        deliver(external, staged(external, add("b"), table="t0"))

        assert not (location / "_delta_log").exists()
        Reconciler(external).run_once()
        assert versions(location) == 3


def test_reconciler_looks_at_tables_that_wait_for_something(
    catalog: dk.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []
    load_all = Outbox.load_all

    def watched(self: Outbox, *, behind: bool = False) -> list[Mirror]:
        found = load_all(self, behind=behind)
        seen.append([mirror.name for mirror in found])
        return found

    monkeypatch.setattr(Outbox, "load_all", watched)
    tables(catalog, tmp_path, 3)
    with dk.connect(catalog.uri, mirror={"poll": 0.01}) as polled:
        reconciler = Reconciler(polled)
        running = threading.Thread(target=reconciler.run_forever)
        running.start()
        try:
            wait_for(lambda: seen[-1:] == [[]])
            commit(catalog, add("b"), table="t1")
            wait_for(lambda: ["t1"] in seen)
            wait_for(lambda: versions(tmp_path / "t1") == 3)
        finally:
            reconciler.stop()
            running.join()

    assert seen[0] == ["t0", "t1", "t2"]


def test_background_mode_publishes_after_the_call(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    with dk.connect(catalog.uri, mirror={"mode": "background"}) as behind:
        locations = tables(behind, tmp_path)
        for location in locations:
            deliver(behind, staged(behind, add("b"), table=location.name))

    wait_for(lambda: all(s.state == "published" for s in dk.mirror.status(catalog.uri)))
    assert [versions(location) for location in locations] == [3, 3, 3]
    drain()


def test_background_mode_tries_again_after_a_failure(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    retry = {"backoff_initial": 0.05, "backoff_max": 0.05}
    settings = {"mode": "background", "retry": retry}
    with dk.connect(catalog.uri, mirror=settings) as behind:
        (location,) = tables(behind, tmp_path, 1)
        block(location)
        deliver(behind, staged(behind, add("b"), table="t0"))

    wait_for(lambda: dk.mirror.status(catalog.uri)[0].attempts > 0)
    (location / "_delta_log").unlink()
    wait_for(lambda: dk.mirror.status(catalog.uri)[0].state == "published")
    assert versions(location) == 3
    drain()


def test_background_mode_survives_what_nobody_foresaw(
    catalog: dk.Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry = {"backoff_initial": 0.05, "backoff_max": 0.05}
    real, broken = background.publish_table, [True]

    def publish(*arguments: Any) -> Any:
        if broken:
            raise OSError(broken.pop())
        return real(*arguments)

    monkeypatch.setattr(background, "publish_table", publish)
    settings = {"mode": "background", "retry": retry}
    with dk.connect(catalog.uri, mirror=settings) as behind:
        (location,) = tables(behind, tmp_path, 1)
        deliver(behind, staged(behind, add("b"), table="t0"))

    wait_for(lambda: dk.mirror.status(catalog.uri)[0].state == "published")
    assert versions(location) == 3
    drain()


def test_commit_stands_though_its_publishing_cannot_be_asked_for(
    catalog: dk.Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def away(*arguments: Any) -> None:
        raise CatalogUnavailableError("the server is restarting")

    monkeypatch.setattr(background, "Catalog", away)
    with dk.connect(catalog.uri, mirror={"mode": "background"}) as behind:
        tables(behind, tmp_path, 1)
        deliver(behind, staged(behind, add("b"), table="t0"))

    assert catalog.table("t0").version == 2
    assert "version 2 is committed but not published yet: the server is" in caplog.text


FORKED = """
import os, pyarrow as pa, delkalakedb as dk
from delkalakedb.mirror.publisher.delivery import _checkpointer
def write():
    dk.write_deltalake(os.environ["TABLE"], pa.table({"x": [1]}), mode="append")
    _checkpointer().submit(int).result(30)
write()
if (child := os.fork()) == 0:
    write()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_forked_process_makes_checkpoints_of_its_own(catalog_uri: str) -> None:
    table = f"{catalog_uri}{'&' if '?' in catalog_uri else '?'}table=t"
    environment = {
        "TABLE": table,
        "DELKALAKEDB_MIRROR__CHECKPOINT_INTERVAL": "1",
        "DELKALAKEDB_MIRROR__INLINE_CHECKPOINT_FILES": "0",
    }
    subprocess.run(
        [sys.executable, "-c", FORKED], env={**os.environ, **environment}, check=True
    )

    (status,) = dk.mirror.status(catalog_uri)
    assert status.checkpoint_version == 1


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_background_mode_finishes_before_the_process_ends(
    catalog_uri: str, tmp_path: Path
) -> None:
    script = """
import os, pyarrow as pa, delkalakedb as dk
for n in range(3):
    dk.write_deltalake(os.environ["TABLE"], pa.table({"x": [n]}), mode="append")
"""
    environment = {
        "TABLE": f"{catalog_uri}?table=t",
        "DELKALAKEDB_MIRROR__MODE": "background",
    }
    subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **environment}, check=True
    )

    (status,) = dk.mirror.status(catalog_uri)
    assert (status.state, status.published_version) == ("published", 2)


def test_failed_publish_leaves_the_commit_standing_and_warns(
    catalog_uri: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    parameter = "&" if "?" in catalog_uri else "?"
    uri = f"{catalog_uri}{parameter}table=t&location={tmp_path}/lake"
    dk.write_deltalake(uri, pa.table({"x": [1]}))
    log = tmp_path / "lake" / "_delta_log"
    log.rename(tmp_path / "aside")
    log.write_text("")

    dk.write_deltalake(uri, pa.table({"x": [2]}), mode="append")

    assert dk.DeltaTable(uri).version() == 1
    assert "t: version 1 is committed but not published yet" in caplog.text
    (status,) = dk.mirror.status(catalog_uri)
    assert (status.state, status.published_version) == ("failed", 0)
