"""A catalog as applications open it, with what takes more than SQL."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Unpack

from delkalakedb import catalog
from delkalakedb.catalog.registry import close_all
from delkalakedb.model.tables import Table
from delkalakedb.uri import Uri

if TYPE_CHECKING:
    from delkalakedb.config import Settings
    from delkalakedb.migrate import Dropped
    from delkalakedb.settings import SettingsDict
    from delkalakedb.table.create import NewSchema

__all__ = ["Catalog", "close", "connect"]


class Catalog(catalog.Catalog):
    """The tables of one SQL database; a context manager that closes its pool."""

    def create_table(
        self,
        name: str,
        schema: "NewSchema",
        *,
        location: str | None = None,
        partition_by: Sequence[str] | str | None = None,
        configuration: Mapping[str, str | None] | None = None,
        description: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Table:
        """Create a table without rows, and publish it.

        Args:
            name: the table's name in the catalog.
            schema: a deltalake `Schema`, an Arrow schema, or Delta's schema as JSON.
            location: the folder of its files; a folder of this name below the
                catalog's data path by default.
            partition_by: the columns that it is partitioned by.
            configuration: its table properties.
            description: its description.
            storage_options: of its object store.
        """
        # Only this needs deltalake, which takes a while to import.
        from delkalakedb.table.create import create_table

        return create_table(
            self,
            name,
            schema,
            location=location,
            partition_by=partition_by,
            configuration=configuration,
            description=description,
            storage_options=storage_options,
        )

    def rename_table(self, old: str, new: str) -> None:
        """Give a table another name; its location and its history stay as they are.

        Who commits under the old name after that is told that there is no such table.
        """
        from delkalakedb.catalog.naming import rename_table

        rename_table(self, old, new)

    def drop_table(
        self,
        name: str,
        *,
        with_data: bool = False,
        force: bool = False,
        storage_options: Mapping[str, str] | None = None,
        progress: Callable[[int, int], None] = lambda done, total: None,
    ) -> "Dropped":
        """Forget a table; its files stay as a plain Delta table, unless told.

        Args:
            name: the table.
            with_data: delete all that lies below its location, too.
            force: forget it even if versions of it can't be published; they are lost.
            storage_options: of its object store.
            progress: called with the number of files deleted so far, and of all.
        """
        from delkalakedb.migrate import drop_table

        return drop_table(
            self,
            name,
            with_data=with_data,
            force=force,
            storage_options=storage_options,
            progress=progress,
        )


def connect(
    uri: str | Uri,
    settings: "Settings | SettingsDict | None" = None,
    **sections: Unpack["SettingsDict"],
) -> Catalog:
    """Open the catalog that a `deltasql://` URI names.

    A catalog that isn't there yet is made by its first write, or by `init`.

    Args:
        uri: a URI without a table; one with a table names its catalog.
        settings: a `Settings`, of which counts what was set in it.
        sections: sections of the configuration, such as `pool={"size": 10}` or
            `pool=PoolSettings(size=10)`; they come before `settings`.
    """
    return Catalog.of(uri, settings, **sections)


def close() -> None:
    """End all connections of the process; the catalogs that are open are closed.

    Connections that another thread uses end when it is done. What is to be published
    in the background is published first, within a bounded time. A database in memory
    stays. Whoever connects again, or names a table by its URI, gets new connections.
    """
    if (background := sys.modules.get("delkalakedb.mirror.background")) is not None:
        background.drain()
    close_all()
