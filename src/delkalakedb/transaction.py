"""Ratify staged actions, then publish them."""

from collections.abc import Mapping

from delkalakedb.catalog import Catalog
from delkalakedb.mirror.deliver import deliver
from delkalakedb.model.txnlog import Committed, Staged

__all__ = ["commit"]


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
    deliver(catalog, {o.table: o.version for o in done}, storage_options)
    return done
