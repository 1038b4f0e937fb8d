"""The data source `deltasql`, which pyspark finds by this module's name.

Every session looks into it, so it loads nothing before it is used.
"""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

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
    """Tables of a SQL catalog, by their `deltasql://` URIs."""

    # Since the schema was asked for; a DataFrame keeps to one version.
    version: int | None = None

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "deltasql"

    def schema(self) -> "StructType":
        """The columns that are read, as the version that is read has them."""
        from delkalakedb.spark.source import load_schema

        self.version, schema = load_schema(self.options)
        return schema

    def reader(self, schema: "StructType") -> "DataSourceReader":
        """What reads a version."""
        from delkalakedb.spark.source import BatchReader

        return BatchReader(self.options, schema, self.version)

    def writer(self, schema: "StructType", overwrite: bool) -> "DataSourceWriter":
        """What appends rows, or puts them in the place of all others."""
        from delkalakedb.spark.sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    # pyspark's names.
    def streamReader(self, schema: "StructType") -> "DataSourceStreamReader":  # noqa: N802
        """What reads versions as they come."""
        from delkalakedb.spark.streaming import StreamReader

        return StreamReader(self.options, schema, self.version)

    def streamWriter(  # noqa: N802
        self, schema: "StructType", overwrite: bool
    ) -> "DataSourceStreamWriter":
        """What appends the rows of each batch, once."""
        from delkalakedb.spark.sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite)
