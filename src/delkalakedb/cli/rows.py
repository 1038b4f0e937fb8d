"""Rows of tables as commands show them."""

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from delkalakedb.cli.app import App

if TYPE_CHECKING:
    from delkalakedb import Catalog
    from delkalakedb.table.select import Selected

__all__ = ["plain", "show_query"]


def show_query(
    app: App, catalog: "Catalog", sql: str, *, limit: int | None = None
) -> int:
    """Write the rows of a query as they come; how many there were."""
    from delkalakedb.table.select import select

    with select(catalog, sql, limit=limit) as found:
        rows = _Counted(found)
        app.output.rows(rows, found.schema.names)
    return rows.number


class _Counted:
    """Rows that are counted as they go by."""

    def __init__(self, found: "Selected") -> None:
        self._found = found
        self.number = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self._found.batches:
            for row in batch.to_pylist():
                self.number += 1
                yield plain(row)


def plain(value: Any) -> Any:
    """A value as JSON has it, as far as that has a form for it."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Decimal) and value.as_tuple().exponent == 0:
        return int(value)
    return value
