"""Tables that are published while things go wrong, and the processes that do it.

`grow` is the one writer: each of its commits puts a file in the place of an older one.
`check_mirror` says when a mirror is whole, whatever happened before.
"""

import itertools
import logging
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

import delkalakedb as dk
from delkalakedb.catalog.catalog import Catalog
from delkalakedb.catalog.commit import outbox as holder
from delkalakedb.catalog.commit.outbox import Outbox
from delkalakedb.mirror.checkpoint import log_retention as upkeep
from delkalakedb.mirror.checkpoint.checkpoint import read_last_checkpoint
from delkalakedb.mirror.publisher.reconciler import Reconciler, run
from delkalakedb.mirror.publisher.republication import republish
from delkalakedb.mirror.verify.verification import verify_table
from delkalakedb.model.actions import encode_commit
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.paths import LOG, checksum_path, commit_path
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.local import LocalStore
from delkalakedb.write import committer as commits
from tests.support.actions import add, creation, metadata, paths, remove, txn

WRITERS = 8
Options = Mapping[str, str]
FILE = bytes(100)
# A lease that the tests can outlive.
LEASE_S = 0.3


@contextmanager
def brief(uri: str, **mirror: Any) -> Iterator[Catalog]:
    """A catalog whose leases expire soon and whose failures are tried again soon."""
    retry = {"backoff_initial": 0.02, "backoff_max": 0.05}
    given = {"lease": LEASE_S, "poll": 0.02, "retry": retry, **mirror}
    with dk.connect(uri, mirror=given) as catalog:
        yield catalog


def create_lake(
    catalog: Catalog, location: str, name: str = "t", interval: int = 3
) -> Store:
    """A table with a checkpoint every few versions; its first one isn't published."""
    configuration = {"delta.checkpointInterval": str(interval)}
    meta = metadata(configuration=configuration)
    catalog.commit(creation(name, meta=meta, location=location))
    return open_store(location)


def due_at(version: int, interval: int) -> int:
    """The version whose checkpoint a table at a version has; -1 if none."""
    ends = [v for v in range(1, version + 1) if (v + 1) % interval == 0]
    return max(ends, default=-1)


def grow(
    catalog: Catalog,
    writer: str,
    n: int,
    name: str = "t",
    options: Options | None = None,
) -> int:
    """A writer's n-th commit to a table, in the mode of its catalog; the version."""
    file = add(f"{writer}-{n}")
    open_store(catalog.table(name).location, options).put(file.path, FILE)
    actions = [file, txn(writer, n)]
    if n > 1:
        gone_ms = time.time_ns() // 1_000_000
        actions.append(remove(add(f"{writer}-{n - 2}"), deletion_timestamp=gone_ms))
    staged = Staged(name, actions, Reads(catalog.table(name).version))
    (done,) = commits.commit(catalog, staged, storage_options=options)
    return done.version


def reconciler_of(
    catalog: Catalog,
    stores: Callable[[str], Store] | None = None,
    table: str | None = None,
) -> Reconciler:
    """A reconciler, with a store of the test's for each table."""
    reconciler = Reconciler(catalog, table=table)
    if stores is not None:
        reconciler._stores = lambda mirror: stores(mirror.name)
    return reconciler


def outlive(catalog: Catalog, name: str = "t") -> None:
    """Wait until a table's lease and the claim on its checkpoint have expired."""
    mirror = Outbox(catalog._backend).load(name)
    until_ms = max(mirror.lease_until_ms or 0, mirror.checkpoint_until_ms or 0)
    time.sleep(max(0, until_ms / 1000 - time.time()) + 0.002)


# --- what a mirror must be ----------------------------------------------------------


def check_prefix(catalog: Catalog, store: Store, name: str = "t") -> int:
    """What is published so far are the first versions, as ratified; how many."""
    published = catalog._mirror_state(name)[0]
    listed = log_names(store)
    commits = [path for path in listed if path.endswith(".json")]
    assert commits == [commit_path(v) for v in range(len(commits))]
    assert len(commits) > published
    assert {checksum_path(v) for v in range(published + 1)} <= {*listed}
    ratified = catalog.log(name)
    for version, path in enumerate(commits):
        assert store.get(path) == encode_commit(ratified.commit(version))
    return len(commits)


def check_mirror(
    catalog: Catalog,
    name: str = "t",
    *,
    options: Options | None = None,
    checkpoint: int | None = None,
) -> None:
    """All that was ratified is in the log, once, and says the same to everybody."""
    check_log(catalog, name, options=options, checkpoint=checkpoint)
    table = catalog.table(name)
    plain = DeltaTable(table.location, storage_options=dict(options or {}))
    assert plain.version() == table.version
    files = [uri.rpartition("/")[2] for uri in plain.file_uris()]
    assert sorted(files) == paths(catalog, name)


def check_log(
    catalog: Catalog,
    name: str = "t",
    *,
    options: Options | None = None,
    checkpoint: int | None = None,
) -> None:
    """The same as far as we can tell ourselves."""
    published, ratified, location = catalog._mirror_state(name)
    assert published == ratified
    store = open_store(location, options)
    assert check_prefix(catalog, store, name) == ratified + 1
    listed = log_names(store)
    assert len({*listed}) == len(listed)
    crcs = [path for path in listed if path.endswith(".crc")]
    assert crcs == [checksum_path(v) for v in range(ratified + 1)]
    report = verify_table(catalog, name, store, deep=True)
    assert report.ok, str(report)
    assert report.versions_checked == ratified + 1
    if checkpoint is not None:
        assert Outbox(catalog._backend).load(name).checkpoint_version == checkpoint
        assert read_last_checkpoint(store) == (checkpoint if checkpoint > 0 else None)


