"""New names of tables."""

from delkalakedb.catalog.catalog import Catalog
from delkalakedb.catalog.engine import event
from delkalakedb.catalog.load import hold_mirror, locked
from delkalakedb.catalog.read import check_name, no_such_table
from delkalakedb.errors import TableExistsError
from delkalakedb.model.log import Staged


def rename_table(catalog: Catalog, old: str, new: str) -> None:
    """Give a table another name; its location and its history stay.

    A concurrent commit to the old name either comes before the change or fails with
    `TableNotFoundError`.
    """
    check_name(new)
    both = Staged(old, ()), Staged(new, (), location="")
    # With the lease, because a publisher loads commits by the name of their table.
    with hold_mirror(catalog, old), locked(catalog, *both) as session:
        if session.query("find_table", {"name": new}):
            raise TableExistsError(f"{new}: a table of this name exists already")
        if not session.query("rename_table", {"old": old, "new": new}):
            raise no_such_table(old, session)
        session.apply([event("rename", new, detail=f"from {old}")])
