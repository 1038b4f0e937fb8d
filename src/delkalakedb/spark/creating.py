"""Building a table, in the shape of delta-spark's `DeltaTableBuilder`."""

# ruff: noqa: N802, N803 - delta-spark's names

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Self, TypeVar

from pyspark.sql.types import DataType, StructField, StructType

from delkalakedb.errors import DeltaError, ProtocolError
from delkalakedb.spark.handles import InCatalog
from delkalakedb.table import DeltaTable as Face
from delkalakedb.table.create import parse_new_schema
from delkalakedb.uri import Uri, format_uri, is_deltasql, parse_uri, require_table

__all__ = ["DeltaTableBuilder"]

T = TypeVar("T")
_GENERATED = "delta.generationExpression"


class DeltaTableBuilder(Generic[T]):
    """What a table to create looks like; `execute` creates it.

    Args:
        mode: what to do where there is a table.
        uri: the table's, or its catalog's.
        opened: opens the table that was made.
        storage_options: of the table's store.
    """

    def __init__(
        self,
        mode: str,
        uri: str | None,
        opened: Callable[[str, Mapping[str, str] | None], T],
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._mode = mode
        self._uri = None if uri is None else parse_uri(uri)
        self._opened = opened
        self._storage_options = storage_options
        self._location: str | None = None
        self._comment: str | None = None
        self._fields: list[StructField] = []
        self._partitions: list[str] = []
        self._properties: dict[str, str | None] = {}

    def tableName(self, identifier: str) -> Self:
        """The table's name in the catalog, or its `deltasql://` URI."""
        if is_deltasql(identifier):
            self._uri = parse_uri(identifier)
        elif self._uri is None:
            raise DeltaError(
                f"{identifier}: in which catalog? Give its URI to create(), or a "
                "deltasql:// URI with the table to tableName()"
            )
        else:
            self._uri = self._uri.with_table(identifier)
        return self

    def location(self, location: str) -> Self:
        """Where the table's files go."""
        self._location = location
        return self

    def comment(self, comment: str) -> Self:
        """The table's description."""
        self._comment = comment
        return self

    def addColumn(
        self,
        colName: str,
        dataType: str | DataType,
        nullable: bool = True,
        generatedAlwaysAs: str | None = None,
        generatedByDefaultAs: Any = None,
        comment: str | None = None,
    ) -> Self:
        """One more column; `generatedAlwaysAs` is the expression of its values."""
        if generatedByDefaultAs is not None or not isinstance(
            generatedAlwaysAs, str | None
        ):
            raise ProtocolError(f"{colName}: identity columns can't be written here")
        kind = DataType.fromDDL(dataType) if isinstance(dataType, str) else dataType
        said = {"comment": comment, _GENERATED: generatedAlwaysAs}
        metadata = {key: value for key, value in said.items() if value is not None}
        self._fields.append(StructField(colName, kind, nullable, metadata))
        return self

    def addColumns(self, cols: StructType | Sequence[StructField]) -> Self:
        """More columns."""
        self._fields += list(cols)
        return self

    def partitionedBy(self, *cols: str | Sequence[str]) -> Self:
        """The columns that the table is partitioned by."""
        self._partitions = _names(cols)
        return self

    def clusterBy(self, *cols: str | Sequence[str]) -> Self:
        """Refused: nothing here keeps a table clustered."""
        raise ProtocolError(
            "clusterBy: clustered tables can't be created here; use partitionedBy, or "
            "optimize().executeZOrderBy() from time to time"
        )

    def property(self, key: str, value: str) -> Self:
        """A table property."""
        self._properties[key] = value
        return self

    def execute(self) -> T:
        """Create the table."""
        if self._uri is None:
            raise DeltaError("a table to create needs a name: call tableName() first")
        require_table(self._uri)
        if self._mode == "replace":
            InCatalog(self._uri).snapshot()
        mode: Any = "overwrite" if self._mode == "replace" else self._mode
        uri = format_uri(self._located(self._uri))
        Face.create(
            uri,
            parse_new_schema(StructType(self._fields).json()),
            mode=mode,
            partition_by=self._partitions,
            description=self._comment,
            configuration=self._properties,
            storage_options=dict(self._storage_options or {}) or None,
        )
        return self._opened(format_uri(self._uri), self._storage_options)

    def _located(self, uri: Uri) -> Uri:
        if self._location is None:
            return uri
        others = [option for option in uri.options if option[0] != "location"]
        return replace(uri, options=(*others, ("location", self._location)))


def _names(cols: Sequence[str | Sequence[str]]) -> list[str]:
    return [n for col in cols for n in ([col] if isinstance(col, str) else col)]
