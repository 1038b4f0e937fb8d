"""Files with their statistics in typed columns, as deltalake's `get_add_actions`.

The JSON texts of the statistics are parsed a batch at a time. A batch with a text that
doesn't match the schema is parsed value by value, which is slow.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.model.actions import Metadata
from delkalakedb.model.schema.schema import Field, parse_schema
from delkalakedb.model.stats.json_arrays import (
    arrow_type,
    json_type,
    parse_texts,
    typed,
)
from delkalakedb.model.stats.stats import measured_columns

# The columns of files that `add_actions` reads.
ADD_ACTION_COLUMNS = (
    "path",
    "partition_values",
    "size_bytes",
    "modification_time_ms",
    "stats",
    "num_records",
)
_AS_THEY_ARE = ["path", "size_bytes", "modification_time_ms", "num_records"]

# rows that a thread converts at once; in smaller slices the work that holds Python's
# lock would outweigh the work that runs in parallel
_SLICE_ROWS = 40_000
# slices in conversion; this bounds the memory
_AHEAD = 4


def add_actions(
    files: Iterable[pa.RecordBatch], metadata: Metadata, *, flatten: bool = False
) -> pa.RecordBatchReader:
    """Return files as path, size, time, row count, null counts, bounds and partition.

    Args:
        files: batches with at least `ADD_ACTION_COLUMNS`.
        metadata: the metadata of the files' version.
        flatten: return one column for each field of a struct, such as `min.a`.
    """
    layout = _Layout(metadata)
    schema = layout.schema()
    batches = _in_parallel(layout.convert, chain.from_iterable(map(_sliced, files)))
    if flatten:
        empty = pa.Table.from_batches([], schema)
        schema = _flat(empty).schema
        batches = (flat for b in batches for flat in _flat(pa.table(b)).to_batches())
    return pa.RecordBatchReader.from_batches(schema, batches)


def _sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield even slices of a batch; a small slice takes nearly as long as a large."""
    count = max(1, round(batch.num_rows / _SLICE_ROWS))
    step = -(-batch.num_rows // count)
    return (batch.slice(i * step, step) for i in range(count) if batch.num_rows)


def _in_parallel(
    convert: Callable[[pa.RecordBatch], pa.RecordBatch],
    slices: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield the converted slices in order; convert some while others are fetched."""
    firsts = list(islice(slices, 2))
    if len(firsts) < 2:
        # A thread would take longer to start than to convert one slice.
        yield from map(convert, firsts)
        return
    waiting: deque[Future[pa.RecordBatch]] = deque()
    with ThreadPoolExecutor(pa.cpu_count(), "add-actions") as workers:
        for batch in chain(firsts, slices):
            waiting.append(workers.submit(convert, batch))
            while len(waiting) > _AHEAD or (waiting and waiting[0].done()):
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _Layout:
    def __init__(self, metadata: Metadata) -> None:
        fields = parse_schema(metadata.schema_string).fields
        partitions = metadata.partition_columns
        by_name = {f.name: f for f in fields}
        measured = {column.path for column in measured_columns(metadata)}
        self.data = list(_pruned(fields, measured))
        self.partition = [by_name[name] for name in partitions]

    def schema(self) -> pa.Schema:
        """Return the schema of the result."""
        bounds = _struct(self.data, arrow_type)
        parts = {
            "null_count": _struct(self.data, _count_type),
            "min": bounds,
            "max": bounds,
            "partition": _struct(self.partition, _partition_type),
        }
        return pa.schema(
            [
                pa.field("path", pa.string(), nullable=False),
                pa.field("size_bytes", pa.int64(), nullable=False),
                pa.field("modification_time", pa.int64(), nullable=False),
                pa.field("num_records", pa.int64()),
                *(pa.field(name, kind) for name, kind in parts.items() if kind),
            ]
        )

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Convert one batch of files."""
        schema = self.schema()
        written = _struct(self.data, json_type, physical=True)
        kinds = {
            "nullCount": _struct(self.data, _count_type, physical=True),
            "minValues": written,
            "maxValues": written,
        }
        kinds = {name: kind for name, kind in kinds.items() if kind}
        # Copied, because a view would keep the driver's whole batch in memory.
        columns = [pa.concat_arrays([c]) for c in batch.select(_AS_THEY_ARE).columns]
        if kinds:
            parsed = parse_texts(batch["stats"], pa.struct(kinds)).flatten()
            given = zip(parsed, schema.types[len(columns) :], strict=False)
            columns += [typed(stats, kind) for stats, kind in given]
        if self.partition:
            columns.append(self._partitions(batch, schema.types[-1]))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _partitions(self, batch: pa.RecordBatch, kind: pa.StructType) -> pa.Array:
        texts = [pa.field(field.physical_name, pa.string()) for field in self.partition]
        # Parsed once for each distinct text, because many files share a few texts.
        encoded = batch["partition_values"].dictionary_encode()
        parsed = parse_texts(encoded.dictionary, pa.struct(texts))
        values = [pc.if_else(pc.equal(v, ""), None, v) for v in parsed.flatten()]
        nulled = pa.StructArray.from_arrays(values, fields=texts)
        return typed(nulled, kind).take(encoded.indices)


def _pruned(
    fields: Iterable[Field], paths: Set[tuple[str, ...]], above: tuple[str, ...] = ()
) -> Iterator[Field]:
    """Yield the fields without the leaves whose path isn't in `paths`."""
    for field in fields:
        path = (*above, field.name)
        if field.type == "struct":
            children = tuple(_pruned(field.children, paths, path))
            if children:
                yield replace(field, children=children)
        elif path in paths:
            yield field


def _struct(
    fields: Iterable[Field],
    leaf: Callable[[str], pa.DataType | None],
    *,
    physical: bool = False,
) -> pa.StructType | None:
    """Return the struct of the fields for which `leaf` has a type; None if empty."""
    found = []
    for field in fields:
        if field.type == "struct":
            kind = _struct(field.children, leaf, physical=physical)
        else:
            kind = leaf(field.type)
        if kind is not None:
            name = field.physical_name if physical else field.name
            found.append(pa.field(name, kind))
    return pa.struct(found) if found else None


def _partition_type(type_name: str) -> pa.DataType | None:
    return pa.binary() if type_name == "binary" else arrow_type(type_name)


def _count_type(type_name: str) -> pa.DataType:
    return pa.int64()


def _flat(table: pa.Table) -> pa.Table:
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table
