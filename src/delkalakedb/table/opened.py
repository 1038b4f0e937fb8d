"""The catalogs that URIs name, opened once."""

from functools import cache

from delkalakedb.catalog import Catalog, connect
from delkalakedb.catalog.backend import load_backend
from delkalakedb.uri import Uri

__all__ = ["open_catalog"]


def open_catalog(uri: Uri) -> Catalog:
    """The catalog of a URI, the same one for everybody in the process."""
    # A relative path names another database in another working directory.
    return _opened(uri.catalog, load_backend(uri.engine).identity(uri.catalog))


@cache
def _opened(uri: Uri, identity: tuple[object, ...]) -> Catalog:
    return connect(uri)
