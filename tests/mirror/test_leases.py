"""Leases: a publisher that is gone holds up nobody, one at work isn't disturbed."""

import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

import delkalakedb as dk
from delkalakedb.catalog.commit import outbox as holder
from delkalakedb.catalog.commit.outbox import Heartbeat, Lease, Mirror, Outbox
from delkalakedb.catalog.load.adoption import hold_mirror
from delkalakedb.errors import CatalogError, CatalogUnavailableError
from delkalakedb.mirror.publisher.publication import publish_table, stores_with
from delkalakedb.storage import Store
from tests.support.actions import add, commit, create
from tests.support.faults import FaultStore
from tests.support.mirror_workers import (
    brief,
    check_mirror,
    create_lake,
    grow,
    grow_killed,
)
from tests.support.processes import CHILDREN
from tests.support.servers.postgres import Server

# Where processes are killed: between the commit and the end of its publishing.
STEPS = [
    "after _try_commit",
    "before put_new json",
    "before link json",
    "after link json",
    "after put_new json",
    "before put_new crc",
    "after put_new crc",
    "before mark_published",
    "after mark_published",
    "after claim_checkpoint",
    "before mark_checkpoint",
]
# Seconds; the issue is that it was ten.
LONGEST_APPEND_S = 2.0
LONG_S = 30.0


def test_kills_hold_up_neither_the_next_append_nor_the_reconciler(
    catalog_uri: str, tmp_path: Path, engine: str
) -> None:
    kill_many(catalog_uri, tmp_path, 4, seed=f"{engine} in short")


@pytest.mark.soak
def test_two_hundred_kills_hold_up_nobody(
    catalog_uri: str, tmp_path: Path, engine: str
) -> None:
    kill_many(catalog_uri, tmp_path, 200, seed=engine)


def kill_many(uri: str, folder: Path, kills: int, seed: str) -> None:
    """Kill publishers one after the other, each at a step and a time of its own."""
    rng = random.Random(seed)
    with dk.connect(uri) as catalog:
        create_lake(catalog, str(folder / "t"), interval=5)
        # Up to the first checkpoint, which loads what is needed to write one.
        for n in range(4):
            grow(catalog, "first", n)
    commits, slowest_s = itertools.count(), [0.0, 0.0]
    for number in range(kills):
        step, nth = rng.choice(STEPS), rng.randint(1, 3)
        # Every other one looks as if it had run on another machine, or in a container.
        elsewhere = number % 2 == 1 and "duckdb" not in uri
        arguments = (uri, f"w{number}", (step, nth), rng.random() * 0.3, elsewhere)
        child = CHILDREN.Process(target=grow_killed, args=arguments)
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL
        with dk.connect(uri) as catalog:
            if rng.random() < 0.5:
                assert_published(dk.mirror.run(uri, once=True))
            started = time.monotonic()
            grow(catalog, "next", next(commits))
            took_s = time.monotonic() - started
            slowest_s[elsewhere] = max(slowest_s[elsewhere], took_s)
            # The lease of a process elsewhere has to end.
            longest_s = LONGEST_APPEND_S + elsewhere * catalog.settings.mirror.lease
            assert took_s < longest_s, (number, step, nth, elsewhere)
            assert_published(dk.mirror.status(uri))
            assert_published(dk.mirror.run(uri, once=True))
    print(f"{kills} kills; the slowest append after one here, elsewhere: {slowest_s}")
    with dk.connect(uri) as catalog:
        check_mirror(catalog)


def assert_published(statuses: list[dk.mirror.MirrorStatus]) -> None:
    (status,) = statuses
    assert (status.state, status.versions_behind) == ("published", 0)


# --- who holds a lease --------------------------------------------------------------


def take(catalog: dk.Catalog, lasts_s: float = LONG_S) -> Lease | Mirror:
    return Outbox(catalog._backend).take("t", lasts_s)


