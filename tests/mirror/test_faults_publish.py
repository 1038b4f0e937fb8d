"""Publishing when requests fail, or the store or the database can't be reached."""

import logging
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from delkalakedb import Catalog
from delkalakedb.catalog.commit.outbox import PATIENCE_S, Outbox
from delkalakedb.mirror.publisher.reconciler import Reconciler
from delkalakedb.mirror.publisher.statuses import MirrorStatus, status
from delkalakedb.mirror.verify.verification import verify_table
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.times import from_ms
from delkalakedb.storage import Store
from delkalakedb.storage.remote import RemoteStore
from delkalakedb.write import committer as commits
from tests.support.actions import add, creation, paths
from tests.support.faults import FaultStore
from tests.support.mirror_workers import (
    brief,
    check_mirror,
    check_prefix,
    create_lake,
    due_at,
    grow,
    outlive,
    reconciler_of,
    temporary_files,
)
from tests.support.servers.postgres import Server
from tests.support.servers.stores import KEY, SECRET, free_ports

INTERVAL = 3
TABLES = ("a", "b")
CHANCES = {"refused": 0.12, "lost": 0.12, "doubled": 0.12, "delayed": 0.12}


# --- requests that go wrong ---------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_mirror_is_a_prefix_under_faults_and_whole_after_them(
    catalog_uri: str, tmp_path: Path, seed: int
) -> None:
    check_faults(catalog_uri, tmp_path, seed, commits=8)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 200))
def test_mirror_is_a_prefix_under_many_faults_and_whole_after_them(
    catalog_uri: str, tmp_path: Path, seed: int
) -> None:
    check_faults(catalog_uri, tmp_path, seed, commits=20)


def check_faults(uri: str, folder: Path, seed: int, commits: int) -> None:
    with brief(uri, mode="external") as catalog:
        real = {
            name: create_lake(catalog, str(folder / name), name, INTERVAL)
            for name in TABLES
        }
        faulty = {
            name: FaultStore(store, seed * len(TABLES) + i, delay_s=0.002, **CHANCES)
            for i, (name, store) in enumerate(real.items())
        }
        reconciler = reconciler_of(catalog, faulty.__getitem__)
        for n in range(commits):
            for name in TABLES:
                grow(catalog, "w", n, name)
                outlive(catalog, name)
            reconciler.run_once()
            for name, store in real.items():
                check_prefix(catalog, store, name)
                assert verify_table(catalog, name, store).ok
        assert all(sum(store.injected.values()) > 5 for store in faulty.values())
        for name, store in faulty.items():
            store.quiet = True
            outlive(catalog, name)
        told = reconciler.run_once()
        assert {(s.state, s.versions_behind, s.attempts) for s in told} == {
            ("published", 0, 0)
        }
        for name in TABLES:
            check_mirror(catalog, name, checkpoint=due_at(commits, INTERVAL))
            assert temporary_files(str(folder / name)) == []


class CutStore(FaultStore):
    """A store of which one request goes wrong."""

    def __init__(self, store: Store, fault: str, number: int) -> None:
        super().__init__(store, 0)
        self._fault = fault
        self._left = number

    def _draw(self) -> tuple[str | None, float]:
        self._left -= 1
        if self._left != -1:
            return None, 0.0
        self.injected[self._fault] += 1
        return self._fault, 0.0


@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("fault", ["refused", "lost", "doubled"])
def test_any_single_request_that_goes_wrong_is_made_good(
    catalog_uri: str, tmp_path: Path, fault: str
) -> None:
    requests = 0
    with brief(catalog_uri, mode="external") as catalog:
        while cut_short(catalog, str(tmp_path / f"t{requests}"), fault, requests):
            requests += 1
    # A commit, its time and its checksum, twice; the checkpoint and its hint.
    assert requests >= 8


def cut_short(catalog: Catalog, location: str, fault: str, number: int) -> bool:
    """Have one request fail and publish again; whether there were so many."""
    name = f"t{number}"
    real = create_lake(catalog, location, name, interval=1)
    grow(catalog, "w", 0, name)
    store = CutStore(real, fault, number)
    reconciler = reconciler_of(catalog, lambda _: store, table=name)
    reconciler.run_once()
    check_prefix(catalog, real, name)
    outlive(catalog, name)
    reconciler.run_once()
    check_mirror(catalog, name, checkpoint=1)
    return bool(store.injected[fault])


# --- a store that can't be reached --------------------------------------------------


@pytest.fixture
def away() -> dict[str, str]:
    """The storage options of an S3 server that isn't there."""
    (port,) = free_ports(1)
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
        "max_retries": "1",
    }


