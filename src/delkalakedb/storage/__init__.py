"""Object stores: the files of one table's location, and in `log/` its Delta log."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.storage.base import *
    from delkalakedb.storage.local import sync_path as sync_path
    from delkalakedb.storage.location import *
    from delkalakedb.storage.log import FileTxnLogReader as FileTxnLogReader
    from delkalakedb.storage.store import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "base": (
                "ObjectMeta ObjectNotFoundError Readable Store is_of_store "
                "lacks_place plain_words"
            ),
            "local": "sync_path",
            "location": (
                "canonical_location file_places file_uris local_folder real_location "
                "resolve_readable"
            ),
            "log": "FileTxnLogReader",
            "store": "delete_counted is_secret open_store",
        },
    )
