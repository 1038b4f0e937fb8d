"""Ratify staged actions, then publish them."""

import logging
from collections.abc import Mapping

from delkalakedb.catalog import Catalog
from delkalakedb.errors import MirrorError, StorageError
from delkalakedb.mirror import publish
from delkalakedb.model.txnlog import Committed, Staged

__all__ = ["commit"]

_log = logging.getLogger("delkalakedb.mirror")


def commit(
    catalog: Catalog,
    *staged: Staged,
    storage_options: Mapping[str, str] | None = None,
) -> tuple[Committed, ...]:
    """Ratify all of `staged` or none of it, and publish what was ratified.

    The commits stand whether or not they can be published now.
    """
    outcomes = catalog.commit(*staged)
    done = tuple(o for o in outcomes if isinstance(o, Committed))
    for table in sorted({outcome.table for outcome in done}):
        try:
            publish(catalog, table, dict(storage_options or {}))
        except (StorageError, MirrorError) as error:
            _log.warning(
                "%s: the commit stands but isn't published yet: %s", table, error
            )
    return done
