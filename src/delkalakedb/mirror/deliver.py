"""What a writer does after its commit was ratified, by `mirror.mode`.

Whatever happens here, the commit stands: what can't be published now stays in the
outbox and goes out with the next writer or the reconciler. The caller is warned of it.
"""

import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.forks import at_fork
from delkalakedb.catalog.outbox import Lease, Mirror
from delkalakedb.errors import MirrorError
from delkalakedb.mirror.background import publish_soon
from delkalakedb.mirror.publish import publish_held, publish_table, stores_with
from delkalakedb.mirror.unpublished import note_failure, tell_all
from delkalakedb.mirror.upkeep import due_checkpoint, make_checkpoint, unharmed
from delkalakedb.storage import Store
from delkalakedb.telemetry import PublishWarning, log_event

__all__ = ["deliver", "publish_now"]

_log = logging.getLogger("delkalakedb.mirror")
_Options = Mapping[str, str] | None
_Publish = Callable[[str, int], None]


def deliver(
    catalog: Catalog,
    versions: Mapping[str, int],
    storage_options: _Options = None,
    lease: Lease | None = None,
) -> None:
    """Publish freshly ratified versions of tables, now, soon, or not at all here.

    With the lease of the one table that there is, if that is held already.
    """
    mode = catalog.settings.mirror.mode
    if mode == "inline":
        publish_now(catalog, versions, storage_options, lease)
    elif mode == "background":
        tell_all(catalog, _failures(partial(_soon, catalog, storage_options), versions))


def _soon(catalog: Catalog, options: _Options, name: str, version: int) -> None:
    publish_soon(catalog, name, version, options)


def publish_now(
    catalog: Catalog,
    versions: Mapping[str, int],
    storage_options: _Options = None,
    lease: Lease | None = None,
) -> None:
    """Publish versions that stand, several tables side by side.

    The caller is warned of each table that couldn't be published.
    """

    def publish(name: str, version: int) -> None:
        _publish_inline(catalog, name, version, storage_options, lease)

    workers = catalog.settings.mirror.workers
    tell_all(catalog, _failures(publish, versions, workers))


def _failures(
    publish: _Publish, versions: Mapping[str, int], workers: int = 1
) -> list[PublishWarning]:
    """Publish each table; return what failed, because no failure undoes the commits."""

    def attempt(name: str) -> PublishWarning | None:
        try:
            publish(name, versions[name])
        except Exception as error:
            return note_failure(name, versions[name], error)
        return None

    names, workers = sorted(versions), min(workers, len(versions))
    if workers < 2:
        return [failure for failure in map(attempt, names) if failure]
    with ThreadPoolExecutor(workers, "publish") as pool:
        return [failure for failure in pool.map(attempt, names) if failure]


def _publish_inline(
    catalog: Catalog,
    name: str,
    version: int,
    options: _Options,
    lease: Lease | None,
) -> None:
    stores = stores_with(options)
    done = None if lease is None else publish_held(catalog, lease, stores)
    if done is None or done.version < version:
        wait_s = catalog.settings.mirror.wait
        done = publish_table(catalog, name, stores, version, wait_s=wait_s)
    with unharmed(name):
        if (due := due_checkpoint(catalog, done.mirror, done.version)) is not None:
            _checkpoint(catalog, done.mirror, due, stores(done.mirror))
    if done.version < version:
        _explain(done.mirror, version)


def _explain(mirror: Mirror, version: int) -> None:
    """Say why a version isn't published though this attempt met no error."""
    if mirror.is_put_off and not mirror.is_held:
        raise MirrorError(f"an earlier attempt failed: {mirror.last_error}")
    # Nothing has failed: whoever publishes the table publishes this version as well.
    message = f"{mirror.name}: version {version} stands, and somebody else publishes it"
    log_event(_log, logging.WARNING, message, event="publish waits", table=mirror.name)


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