@pytest.fixture
def table(catalog: dk.Catalog, tmp_path: Path) -> dk.Catalog:
    """A catalog with a table of two versions, none of them published."""
    create(catalog, location=str(tmp_path / "t"))
    commit(catalog, add("a"))
    return catalog


@contextmanager
def held_by(owner: str, catalog: dk.Catalog, lasts_s: float = LONG_S) -> Iterator[None]:
    """A lease of another process."""
    with patch("delkalakedb.catalog.commit.outbox.begin", lambda *_: owner):
        assert isinstance(take(catalog, lasts_s), Lease)
    yield


def owner_of(process: "subprocess.Popen[bytes]") -> str:
    place, _, _, token = holder.holder_of("a").rsplit("/", 3)
    _, start = holder._status(str(process.pid))
    return f"{place}/{process.pid}/{start}/{token}"


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as process:
        yield process
        process.kill()


def test_lease_of_a_running_process_is_respected(
    table: dk.Catalog, sleeper: "subprocess.Popen[bytes]"
) -> None:
    with held_by(owner_of(sleeper), table):
        assert isinstance(take(table), Mirror)


@pytest.mark.parametrize("reaped", [False, True])
def test_lease_of_a_killed_process_is_taken_at_once(
    table: dk.Catalog, sleeper: "subprocess.Popen[bytes]", reaped: bool
) -> None:
    with held_by(owner_of(sleeper), table):
        sleeper.kill()
        # As a zombie it has a pid still.
        os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
        if reaped:
            sleeper.wait()
        assert isinstance(take(table), Lease)


def test_lease_of_a_process_whose_pid_another_has_now_is_taken_at_once(
    table: dk.Catalog, sleeper: "subprocess.Popen[bytes]"
) -> None:
    place, pid, start, token = owner_of(sleeper).rsplit("/", 3)
    with held_by(f"{place}/{pid}/{int(start) - 1}/{token}", table):
        assert isinstance(take(table), Lease)


@pytest.mark.parametrize("differs", ["host", "boot", "namespace"])
def test_process_that_cannot_be_seen_from_here_keeps_its_lease_until_its_end(
    table: dk.Catalog, differs: str
) -> None:
    """No process of this machine has that pid, but this isn't the holder's machine."""
    host, place, _, _, _ = holder.holder_of("a").split("/")
    boot, namespace = place.split(".")
    names = {"host": host, "boot": boot, "namespace": namespace}
    names[differs] += "1"
    owner = "{host}/{boot}.{namespace}/4194305/1/a".format(**names)
    with held_by(owner, table, 0.5):
        assert isinstance(take(table), Mirror)
        assert_published(dk.mirror.run(table.uri, once=True))


def test_holder_that_an_older_version_wrote_keeps_its_lease(table: dk.Catalog) -> None:
    with held_by("host/4194305/a", table):
        assert isinstance(take(table), Mirror)


def test_holder_without_proc_is_known_to_itself_alone() -> None:
    holder._process.cache_clear()
    try:
        with patch("os.readlink", side_effect=FileNotFoundError):
            ours = holder.begin("a", LONG_S)
            assert not holder.is_forsaken(ours)
            holder.end(ours)
            assert holder.is_forsaken(ours)
            holder._process.cache_clear()
            # To another process, which has the same host name and no /proc either.
            assert not holder.is_forsaken(ours)
    finally:
        holder._process.cache_clear()


# --- a process and its own leases ---------------------------------------------------


def test_process_takes_back_a_lease_that_it_could_not_give_back(
    table: dk.Catalog,
) -> None:
    lease = take(table)
    assert isinstance(lease, Lease)
    with (
        patch.object(Outbox, "_write", side_effect=CatalogUnavailableError("away")),
        pytest.raises(CatalogUnavailableError),
    ):
        Outbox(table._backend).release(lease)

    assert publish_table(table, "t", stores_with(), 1).version == 1


