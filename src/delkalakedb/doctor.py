"""The checks behind `deltasql doctor`: database, rights, clocks, mirrors, stores.

A check that has to write undoes its write: it rolls its transaction back, or deletes
the object that it has put.
"""

import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.admin import load_stats
from delkalakedb.catalog.commit import Mirror, Outbox
from delkalakedb.catalog.engine import (
    Backend,
    Insert,
    Run,
    UndoneError,
    find_schema_version,
    latest_schema_version,
    using_backend,
)
from delkalakedb.clock import now_ms
from delkalakedb.errors import (
    CatalogBusyError,
    CatalogError,
    CatalogNotFoundError,
    CatalogPermissionError,
    StorageError,
)
from delkalakedb.mirror.publisher import MirrorStatus, absence, find_loss, status_of
from delkalakedb.model.display import count_of
from delkalakedb.model.paths import LOG
from delkalakedb.storage import Store, open_store
from delkalakedb.write import find_leftovers, table_files

if TYPE_CHECKING:
    from delkalakedb.settings import Settings, Uri

State = Literal["ok", "warn", "fail"]
# milliseconds; leases and retention depend on clocks, and stores tell whole seconds
_SKEW_MS = 5_000
_SMALL_BYTES = 16 * 1024 * 1024  # below this a file counts as small


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check; `advice` says what to do about a problem."""

    check: str
    state: State
    detail: str
    advice: str | None = None


_NO_CATALOG = Check("schema", "fail", "there is no catalog", "deltasql init")


def examine(uri: "Uri", settings: "Settings") -> Iterator[Check]:
    """Yield the results of all checks; stop at a catalog that can't be opened.

    Args:
        uri: the catalog.
        settings: the settings to open the catalog with, and `sql.schema = error`.
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
        (version,) = session.values("load_server_version", {})
    took_ms = (time.monotonic() - start) * 1000
    detail = f"{backend.engine} {version} answered in {took_ms:.0f} ms"
    return Check("connection", "ok", detail)


def _reachable(error: CatalogError) -> str:
    if isinstance(error, CatalogBusyError):
        return "end the process that has it open, or use a database for many processes"
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
    """Return the result of trying a write; a role may lack the right on purpose."""
    try:
        _try(backend, write)
    except CatalogPermissionError:
        who = "a replica" if backend.is_replica() else "this role"
        return Check(check, "ok", lacking.format(who))
    except CatalogError as error:
        return Check(check, "fail", str(error), "repair what the database reports")
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
    fine = "upgrades can create tables"
    lacking = "{} can't create tables, so only the catalog's owner can upgrade it"
    return _right("create", backend, Run("create_probe", {}), fine, lacking)


def _try(backend: Backend, write: Insert | Run) -> None:
    with suppress(UndoneError), backend.writing() as session:
        session.apply([write])
        # An engine may delay writes until the next query.
        session.query("load_schema_version", {})
        raise UndoneError


def _clock(backend: Backend) -> Check:
    before_ms = now_ms()
    with backend.reading() as session:
        (there_ms,) = session.values("load_now_ms", {})
    here_ms = (before_ms + now_ms()) / 2
    return _skew("database clock", there_ms - here_ms)


def _skew(check: str, skew_ms: float) -> Check:
    if abs(skew_ms) <= _SKEW_MS:
        return Check(check, "ok", f"at most {_SKEW_MS // 1000} s off")
    side = "ahead of" if skew_ms > 0 else "behind"
    detail = f"{abs(skew_ms) / 1000:.1f} s {side} this machine's clock"
    return Check(check, "warn", detail, "synchronize the clocks, for example with NTP")


def _published(tables: int) -> str:
    return f"{count_of(tables, 'table')} {'is' if tables == 1 else 'are'} published"


