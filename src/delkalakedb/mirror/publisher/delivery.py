"""Delivery: publish commits for their writer, at once or in the background."""

import atexit
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.commit import Committed, Mirror, Outbox
from delkalakedb.errors import (
    DeltalakeDBError,
    DivergedError,
    MirrorError,
    TableNotFoundError,
)
from delkalakedb.forks import at_fork
from delkalakedb.mirror.checkpoint import due_checkpoint, make_checkpoint, unharmed
from delkalakedb.mirror.publisher.publication import (
    Published,
    publish_held,
    publish_table,
    stores_with,
)
from delkalakedb.storage import Store
from delkalakedb.telemetry import PublishWarning, log_event, tell_unpublished

_log = logging.getLogger("delkalakedb.mirror")
_RETRIED = (
    "It is published with the next commit to the table, by `deltasql mirror run`, or "
    "at once by `deltasql mirror retry`"
)
_STUCK = "Until then no version of the table is published"
_TAKEN = "another process holds the lease on publishing the table"
_SHARED = (
    "That process publishes this version, too. If it fails or ends, the next commit to "
    "the table or `deltasql mirror run` publishes the version"
)


def note_failure(name: str, version: int, error: Exception) -> PublishWarning:
    """Log that a version couldn't be published; return the warning for the caller."""
    known = isinstance(error, DeltalakeDBError)
    reason = str(error) if known else f"{type(error).__name__}: {error}"
    outlook = _STUCK if isinstance(error, DivergedError) else _RETRIED
    if not known:
        # A bug of this package: only its traceback says where.
        _log.error("%s: version %s: publishing failed", name, version, exc_info=error)
    return _noted("publish failed", PublishWarning(name, version, reason, outlook))


def _noted(event: str, failure: PublishWarning) -> PublishWarning:
    values: dict[str, str | int] = {"table": failure.table, "version": failure.version}
    log_event(_log, logging.WARNING, str(failure), event=event, **values)
    return failure


def tell_all(catalog: Catalog, failures: Iterable[PublishWarning]) -> None:
    """Warn the caller of every failure; where warnings are errors, raise the first."""
    raised: PublishWarning | None = None
    for failure in failures:
        try:
            # A failure is news even after a warning that a lease was taken.
            known = _identity(catalog, failure.table), failure.outlook
            tell_unpublished(known, failure)
        except PublishWarning as error:
            raised = raised or error
    if raised is not None:
        raise raised


def _identity(catalog: Catalog, name: str) -> Hashable:
    """Return what tells a table from every other, including a dropped namesake."""
    place = str(catalog.uri.catalog)
    try:
        return place, name, catalog.log(name).head().metadata.id
    except DeltalakeDBError:
        # The database may be what has failed.
        return place, name


_Key = tuple[int, str]


@dataclass(slots=True)
class _Job:
    """A table to publish, with a catalog that stays open until it is published."""

    catalog: Catalog
    name: str
    version: int
    storage_options: Mapping[str, str] | None
    due: float = field(default_factory=time.monotonic)


class _Background:
    def __init__(self) -> None:
        self._jobs: dict[_Key, _Job] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ending = False

    def add(
        self,
        catalog: Catalog,
        name: str,
        version: int,
        options: Mapping[str, str] | None,
    ) -> None:
        key = (id(catalog._backend), name)
        with self._changed:
            if key not in self._jobs:
                own = Catalog(catalog.uri, catalog.settings)
                self._jobs[key] = _Job(own, name, version, options)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="mirror", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def drain(self, timeout_s: float | None = None) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join(timeout_s)
        self._ending = False

    def _run(self) -> None:
        while (job := self._next()) is not None:
            again = self._attempt(job)
            with self._changed:
                if job.catalog.closed:
                    continue
                key = (id(job.catalog._backend), job.name)
                if again is not None and not self._ending and key not in self._jobs:
                    job.due = again
                    self._jobs[key] = job
                    continue
            job.catalog.close()

    def _next(self) -> _Job | None:
        """Return the next job once it is due; None ends the thread."""
        with self._changed:
            while self._jobs:
                key = min(self._jobs, key=lambda key: self._jobs[key].due)
                wait_s = self._jobs[key].due - time.monotonic()
                if wait_s <= 0 or self._ending:
                    return self._jobs.pop(key)
                self._changed.wait(wait_s)
            self._thread = None
            return None

    def _attempt(self, job: _Job) -> float | None:
        """Publish a table; return the time of the next attempt, or None if done."""
        catalog, outbox = job.catalog, Outbox(job.catalog._backend)
        retry = catalog.settings.mirror.retry
        try:
            mirror = outbox.load(job.name)
            upto, stores = mirror.ratified_version, stores_with(job.storage_options)
            done = publish_table(catalog, job.name, stores, upto)
            with unharmed(job.name):
                due = due_checkpoint(catalog, done.mirror, done.version)
                if due is not None:
                    make_checkpoint(catalog, done.mirror, due, stores(mirror))
            if done.version >= upto:
                return None
        except TableNotFoundError as error:
            _log.error("%s", error)
            return None
        except Exception as error:
            # The thread is needed for other tables, too, and has no caller: where
            # warnings are errors, only the log shows the failure.
            with suppress(PublishWarning):
                tell_all(catalog, [note_failure(job.name, job.version, error)])
            if isinstance(error, MirrorError):
                return None
        return time.monotonic() + retry.backoff_initial


