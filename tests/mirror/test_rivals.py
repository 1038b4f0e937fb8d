"""Several publishers at once, some of them asleep, and writers who ask nobody."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

import deltalake
import pyarrow as pa
import pytest

from delkalakedb import Catalog, mirror
from delkalakedb.catalog.commit import outbox as heartbeat
from delkalakedb.catalog.commit.outbox import Lease, Mirror, Outbox
from delkalakedb.catalog.load.adoption import hold_mirror
from delkalakedb.errors import DivergedError, MirrorError, StorageError
from delkalakedb.mirror.foreign import find_foreign
from delkalakedb.mirror.publisher.publication import Published, publish_table
from delkalakedb.mirror.publisher.statuses import status
from delkalakedb.model.paths import LOG, commit_path
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.storage import Store
from tests.support.actions import paths
from tests.support.engines import shared
from tests.support.faults import FaultStore
from tests.support.mirror_workers import (
    WRITERS,
    brief,
    check_mirror,
    check_prefix,
    create_lake,
    due_at,
    grow,
    grow_inline,
    grow_stepwise,
    grow_tables,
    outlive,
    reconcile_until_signal,
    reconciler_of,
)
from tests.support.processes import CHILDREN, Crew

EACH = 4
TABLES = ["a", "b", "c"]
alone = pytest.mark.parametrize("engine", ["duckdb"], indirect=True)


# --- writers that publish for each other --------------------------------------------


@shared
def test_eight_processes_publish_each_version_once(
    crew: Crew, catalog: Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    create_lake(catalog, str(tmp_path / "t"), interval=10)

    told = crew.run(grow_inline, catalog_uri, EACH, None, count=WRITERS)

    check_published(catalog, told)


@alone
def test_eight_threads_publish_each_version_once(
    catalog: Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    create_lake(catalog, str(tmp_path / "t"), interval=10)

    with ThreadPoolExecutor(WRITERS) as pool:
        work = partial(grow_inline, catalog_uri, EACH, None)
        told = [*pool.map(work, range(WRITERS))]

    check_published(catalog, told)


def check_published(catalog: Catalog, told: list[dict[int, str]]) -> None:
    outcomes = {version: how for part in told for version, how in part.items()}
    assert sorted(outcomes) == [*range(1, WRITERS * EACH + 1)]
    late = {how for how in outcomes.values() if how != "published"}
    assert all("is committed; another process" in how for how in late), late
    if not late:
        check_mirror(catalog)
    # One checkpoint at a time: who came while another was made has left it.
    reconciler_of(catalog).run_once()
    check_mirror(catalog, checkpoint=due_at(WRITERS * EACH, 10))


# --- two reconcilers ----------------------------------------------------------------


@shared
def test_two_reconcilers_share_the_tables_of_busy_writers(
    crew: Crew, catalog: Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    stores = create_tables(catalog, tmp_path)
    with ExitStack() as stack:
        rivals = [stack.enter_context(reconciling(catalog_uri)) for _ in range(2)]
        work = partial(crew.run, grow_tables, catalog_uri, TABLES, 8, count=2)
        watch(catalog, stores, work)
        for pid, _ in rivals:
            os.kill(pid, signal.SIGTERM)
        for _, told in rivals:
            assert told.recv() == "ended"
    check_tables(catalog)


@alone
def test_two_reconcilers_of_one_process_share_the_tables(
    catalog_uri: str, tmp_path: Path
) -> None:
    with brief(catalog_uri, mode="external") as catalog, ThreadPoolExecutor(3) as pool:
        stores = create_tables(catalog, tmp_path)
        rivals = [reconciler_of(catalog) for _ in range(2)]
        ends = [pool.submit(rival.run_forever) for rival in rivals]
        watch(catalog, stores, lambda: grow_tables(catalog_uri, TABLES, 8, 0))
        for rival, end in zip(rivals, ends, strict=True):
            rival.stop()
            end.result(timeout=10)
        check_tables(catalog)


def create_tables(catalog: Catalog, folder: Path) -> dict[str, Store]:
    return {n: create_lake(catalog, str(folder / n), n, interval=5) for n in TABLES}


def watch(
    catalog: Catalog, stores: dict[str, Store], work: Callable[[], object]
) -> None:
    """Look at the logs until the work is done and all of it is published."""
    reached = dict.fromkeys(stores, -1)
    deadline = time.monotonic() + 60
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(work)
        while not (working.done() and _even(catalog)):
            assert time.monotonic() < deadline, [*status(catalog)]
            for name, store in stores.items():
                published = catalog._mirror_state(name)[0]
                assert published >= reached[name]
                reached[name] = published
                check_prefix(catalog, store, name)
        working.result()


def _even(catalog: Catalog) -> bool:
    told = [*status(catalog)]
    assert {(s.attempts, s.last_error) for s in told} == {(0, None)}
    return all(
        s.versions_behind == 0 and s.checkpoint_version == due_at(s.ratified_version, 5)
        for s in told
    )


def check_tables(catalog: Catalog) -> None:
    for name in TABLES:
        version = catalog.table(name).version
        check_mirror(catalog, name, checkpoint=due_at(version, 5))


@contextmanager
def reconciling(uri: str) -> Iterator[tuple[int, Connection]]:
    """A process that reconciles until SIGTERM; its id, and what it tells."""
    told, ours = CHILDREN.Pipe(duplex=False)
    child = CHILDREN.Process(target=reconcile_until_signal, args=(uri, ours))
    child.start()
    ours.close()
    with told:
        try:
            yield told.recv(), told
            child.join(10)
            assert child.exitcode == 0
        finally:
            child.kill()
            child.join()


# --- a publisher that sleeps past its lease -----------------------------------------


class Gate(FaultStore):
    """A store whose request for one path waits until it is let through."""

    def __init__(self, store: Store, path: str, *, fails: bool) -> None:
        super().__init__(store, 0)
        self.reached, self.opened = threading.Event(), threading.Event()
        self._path = path
        self._fails = fails

    def put_new(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        if path == self._path:
            self.reached.set()
            assert self.opened.wait(30)
            if self._fails:
                raise StorageError("it slept too long")
        return super().put_new(path, data, durable=durable)


@pytest.fixture
def brief_catalog(catalog_uri: str) -> Iterator[Catalog]:
    with brief(catalog_uri, mode="external") as catalog:
        yield catalog


@contextmanager
def asleep(catalog: Catalog, gate: Gate) -> Iterator["Future[Published]"]:
    """A publisher at the gate, as if its machine slept; let through in the end."""
    upto = catalog.table("t").version
    with patch.object(heartbeat._watch, "add"), ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish_table, catalog, "t", lambda _: gate, upto)
        try:
            assert gate.reached.wait(30)
            yield publishing
        finally:
            gate.opened.set()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("path", [commit_path(0), f"{LOG}/{0:020}.crc", commit_path(2)])
def test_publisher_that_wakes_after_its_lease_changes_nothing(
    brief_catalog: Catalog, tmp_path: Path, path: str, fails: bool
) -> None:
    catalog = brief_catalog
    store = create_lake(catalog, str(tmp_path / "t"))
    for n in range(2):
        grow(catalog, "w", n)
    gate = Gate(store, path, fails=fails)
    with asleep(catalog, gate) as publishing:
        outlive(catalog)
        publish_table(catalog, "t", lambda _: store, 2)
        grow(catalog, "w", 2)
        reconciler_of(catalog).run_once()
        before, files = Outbox(catalog._backend).load("t"), read_log(store)
        assert before.published_version == 3

        gate.opened.set()
        with suppress(StorageError):
            assert publishing.result(30).version == 3
    assert Outbox(catalog._backend).load("t") == before
    assert read_log(store) == files
    check_mirror(catalog, checkpoint=2)


def test_publisher_that_wakes_after_its_table_was_dropped_changes_no_other(
    brief_catalog: Catalog, tmp_path: Path
) -> None:
    catalog = brief_catalog
    store = create_lake(catalog, str(tmp_path / "t"))
    for n in range(2):
        grow(catalog, "w", n)
    gate = Gate(store, commit_path(0), fails=False)
    with asleep(catalog, gate) as publishing:
        outlive(catalog)
        catalog.drop_table("t")
        create_lake(catalog, str(tmp_path / "u"))
        before = Outbox(catalog._backend).load("t")

        gate.opened.set()
        assert publishing.result(30).version == before.published_version
    assert Outbox(catalog._backend).load("t") == before
    reconciler_of(catalog).run_once()
    check_mirror(catalog)


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
@pytest.mark.parametrize("wrong_s", [-3600, 3600])
def test_lease_lasts_as_long_whatever_its_owners_clock_says(
    brief_catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong_s: int,
) -> None:
    catalog = brief_catalog
    store = create_lake(catalog, str(tmp_path / "t"))
    outbox, lasts_s = Outbox(catalog._backend), catalog.settings.mirror.lease
    with monkeypatch.context() as elsewhere:
        real = time.time
        elsewhere.setattr("time.time", lambda: real() + wrong_s)
        assert isinstance(outbox.take("t", lasts_s), Lease)

    # It is held, and no longer than by any other publisher that was killed.
    assert isinstance(outbox.take("t", lasts_s), Mirror)
    outlive(catalog)
    assert publish_table(catalog, "t", lambda _: store, 0).version == 0


@pytest.mark.parametrize("fails", [False, True])
def test_publisher_that_wakes_while_another_is_at_it_leaves_it_the_lease(
    brief_catalog: Catalog, tmp_path: Path, fails: bool
) -> None:
    catalog = brief_catalog
    store = create_lake(catalog, str(tmp_path / "t"))
    sleeper = Gate(store, commit_path(0), fails=fails)
    rival = Gate(store, f"{LOG}/{0:020}.crc", fails=False)
    with asleep(catalog, sleeper) as first:
        outlive(catalog)
        with asleep(catalog, rival) as second:
            held = Outbox(catalog._backend).load("t")
            sleeper.opened.set()
            wait([first], timeout=30)
            assert Outbox(catalog._backend).load("t") == held
            assert held.lease_until_ms is not None
        assert second.result(30).version == 0
    check_mirror(catalog)


def test_publisher_renews_its_lease_as_long_as_it_goes_on(
    catalog_uri: str, tmp_path: Path
) -> None:
    rivals = []

    def intrude(mirror: Mirror) -> Store:
        rivals.append(mirror)
        return store

    with brief(catalog_uri, mode="external", lease=1.0) as catalog:
        store = create_lake(catalog, str(tmp_path / "t"))
        for n in range(8):
            grow(catalog, "w", n)
        slow = Slow(store)
        with ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(publish_table, catalog, "t", lambda _: slow, 8)
            assert slow.reached.wait(30)
            while not publishing.done():
                publish_table(catalog, "t", intrude, 8)
                time.sleep(0.01)
        assert publishing.result().version == 8
        assert rivals == []
        check_mirror(catalog)


class Slow(FaultStore):
    """A store on which the requests of a few versions outlast a lease of a second."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, 0, delayed=1.0, delay_s=0.1)
        self.reached = threading.Event()

    def put_new(self, path: str, data: bytes, *, durable: bool = True) -> bool:
        self.reached.set()
        return super().put_new(path, data, durable=durable)


