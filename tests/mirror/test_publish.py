"""Publishing: order, lease and fence, failures, foreign files."""

import hashlib
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

import delkalakedb as dk
from delkalakedb.catalog.commit import outbox as heartbeat
from delkalakedb.catalog.commit.outbox import Lease, Mirror, Outbox
from delkalakedb.catalog.commit.outcome import Conflicted
from delkalakedb.errors import (
    DivergedError,
    MirrorBehindError,
    StorageError,
)
from delkalakedb.mirror.publisher import delivery
from delkalakedb.mirror.publisher.publication import (
    Stores,
    publish,
    publish_table,
    stores_with,
)
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.local import LocalStore
from delkalakedb.write.committer import commit as deliver
from tests.support.actions import add, commit, create, metadata, remove, staged, txn


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def table(catalog: dk.Catalog, location: Path) -> dk.Catalog:
    """A catalog whose table `t` has versions 0 to 3, none of them published."""
    create(catalog, location=str(location))
    for number in range(3):
        commit(catalog, add(f"f{number}"))
    return catalog


def log_bytes(location: Path) -> dict[str, bytes]:
    folder = location / "_delta_log"
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def log_files(location: Path) -> list[str]:
    return sorted(path.name for path in (location / "_delta_log").iterdir())


def entry(location: Path, version: int) -> Path:
    return location / "_delta_log" / f"{version:020}.json"


def lease(catalog: dk.Catalog, seconds: float = 30.0) -> Lease:
    taken = Outbox(catalog._backend).take("t", seconds)
    assert isinstance(taken, Lease)
    return taken


