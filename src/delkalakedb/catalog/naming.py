"""The names of tables in the catalog."""

from delkalakedb.catalog.adopt import hold_mirror
from delkalakedb.catalog.catalog import Catalog
from delkalakedb.catalog.names import check_name
from delkalakedb.catalog.transaction import lock_queries
from delkalakedb.errors import TableExistsError, TableNotFoundError
from delkalakedb.model.txnlog import Staged

__all__ = ["rename_table"]


def rename_table(catalog: Catalog, old: str, new: str) -> None:
    """Give a table another name; its location and its history stay as they are.

    A commit under the old name comes before that, or finds no such table.
    """
    check_name(new)
    backend, params = catalog.backend, {"old": old, "new": new}
    locked = [Staged(old, ()), Staged(new, (), location="")]
    # Nobody publishes meanwhile: commits are loaded by their table's name.
    with hold_mirror(catalog, old), backend.writing() as session:
        if locks := lock_queries(backend, locked):
            session.query_many(locks)
        if session.query("find_table", {"name": new}):
            raise TableExistsError(f"{new}: a table of this name exists already")
        if not session.query("rename_table", params):
            raise TableNotFoundError(f"{old}: the catalog has no such table")