def read_log(store: Store) -> dict[str, bytes]:
    return {meta.path: store.get(meta.path) for meta in store.list(LOG)}


@shared
@pytest.mark.parametrize(
    "step",
    [
        "after _try_commit",
        "before put_new json",
        "before put_new crc",
        "after put_new crc",
    ],
)
def test_process_stopped_while_publishing_goes_on_behind_the_others(
    catalog_uri: str, tmp_path: Path, step: str
) -> None:
    with brief(catalog_uri, mode="external") as catalog:
        create_lake(catalog, str(tmp_path / "t"))
        told, ours = CHILDREN.Pipe(duplex=False)
        arguments = (catalog_uri, "t", 3, ours, (step, 2), signal.SIGSTOP)
        child = CHILDREN.Process(target=grow_stepwise, args=arguments)
        child.start()
        ours.close()
        try:
            wait_until_stopped(child.pid)
            outlive(catalog)
            grow(catalog, "other", 0)
            reconciler_of(catalog).run_once()
            published = catalog._mirror_state("t")[0]
            assert published == catalog.table("t").version
        finally:
            os.kill(child.pid, signal.SIGCONT)
        child.join(30)
        assert child.exitcode == 0
        told.close()
        assert catalog._mirror_state("t")[0] == 4
        check_mirror(catalog)


def wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)


# --- a foreign writer ---------------------------------------------------------------


@pytest.fixture
def lake(catalog: Catalog, tmp_path: Path) -> Store:
    """A table with a published version 0."""
    store = create_lake(catalog, str(tmp_path / "t"), interval=100)
    mirror.publish(catalog, "t")
    return store


@pytest.fixture
def uri(catalog_uri: str) -> str:
    return format_uri(parse_uri(catalog_uri).with_table("t"))


def write_theirs(store: Store, *numbers: int) -> None:
    rows = pa.table({"x": pa.array(numbers, pa.int64()), "s": ["s"] * len(numbers)})
    deltalake.write_deltalake(store.url, rows, mode="append")


def state(catalog: Catalog) -> tuple[str, int, int]:
    told: Mirror = Outbox(catalog._backend).load("t")
    return told.state, told.published_version, told.ratified_version


def test_foreign_commit_that_was_faster_stays_and_is_discarded(
    catalog: Catalog, lake: Store, uri: str
) -> None:
    with brief(uri, mode="external") as late:
        grow(late, "w", 0)
    gate = Gate(lake, commit_path(1), fails=False)
    with asleep(catalog, gate) as publishing:
        write_theirs(lake, 1)
        theirs = lake.get(commit_path(1))
        gate.opened.set()
        with pytest.raises(DivergedError, match=rf"{commit_path(1)}.*adopt"):
            publishing.result(30)
    assert lake.get(commit_path(1)) == theirs
    assert state(catalog) == ("diverged", 0, 1)
    grow(catalog, "w", 1)
    assert reconciler_of(catalog).run_once()[0].state == "diverged"
    assert lake.get(commit_path(1)) == theirs
    with pytest.raises(MirrorError, match="discard"):
        mirror.adopt(uri)

    (copy,) = mirror.adopt(uri, discard=True)

    assert lake.get(str(copy)) == theirs
    reconciler_of(catalog).run_once()
    check_mirror(catalog)


