"""Object stores, and the Delta logs that are kept in them."""

from delkalakedb.storage.filelog import FileTxnLogReader
from delkalakedb.storage.store import (
    ObjectMeta,
    ObjectNotFoundError,
    Store,
    canonical_location,
    open_store,
)

__all__ = [
    "FileTxnLogReader",
    "ObjectMeta",
    "ObjectNotFoundError",
    "Store",
    "canonical_location",
    "open_store",
]
