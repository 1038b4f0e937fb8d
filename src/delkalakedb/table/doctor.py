"""The doctor: whether all that a catalog lives on is as it should be.

It looks, and where looking isn't enough it tries and undoes: a transaction that is
rolled back, an object that is deleted again.
"""

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.backend import Backend, Insert, Run
from delkalakedb.catalog.care import load_stats
from delkalakedb.catalog.migrations import find_schema_version, latest_schema_version
from delkalakedb.catalog.outbox import Mirror, Outbox
from delkalakedb.catalog.registry import using_backend
from delkalakedb.errors import (
    CatalogBusyError,
    CatalogError,
    CatalogNotFoundError,
    CatalogPermissionError,
    StorageError,
)
from delkalakedb.mirror.republish import find_loss
from delkalakedb.mirror.status import MirrorStatus, status_of
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.segment import LOG
from delkalakedb.workspace.files import table_files
from delkalakedb.workspace.folder import find_leftovers

if TYPE_CHECKING:
    from delkalakedb.config import Settings
    from delkalakedb.uri import Uri

__all__ = ["Check", "examine"]

State = Literal["ok", "warn", "fail"]
# Leases and retention count on clocks; stores tell whole seconds.
_SKEW_MS = 5_000
_SMALL_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    check: str
    state: State
    detail: str
    advice: str | None = None


_NO_CATALOG = Check("schema", "fail", "there is no catalog", "deltasql init")


class _UndoneError(Exception):
    """Rolls back what was only tried."""


def examine(uri: "Uri", settings: "Settings") -> Iterator[Check]:
    """Check after check; where the catalog can't be opened, those after are left out.

    Args:
        uri: the catalog.
        settings: as for opening it, with `sql.schema = error`.
    """
    with using_backend(uri, settings) as backend:
        try:
            yield _connection(backend)
            schema = _schema(backend)
        except CatalogNotFoundError as error:
            missing = Check("connection", "fail", str(error), "deltasql init")
            yield missing if error.without_database else _NO_CATALOG
            return
        except CatalogError as error:
            yield Check("connection", "fail", str(error), _reachable(error))
            return
        yield schema
        if schema.state != "ok":
            return
        publishes = _publishes(backend)
        yield _insert(backend, publishes=publishes)
        yield _create(backend)
        yield _clock(backend)
        with Catalog(uri, settings) as catalog:
            yield from _tables(catalog, publishes=publishes)


def _connection(backend: Backend) -> Check:
    start = time.monotonic()
    with backend.reading() as session:
        ((version,),) = session.query("load_server_version", {})
    took_ms = (time.monotonic() - start) * 1000
    detail = f"{backend.engine} {version} answered in {took_ms:.0f} ms"
    return Check("connection", "ok", detail)


def _reachable(error: CatalogError) -> str:
    if isinstance(error, CatalogBusyError):
        return "end the process that holds it, or use a database for several processes"
    return "check the URI, the server, the network and the credentials"


def _schema(backend: Backend) -> Check:
    current = find_schema_version(backend)
    latest = latest_schema_version(backend.engine)
    detail = f"the catalog has schema version {current}, the package {latest}"
    if not current:
        return _NO_CATALOG
    if current > latest:
        return Check("schema", "fail", detail, "upgrade delkalakedb")
    if current < latest:
        return Check("schema", "warn", detail, "deltasql upgrade")
    return Check("schema", "ok", detail)


def _right(
    check: str, backend: Backend, write: Insert | Run, fine: str, lacking: str
) -> Check:
    """Try a write; a role that lacks the right is as somebody meant it to be."""
    try:
        _try(backend, write)
    except CatalogPermissionError:
        who = "a replica" if backend.is_replica() else "this role"
        return Check(check, "ok", lacking.format(who))
    except CatalogError as error:
        return Check(check, "fail", str(error), "see what the database says")
    return Check(check, "ok", fine)


def _publishes(backend: Backend) -> bool:
    """Return whether this role may mark commits as published."""
    try:
        _try(backend, Run("free_leases", {}))
    except CatalogError:
        return False
    return True


def _insert(backend: Backend, *, publishes: bool) -> Check:
    names = ("file_id", "column_id", "class", "lo", "hi", "has_null", "added_version")
    row = (-1, -1, 0, 0.0, 0.0, False, 0)
    probe = Insert.of_rows("dl_number_stats", names, [row])
    fine = "rows can be written to the catalog"
    lacking = "{} reads and publishes" if publishes else "{} only reads"
    return _right("insert", backend, probe, fine, lacking)


def _create(backend: Backend) -> Check:
    fine = "tables can be created, as upgrades do"
    lacking = "{} can't create tables: upgrades need the catalog's owner"
    return _right("create", backend, Run("create_probe", {}), fine, lacking)


def _try(backend: Backend, write: Insert | Run) -> None:
    with suppress(_UndoneError), backend.writing() as session:
        session.apply([write])
        # An engine may hold writes back until something is asked.
        session.query("load_schema_version", {})
        raise _UndoneError


def _clock(backend: Backend) -> Check:
    before_ms = time.time() * 1000
    with backend.reading() as session:
        ((now_ms,),) = session.query("load_now_ms", {})
    here_ms = (before_ms + time.time() * 1000) / 2
    return _skew("database clock", now_ms - here_ms)


def _skew(check: str, skew_ms: float) -> Check:
    detail = f"{abs(skew_ms) / 1000:.1f} s {'ahead of' if skew_ms > 0 else 'behind'} us"
    if abs(skew_ms) <= _SKEW_MS:
        return Check(check, "ok", f"at most {_SKEW_MS // 1000} s off")
    return Check(check, "warn", detail, "set the clocks, by NTP")


