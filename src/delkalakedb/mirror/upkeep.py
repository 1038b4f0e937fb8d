"""Upkeep of a published log: the checkpoint that is due, and the log's retention.

No lease is held meanwhile, so that a large checkpoint keeps no publisher waiting: a
version's checkpoint is the same whoever makes it. A claim in the catalog keeps two
processes from making it at once. It lasts as long as a lease and is renewed meanwhile,
so that the claim of a process that was killed soon expires.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.heartbeat import PATIENCE_S
from delkalakedb.catalog.outbox import Mirror, Outbox
from delkalakedb.errors import DeltalakeDBError
from delkalakedb.mirror.checkpoint import (
    Checkpoint,
    checkpoint_due,
    checkpoint_interval,
    write_checkpoint,
)
from delkalakedb.mirror.cleanup import clean_log
from delkalakedb.mirror.last_checkpoint import write_last_checkpoint
from delkalakedb.storage import Store
from delkalakedb.telemetry import log_event

__all__ = ["due_checkpoint", "make_checkpoint", "unharmed"]

_log = logging.getLogger("delkalakedb.mirror")
# At least so many files go into a checkpoint each second.
_FILES_PER_S = 10_000


@contextmanager
def unharmed(name: str) -> Iterator[None]:
    """Log what goes wrong with a checkpoint: the log is whole without one.

    The next commit, or the reconciler, tries again.
    """
    try:
        yield
    except Exception:
        _log.exception("%s: no checkpoint yet", name)


def due_checkpoint(catalog: Catalog, mirror: Mirror, published: int) -> int | None:
    """The version that a checkpoint is due for."""
    interval = checkpoint_interval(mirror.metadata, catalog.settings)
    return checkpoint_due(published, mirror.checkpoint_version, interval)


def make_checkpoint(
    catalog: Catalog, mirror: Mirror, version: int, store: Store
) -> Checkpoint | None:
    """Make a checkpoint that is due and clean up; None if that wasn't for us to do.

    What goes wrong is logged and tried again later: the log is as good without. The
    log of a table that is read-only here is left to its writers.
    """
    if catalog.log(mirror.name).head().read_only is not None:
        return None
    outbox, settings = Outbox(catalog.backend), catalog.settings.mirror
    if not outbox.claim_checkpoint(mirror, version, settings.lease):
        return None
    now_ms = int(time.time() * 1000)
    patience_s = PATIENCE_S + mirror.num_files / _FILES_PER_S
    try:
        with outbox.keeping_claim(mirror, version, settings.lease, patience_s):
            checkpoint = write_checkpoint(
                catalog, mirror.name, version, store, now_ms, mirror.table_id
            )
            write_last_checkpoint(store, checkpoint)
            clean_log(store, mirror.metadata, version, now_ms)
    except (DeltalakeDBError, OSError, pa.ArrowException) as error:
        message = f"{mirror.name}: no checkpoint of version {version} yet: {error}"
        log_event(_log, logging.WARNING, message, event="checkpoint failed")
        outbox.postpone_checkpoint(mirror, settings.retry.backoff_max)
        return None
    outbox.mark_checkpoint(mirror, version)
    message = f"{mirror.name}: checkpoint of version {version}"
    fields = {"actions": checkpoint.size, "bytes": checkpoint.size_bytes}
    log_event(_log, logging.INFO, message, event="checkpoint", **fields)
    return checkpoint
