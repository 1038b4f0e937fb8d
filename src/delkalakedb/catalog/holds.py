"""Holds: tables of the catalog that nobody may commit to, because others write them.

A table is *following* while others write it by file and the catalog only takes in what
they wrote. It is *moving* while it is copied to another catalog, and *moved* once that
one has it. The hold is checked under the table's lock, by every commit.
"""

from delkalakedb.catalog.catalog import Catalog
from delkalakedb.catalog.head import FOLLOWING
from delkalakedb.catalog.transaction import lock_queries
from delkalakedb.model.txnlog import Staged

__all__ = ["FOLLOWING", "MOVED", "MOVING", "set_hold"]

MOVING = "moving to "
MOVED = "moved to "


def set_hold(
    catalog: Catalog, name: str, hold: str | None, *, before: str | None
) -> bool:
    """Hold a table, or let it go; False where its hold isn't what it was before."""
    backend = catalog.backend
    with backend.writing() as session:
        if locks := lock_queries(backend, [Staged(name, ())]):
            session.query_many(locks)
        params = {"name": name, "hold": hold, "before": before or ""}
        return bool(session.query("set_hold", params))
