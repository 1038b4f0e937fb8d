"""The names of tables: of a URI, and changed."""

from delkalakedb.catalog.catalog import Catalog
from delkalakedb.catalog.engine import event, load_backend
from delkalakedb.catalog.load import hold_mirror, locked
from delkalakedb.catalog.read import check_name, no_such_table
from delkalakedb.errors import TableExistsError, TransactionError
from delkalakedb.model.log import Staged
from delkalakedb.settings import Uri, is_deltasql, parse_uri, require_table


def name_in(catalog: Catalog, table: str) -> tuple[str, str | None]:
    """Return the name and the location in `table`, a name or a URI of this catalog."""
    if not is_deltasql(table):
        return table, None
    uri = parse_uri(table)
    if not _is_of(catalog, uri):
        raise TransactionError(
            f"{uri} is of another catalog; this transaction is of {catalog.uri}"
        )
    return require_table(uri), uri.location


def _is_of(catalog: Catalog, uri: Uri) -> bool:
    """Return whether a URI is of this catalog, with any user and options."""
    if uri.engine != catalog.uri.engine:
        return False
    if uri.host is None:
        # the path as it was opened, because the working directory may have changed
        (path,) = load_backend(uri.engine).identity(uri)
        return path in catalog.backend.key
    return _place(uri) == _place(catalog.uri)


def _place(uri: Uri) -> tuple[object, ...]:
    return uri.host, uri.port, uri.database, uri.schema


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
            raise no_such_table(old)
        session.apply([event("rename", new, detail=f"from {old}")])
