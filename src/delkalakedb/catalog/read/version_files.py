"""The files of a version, from memory or from SQL, and the files vacuum may delete."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog.engine import LISTS, Backend, Listed
from delkalakedb.catalog.read.action_rows import FILES_SCHEMA, add_from_row
from delkalakedb.catalog.read.head import Head
from delkalakedb.catalog.read.retention import check_kept, check_known, while_kept
from delkalakedb.catalog.read.sql_log import load_files
from delkalakedb.model.actions import Add, Cdc, DeletionVector, decode_struct

_R = TypeVar("_R")
# files; a shorter list is loaded as fast as it is derived from another list
_WORTH_COMPARING = 5_000
# bytes; nearly every file with its statistics takes more memory
_LEAST_BYTES = 150


def _listed(backend: Backend, head: Head) -> Listed:
    table = (backend.key, head.table_id, head.created_at_ms, head.metadata.id)
    counted = (head.num_files, head.size_bytes)
    return Listed(table, head.version, head.timestamp_ms, *counted)


def list_files(
    backend: Backend, head: Head, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Stream the live files at a head's version.

    The columns of `schema` are columns of `FILES_SCHEMA`.
    """
    bounds, columns = backend.cache, schema.names
    if bounds is None:
        yield from _loaded(backend, head, schema)
        return
    key = _listed(backend, head)
    files = LISTS.find(key, frozenset(columns))
    if files is None:
        files = _derived(backend, head, key, frozenset(columns))
        if files is not None:
            LISTS.keep(key, files, bounds)
    if files is not None:
        check_known(backend, head)
        yield from files.select(columns).to_batches()
        return
    if "stats" in columns and head.num_files * _LEAST_BYTES > bounds.max_bytes:
        # Too large to be kept in memory, so no other columns are loaded.
        yield from _loaded(backend, head, schema)
        return
    # With the columns that other callers asked for, because one list is kept.
    names = {"file_id", *columns, *LISTS.columns(key)}
    wider = pa.schema([field for field in FILES_SCHEMA if field.name in names])
    pieces, room = [], bounds.max_bytes
    for batch in _loaded(backend, head, wider):
        yield batch.select(columns)
        room -= batch.get_total_buffer_size()
        if room >= 0:
            pieces.append(batch)
        else:
            pieces.clear()
    whole = pa.Table.from_batches(pieces, wider)
    if whole.num_rows == head.num_files:
        LISTS.keep(key, whole, bounds)


def _loaded(
    backend: Backend, head: Head, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in while_kept(backend, head, load_files(backend, head, schema)):
        rows += batch.num_rows
        yield batch
    if rows != head.num_files:
        # The version was the latest when it was opened, and has expired since.
        check_kept(backend, head)


def _derived(
    backend: Backend, head: Head, key: Listed, columns: frozenset[str]
) -> pa.Table | None:
    """Return the list made of an earlier version's list and the changes since.

    Return None if there is no such list, or if loading the whole list is faster.
    """
    found = LISTS.newest_before(key, columns)
    if found is None:
        return None
    earlier, files = found
    if files.num_rows < _WORTH_COMPARING or head.num_files > 2 * files.num_rows:
        return None
    params = {
        "table_id": head.table_id,
        "after": earlier.version,
        "version": head.version,
    }
    statement = backend.naming("files_since", files.schema)
    added = list(backend.batches(statement, params, files.schema))
    with backend.reading() as session:
        gone = session.values("load_files_gone", params)
        # Last, because removes are lost once the earlier version expires.
        times = session.values("load_version_time", params)
    if gone:
        ids = pa.array(gone, pa.int64())
        files = files.filter(pc.invert(pc.is_in(files["file_id"], value_set=ids)))
    files = pa.concat_tables([files, pa.Table.from_batches(added, files.schema)])
    same = times == [earlier.timestamp_ms] and files.num_rows == head.num_files
    return files if same else None


_PATHS = pa.schema([("path", pa.string())])


def load_only_in(backend: Backend, head: Head, other: int) -> list[Add]:
    """Return the add actions at a head's version that version `other` doesn't have."""
    params = {"table_id": head.table_id, "version": head.version, "other": other}
    with backend.reading() as session:
        return session.rows(lambda *row: add_from_row(row), "load_only_in", params)


def _path_of_cdc(version: int, action: str) -> str:
    return decode_struct(action, Cdc).path


def _expired(path: str, size_bytes: int) -> tuple[str, int]:
    return path, size_bytes


def _needed(deletion_vector: str, expired: bool) -> tuple[DeletionVector, bool]:
    return decode_struct(deletion_vector, DeletionVector), not expired


@dataclass(frozen=True, slots=True)
class Upkeep:
    """The files of a table that vacuum must keep or may delete.

    A file is needed if it is live, if a version since `floor` has it, or if its remove
    is younger than `cutoff_ms`.
    """

    backend: Backend
    head: Head
    floor: int
    cutoff_ms: int

    def expired(self) -> dict[str, int]:
        """Return the sizes, by path, of removed files that aren't needed any more."""
        return dict(self._rows(_expired, "load_expired", self._params))

    def vectors(self) -> Iterator[tuple[DeletionVector, bool]]:
        """Yield each deletion vector that is a file, and whether it is needed."""
        yield from self._rows(_needed, "load_vectors", self._params)

    def needed(self) -> Iterator[str]:
        """Yield the paths of the files that are needed, and of change data files."""
        statement = self.backend.statements["load_needed"]
        for batch in self.backend.batches(statement, self._params, _PATHS):
            yield from batch["path"].to_pylist()
        window = {"after": self.floor, "upto": self.head.current_version}
        yield from self._rows(_path_of_cdc, "load_cdc_since", self._params | window)

    @property
    def _params(self) -> dict[str, int]:
        return {
            "table_id": self.head.table_id,
            "floor": self.floor,
            "cutoff_ms": self.cutoff_ms,
        }

    def _rows(
        self, kind: Callable[..., _R], statement: str, params: dict[str, int]
    ) -> list[_R]:
        with self.backend.reading() as session:
            return session.rows(kind, statement, params)