def test_foreign_commit_that_was_slower_follows_and_is_adopted(
    catalog: Catalog, lake: Store, uri: str
) -> None:
    grow(catalog, "w", 0)
    write_theirs(lake, 1)
    theirs = lake.get(commit_path(2))
    assert reconciler_of(catalog).run_once()[0].state == "diverged"

    assert mirror.adopt(uri) == (2,)

    grow(catalog, "w", 1)
    assert lake.get(commit_path(2)) == theirs
    assert state(catalog) == ("published", 3, 3)
    assert deltalake.DeltaTable(lake.url).version() == 3
    assert len(paths(catalog)) == 3


def test_race_with_a_foreign_writer_gives_each_version_to_one_of_them(
    catalog: Catalog, lake: Store, uri: str
) -> None:
    theirs: set[bytes] = set()
    with ThreadPoolExecutor(2) as pool:
        for turn in range(4):
            ours = pool.submit(grow, catalog, f"w{turn}", 0)
            foreign = pool.submit(write_theirs, lake, turn)
            ours.result()
            foreign.result()
            reconciler_of(catalog).run_once()
            assert state(catalog)[0] == "diverged"
            theirs |= foreign_entries(catalog, lake)
            assert len(theirs) == turn + 1
            with suppress(MirrorError):
                mirror.adopt(uri)
            mirror.adopt(uri, discard=True)
            reconciler_of(catalog).run_once()
            assert state(catalog)[0] == "published"
    kept = {lake.get(meta.path) for meta in lake.list(LOG)}
    assert theirs <= kept
    plain = deltalake.DeltaTable(lake.url)
    assert plain.version() == catalog.table("t").version
    files = [uri.rpartition("/")[2] for uri in plain.file_uris()]
    assert sorted(files) == paths(catalog)


def foreign_entries(catalog: Catalog, store: Store) -> set[bytes]:
    return {store.get(entry.path) for entry in find_foreign(catalog, "t", store)}


def test_reconciler_does_not_disturb_who_settles_a_diverged_table(
    catalog: Catalog, lake: Store, uri: str
) -> None:
    write_theirs(lake, 1)
    reconciler = reconciler_of(catalog)
    assert reconciler.run_once()[0].state == "diverged"
    with hold_mirror(catalog, "t") as lease:
        reconciler.run_once()
        assert Outbox(catalog._backend).renew(lease) is not None
