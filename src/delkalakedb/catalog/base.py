"""The rows of a checkpoint's files, which come by column."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog.backend import Insert, Write
from delkalakedb.catalog.head import FILES_PER_TABLE, Head
from delkalakedb.catalog.history import base_writes
from delkalakedb.catalog.rows import ADD_COLUMNS, add_from_row, hash_utf8
from delkalakedb.catalog.statcolumns import index_files
from delkalakedb.model.actions import Add, DeletionVector
from delkalakedb.model.codec import decode_struct
from delkalakedb.model.stats import parse_stats

__all__ = ["adds_of", "batch_writes", "named"]

_decode = msgspec.json.decode


def named(adds: pa.RecordBatch) -> pa.RecordBatch:
    """Adds with a column for each of their fields, as the catalog names them."""
    columns = dict(zip(ADD_COLUMNS, adds.columns, strict=False))
    columns["null_fields"] = pa.repeat(pa.scalar(0, pa.int16()), len(adds))
    columns["extra"] = pa.nulls(len(adds), pa.string())
    return pa.RecordBatch.from_pydict(columns)


def adds_of(adds: pa.RecordBatch) -> list[Add]:
    """The same as actions."""
    columns = [column.to_pylist() for column in named(adds).columns]
    return [add_from_row(row) for row in zip(*columns, strict=True)]


def batch_writes(head: Head, adds: pa.RecordBatch) -> tuple[Head, list[Write]]:
    """The head with more of a checkpoint's files, and what must be written for them."""
    files = named(adds)
    paths = files["path"].cast(pa.binary()).to_pylist()
    vectors = _vector_ids(files["deletion_vector"])
    if _is_odd(files, paths, vectors):
        return base_writes(head, adds_of(adds))
    stats = [parse_stats(text) for text in files["stats"].to_pylist()]
    first = head.table_id * FILES_PER_TABLE + head.next_file
    ids = pa.array(range(first, first + len(adds)))
    indexed, inserts = index_files(
        head.stat_columns,
        head.metadata,
        head.version,
        ids,
        _partition_values(files["partition_values"].to_pylist()),
        stats,
    )
    rows = {
        name: column
        for name, column in zip(files.schema.names, files.columns, strict=True)
        if column.null_count < len(column)
    }
    rows |= {
        "dv_id": vectors,
        "num_records": [known.num_records if known else None for known in stats],
        "added_version": pa.repeat(head.version, len(adds)),
        "file_id": ids,
        "table_id": pa.repeat(head.table_id, len(adds)),
        "path_hash": list(map(hash_utf8, paths)),
    }
    after = replace(
        head,
        stat_columns=indexed,
        next_file=head.next_file + len(adds),
        num_files=head.num_files + len(adds),
        size_bytes=head.size_bytes + pc.sum(files["size_bytes"]).as_py(),
    )
    return after, [Insert("dl_files", rows), *inserts]


def _is_odd(
    files: pa.RecordBatch, paths: Sequence[bytes], vectors: Sequence[str]
) -> bool:
    """Whether a file is there twice, or its statistics have a NUL in them."""
    keys: Sequence[object] = paths
    if any(vectors):
        keys = list(zip(paths, vectors, strict=True))
    nul = pc.any(pc.match_substring(files["stats"], "\0")).as_py()
    return len(set(keys)) < len(keys) or bool(nul)


def _vector_ids(vectors: pa.Array) -> list[str]:
    if vectors.null_count == len(vectors):
        return [""] * len(vectors)
    return [
        decode_struct(vector, DeletionVector).unique_id if vector else ""
        for vector in vectors.to_pylist()
    ]


def _partition_values(texts: Sequence[str]) -> list[dict[str, str | None]]:
    """The values of each file; files of one partition share them."""
    values = {text: _decode(text) for text in set(texts)}
    return [values[text] for text in texts]
