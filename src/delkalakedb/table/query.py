"""SQL over tables, of the catalog or not, with deltalake's built-in DataFusion."""

from typing import Any

import deltalake
from arro3.core import RecordBatchReader

from delkalakedb.table.reads import is_ours
from delkalakedb.table.real import Real
from delkalakedb.workspace.deltars import check_delta_rs

__all__ = ["QueryBuilder"]


class QueryBuilder(deltalake.QueryBuilder):
    """deltalake's `QueryBuilder`, to which tables of the catalog can be given, too."""

    def __init__(self, session_config: dict[str, str] | None = None) -> None:
        super().__init__(session_config)
        self._reals: list[Real] = []

    def register(
        self, table_name: str, delta_table: deltalake.DeltaTable
    ) -> "QueryBuilder":
        """Make a table known to queries by a name, at the version it has now."""
        raw: Any = delta_table._table
        if is_ours(raw):
            self._reals.append(raw.real())
            raw = self._reals[-1].raw
        self._query_builder.register(table_name=table_name, delta_table=raw)
        return self

    def execute(self, sql: str) -> RecordBatchReader:
        """Run a query; its rows are computed as they are read."""
        check_delta_rs("the query")
        reader = super().execute(sql)
        for real in self._reals:
            reader = real.keeping(reader)
        return reader