def test_commit_stands_while_the_store_is_away(
    catalog: Catalog,
    catalog_uri: str,
    away: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    catalog.commit(creation("t", location="s3://lake/away"))

    started = time.monotonic()
    commit_inline(catalog, "a", away)
    assert time.monotonic() - started < 5

    assert paths(catalog) == ["a"]
    (told,) = status(catalog_uri)
    assert (told.state, told.attempts, told.versions_behind) == ("failed", 1, 2)
    assert told.next_try_ms is not None
    assert 0 < told.next_try_ms - time.time() * 1000 < 1000
    assert told.next_try == from_ms(told.next_try_ms)
    assert told.last_error is not None
    assert "s3://lake/away" in told.last_error
    (warning,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert warning.getMessage().startswith(
        "t: version 1 is committed but not published"
    )
    for secret in (KEY, SECRET):
        assert secret not in caplog.text + told.last_error


def test_writers_do_not_try_again_before_it_is_time(
    catalog: Catalog,
    away: dict[str, str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog.commit(creation("t", location="s3://lake/away"))
    with catalog._backend.writing() as session:
        session.script(["UPDATE dl_mirrors SET attempts = 9"])
    commit_inline(catalog, "a", away)
    before = Outbox(catalog._backend).load("t")
    # 2 ** 9 s is more than the most there is, and half of that the least.
    assert before.next_try_ms is not None
    assert 140_000 < before.next_try_ms - time.time() * 1000 < 300_000

    with monkeypatch.context() as patch:
        patch.setattr(RemoteStore, "put_new", pytest.fail)
        started = time.monotonic()
        commit_inline(catalog, "b", away)
        assert time.monotonic() - started < 1

    after = Outbox(catalog._backend).load("t")
    assert (after.attempts, after.next_try_ms) == (10, before.next_try_ms)
    assert "version 2 is committed but not published yet: an earlier" in caplog.text


def commit_inline(catalog: Catalog, path: str, options: dict[str, str]) -> None:
    staged = Staged("t", [add(path)], Reads(0))
    commits.commit(catalog, staged, storage_options=options)


def test_failures_wait_longer_each_time_and_end_with_the_outage(
    catalog_uri: str, tmp_path: Path
) -> None:
    retry = {"backoff_initial": 1.0, "backoff_max": 5.0}
    with brief(catalog_uri, mode="external", retry=retry) as catalog:
        store = FaultStore(create_lake(catalog, str(tmp_path / "t")), 0, refused=1.0)
        reconciler = reconciler_of(catalog, lambda _: store)
        pauses = []
        for attempt in range(1, 6):
            started_ms = time.time() * 1000
            (told,) = reconciler.run_once()
            assert (told.state, told.attempts) == ("failed", attempt)
            assert told.last_error is not None
            assert told.last_error.startswith("injected")
            assert told.next_try_ms is not None
            pauses.append((told.next_try_ms - started_ms) / 1000)
        for pause, most in zip(pauses, (1, 2, 4, 5, 5), strict=True):
            assert most / 2 - 0.01 <= pause <= most + 0.5

        store.quiet = True
        (told,) = reconciler.run_once()
        assert (told.state, told.attempts, told.last_error) == ("published", 0, None)
        assert told.next_try_ms is None
        check_mirror(catalog)


def test_running_reconciler_catches_up_by_itself_after_an_outage(
    catalog_uri: str, tmp_path: Path
) -> None:
    with brief(catalog_uri, mode="external") as catalog:
        store = FaultStore(create_lake(catalog, str(tmp_path / "t")), 0, refused=1.0)
        with running(reconciler_of(catalog, lambda _: store)):
            wait_for(catalog, lambda told: told.attempts >= 3)
            for n in range(4):
                grow(catalog, "w", n)
            (told,) = status(catalog)
            assert (told.published_version, told.state) == (-1, "failed")
            store.quiet = True
            wait_for(catalog, lambda told: told.checkpoint_version == 2)
        check_mirror(catalog, checkpoint=2)


@pytest.mark.soak
@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
def test_store_that_never_answers_is_given_up(
    catalog: Catalog, away: dict[str, str]
) -> None:
    catalog.commit(creation("t", location="s3://lake/silent"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        options = away | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
        del options["max_retries"]
        started = time.monotonic()
        commit_inline(catalog, "a", options)
    # Before its heartbeat stops: the next holder of the lease may put the same file.
    assert time.monotonic() - started < PATIENCE_S
    assert Outbox(catalog._backend).load("t").state == "failed"


def test_commit_stands_where_no_checkpoint_can_be_made(
    catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with brief(catalog_uri) as catalog:
        create_lake(catalog, str(tmp_path / "t"), interval=1)
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(tmp_path / "absent"))
            assert grow(catalog, "w", 0) == 1
        check_mirror(catalog, checkpoint=-1)
        outlive(catalog)
        assert grow(catalog, "w", 1) == 2
        check_mirror(catalog, checkpoint=2)


# --- a database that can't be reached -----------------------------------------------


def test_running_reconciler_goes_on_after_the_database_restarts(tmp_path: Path) -> None:
    server = Server("fsync=off")
    server.start()
    uri = f"deltasql://postgres/{server.authority}/postgres/lake"
    try:
        with brief(uri, mode="external") as catalog:
            create_lake(catalog, str(tmp_path / "t"))
            with running(reconciler_of(catalog)):
                for turn in range(2):
                    for n in range(3):
                        grow(catalog, f"w{turn}", n)
                    server.kill()
                    time.sleep(0.2)
                    server.start()
                    grow(catalog, f"last{turn}", 0)
                    wait_for(catalog, lambda told: not told.versions_behind)
            check_mirror(catalog)
    finally:
        server.stop()


@contextmanager
def running(reconciler: Reconciler) -> Iterator[None]:
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(reconciler.run_forever)
        try:
            yield
        finally:
            reconciler.stop()
            ended.result(timeout=10)


def wait_for(catalog: Catalog, done: Callable[[MirrorStatus], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done(told := status(catalog, "t")[0]):
        assert time.monotonic() < deadline, told
        time.sleep(0.01)