def log_names(store: Store) -> list[str]:
    """The paths of the log, but for copies of what was discarded."""
    listed = [meta.path for meta in store.list(LOG)]
    return [path for path in listed if not path.startswith(f"{LOG}/_discarded/")]


def temporary_files(location: str) -> list[Path]:
    """What a writer was at when it was killed."""
    return [*Path(location.removeprefix("file://")).rglob("*.tmp")]


# --- processes ----------------------------------------------------------------------


class Steps:
    """Counts the steps of publishing by name, and has a signal sent at one of them."""

    def __init__(self, at: tuple[str, int] | None = None, sent: int = 0) -> None:
        self.counted: Counter[str] = Counter()
        self._at = at
        self._signal = sent
        self._wrap(Catalog, "_try_commit")
        for method in ("mark_published", "claim_checkpoint", "mark_checkpoint"):
            self._wrap(Outbox, method)
        for method in ("put_new", "put", "put_file", "set_modified"):
            self._wrap(LocalStore, method, of_log=True)
        # Between these a file is whole, but under its temporary name.
        self._wrap(os, "link", of_log=True)
        self._wrap(Path, "replace", of_log=True)
        for function in ("write_checkpoint", "write_last_checkpoint", "clean_log"):
            self._wrap(upkeep, function)

    def _wrap(self, owner: Any, attribute: str, *, of_log: bool = False) -> None:
        original = getattr(owner, attribute)

        @wraps(original)
        def stepped(*arguments: Any, **named: Any) -> Any:
            path = str(arguments[1]) if of_log else LOG
            if LOG not in path:
                return original(*arguments, **named)
            kind = path.rpartition("/")[2].rpartition(".")[2]
            step = f"{attribute} {kind}" if of_log else attribute
            self._take(f"before {step}")
            result = original(*arguments, **named)
            self._take(f"after {step}")
            return result

        setattr(owner, attribute, stepped)

    def _take(self, step: str) -> None:
        self.counted[step] += 1
        if (step, self.counted[step]) == self._at:
            os.kill(os.getpid(), self._signal)


def grow_stepwise(
    uri: str,
    name: str,
    commits: int,
    told: Connection,
    at: tuple[str, int] | None = None,
    sent: int = signal.SIGKILL,
) -> None:
    """Commit, publish and tell each version; at a step, send a signal to oneself."""
    with brief(uri) as catalog:
        steps = Steps(at, sent)
        for n in range(commits):
            told.send(grow(catalog, "w", n, name))
        told.send(steps.counted)


def grow_killed(
    uri: str, writer: str, at: tuple[str, int], within_s: float, elsewhere: bool
) -> None:
    """Commit and publish until killed: at a step, or else after a while.

    With `elsewhere` no other process can tell whether this one runs.
    """
    if elsewhere:
        mine = holder.holder_of("").rstrip("/")
        holder._process = lambda pid: f"elsewhere-{mine}"
    with dk.connect(uri) as catalog:
        Steps(at, signal.SIGKILL)
        for n in itertools.count():
            grow(catalog, writer, n)
            if n == at[1]:
                timer = threading.Timer(within_s, os.kill, (os.getpid(), 9))
                timer.start()


def republish_killed(uri: str, at: tuple[str, int]) -> None:
    """Republish a table, and be killed at a step."""
    with dk.connect(uri) as catalog:
        store = open_store(catalog.table("t").location)
        Steps(at, signal.SIGKILL)
        republish(catalog, table="t", store=store)


def grow_inline(
    uri: str, count: int, options: Options | None, writer: int
) -> dict[int, str]:
    """Commit so many times; what became of each version's publishing."""
    outcomes = {}
    with dk.connect(uri) as catalog, _warnings() as told:
        for n in range(count):
            version = grow(catalog, str(writer), n, options=options)
            published = catalog._mirror_state("t")[0] >= version
            outcomes[version] = "published" if published else told.get(version, "lost")
    return outcomes


@contextmanager
def _warnings() -> Iterator[dict[int, str]]:
    """What the mirror logs of versions in this thread."""
    told: dict[int, str] = {}
    thread = threading.get_ident()

    def note(record: logging.LogRecord) -> bool:
        if record.thread == thread:
            told[getattr(record, "delta_version", -1)] = record.getMessage()
        return True

    logger = logging.getLogger("delkalakedb.mirror")
    logger.addFilter(note)
    try:
        yield told
    finally:
        logger.removeFilter(note)


def grow_tables(uri: str, names: list[str], count: int, writer: int) -> None:
    """Commit to several tables in turn, and leave publishing to others."""
    with brief(uri, mode="external") as catalog:
        for n in range(count):
            for name in names:
                grow(catalog, str(writer), n, name)


def reconcile_until_signal(uri: str, ready: Connection) -> None:
    """Run a reconciler as the command does, until SIGTERM."""
    ready.send(os.getpid())
    run(uri)
    ready.send("ended")
