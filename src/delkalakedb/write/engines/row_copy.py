"""Copies of a few rows of a table, which delta-rs changes in a workspace."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from delkalakedb.catalog import Snapshot
from delkalakedb.model.actions import Add, Metadata, Remove
from delkalakedb.model.paths import files_inside
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.write.engines.deltars import Guest, Ran, arrow_schema
from delkalakedb.write.engines.row_reader import ArrowReader, arrow_reader
from delkalakedb.write.operation import Target

if TYPE_CHECKING:
    from pyroaring import BitMap64

# The number of a row in its file, and the number of the file among those searched.
_ROW, _FILE = "__dk_row", "__dk_file"
_NUMBERS = pa.schema([(_ROW, pa.int64()), (_FILE, pa.int64())])
# bytes of rows that are kept until they are written as one row group
_GROUP_BYTES = 8 * 1024 * 1024


class RowCopy:
    """A copy of rows of a table's files, in files of a private folder.

    A copy with numbered rows is one file, which tells the file and the number of each
    row. Any other copy has a file for each of the table's files.

    Args:
        target: the table.
        metadata: the metadata that delta-rs sees, with the columns to copy; that of
            `numbered` for numbered rows.
        folder: the private folder.
        most: the number of rows above which nothing is copied; None for no bound.
    """

    def __init__(
        self, target: Target, metadata: Metadata, folder: Path, most: int | None = None
    ) -> None:
        self.metadata = metadata
        self._target = target
        self._folder = Path(tempfile.mkdtemp(dir=folder))
        self._left = most
        self._lock = Lock()
        self._table = arrow_schema(target.base.metadata.schema_string)
        partitions = set(metadata.partition_columns)
        fields = parse_schema(metadata.schema_string).fields
        names = {one.name for one in fields} - partitions
        columns = [one for one in (*self._table, *_NUMBERS) if one.name in names]
        self._schema = pa.schema(columns)
        self._all = self._file(0) if _FILE in names else None

    def reader(self, tested: Iterable[str] = ()) -> ArrowReader:
        """Return the reader of the rows' numbers, columns, and columns `tested`."""
        names = {*self._schema.names, *tested}
        fields = [one for one in self._table if one.name in names]
        columns = pa.schema([*fields, _NUMBERS.field(_ROW)])
        target = self._target
        return arrow_reader(target.base, columns, target.storage_options, _ROW)

    def write(
        self, number: int, batches: Iterable[pa.RecordBatch]
    ) -> "BitMap64 | None":
        """Copy rows of file `number`; return their numbers, or None if they are many.

        Threads may copy rows of several files at once.
        """
        from pyroaring import BitMap64

        rows, file = BitMap64(), self._all or self._file(number)
        for batch in batches:
            rows.update(batch[_ROW].to_pylist())
            columns = [
                pa.repeat(pa.scalar(number, one.type), batch.num_rows)
                if one.name == _FILE
                else batch[one.name]
                for one in self._schema
            ]
            with self._lock:
                if self._left is not None:
                    self._left -= batch.num_rows
                    if self._left < 0:
                        return None
                file.add(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        if self._all is None:
            file.close()
        return rows

    def guests(self, adds: Iterable[tuple[int, Add]]) -> Callable[[Path], list[Guest]]:
        """Return a function that moves the copy to a workspace.

        Args:
            adds: the files with the numbers that `write` was given.
        """

        def move(folder: Path) -> list[Guest]:
            if self._all is None:
                return [self._moved(number, add, folder) for number, add in adds]
            self._all.close()
            there = [add for _, add in adds][:1]
            return [self._moved(0, add, folder) for add in there]

        return move

    def _moved(self, number: int, add: Add, folder: Path) -> Guest:
        path = (self._folder / _name(number)).rename(folder / _name(number))
        partitions = self.metadata.partition_columns
        seen = Add(
            path=path.name,
            partition_values=add.partition_values if partitions else {},
            size=path.stat().st_size,
            modification_time=add.modification_time,
            data_change=True,
        )
        return Guest(seen if self._all else add, seen)

    def _file(self, number: int) -> "_RowFile":
        return _RowFile(self._folder / _name(number), self._schema)


class _RowFile:
    """A Parquet file that is read once, and then deleted."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path = path
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self._kept.append(rows)
        self._kept_bytes += rows.nbytes
        if self._kept_bytes >= _GROUP_BYTES:
            self._flush()

    def close(self) -> None:
        self._flush()
        if self._writer is not None:
            self._writer.close()

    def _flush(self) -> None:
        if not self._kept:
            return
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._path, self._schema, compression="none", use_dictionary=False
            )
        rows = pa.Table.from_batches(self._kept, self._schema)
        self._writer.write_table(rows, max(rows.num_rows, 1))
        self._kept, self._kept_bytes = [], 0


def numbered(snapshot: Snapshot, predicate: str) -> Metadata:
    """Return metadata with the columns that `predicate` may name, and rows' numbers."""
    metadata = snapshot.metadata
    # A quote within a quoted name is doubled.
    text = " ".join((predicate, predicate.replace('""', '"'))).lower()
    fields = [
        one
        for one in json.loads(metadata.schema_string)["fields"]
        if one["name"].lower() in text
    ]
    numbers = [
        {"name": name, "type": "long", "nullable": True, "metadata": {}}
        for name in _NUMBERS.names
    ]
    schema = {"type": "struct", "fields": [*fields, *numbers]}
    return msgspec.structs.replace(
        metadata,
        schema_string=json.dumps(schema),
        partition_columns=[],
        configuration={},
    )


def numbers_left(ran: Ran[Any]) -> "defaultdict[int, BitMap64]":
    """Return which rows of a numbered copy delta-rs has left there, by their files."""
    from pyroaring import BitMap64

    # A copy of no rows has no file.
    live = {_name(0)} if (ran.folder / _name(0)).exists() else set[str]()
    for action in (action for actions in ran.commits for action in actions):
        if isinstance(action, Add):
            live.update(files_inside(action, str(ran.folder)))
        elif isinstance(action, Remove):
            live.discard(action.path)
    left = defaultdict[int, BitMap64](BitMap64)
    for path in live:
        with pq.ParquetFile(ran.folder / path) as parquet:
            for batch in parquet.iter_batches(columns=[_FILE, _ROW]):
                pairs = zip(*(c.to_pylist() for c in batch.columns), strict=True)
                for number, row in pairs:
                    left[number].add(row)
    return left


def _name(number: int) -> str:
    return f"rows-{number}.parquet"
