"""A catalog as applications open it, with what takes more than SQL."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from delkalakedb import catalog
from delkalakedb.model.tables import Table
from delkalakedb.uri import Uri

if TYPE_CHECKING:
    from delkalakedb.table.create import NewSchema

__all__ = ["Catalog", "connect"]


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


def connect(uri: str | Uri, **settings: Any) -> Catalog:
    """Open the catalog that a `deltasql://` URI names.

    Args:
        uri: a URI without a table; one with a table names its catalog.
        settings: sections of the configuration, such as `pool={"size": 10}`.
    """
    return Catalog.of(uri, **settings)