class Recorder(LocalStore):
    """A store that writes down what is asked of it."""

    def __init__(self, location: Path) -> None:
        store = open_store(str(location))
        super().__init__(store.url, location)
        self.asked: list[tuple[str, str]] = []

    def put_new(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        self.asked.append(("put_new", path.removeprefix("_delta_log/")))
        return super().put_new(path, data, durable=durable)

    def get(self, path: str) -> bytes:
        self.asked.append(("get", path))
        return super().get(path)

    def list(self, *arguments: str) -> object:  # type: ignore[override]
        self.asked.append(("list", ""))
        return super().list(*arguments)


class Broken(LocalStore):
    """A store in which nothing can be created from a version on."""

    def __init__(self, location: Path, first: int) -> None:
        super().__init__(open_store(str(location)).url, location)
        self.first = first

    def put_new(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        if path >= f"_delta_log/{self.first:020}":
            raise StorageError("the disk is full")
        return super().put_new(path, data, durable=durable)


def always(store: Store) -> Stores:
    return lambda mirror: store


def test_every_version_is_there_with_its_checksum(
    table: dk.Catalog, location: Path
) -> None:
    assert publish(table, "t") == 3

    names = [f"{v:020}.{kind}" for v in range(4) for kind in ("crc", "json")]
    assert log_files(location) == names
    assert dk.mirror.status(table.uri)[0].state == "published"


def test_one_commit_costs_two_requests_in_order(
    table: dk.Catalog, location: Path
) -> None:
    publish(table, "t")
    commit(table, add("f3"))
    store = Recorder(location)

    publish_table(table, "t", always(store), 4)

    assert store.asked == [
        ("put_new", f"{4:020}.json"),
        ("put_new", f"{4:020}.crc"),
    ]


def test_publishing_again_gives_the_same_bytes(
    table: dk.Catalog, location: Path
) -> None:
    publish(table, "t")
    before = log_bytes(location)
    for name in before:
        (location / "_delta_log" / name).unlink()
    with table._backend.writing() as session:
        session.script(["UPDATE dl_mirrors SET published_version = -1"])

    publish(table, "t")

    assert log_bytes(location) == before


def test_hash_of_what_was_published_is_kept(table: dk.Catalog, location: Path) -> None:
    publish(table, "t")

    with table._backend.reading() as session:
        rows = session.query_sql(
            "SELECT version, published_sha256 FROM dl_table_versions ORDER BY version",
            {},
        )
    assert rows == [
        (v, hashlib.sha256(entry(location, v).read_bytes()).hexdigest())
        for v in range(4)
    ]


def test_time_of_the_file_is_the_time_of_the_commit(
    table: dk.Catalog, location: Path
) -> None:
    publish(table, "t")

    for version in range(4):
        modified_ms = entry(location, version).stat().st_mtime_ns // 1_000_000
        assert modified_ms == table.snapshot("t", version).table.timestamp_ms


def test_many_versions_are_published_at_once(
    catalog: dk.Catalog, location: Path
) -> None:
    create(catalog, location=str(location))
    for number in range(70):
        commit(catalog, add(f"f{number}"))

    assert publish(catalog, "t") == 70
    assert len(log_files(location)) == 142


def test_file_of_ours_that_was_not_marked_is_known_again(
    table: dk.Catalog, location: Path
) -> None:
    publish(table, "t")
    with table._backend.writing() as session:
        session.script(["UPDATE dl_mirrors SET published_version = 1"])

    assert publish(table, "t") == 3


def test_foreign_file_is_left_alone_and_the_table_diverges(
    table: dk.Catalog, location: Path
) -> None:
    entry(location, 2).parent.mkdir(parents=True)
    entry(location, 2).write_text('{"commitInfo":{"operation":"WRITE"}}\n')

    with pytest.raises(
        DivergedError, match=r"t: .*02\.json was written by a writer that"
    ):
        publish(table, "t")

    (status,) = dk.mirror.status(table.uri)
    assert (status.state, status.published_version) == ("diverged", 1)
    assert "adopt" in str(status.last_error)
    assert entry(location, 2).read_text() == '{"commitInfo":{"operation":"WRITE"}}\n'
    assert not entry(location, 3).exists()
    with pytest.raises(DivergedError):
        publish(table, "t")


def test_failure_keeps_what_was_published_and_says_when_to_try_again(
    table: dk.Catalog, location: Path
) -> None:
    with pytest.raises(StorageError, match="disk is full"):
        publish_table(table, "t", always(Broken(location, 2)), 3)

    (status,) = dk.mirror.status(table.uri)
    assert (status.state, status.published_version) == ("failed", 1)
    assert (status.attempts, status.last_error) == (1, "the disk is full")
    assert status.next_try_ms is not None
    assert 0 < status.next_try_ms - time.time() * 1000 <= 1000


def test_pauses_grow_with_each_failure(table: dk.Catalog, location: Path) -> None:
    pauses = []
    for _ in range(4):
        with pytest.raises(StorageError):
            publish_table(table, "t", always(Broken(location, 0)), 3, early=True)
        (status,) = dk.mirror.status(table.uri)
        assert status.next_try_ms is not None
        pauses.append(status.next_try_ms / 1000 - time.time())

    assert status.attempts == 4
    for attempt, pause in enumerate(pauses):
        assert 2**attempt / 2 - 0.1 <= pause <= 2**attempt


def test_writer_does_not_try_before_it_is_time(
    table: dk.Catalog, location: Path
) -> None:
    with pytest.raises(StorageError):
        publish_table(table, "t", always(Broken(location, 2)), 3)
    store = Recorder(location)

    assert publish_table(table, "t", always(store), 3, wait_s=5).version == 1
    assert store.asked == []
    assert publish_table(table, "t", always(store), 3, early=True).version == 3
    (status,) = dk.mirror.status(table.uri)
    assert (status.state, status.attempts, status.last_error) == ("published", 0, None)


def test_second_publisher_waits_for_the_first_within_bounds(
    table: dk.Catalog, location: Path
) -> None:
    lease(table)
    started = time.monotonic()

    done = publish_table(table, "t", stores_with(), 3, wait_s=0.2)

    assert done.version == -1
    assert 0.15 < time.monotonic() - started < 2
    assert not (location / "_delta_log").exists()


def test_writer_does_not_wait_for_a_lease_that_expired_during_back_off(
    table: dk.Catalog, location: Path
) -> None:
    with pytest.raises(StorageError):
        publish_table(table, "t", always(Broken(location, 2)), 3)
    Outbox(table._backend).take("t", 0.01, early=True)
    time.sleep(0.05)
    started = time.monotonic()

    assert publish_table(table, "t", stores_with(), 3, wait_s=20).version == 1
    assert time.monotonic() - started < 0.4


def test_commit_brings_the_lease_to_publish_it_with(
    table: dk.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Outbox, "take", None)

    deliver(table, staged(table, add("new")))

    mirror = Outbox(table._backend).load("t")
    assert mirror.published_version == mirror.ratified_version == 4
    assert (mirror.lease_owner, mirror.state) == (None, "published")


def test_commit_while_somebody_publishes_waits_for_the_lease(table: dk.Catalog) -> None:
    held, outbox = lease(table), Outbox(table._backend)
    threading.Timer(0.2, lambda: outbox.release(held)).start()

    deliver(table, staged(table, add("new")))

    assert outbox.load("t").published_version == 4


def test_commit_that_was_made_before_keeps_no_lease(table: dk.Catalog) -> None:
    def again() -> None:
        twice = staged(table, txn("app", 1), app_ids=frozenset({"app"}))
        deliver(table, twice)

    again()
    again()

    assert table.table("t").version == 4
    assert isinstance(Outbox(table._backend).take("t", 1), Lease)


def test_commit_that_lost_keeps_no_lease(table: dk.Catalog) -> None:
    stale = staged(table, remove(add("f0")))
    commit(table, remove(add("f0")))

    assert isinstance(deliver(table, stale), Conflicted)

    assert isinstance(Outbox(table._backend).take("t", 1), Lease)


def test_lease_that_was_let_go_while_it_was_asked_for_is_asked_for_again(
    table: dk.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, take = lease(table), Outbox.take

    def take_too_soon(outbox: Outbox, *given: Any, **options: Any) -> Lease | Mirror:
        taken = take(outbox, *given, **options)
        if isinstance(taken, Lease):
            return taken
        outbox.release(held)
        return outbox.load("t")

    monkeypatch.setattr(Outbox, "take", take_too_soon)

    assert publish(table, "t") == 3


def test_second_publisher_sees_what_the_first_published(table: dk.Catalog) -> None:
    held = lease(table)
    outbox = Outbox(table._backend)
    first = threading.Timer(
        0.2,
        lambda: outbox.mark_published(held, dict.fromkeys(range(4), "-"), release=True),
    )
    first.start()

    assert publish_table(table, "t", stores_with(), 3, wait_s=20).version == 3
    first.join()


def test_lease_that_expired_goes_to_the_next(table: dk.Catalog) -> None:
    slow = lease(table, 0.05)
    time.sleep(0.1)

    assert publish(table, "t") == 3
    outbox = Outbox(table._backend)
    assert outbox.renew(slow) is None
    assert not outbox.mark_published(slow, {0: "-"}, release=True)
    assert outbox.load("t").published_version == 3


def test_publisher_that_lost_its_lease_reports_no_failure(table: dk.Catalog) -> None:
    slow = lease(table, 0.05)
    time.sleep(0.1)
    publish(table, "t")

    Outbox(table._backend).mark_failed(slow, "too late", 0)

    (status,) = dk.mirror.status(table.uri)
    assert (status.state, status.last_error) == ("published", None)


def test_publisher_that_slept_past_its_lease_stops(
    table: dk.Catalog, location: Path
) -> None:
    """It wakes before a put, after another process has published the versions."""
    settings = {"mirror.lease": 0.1}
    with dk.connect(table.uri, **settings) as sleeper:
        store = Recorder(location)
        put_new = store.put_new

        def sleep(path: str, data: bytes, *, durable: bool = True) -> bool:
            created = put_new(path, data, durable=durable)
            if path.endswith(f"{1:020}.json"):
                time.sleep(0.2)
                publish(table, "t")
            return created

        store.put_new = sleep  # type: ignore[method-assign]
        with patch.object(heartbeat._watch, "add"):
            done = publish_table(sleeper, "t", always(store), 3)

    assert done.version == 3
    assert ("put_new", f"{2:020}.json") not in store.asked
    assert len(log_files(location)) == 8


def test_backlog_refuses_further_commits_when_asked_to(
    catalog: dk.Catalog, location: Path
) -> None:
    with dk.connect(catalog.uri, mirror={"max_unpublished": 3}) as limited:
        create(limited, location=str(location))
        commit(limited, add("a"))
        commit(limited, add("b"))
        with pytest.raises(MirrorBehindError, match="3 versions wait"):
            commit(limited, add("c"))

        publish(limited, "t")
        commit(limited, add("c"))


def test_checkpoint_is_made_when_it_is_due(catalog: dk.Catalog, location: Path) -> None:
    interval = metadata(configuration={"delta.checkpointInterval": "2"})
    create(catalog, location=str(location), meta=interval)
    for number in range(5):
        deliver(catalog, staged(catalog, add(f"f{number}")))

    found = [name for name in log_files(location) if "checkpoint" in name]
    assert found == [
        f"{1:020}.checkpoint.parquet",
        f"{3:020}.checkpoint.parquet",
        f"{5:020}.checkpoint.parquet",
        "_last_checkpoint",
    ]
    (status,) = dk.mirror.status(catalog.uri)
    assert status.checkpoint_version == 5


def test_large_table_gets_its_checkpoint_from_a_thread(
    catalog: dk.Catalog, location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interval = metadata(configuration={"delta.checkpointInterval": "1"})
    create(catalog, location=str(location), meta=interval)
    makers = []
    make = delivery.make_checkpoint
    monkeypatch.setattr(
        delivery,
        "make_checkpoint",
        lambda *a: (makers.append(threading.current_thread().name), make(*a)),
    )
    with dk.connect(catalog.uri, mirror={"inline_checkpoint_files": 0}) as large:
        deliver(large, staged(large, add("f0")))
        delivery._checkpointer().submit(lambda: None).result()

    assert [name.split("_")[0] for name in makers] == ["checkpoint"]
    assert (location / "_delta_log" / f"{1:020}.checkpoint.parquet").exists()
