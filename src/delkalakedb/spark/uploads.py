"""What executors do with a table's rows: files of Parquet, put on an object store."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from operator import itemgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from delkalakedb.errors import StorageError
from delkalakedb.model.footers import file_stats
from delkalakedb.model.schema import Column
from delkalakedb.model.values import FLOATING
from delkalakedb.spark.mapping import file_schema
from delkalakedb.spark.partitions import Places
from delkalakedb.storage import open_store

__all__ = ["UPLOADED", "Upload"]

UPLOADED = (
    "path string, partition_values string, size long, modified_ms long, stats string"
)
_UPLOADED = pa.schema(
    [
        ("path", pa.string()),
        ("partition_values", pa.string()),
        ("size", pa.int64()),
        ("modified_ms", pa.int64()),
        ("stats", pa.string()),
    ]
)
_GROUP_BYTES = 128 * 1024 * 1024
_Run = tuple[tuple[str, ...], pa.RecordBatch]


@dataclass(frozen=True)
class Upload:
    """Writes the rows of one task; they come sorted by the texts of partitions.

    Args:
        location: of the table.
        options: of its store.
        places: of its files.
        measured: the columns that have statistics.
        physical: the schema with ids of fields, where the table has them.
        write_id: in the names of all files.
    """

    location: str
    options: Mapping[str, str] = field(repr=False)
    places: Places
    measured: Sequence[Column]
    physical: StructType | None
    write_id: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """One row for each file."""
        store = open_store(self.location, self.options)
        attempt, rows = uuid4().hex[:8], list[dict[str, Any]]()
        try:
            with TemporaryDirectory(prefix="delkalakedb-", dir=_scratch()) as folder:
                for texts, runs in groupby(self._runs(batches), itemgetter(0)):
                    name = f"part-{len(rows):05d}-{self.write_id}-{attempt}.parquet"
                    path, values = self.places.place(name, texts)
                    local = Path(folder, name)
                    stats = self._write(local, (batch for _, batch in runs))
                    rows.append(_row(path, values, local.stat().st_size, stats))
                    store.put_file(path, local)
                    local.unlink()
        except BaseException:
            # Another attempt writes files of its own.
            with suppress(StorageError):
                store.delete_many(row["path"] for row in rows)
            raise
        yield pa.RecordBatch.from_pylist(rows, _UPLOADED)

    def _runs(self, batches: Iterable[pa.RecordBatch]) -> Iterator[_Run]:
        """The batches, cut where a text of theirs changes."""
        count = len(self.places.columns)
        for batch in batches:
            if not batch.num_rows:
                continue
            texts = batch.columns[:count]
            rest = batch.select(batch.schema.names[count:])
            starts = [0, *_changes(texts), batch.num_rows]
            for start, end in pairwise(starts):
                key = tuple(str(column[start]) for column in texts)
                yield key, rest.slice(start, end - start)

    def _write(self, path: Path, batches: Iterable[pa.RecordBatch]) -> str:
        with_nan: set[tuple[str, ...]] = set()
        writer = None
        for table in _grouped(batches):
            table = table.cast(file_schema(table.schema, self.physical))
            with_nan |= set(self._columns_with_nan(table))
            if writer is None:
                writer = pq.ParquetWriter(path, table.schema, store_schema=False)
            writer.write_table(table)
        assert writer is not None
        writer.close()
        return file_stats(pq.read_metadata(path), self.measured, with_nan)

    def _columns_with_nan(self, table: pa.Table) -> Iterator[tuple[str, ...]]:
        for column in self.measured:
            name, *way = column.physical
            if column.type in FLOATING and name in table.column_names:
                values = pc.struct_field(table[name], way) if way else table[name]
                if pc.any(pc.is_nan(values)).as_py():
                    yield column.physical


def _scratch() -> str | None:
    """A folder of the executor's, which removes it where a task is killed."""
    found = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
    return next(filter(os.path.isdir, found), None)


def _changes(texts: Sequence[pa.Array]) -> list[int]:
    """The rows whose texts aren't those of the row before."""
    found: set[int] = set()
    for column in texts:
        differs = pc.not_equal(column[1:], column[:-1])
        found.update(i + 1 for i in pc.indices_nonzero(differs).to_pylist())
    return sorted(found)


def _grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The batches as tables large enough to be a row group."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(b.nbytes for b in held) >= _GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if held:
        yield pa.Table.from_batches(held)


def _row(path: str, values: Any, size_bytes: int, stats: str) -> dict[str, Any]:
    return {
        "path": path,
        "partition_values": msgspec.json.encode(values).decode(),
        "size": size_bytes,
        "modified_ms": int(time.time() * 1000),
        "stats": stats,
    }