def _tables(catalog: Catalog, *, publishes: bool) -> Iterator[Check]:
    mirrors = Outbox(catalog.backend).load_all()
    lag_warn = catalog.settings.mirror.lag_warn
    statuses = list(map(status_of, mirrors))
    lagging = filter(None, (_lag(status, lag_warn) for status in statuses))
    yield from _all("mirror", lagging, f"{len(mirrors)} tables are published")
    stale = filter(None, map(_lease, mirrors))
    yield from _all("lease", stale, "no publisher died at work")
    yield from _all("files", _small(catalog), "no table has many small files")
    looked = _location if publishes else _readable
    found = [check for mirror in mirrors for check in looked(catalog, mirror)]
    checks = _LOCATION_CHECKS if publishes else _READ_CHECKS
    for check, fine in checks.items():
        yield from _all(check, (c for c in found if c.check == check), fine)
    yield from _all("workspaces", _leftovers(mirrors), "no operation left files behind")


def _all(check: str, found: Iterable[Check], fine: str) -> Iterator[Check]:
    """The problems that were found, or that there are none."""
    problems = [one for one in found if one.state != "ok"]
    yield from problems or [Check(check, "ok", fine)]


def _lag(status: MirrorStatus, lag_warn: float) -> Check | None:
    name = status.table
    if status.state == "diverged":
        advice = f"deltasql mirror adopt {name} --dry-run"
        return Check("mirror", "fail", status.last_error or name, advice)
    if status.seconds_behind < lag_warn and status.state != "failed":
        return None
    detail = (
        f"{name}: {status.versions_behind} versions and {status.seconds_behind:.0f} s "
        f"behind: {status.last_error or status.state}"
    )
    return Check("mirror", "warn", detail, f"deltasql mirror retry {name}")


def _lease(mirror: Mirror) -> Check | None:
    """A lease that nobody gave back; while it lasts its owner may be at work."""
    if mirror.lease_until_ms is None or mirror.is_held:
        return None
    detail = f"{mirror.name}: {mirror.lease_owner} never gave its lease back"
    return Check("lease", "warn", detail, f"deltasql mirror retry {mirror.name}")


def _small(catalog: Catalog) -> Iterator[Check]:
    found = load_stats(catalog.backend, None, small_bytes=_SMALL_BYTES, since_ms=0)
    for stats in found:
        if "optimize" in stats.advice:
            detail = f"{stats.table}: {stats.compactable_files} small files"
            yield Check("files", "warn", detail, f"deltasql optimize {stats.table}")


_LOCATION_CHECKS = {
    "location": "every table's location can be written to",
    "log": "no log has lost its newest version or checkpoint",
    "store clock": f"at most {_SKEW_MS // 1000} s off",
    "conditional put": "stores refuse to overwrite a log entry",
}


_READ_CHECKS = {
    "location": "every table's location can be read",
    "log": _LOCATION_CHECKS["log"],
}


def _open_location(mirror: Mirror) -> Store:
    store = open_store(mirror.location)
    if mirror.published_version >= 0 and not any(store.list(LOG)):
        raise StorageError(f"{store.url}: its _delta_log is gone")
    return store


def _unusable(mirror: Mirror, error: StorageError) -> Check:
    advice = (
        "check the location and the credentials in the environment; a log that is lost "
        f"is written again by deltasql mirror republish {mirror.name}"
    )
    return Check("location", "fail", f"{mirror.name}: {error}", advice)


def _readable(catalog: Catalog, mirror: Mirror) -> Iterator[Check]:
    try:
        yield from _lost(catalog, mirror, _open_location(mirror))
    except StorageError as error:
        yield _unusable(mirror, error)


def _lost(catalog: Catalog, mirror: Mirror, store: Store) -> Iterator[Check]:
    if (lost := find_loss(catalog, mirror, store)) is not None:
        advice = f"deltasql mirror republish {mirror.name}"
        yield Check("log", "fail", f"{mirror.name}: {lost}", advice)


def _location(catalog: Catalog, mirror: Mirror) -> Iterator[Check]:
    path = f"{LOG}/.doctor-{uuid.uuid4().hex}"
    try:
        store = _open_location(mirror)
        skew_ms = _put_and_delete(store, path)
        yield from _lost(catalog, mirror, store)
    except StorageError as error:
        yield _unusable(mirror, error)
        return
    yield _skew("store clock", skew_ms)
    if not store.refuses_to_overwrite:
        detail = f"{mirror.name}: {store.url} ignores If-None-Match"
        advice = "let nobody write to its tables but through the catalog"
        yield Check("conditional put", "warn", detail, advice)


def _put_and_delete(store: Store, path: str) -> float:
    """How far the store's clock is ahead of ours."""
    before_ms = time.time() * 1000
    try:
        store.put_new(path, b"")
        meta = store.head(path)
    finally:
        store.delete(path)
    here_ms = (before_ms + time.time() * 1000) / 2
    return 0.0 if meta is None else meta.last_modified_ms - here_ms


def _leftovers(mirrors: Iterable[Mirror]) -> Iterator[Check]:
    for work in sorted({table_files(mirror.location).work for mirror in mirrors}):
        if found := find_leftovers(work):
            detail = f"{work}: {len(found)} folders of operations that died"
            yield Check("workspaces", "warn", detail, "the next write removes them")
