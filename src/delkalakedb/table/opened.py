"""The catalogs that URIs name, opened once."""

from delkalakedb.catalog import Catalog, connect
from delkalakedb.catalog.backend import load_backend
from delkalakedb.uri import Uri

__all__ = ["open_catalog"]

_opened: dict[tuple[Uri, tuple[object, ...]], Catalog] = {}


def open_catalog(uri: Uri) -> Catalog:
    """The catalog of a URI, the same one for everybody in the process."""
    # A relative path names another database in another working directory.
    key = uri.catalog, load_backend(uri.engine).identity(uri.catalog)
    catalog = _opened.get(key)
    if catalog is not None and (catalog.closed or catalog.backend.is_gone()):
        _opened.pop(key, None)
        catalog.close()
        catalog = None
    if catalog is None:
        made = connect(uri.catalog)
        catalog = _opened.setdefault(key, made)
        if catalog is not made:
            made.close()
    return catalog
