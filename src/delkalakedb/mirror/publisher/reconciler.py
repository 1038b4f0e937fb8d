"""The reconciler: publishes the versions that writers couldn't publish.

Each pass asks the catalog once which tables are behind, publishes these side by side,
makes checkpoints that are due, and reports lag; every few seconds a pass looks at all
tables. Any number of reconcilers may run at once, because leases and claims in the
catalog divide the work. A killed reconciler leaves only a lease, which soon expires.
"""

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from delkalakedb.catalog import Catalog, CatalogOrUri, uri_of, using_catalog
from delkalakedb.catalog.commit import Mirror, Outbox, Presence
from delkalakedb.clock import pause_s
from delkalakedb.errors import (
    CatalogError,
    CatalogPermissionError,
    DivergedError,
    MirrorError,
    StorageError,
    TableNotFoundError,
)
from delkalakedb.mirror.checkpoint import due_checkpoint, make_checkpoint
from delkalakedb.mirror.foreign import find_foreign
from delkalakedb.mirror.publisher.publication import (
    foreign_message,
    publish_table,
    stores_with,
)
from delkalakedb.mirror.publisher.statuses import (
    MirrorStatus,
    status as load_status,
    status_of,
)
from delkalakedb.settings import redact
from delkalakedb.telemetry import (
    FILES,
    LAG_SECONDS,
    LAG_VERSIONS,
    MetricsServer,
    log_event,
)

_log = logging.getLogger("delkalakedb.mirror")
# Seconds between two searches for foreign commits of a published table.
_FOREIGN_CHECK_S = 60.0
# Seconds between two looks at published tables, of which there may be thousands.
_LOOK_AT_ALL_S = 5.0
# Seconds without a look at the catalog after which it isn't ready.
_SILENT_S = 60.0

LagLevel = Literal["ok", "warn", "alert"]
_LEVELS: dict[LagLevel, int] = {
    "ok": logging.INFO,
    "warn": logging.WARNING,
    "alert": logging.ERROR,
}


@dataclass(frozen=True, slots=True)
class LagAlert:
    """A table's lag that passed `mirror.lag_warn` or `mirror.lag_alert`, or ended.

    Args:
        level: `warn`, `alert`, or `ok` when the lag has ended.
        status: the table's mirror.

    Examples:
        >>> (status,) = dk.mirror.status("deltasql://sqlite/meta.db")
        >>> dk.mirror.LagAlert("ok", status).status.versions_behind
        0
    """

    level: LagLevel
    status: MirrorStatus