def _tables(catalog: Catalog, *, publishes: bool) -> Iterator[Check]:
    mirrors = Outbox(catalog._backend).load_all()
    lag_warn = catalog.settings.mirror.lag_warn
    statuses = list(map(status_of, mirrors))
    lagging = filter(None, (_lag(status, lag_warn) for status in statuses))
    yield from _all("mirror", lagging, _published(len(mirrors)))
    if (absent := absence(catalog)) is not None:
        yield Check("reconciler", "warn", absent, "start `deltasql mirror run`")
    stale = filter(None, map(_lease, mirrors))
    yield from _all("lease", stale, "no publisher died while it held a lease")
    yield from _all("files", _small(catalog), "no table has many small files")
    checked = (_location(catalog, mirror, publishes=publishes) for mirror in mirrors)
    found = [check for checks in checked for check in checks]
    usable = "written to" if publishes else "read"
    fine = {
        "location": f"every table's location can be {usable}",
        "log": "no log has lost its newest version or checkpoint",
    }
    if publishes:
        fine["store clock"] = f"at most {_SKEW_MS // 1000} s off"
        fine["conditional put"] = "stores refuse to overwrite a log entry"
    for check, detail in fine.items():
        yield from _all(check, (c for c in found if c.check == check), detail)
    yield from _all("workspaces", _leftovers(mirrors), "no operation left files behind")


def _all(check: str, found: Iterable[Check], fine: str) -> Iterator[Check]:
    """Yield the problems among the results, or one result without a problem."""
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
    """Return a warning about an expired lease, whose owner must have died."""
    if mirror.lease_until_ms is None or mirror.is_held:
        return None
    detail = f"{mirror.name}: {mirror.lease_owner} never released its lease"
    return Check("lease", "warn", detail, f"deltasql mirror retry {mirror.name}")


def _small(catalog: Catalog) -> Iterator[Check]:
    found = load_stats(catalog._backend, None, small_bytes=_SMALL_BYTES, since_ms=0)
    for stats in found:
        if "optimize" in stats.advice:
            detail = f"{stats.table}: {stats.compactable_files} small files"
            yield Check("files", "warn", detail, f"deltasql optimize {stats.table}")


def _location(catalog: Catalog, mirror: Mirror, *, publishes: bool) -> Iterator[Check]:
    name = mirror.name
    republish = f"deltasql mirror republish {name}"
    try:
        store = open_store(mirror.location)
        if mirror.published_version >= 0 and not any(store.list(LOG)):
            raise StorageError(f"{store.url}: its _delta_log is missing")
        skew_ms = _put_and_delete(store) if publishes else 0.0
        lost = find_loss(catalog, mirror, store)
    except StorageError as error:
        advice = (
            "check the location and the credentials in the environment; if the log is "
            f"lost, write it again with {republish}"
        )
        yield Check("location", "fail", f"{name}: {error}", advice)
        return
    if lost is not None:
        yield Check("log", "fail", f"{name}: {lost}", republish)
    yield _skew("store clock", skew_ms)
    if not store.refuses_to_overwrite:
        detail = f"{name}: {store.url} ignores If-None-Match"
        advice = "write to its tables only through the catalog"
        yield Check("conditional put", "warn", detail, advice)


def _put_and_delete(store: Store) -> float:
    """Return how many milliseconds the store's clock is ahead of this machine's."""
    path = f"{LOG}/.doctor-{uuid.uuid4().hex}"
    before_ms = now_ms()
    try:
        store.put_new(path, b"")
        meta = store.head(path)
    finally:
        store.delete(path)
    here_ms = (before_ms + now_ms()) / 2
    return 0.0 if meta is None else meta.last_modified_ms - here_ms


def _leftovers(mirrors: Iterable[Mirror]) -> Iterator[Check]:
    for work in sorted({table_files(mirror.location).work for mirror in mirrors}):
        if found := find_leftovers(work):
            detail = f"{work}: {len(found)} folders of operations that died"
            yield Check("workspaces", "warn", detail, "the next write removes them")
