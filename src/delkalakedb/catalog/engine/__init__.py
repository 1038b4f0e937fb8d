"""Database engines: connections, pools, statements, migrations."""

from typing import TYPE_CHECKING

from delkalakedb.doors import door

if TYPE_CHECKING:
    from delkalakedb.catalog.engine.backend import *
    from delkalakedb.catalog.engine.cache import *
    from delkalakedb.catalog.engine.events import *
    from delkalakedb.catalog.engine.migrations import *
    from delkalakedb.catalog.engine.pool import *
    from delkalakedb.catalog.engine.statements import *
else:
    __getattr__, __dir__ = door(
        __name__,
        {
            "backend": (
                "Actor Backend CLIENT Insert Query Restore Row Run Session UndoneError "
                "Write check_schema_version columns_to_batch listed load_backend "
                "no_catalog unreachable"
            ),
            "cache": "CacheInfo LISTS Listed cache_info",
            "events": "actor_of event note_event",
            "migrations": (
                "catalog_tables ensure_schema find_schema_version "
                "latest_schema_version load_schema_version migrate"
            ),
            "pool": "Share close_all using_backend",
            "statements": "CommitRow FileRow HeadRow PublishedRow TableRow",
        },
    )
