"""Object stores, and the Delta logs that are kept in them."""

from importlib import import_module
from typing import TYPE_CHECKING

from delkalakedb.storage.location import canonical_location, local_folder

if TYPE_CHECKING:
    from delkalakedb.storage.filelog import FileTxnLogReader
    from delkalakedb.storage.store import (
        ObjectMeta,
        ObjectNotFoundError,
        Store,
        open_store,
    )

__all__ = [
    "FileTxnLogReader",
    "ObjectMeta",
    "ObjectNotFoundError",
    "Store",
    "canonical_location",
    "local_folder",
    "open_store",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        # Loaded on first use: a location needs none of what stores and logs import.
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = "filelog" if name == "FileTxnLogReader" else "store"
        globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
        return globals()[name]
