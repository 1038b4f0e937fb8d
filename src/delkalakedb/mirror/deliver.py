"""What a writer does after its commit was ratified, by `mirror.mode`.

Whatever happens here, the commit stands: what can't be published now is logged, stays
in the outbox, and goes out with the next writer or the reconciler.
"""

import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.forks import at_fork
from delkalakedb.catalog.outbox import Lease, Mirror
from delkalakedb.errors import DeltalakeDBError
from delkalakedb.mirror.background import publish_soon
from delkalakedb.mirror.publish import publish_held, publish_table, stores_with
from delkalakedb.mirror.upkeep import due_checkpoint, make_checkpoint
from delkalakedb.storage import Store
from delkalakedb.telemetry import log_event

__all__ = ["deliver"]

_log = logging.getLogger("delkalakedb.mirror")


def deliver(
    catalog: Catalog,
    versions: Mapping[str, int],
    storage_options: Mapping[str, str] | None = None,
    lease: Lease | None = None,
) -> None:
    """Publish freshly ratified versions of tables, now, soon, or not at all here.

    With the lease of the one table that there is, if that is held already.
    """
    mode = catalog.settings.mirror.mode
    for name, version in sorted(versions.items()):
        try:
            if mode == "inline":
                _publish_inline(catalog, name, version, storage_options, lease)
            elif mode == "background":
                publish_soon(catalog, name, storage_options)
        except DeltalakeDBError as error:
            _warn(name, version, str(error))
        except Exception:
            # Not even a mistake of ours may make what stands look like a failure.
            _log.exception("%s: version %s stands, but isn't published", name, version)


def _publish_inline(
    catalog: Catalog,
    name: str,
    version: int,
    options: Mapping[str, str] | None,
    lease: Lease | None,
) -> None:
    stores = stores_with(options)
    done = None if lease is None else publish_held(catalog, lease, stores)
    if done is None or done.version < version:
        wait_s = catalog.settings.mirror.wait
        done = publish_table(catalog, name, stores, version, wait_s=wait_s)
    if done.version < version:
        _warn(name, version, "somebody else is publishing, or it failed lately")
    if (due := due_checkpoint(catalog, done.mirror, done.version)) is not None:
        _checkpoint(catalog, done.mirror, due, stores(done.mirror))


def _warn(name: str, version: int, why: str) -> None:
    message = f"{name}: version {version} stands, but isn't published yet: {why}"
    log_event(
        _log,
        logging.WARNING,
        message,
        event="publish failed",
        table=name,
        version=version,
    )


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
