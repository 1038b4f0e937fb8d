"""The names of tables in the catalog."""

from delkalakedb.catalog.adopt import hold_mirror
from delkalakedb.catalog.backend import load_backend
from delkalakedb.catalog.catalog import Catalog
from delkalakedb.catalog.names import check_name, no_such_table
from delkalakedb.catalog.transaction import lock_queries
from delkalakedb.errors import TableExistsError, TransactionError
from delkalakedb.model.txnlog import Staged
from delkalakedb.uri import Uri, is_deltasql, parse_uri, require_table

__all__ = ["name_in", "rename_table"]


def name_in(catalog: Catalog, table: str) -> tuple[str, str | None]:
    """Return the name and the location that a name, or a URI of this catalog, gives."""
    if not is_deltasql(table):
        return table, None
    uri = parse_uri(table)
    if not _is_of(catalog, uri):
        raise TransactionError(
            f"{uri} is of another catalog; this transaction is of {catalog.uri}"
        )
    return require_table(uri), uri.location


def _is_of(catalog: Catalog, uri: Uri) -> bool:
    """Return whether a URI is of this catalog, whoever connects and how."""
    if uri.engine != catalog.uri.engine:
        return False
    if uri.host is None:
        # as it was when the catalog was opened: the working directory may have changed
        (path,) = load_backend(uri.engine).identity(uri)
        return path in catalog.backend.key
    return _place(uri) == _place(catalog.uri)


def _place(uri: Uri) -> tuple[object, ...]:
    return uri.host, uri.port, uri.database, uri.schema


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
            raise no_such_table(old)