_background = _Background()


@atexit.register
def drain(timeout_s: float = 10.0) -> None:
    """Wait until the queued tables were published, each with one attempt."""
    _background.drain(timeout_s)


def _forget() -> None:
    # In a forked child: the thread, and what it had to do, stay with the parent.
    global _background
    _background = _Background()


at_fork(after_in_child=_forget)


_Options = Mapping[str, str] | None


def deliver(
    catalog: Catalog,
    commits: Iterable[Committed],
    storage_options: _Options = None,
    *,
    mode: str | None = None,
) -> list[Published]:
    """Publish new commits, several tables side by side; return what was published.

    Warn the caller of each table that couldn't be published.

    Args:
        catalog: the tables' catalog.
        commits: the commits.
        storage_options: the options of the tables' object store.
        mode: "inline" publishes before this returns, "background" soon after, and
            "external" leaves publishing to the reconciler; `mirror.mode` by default.
    """
    mirror = catalog.settings.mirror
    mode = mode or mirror.mode
    if mode == "external":
        return []
    tables: defaultdict[str, list[Committed]] = defaultdict(list)
    for committed in commits:
        tables[committed.table].append(committed)
    publish = partial(
        _publish_soon if mode == "background" else _publish_table,
        catalog,
        storage_options,
    )
    workers = min(mirror.workers, len(tables)) if mode == "inline" else 1
    if workers < 2:
        results = list(map(publish, tables.values()))
    else:
        with ThreadPoolExecutor(workers, "publish") as pool:
            results = list(pool.map(publish, tables.values()))
    failures = [found for found in results if isinstance(found, PublishWarning)]
    if failures:
        tell_all(catalog, failures)
    return [found for found in results if isinstance(found, Published)]


def _publish_soon(
    catalog: Catalog, options: _Options, commits: Sequence[Committed]
) -> PublishWarning | None:
    name, version = commits[-1].table, commits[-1].version
    try:
        _background.add(catalog, name, version, options)
    except Exception as error:
        return note_failure(name, version, error)
    return None


def _publish_table(
    catalog: Catalog, options: _Options, commits: Sequence[Committed]
) -> Published | PublishWarning:
    """Publish commits to one table, oldest first.

    Return a failure as a value, because a failure undoes none of the commits.
    """
    newest, stores = commits[-1], stores_with(options)
    name, version, done = newest.table, newest.version, None
    try:
        if newest.lease is not None:
            done = publish_held(catalog, newest.lease, stores, commits)
        if done is None or done.version < version:
            wait_s = catalog.settings.mirror.wait
            done = publish_table(
                catalog, name, stores, version, wait_s=wait_s, commits=commits
            )
        with unharmed(name):
            if (due := due_checkpoint(catalog, done.mirror, done.version)) is not None:
                _checkpoint(catalog, done.mirror, due, stores(done.mirror))
        if done.version < version:
            return _explained(done.mirror, version)
    except Exception as error:
        return note_failure(name, version, error)
    return done


def _explained(mirror: Mirror, version: int) -> PublishWarning:
    """Return why a version isn't published, although no attempt failed here."""
    if mirror.is_put_off and not mirror.is_held:
        raise MirrorError(f"an earlier attempt failed: {mirror.last_error}")
    waits = PublishWarning(mirror.name, version, _TAKEN, _SHARED)
    return _noted("publish waits", waits)


def _checkpoint(catalog: Catalog, mirror: Mirror, version: int, store: Store) -> None:
    if mirror.num_files <= catalog.settings.mirror.inline_checkpoint_files:
        make_checkpoint(catalog, mirror, version, store)
    else:
        # The interpreter waits for it at its end; the writer doesn't.
        _checkpointer().submit(_checkpoint_apart, catalog, mirror, version, store)


@cache
def _checkpointer() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(1, "checkpoint")


# Its thread stays with the parent.
at_fork(after_in_child=_checkpointer.cache_clear)


def _checkpoint_apart(
    catalog: Catalog, mirror: Mirror, version: int, store: Store
) -> None:
    with Catalog(catalog.uri, catalog.settings) as own:
        make_checkpoint(own, mirror, version, store)