def test_thread_that_publishes_is_not_robbed_by_another(
    catalog_uri: str, tmp_path: Path
) -> None:
    """One request outlasts the lease; its heartbeat keeps it."""
    with brief(catalog_uri, mode="external") as catalog:
        store = create_lake(catalog, str(tmp_path / "t"))
        slow = Slow(store, 1.0)
        with ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(publish_table, catalog, "t", lambda _: slow, 0)
            assert slow.reached.wait(30)
            rivals = []
            while not publishing.done():
                rivals.append(take(catalog, 0.3))
                time.sleep(0.05)
        assert publishing.result().version == 0
        assert not [rival for rival in rivals[:-1] if isinstance(rival, Lease)]


class Slow(FaultStore):
    """A store on which the first request takes long."""

    def __init__(self, store: Store, takes_s: float) -> None:
        super().__init__(store, 0)
        self.reached = threading.Event()
        self._takes_s = takes_s

    def put_new(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        if not self.reached.is_set():
            self.reached.set()
            time.sleep(self._takes_s)
        return super().put_new(path, data, durable=durable)


def test_publisher_is_not_waited_for_after_the_database_crashed(tmp_path: Path) -> None:
    """The commit with its lease was durable; that it was given back was not."""
    server = Server("fsync=off")
    server.start()
    uri = f"deltasql://postgres/{server.authority}/postgres/lake"
    try:
        with brief(uri, lease=LONG_S, wait=LONG_S) as catalog:
            create_lake(catalog, str(tmp_path / "t"), interval=100)
            grow(catalog, "w", 0)
            with patch.object(Outbox, "mark_published", lambda *_, **__: server.kill()):
                grow(catalog, "w", 1)
            server.start()
            assert Outbox(catalog._backend).load("t").lease_owner is not None
            started = time.monotonic()
            grow(catalog, "w", 2)
            assert time.monotonic() - started < LONGEST_APPEND_S
            check_mirror(catalog)
    finally:
        server.stop()


# --- heartbeats ---------------------------------------------------------------------


def test_lease_that_is_held_for_long_is_renewed(table: dk.Catalog) -> None:
    with dk.connect(table.uri, mirror={"lease": 0.3}) as brief_catalog:
        with hold_mirror(brief_catalog, "t") as lease:
            time.sleep(1.0)
            assert isinstance(take(table), Mirror)
        assert Outbox(table._backend).renew(lease) is None
        assert isinstance(take(table), Lease)


def test_claim_on_a_checkpoint_that_takes_long_is_renewed(table: dk.Catalog) -> None:
    dk.mirror.run(table.uri, once=True)
    outbox = Outbox(table._backend)
    mirror = outbox.load("t")
    assert outbox.claim_checkpoint(mirror, 1, 0.3)
    with outbox.keeping_claim(mirror, 1, 0.3, LONG_S):
        time.sleep(1.0)
        assert not outbox.claim_checkpoint(mirror, 1, 0.3)
    time.sleep(0.4)
    assert outbox.claim_checkpoint(mirror, 1, 0.3)


def test_short_work_starts_no_heartbeat(table: dk.Catalog) -> None:
    with patch.object(Heartbeat, "start") as start:
        for number in range(3):
            grow(table, "w", number)
    assert not start.called


def test_work_without_progress_is_renewed_for_a_while_only() -> None:
    renewed: list[float] = []

    def renew() -> bool:
        renewed.append(time.monotonic())
        return True

    started = time.monotonic()
    with Heartbeat(renew, 0.15, patience_s=0.4):
        time.sleep(1.0)
    assert renewed
    assert renewed[-1] - started < 0.9


def test_heartbeat_outlives_a_failure_and_ends_with_what_it_renews() -> None:
    answers: Iterator[bool | None] = iter([True, None, False])
    asked: list[bool | None] = []

    def renew() -> bool:
        asked.append(answer := next(answers))
        if answer is None:
            raise CatalogError("away")
        return answer

    with Heartbeat(renew, 0.15):
        time.sleep(1.0)
    assert asked == [True, None, False]
