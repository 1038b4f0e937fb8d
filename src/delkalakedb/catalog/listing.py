"""The files of a version, from memory as far as they are there.

A list that isn't is made from an earlier version's and what changed since, or loaded;
it is kept on the way if it fits. Whoever asks has loaded the head, so that a version
that expired or a table that was made anew isn't mistaken for what is kept.
"""

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog.backend import Backend
from delkalakedb.catalog.cache import LISTS, Listed
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.reader import load_files
from delkalakedb.catalog.retention import check_kept, check_known, while_kept
from delkalakedb.catalog.rows import FILES_SCHEMA

__all__ = ["list_files"]

# A list as short as this is loaded as quickly as it is compared.
_WORTH_COMPARING = 5_000
# What a file with its statistics takes at least, nearly always.
_LEAST_BYTES = 150


def list_files(
    backend: Backend, head: Head, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The live files at a head's version; `schema` has columns of `FILES_SCHEMA`."""
    bounds, columns = backend.cache, schema.names
    if bounds is None:
        yield from _loaded(backend, head, schema)
        return
    key = Listed.of(backend, head)
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
        # It won't be kept, and needs no more columns for that.
        yield from _loaded(backend, head, schema)
        return
    # Those of other callers, too: they would drive out each other.
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
        # It was the latest when it was opened, and has expired since.
        check_kept(backend, head)


def _derived(
    backend: Backend, head: Head, key: Listed, columns: frozenset[str]
) -> pa.Table | None:
    """The list as an earlier one and the changes since give it, if they do."""
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
        gone = session.query("load_files_gone", params)
        # Asked last: what has expired by then may have been missed.
        times = session.query("load_version_time", params)
    if gone:
        ids = pa.array([file_id for (file_id,) in gone], pa.int64())
        files = files.filter(pc.invert(pc.is_in(files["file_id"], value_set=ids)))
    files = pa.concat_tables([files, pa.Table.from_batches(added, files.schema)])
    same = times == [(earlier.timestamp_ms,)] and files.num_rows == head.num_files
    return files if same else None
