"""The files of a version, in deltalake's order: newest commit first."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog import Snapshot
from delkalakedb.errors import DeltaError, PredicateError
from delkalakedb.model.actions import DeletionVector, known
from delkalakedb.model.addactions import ADD_ACTION_COLUMNS
from delkalakedb.model.codec import decode_struct
from delkalakedb.model.paths import ODD_PATH, Inside, Outside, vector_paths
from delkalakedb.storage import local_folder
from delkalakedb.table.reads import file_places, file_uris, resolve_readable

__all__ = [
    "Files",
    "has_odd_paths",
    "has_vectors",
    "load_files",
    "local_folder",
    "may_have_vectors",
    "resolve_readable",
]

_ORDER = [("added_version", "descending"), ("file_id", "ascending")]
_KEYS = [name for name, _ in _ORDER]
# On average, where runs are worth more than one piece of memory for all.
_RUN_ROWS = 1_000


@dataclass(frozen=True)
class Files:
    """Files of a snapshot, with the columns that were asked for."""

    snapshot: Snapshot
    table: pa.Table

    @cached_property
    def _resolved(self) -> Sequence[str | Outside]:
        """The files' literal paths below the location, or where else they are."""
        paths = self.table["path"]
        texts: list[str] = paths.to_pylist()
        if pc.any(pc.match_substring_regex(paths, ODD_PATH)).as_py():
            return file_places(texts, self.snapshot.table.location)
        return texts

    @cached_property
    def outside(self) -> bool:
        """Whether some of the files lie outside the location, as a clone's do."""
        return any(isinstance(place, Outside) for place in self._resolved)

    def paths(self) -> list[str]:
        """The files' names within the table; URLs of those outside."""
        return [p if isinstance(p, str) else p.url for p in self._resolved]

    def uris(self) -> list[str]:
        """Where the files are; for those on a local disk a path."""
        return file_uris(self.snapshot.table.location, self._resolved)

    def sizes(self) -> dict[str, int]:
        """The files' sizes by name."""
        sizes = self.table["size_bytes"].to_pylist()
        return dict(zip(self.paths(), sizes, strict=True))

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


def has_odd_paths(snapshot: Snapshot) -> bool:
    """Whether some file is named in the log by another path than its literal one."""
    vectors = ["deletion_vector"] if may_have_vectors(snapshot) else []
    odd = False
    for batch in snapshot.files(columns=["path", *vectors]):
        paths = batch["path"]
        found = paths.filter(pc.match_substring_regex(paths, ODD_PATH)).to_pylist()
        for text in batch["deletion_vector"].drop_null().to_pylist() if vectors else ():
            found += vector_paths(decode_struct(text, DeletionVector))
        for path in found:
            place = resolve_readable(path, snapshot.table.location)
            odd |= place != Inside(unquote(path, errors="surrogateescape"))
    return odd


def may_have_vectors(snapshot: Snapshot) -> bool:
    """Whether the table's files may have deletion vectors."""
    return "deletionVectors" in (known(snapshot.protocol.reader_features) or ())


def has_vectors(snapshot: Snapshot) -> bool:
    """Whether rows of some file are deleted by a vector."""
    if not may_have_vectors(snapshot):
        return False
    batches = snapshot.files(columns=["deletion_vector"])
    return any(b["deletion_vector"].null_count < len(b) for b in batches)


def load_files(
    snapshot: Snapshot,
    predicate: Any = None,
    columns: Sequence[str] = ADD_ACTION_COLUMNS,
) -> Files:
    """The files, or those that may hold a row that matches."""
    try:
        table = snapshot.files(predicate, columns=[*columns, *_KEYS]).read_all()
    except PredicateError as error:
        # What deltalake raises for a filter that can't be.
        raise DeltaError(f"{snapshot.table.name}: {error}") from error
    return Files(snapshot, _in_order(table))


def _in_order(table: pa.Table) -> pa.Table:
    """The rows in order; those of long runs, such as commits, aren't copied."""
    if table.num_rows < _RUN_ROWS:
        return table.combine_chunks().sort_by(_ORDER)
    order = pc.sort_indices(table.select(_KEYS), _ORDER).cast(pa.int64())
    breaks = pc.not_equal(pc.pairwise_diff(order), 1).fill_null(True)
    starts = pc.indices_nonzero(breaks).to_pylist()
    if len(starts) * _RUN_ROWS > len(order):
        return table.combine_chunks().take(order)
    runs = zip(starts, [*starts[1:], len(order)], strict=True)
    return pa.concat_tables(
        [table.slice(order[start].as_py(), end - start) for start, end in runs]
    )
