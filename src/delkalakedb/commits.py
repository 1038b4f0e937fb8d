"""Ratify staged actions, then publish them."""

from collections.abc import Mapping

from delkalakedb.catalog import Catalog
from delkalakedb.mirror.deliver import deliver
from delkalakedb.model.txnlog import Committed, Conflicted, Skipped, Staged

__all__ = ["commit", "ratify"]

_Options = Mapping[str, str] | None


def commit(
    catalog: Catalog, *staged: Staged, storage_options: _Options = None
) -> tuple[Committed, ...]:
    """Ratify all of `staged` or none of it, and publish what was ratified.

    The commits stand whether or not they can be published now.
    """
    return _published(catalog, catalog.commit(*staged), storage_options)


def ratify(
    catalog: Catalog, *staged: Staged, storage_options: _Options = None
) -> tuple[Committed, ...] | Conflicted:
    """Like `commit`, but a conflict is a value."""
    outcomes = catalog.ratify(*staged)
    if isinstance(outcomes, Conflicted):
        return outcomes
    return _published(catalog, outcomes, storage_options)


def _published(
    catalog: Catalog,
    outcomes: tuple[Committed | Skipped, ...],
    storage_options: _Options,
) -> tuple[Committed, ...]:
    done = tuple(o for o in outcomes if isinstance(o, Committed))
    deliver(catalog, {o.table: o.version for o in done}, storage_options)
    return done