class Reconciler:
    """A publisher of the tables of a catalog; `stop` ends it from another thread.

    Args:
        catalog: an open catalog.
        table: only this table.
        storage_options: for the object stores, as deltalake takes them.
        on_lag: called when a table's lag passes a threshold, and when it is over.

    Examples:
        >>> external = {"mode": "external"}
        >>> catalog = dk.connect("deltasql://sqlite/meta.db", mirror=external)
        >>> catalog.write("cities", pa.table({"city": ["Oslo"]}))
        >>> reconciler = dk.mirror.Reconciler(catalog, table="cities")
        >>> [status.published_version for status in reconciler.run_once()]
        [0]
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        table: str | None = None,
        storage_options: Mapping[str, str] | None = None,
        on_lag: Callable[[LagAlert], None] | None = None,
    ) -> None:
        self._catalog = catalog
        self._outbox = Outbox(catalog._backend)
        self._table = table
        self._stores = stores_with(storage_options)
        self._on_lag = on_lag
        self._stop = threading.Event()
        self._busy: dict[tuple[str, str], Future[Any]] = {}
        self._levels: dict[str, LagLevel] = {}
        self._checked: dict[str, float] = {}
        self._look_at_all = 0.0
        self._presence = Presence(catalog._backend, table)
        self._passed: float | None = None
        self._failure: str | None = None

    def stop(self) -> None:
        """Ask `run_forever` to finish the current tables and return.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> reconciler = dk.mirror.Reconciler(catalog)
            >>> reconciler.stop()
            >>> reconciler.run_forever()
        """
        self._stop.set()

    def trouble(self) -> str | None:
        """Return why `run_forever` doesn't publish now.

        Returns:
            The reason; None if `run_forever` publishes.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> reconciler = dk.mirror.Reconciler(catalog)
            >>> reconciler.trouble()
            "the catalog hasn't been read yet"
        """
        if self._failure is not None:
            return self._failure
        if self._passed is None:
            return "the catalog hasn't been read yet"
        silent_s = time.monotonic() - self._passed
        if silent_s > _SILENT_S:
            return f"the catalog was read {silent_s:.0f} s ago"
        return None

    def run_once(self) -> list[MirrorStatus]:
        """Publish all tables once, also postponed ones.

        Returns:
            The status of each table's mirror afterwards.

        Raises:
            CatalogUnavailableError: The database can't be reached.

        Examples:
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> reconciler = dk.mirror.Reconciler(catalog)
            >>> [(status.table, status.state) for status in reconciler.run_once()]
            [('sales', 'published')]
        """
        mirrors = self._mirrors()
        self._watch_all(map(status_of, mirrors))
        with self._workers() as workers:
            tasks = [workers.submit(self._settle, mirror) for mirror in mirrors]
        for task in tasks:
            task.result()
        statuses = load_status(self._catalog, self._table)
        self._watch_all(status for status in statuses if status.state != "held")
        return statuses

    def run_forever(self) -> None:
        """Publish until `stop`; while the database can't be reached, wait and retry.

        Examples:
            >>> from threading import Thread
            >>> catalog = dk.connect("deltasql://sqlite/meta.db")
            >>> reconciler = dk.mirror.Reconciler(catalog)
            >>> thread = Thread(target=reconciler.run_forever)
            >>> thread.start()
            >>> reconciler.stop()
            >>> thread.join()
        """
        mirror = self._catalog.settings.mirror
        self._catalog._backend.warm_up()
        # Apart, so that a large checkpoint doesn't delay publishing.
        with self._workers() as workers, ThreadPoolExecutor(1, "checkpoint") as maker:
            wait_s, failures = mirror.poll, 0
            while not self._stop.wait(wait_s):
                try:
                    self._pass(workers, maker)
                    wait_s, failures = mirror.poll, 0
                    self._passed, self._failure = time.monotonic(), None
                except CatalogError as error:
                    _log.error("the catalog can't be read: %s", error)
                    self._failure = redact(f"the catalog can't be read: {error}")
                    failures += 1
                    wait_s = pause_s(failures, mirror.poll, mirror.retry.backoff_max)
        with contextlib.suppress(CatalogError):
            self._presence.end()

    def _workers(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._catalog.settings.mirror.workers, "mirror")

    def _mirrors(self, *, behind: bool = False) -> list[Mirror]:
        if self._table is not None:
            mirrors = [self._outbox.load(self._table)]
        else:
            mirrors = self._outbox.load_all(behind=behind)
        for mirror in mirrors:
            FILES.record(mirror.num_files, table=mirror.name)
        # Another catalog, or another writer, publishes a table that is held.
        return [mirror for mirror in mirrors if mirror.hold is None]

    def _to_look_at(self, finished: set[str]) -> list[Mirror]:
        """Return the tables that are behind or need a report or a checkpoint."""
        if time.monotonic() >= self._look_at_all:
            self._look_at_all = time.monotonic() + _LOOK_AT_ALL_S
            self._note_presence()
            return self._mirrors()
        mirrors = self._mirrors(behind=True)
        late = {name for name, level in self._levels.items() if level != "ok"}
        for name in sorted((finished | late) - {mirror.name for mirror in mirrors}):
            try:
                mirrors.append(self._outbox.load(name))
            except TableNotFoundError:
                self._levels.pop(name, None)
        return [mirror for mirror in mirrors if mirror.hold is None]

    def _note_presence(self) -> None:
        try:
            self._presence.note()
        except CatalogPermissionError as error:
            # A role from before there was a list of reconcilers.
            _log.warning("this reconciler isn't on the catalog's list: %s", error)

    def _pass(self, workers: ThreadPoolExecutor, maker: ThreadPoolExecutor) -> None:
        done = [key for key, task in self._busy.items() if task.done()]
        for key in done:
            if (error := self._busy.pop(key).exception()) is not None:
                _log.error("%s %s failed", *key, exc_info=error)
        for mirror in self._to_look_at({name for _, name in done}):
            self._watch(status_of(mirror))
            foreign, key = self._is_quiet(mirror), ("publish", mirror.name)
            if key not in self._busy and (foreign or _is_behind(mirror)):
                self._busy[key] = workers.submit(self._tend, mirror, foreign=foreign)
            key = ("checkpoint", mirror.name)
            if key not in self._busy and self._lacks_checkpoint(mirror):
                self._busy[key] = maker.submit(
                    self._checkpoint, mirror, mirror.published_version
                )

    def _lacks_checkpoint(self, mirror: Mirror) -> bool:
        due = due_checkpoint(self._catalog, mirror, mirror.published_version)
        claimed = (mirror.checkpoint_until_ms or 0) > mirror.now_ms
        return due is not None and not claimed

    def _checkpoint(self, mirror: Mirror, published: int) -> None:
        due = due_checkpoint(self._catalog, mirror, published)
        if due is not None:
            make_checkpoint(self._catalog, mirror, due, self._stores(mirror))

    def _settle(self, mirror: Mirror) -> None:
        settings = self._catalog.settings.mirror
        # Long enough for the lease of a publisher that died elsewhere to end.
        wait_s = max(settings.wait, settings.lease)
        published = self._tend(mirror, early=True, foreign=True, wait_s=wait_s)
        if published is not None:
            self._checkpoint(mirror, published)

    def _is_quiet(self, mirror: Mirror) -> bool:
        """Return whether it is time to look for foreign commits of a table."""
        quiet = mirror.published_version == mirror.ratified_version
        checked = self._checked.setdefault(mirror.name, time.monotonic())
        if not quiet or time.monotonic() - checked < _FOREIGN_CHECK_S:
            return False
        self._checked[mirror.name] = time.monotonic()
        return True

    def _tend(
        self,
        mirror: Mirror,
        *,
        early: bool = False,
        foreign: bool = False,
        wait_s: float = 0.0,
    ) -> int | None:
        """Publish a table; return its published version, or None after a failure.

        With `foreign`, also look for foreign commits.
        """
        catalog, name = self._catalog, mirror.name
        try:
            upto = mirror.ratified_version
            done = publish_table(
                catalog, name, self._stores, upto, wait_s=wait_s, early=early
            )
            if foreign and (found := find_foreign(catalog, name, self._stores(mirror))):
                error = DivergedError(foreign_message(name, found[0].path))
                published = found[0].version - 1
                self._outbox.mark_diverged(mirror, str(error), published=published)
                raise error
        except DivergedError as error:
            log_event(_log, logging.ERROR, str(error), event="diverged", table=name)
        except (StorageError, MirrorError, CatalogError) as error:
            message = f"{name}: not published yet: {error}"
            log_event(
                _log, logging.WARNING, message, event="publish failed", table=name
            )
        else:
            return done.version
        return None

    def _watch_all(self, statuses: Iterable[MirrorStatus]) -> None:
        for status in statuses:
            self._watch(status)

    def _watch(self, status: MirrorStatus) -> None:
        """Report a table's lag when it passes a threshold, and when it has ended."""
        LAG_VERSIONS.record(status.versions_behind, table=status.table)
        LAG_SECONDS.record(status.seconds_behind, table=status.table)
        level = self._level(status)
        if self._levels.get(status.table, "ok") == level:
            return
        self._levels[status.table] = level
        log_event(
            _log,
            _LEVELS[level],
            f"{status.table}: the mirror is {status.versions_behind} versions and "
            f"{status.seconds_behind:.1f} s behind ({status.state})",
            event="mirror lag",
            table=status.table,
            lag=level,
            versions_behind=status.versions_behind,
            seconds_behind=status.seconds_behind,
        )
        if self._on_lag is not None:
            self._on_lag(LagAlert(level, status))

    def _level(self, status: MirrorStatus) -> LagLevel:
        mirror = self._catalog.settings.mirror
        if status.seconds_behind >= mirror.lag_alert:
            return "alert"
        return "warn" if status.seconds_behind >= mirror.lag_warn else "ok"


