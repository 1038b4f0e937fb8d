"""The stand-in for deltalake's `RawDeltaTable` that answers from SQL."""

from collections.abc import Mapping
from functools import reduce
from operator import and_
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.dataset as ds

from delkalakedb.catalog import Catalog, Snapshot
from delkalakedb.model.actions import known
from delkalakedb.model.partition import parse_partition_value
from delkalakedb.table.writes import SqlRawWrites

__all__ = ["SqlRawTable"]


class SqlRawTable(SqlRawWrites):
    """A handle on one version of a table; loading moves it."""

    def __init__(
        self,
        catalog: Catalog,
        name: str,
        version: int | None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._catalog = catalog
        self._name = name
        self._storage_options = storage_options
        self._snapshot: Snapshot = catalog.snapshot(name, version)

    def table_uri(self) -> str:
        """The storage location."""
        return f"{self._snapshot.table.location}/"

    def version(self) -> int:
        """The loaded version."""
        return self._snapshot.version

    def get_latest_version(self) -> int:
        """The newest version."""
        return self._catalog.log(self._name).latest_version()

    def load_version(self, version: int) -> None:
        """Move to a version."""
        self._snapshot = self._catalog.snapshot(self._name, version)

    def update_incremental(self) -> None:
        """Move to the newest version."""
        self._snapshot = self._catalog.snapshot(self._name)

    @property
    def schema(self) -> deltalake.Schema:
        """The loaded version's schema."""
        return deltalake.Schema.from_json(self._snapshot.metadata.schema_string)

    def metadata(self) -> Any:
        """The loaded version's metadata."""
        metadata = self._snapshot.metadata
        return SimpleNamespace(
            id=metadata.id,
            name=known(metadata.name),
            description=known(metadata.description),
            partition_columns=metadata.partition_columns,
            created_time=known(metadata.created_time),
            configuration=known(metadata.configuration) or {},
        )

    def protocol_versions(self) -> tuple[int, int, list[str] | None, list[str] | None]:
        """Reader and writer version, writer features, reader features."""
        protocol = self._snapshot.protocol
        return (
            protocol.min_reader_version,
            protocol.min_writer_version,
            known(protocol.writer_features) or None,
            known(protocol.reader_features) or None,
        )

    def history(self, limit: int | None = None) -> tuple[int, list[str]]:
        """The loaded version, and commitInfo as JSON, newest first."""
        commits = self._snapshot.history(limit)
        infos = [msgspec.json.encode(c.commit_info).decode() for c in commits]
        return self.version(), infos

    def file_uris(self, predicate: Any = None) -> list[str]:
        """Where the files are."""
        return [self.table_uri() + path for path in self._paths(predicate)]

    def get_add_file_sizes(self) -> dict[str, int]:
        """The size of each file."""
        files = self._files()
        paths = map(unquote, files["path"].to_pylist())
        return dict(zip(paths, files["size_bytes"].to_pylist(), strict=True))

    def dataset_partitions(
        self, schema: pa.Schema, predicate: Any = None
    ) -> list[tuple[str, Any]]:
        """The files for a pyarrow dataset, each with its partition's values."""
        table = self._snapshot.table
        types = {field.name: field.type for field in table.schema.fields}
        columns = [
            (name, types[name], schema.field(name).type)
            for name in table.partition_columns
        ]
        files = self._files(predicate)
        return [
            (unquote(path), _partition(msgspec.json.decode(values), columns))
            for path, values in zip(
                files["path"].to_pylist(),
                files["partition_values"].to_pylist(),
                strict=True,
            )
        ]

    def _paths(self, predicate: Any) -> list[str]:
        return [unquote(path) for path in self._files(predicate)["path"].to_pylist()]

    def _files(self, predicate: Any = None) -> pa.Table:
        return self._snapshot.files(predicate).read_all()


def _partition(
    values: dict[str, str | None], columns: list[tuple[str, str, pa.DataType]]
) -> ds.Expression | None:
    """The condition that a file's rows meet, from which their values are read."""
    conditions = []
    for name, kind, arrow_type in columns:
        value = parse_partition_value(values.get(name), kind)
        column = ds.field(name)
        conditions.append(
            column.is_null()
            if value is None
            else column == pa.scalar(value, arrow_type)
        )
    return reduce(and_, conditions) if conditions else None
