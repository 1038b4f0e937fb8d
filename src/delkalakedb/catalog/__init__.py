"""The catalog: SQL as the source of truth."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.catalog.cards import answered as answered
    from delkalakedb.catalog.catalog import *
    from delkalakedb.catalog.file_list import *
    from delkalakedb.catalog.pending_snapshot import *
    from delkalakedb.catalog.snapshot import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "catalog": (
                "Catalog CatalogOrUri NamedTable connect find_table name_in "
                "open_catalog summary uri_of using_catalog using_table"
            ),
            "file_list": (
                "Files has_odd_paths has_vectors load_files may_have_vectors"
            ),
            "pending_snapshot": "PendingSnapshot new_table",
            "cards": "answered",
            "snapshot": "Filter Snapshot described html_of",
        },
    )
