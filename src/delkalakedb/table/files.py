"""The files of a version, in deltalake's order: newest commit first."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa

from delkalakedb.catalog import Snapshot
from delkalakedb.errors import DeltaError, PredicateError
from delkalakedb.model.addactions import ADD_ACTION_COLUMNS
from delkalakedb.storage import canonical_location

__all__ = ["Files", "load_files", "local_folder"]

_ORDER = [("added_version", "descending"), ("file_id", "ascending")]


@dataclass(frozen=True)
class Files:
    """Files of a snapshot; the table has at least the `ADD_ACTION_COLUMNS`."""

    snapshot: Snapshot
    table: pa.Table

    @cached_property
    def _decoded(self) -> list[str]:
        # Decoded once: the names that the files have.
        return [unquote(p) if "%" in p else p for p in self.table["path"].to_pylist()]

    def paths(self) -> list[str]:
        """The files' names within the table."""
        return list(self._decoded)

    def uris(self) -> list[str]:
        """Where the files are; for those on a local disk a path."""
        location = canonical_location(self.snapshot.table.location)
        root = local_folder(location) or location
        return [p if "://" in p else f"{root}/{p}" for p in self._decoded]

    def sizes(self) -> dict[str, int]:
        """The files' sizes by name."""
        sizes = self.table["size_bytes"].to_pylist()
        return dict(zip(self._decoded, sizes, strict=True))

    def partitions(self) -> frozenset[frozenset[tuple[str, str | None]]]:
        """The partitions that the files are in, each with its columns' texts."""
        columns = [
            (field.name, field.physical_name)
            for field in self.snapshot.table.schema.fields
            if field.name in self.snapshot.table.partition_columns
        ]
        texts = self.table["partition_values"].unique().to_pylist()
        values = map(msgspec.json.decode, texts)
        return frozenset(
            frozenset((name, each.get(physical) or None) for name, physical in columns)
            for each in values
        )


def local_folder(location: str) -> str | None:
    """The folder of a location on a local disk."""
    parts = urlsplit(canonical_location(location))
    return unquote(parts.path) if parts.scheme == "file" else None


def load_files(snapshot: Snapshot, predicate: Any = None) -> Files:
    """The files, or those that may hold a row that matches."""
    try:
        table = snapshot.files(predicate).read_all()
    except PredicateError as error:
        # What deltalake raises for a filter that can't be.
        raise DeltaError(f"{snapshot.table.name}: {error}") from error
    keys = [name for name, _ in _ORDER]
    table = table.select([*ADD_ACTION_COLUMNS, *keys]).combine_chunks()
    return Files(snapshot, table.sort_by(_ORDER))
