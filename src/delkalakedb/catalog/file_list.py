"""Lists of a version's files, in deltalake's order: newest commit first."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog.snapshot import Snapshot
from delkalakedb.errors import DeltaError, PredicateError
from delkalakedb.model.actions import DeletionVector, decode_struct, known
from delkalakedb.model.paths import ODD_PATH, Inside, Outside
from delkalakedb.model.rules.features import DELETION_VECTORS
from delkalakedb.model.stats.add_actions import ADD_ACTION_COLUMNS
from delkalakedb.model.vectors import vector_paths
from delkalakedb.storage import file_places, file_uris, resolve_readable

_ORDER = [("added_version", "descending"), ("file_id", "ascending")]
_KEYS = [name for name, _ in _ORDER]
# rows; from this average length on, slices are better than one copy of all rows
_RUN_ROWS = 1_000


@dataclass(frozen=True)
class Files:
    """Files of a snapshot, as a table with some columns of `FILES_SCHEMA`."""

    snapshot: Snapshot
    table: pa.Table

    @cached_property
    def _resolved(self) -> Sequence[str | Outside]:
        """The literal paths below the location, or places outside the location."""
        paths = self.table["path"]
        texts: list[str] = paths.to_pylist()
        if pc.any(pc.match_substring_regex(paths, ODD_PATH)).as_py():
            return file_places(texts, self.snapshot.table.location)
        return texts

    @cached_property
    def outside(self) -> bool:
        """Whether some files are outside the location, as files of a clone are."""
        return any(isinstance(place, Outside) for place in self._resolved)

    def paths(self) -> list[str]:
        """Return the paths of the files below the location, and URLs of other files."""
        return [p if isinstance(p, str) else p.url for p in self._resolved]

    def uris(self) -> list[str]:
        """Return the URIs of the files; a path for a file on a local disk."""
        return file_uris(self.snapshot.table.location, self._resolved)

    def sizes(self) -> dict[str, int]:
        """Return the sizes of the files by path."""
        sizes = self.table["size_bytes"].to_pylist()
        return dict(zip(self.paths(), sizes, strict=True))

    def partitions(self) -> frozenset[frozenset[tuple[str, str | None]]]:
        """Return the partitions of the files, each as pairs of a column and a text."""
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
    """Return whether the log names a file by another path than its literal one."""
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
    """Return whether the table's protocol allows deletion vectors."""
    return DELETION_VECTORS in (known(snapshot.protocol.reader_features) or ())


def has_vectors(snapshot: Snapshot) -> bool:
    """Return whether some file has a deletion vector."""
    if not may_have_vectors(snapshot):
        return False
    batches = snapshot.files(columns=["deletion_vector"])
    return any(b["deletion_vector"].null_count < len(b) for b in batches)


def load_files(
    snapshot: Snapshot,
    predicate: Any = None,
    columns: Sequence[str] = ADD_ACTION_COLUMNS,
) -> Files:
    """Return the files, or the files that may hold a row that matches `predicate`."""
    try:
        table = snapshot.files(predicate, columns=[*columns, *_KEYS]).read_all()
    except PredicateError as error:
        # deltalake's error for an invalid filter
        raise DeltaError(f"{snapshot.table.name}: {error}") from error
    return Files(snapshot, _in_order(table))


def _in_order(table: pa.Table) -> pa.Table:
    """Return `table` sorted by `_ORDER`, without a copy if its runs are long."""
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