def _is_behind(mirror: Mirror) -> bool:
    """Return whether a table has versions that this process may publish now."""
    waiting = mirror.published_version < mirror.ratified_version
    later = mirror.is_held or mirror.is_put_off
    return waiting and mirror.state != "diverged" and not later


def run(
    uri: CatalogOrUri,
    *,
    once: bool = False,
    storage_options: Mapping[str, str] | None = None,
    on_lag: Callable[[LagAlert], None] | None = None,
    metrics_port: int | None = None,
    metrics_host: str = "127.0.0.1",
) -> list[MirrorStatus]:
    """Publish the tables of a catalog, or one of them, once or until SIGTERM or SIGINT.

    Args:
        uri: a catalog, or a table.
        once: return after everything was tried once.
        storage_options: for the object stores, as deltalake takes them.
        on_lag: called when a table's lag passes a threshold, and when it is over.
        metrics_port: the port of `/metrics` for Prometheus, `/healthz` and `/readyz`;
            None serves none of them.
        metrics_host: the address to serve them on.

    Returns:
        The status of each table's mirror at the end.

    Raises:
        CatalogNotFoundError: The database has no catalog.
        DeltaError: The metrics can't be served at the port.

    Examples:
        >>> (status,) = dk.mirror.run("deltasql://sqlite/meta.db", once=True)
        >>> status.table, status.state
        ('sales', 'published')
    """
    table = uri_of(uri).table
    with using_catalog(uri) as catalog:
        reconciler = Reconciler(
            catalog,
            table=table,
            storage_options=storage_options,
            on_lag=on_lag,
        )
        if once:
            return reconciler.run_once()
        with contextlib.ExitStack() as stack:
            if metrics_port is not None:
                server = MetricsServer(metrics_port, reconciler.trouble, metrics_host)
                stack.enter_context(server)
            stack.enter_context(_stopped_by_signals(reconciler))
            reconciler.run_forever()
        return load_status(catalog, table)


@contextlib.contextmanager
def _stopped_by_signals(reconciler: Reconciler) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kinds = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(kind, lambda *_: reconciler.stop()) for kind in kinds]
    try:
        yield
    finally:
        for kind, handler in zip(kinds, before, strict=True):
            signal.signal(kind, handler)
