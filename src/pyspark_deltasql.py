"""The data source `deltasql`, which pyspark discovers by the name of this module.

Every Spark session imports this module, so it imports the package only on use.
"""

from typing import TYPE_CHECKING

try:
    from pyspark.sql.datasource import DataSource
except ImportError as error:
    raise ImportError(
        'format("deltasql") needs pyspark 4.0 or newer; with an older one, use '
        "delkalakedb.spark.read, write and foreach_batch"
    ) from error

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """The data source of tables in a SQL catalog, by their `deltasql://` URIs."""

    # set by schema(), because a DataFrame stays at one version
    version: int | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "deltasql"

    def schema(self) -> "StructType":
        """Return the columns to read, and fix the version to read."""
        from delkalakedb.spark.reader import load_schema

        self.version, schema = load_schema(self.options)
        return schema

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """Return the reader of one version."""
        from delkalakedb.spark.reader import BatchReader

        return BatchReader(self.options, schema, self.version)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        """Return the writer that appends rows or overwrites the table."""
        from delkalakedb.spark.writer import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    # The method names are pyspark's.
    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802
        """Return the reader of new versions."""
        from delkalakedb.spark import StreamReader

        return StreamReader(self.options, schema, self.version)

    def streamWriter(  # noqa: N802
        self, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        """Return the writer that appends each batch of a stream once."""
        from delkalakedb.spark.writer import StreamWriter

        return StreamWriter(self.options, schema, overwrite)
