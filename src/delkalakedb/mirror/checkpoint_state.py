"""What a checkpoint holds, from the catalog: the files streamed, the rest whole."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.reader import load_files, load_tombstones
from delkalakedb.catalog.rows import FILES_SCHEMA
from delkalakedb.mirror.checkpoint_rows import FILE_COLUMNS, Layout, rows
from delkalakedb.model.actions import Action, Txn, known
from delkalakedb.model.properties import parse_properties
from delkalakedb.model.retention import tombstone_cutoff_ms

__all__ = ["load_file_rows", "load_others"]

_CHUNK_ROWS = 100_000
_CHUNK_BYTES = 64_000_000
_Batches = Iterator[pa.RecordBatch]


def load_others(catalog: Catalog, head: Head, now_ms: int) -> list[Action]:
    """The actions that aren't about files."""
    log = catalog.log(head.name, head.identity)
    retention_ms = parse_properties(head.metadata).set_transaction_retention_ms
    since_ms = None if retention_ms is None else now_ms - retention_ms
    txns = log.txns(head.version).values()
    return [
        head.protocol,
        head.metadata,
        *(txn for txn in txns if _is_kept(txn, since_ms)),
        *log.domains(head.version).values(),
    ]


def _is_kept(txn: Txn, since_ms: int | None) -> bool:
    # As in Delta Spark: where txns expire, one without a time has.
    updated_ms = known(txn.last_updated)
    return since_ms is None or (updated_ms is not None and updated_ms > since_ms)


def load_file_rows(
    catalog: Catalog, head: Head, layout: Layout, schema: pa.Schema, now_ms: int
) -> _Batches:
    """The file actions as rows of a schema: unexpired tombstones, then live files."""
    cutoff_ms = tombstone_cutoff_ms(parse_properties(head.metadata), now_ms)
    for files in _chunks(load_tombstones(catalog.backend, head, cutoff_ms)):
        yield rows(schema, "remove", layout.removes(files))
    columns = pa.schema([FILES_SCHEMA.field(name) for name in FILE_COLUMNS])
    for files in _chunks(load_files(catalog.backend, head, columns)):
        yield rows(schema, "add", layout.adds(files))


def _chunks(batches: _Batches) -> _Batches:
    """The same rows in larger batches; while one is used, the next is fetched."""
    joined = _joined(batches)
    with ThreadPoolExecutor(1, "checkpoint") as thread:
        fetched = thread.submit(next, joined, None)
        while (chunk := fetched.result()) is not None:
            fetched = thread.submit(next, joined, None)
            yield chunk


def _joined(batches: _Batches) -> _Batches:
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        for start in range(0, len(batch), _CHUNK_ROWS):
            waiting.append(batch.slice(start, _CHUNK_ROWS))
            if _is_enough(waiting):
                yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()
                waiting = []
    if waiting:
        yield from pa.Table.from_batches(waiting).combine_chunks().to_batches()


def _is_enough(batches: Sequence[pa.RecordBatch]) -> bool:
    return (
        sum(map(len, batches)) >= _CHUNK_ROWS
        or sum(batch.nbytes for batch in batches) >= _CHUNK_BYTES
    )
