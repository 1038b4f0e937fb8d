"""A table of ours and one of plain deltalake's, to which the same is done."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake

import delkalakedb as dk
from delkalakedb.settings.uri import format_uri, parse_uri


class Twins:
    """Two tables that must hold the same rows after each operation."""

    def __init__(self, catalog_uri: str, folder: Path, name: str = "t") -> None:
        self.uri = format_uri(parse_uri(catalog_uri).with_table(name))
        self.path = str(folder / "plain")

    @property
    def ours(self) -> dk.DeltaTable:
        """Our table, newly opened."""
        return dk.DeltaTable(self.uri)

    @property
    def plain(self) -> deltalake.DeltaTable:
        """deltalake's, newly opened."""
        return deltalake.DeltaTable(self.path)

    def write(self, data: Any, **options: Any) -> None:
        """Write the same to both."""
        dk.write_deltalake(self.uri, data, **options)
        deltalake.write_deltalake(self.path, data, **options)
        self.check()

    def do(self, operation: Callable[[deltalake.DeltaTable], Any]) -> tuple[Any, Any]:
        """Do the same to both; what each returned."""
        results = operation(self.ours), operation(self.plain)
        self.check()
        return results

    def check(self) -> None:
        """Compare rows, schema and version, ours by SQL and by the log."""
        ours, plain = self.ours, self.plain
        mirror = deltalake.DeltaTable(ours.table_uri)
        assert ours.version() == mirror.version() == plain.version()
        assert ours.schema() == mirror.schema() == plain.schema()
        assert rows(ours) == rows(mirror) == rows(plain)
        report = dk.verify(self.uri, deep=True)
        assert report.ok, report


def rows(table: deltalake.DeltaTable) -> list[str]:
    """The rows in an order that depends on nothing but them."""
    return sorted(map(repr, table.to_pyarrow_table().to_pylist()))
