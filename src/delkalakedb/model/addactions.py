"""Files with their statistics in typed columns, as deltalake's `get_add_actions`.

Statistics are JSON texts, of which a batch is parsed at once. A text that doesn't fit
the schema makes its batch take the slow way, value by value.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, islice

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.model.actions import Metadata
from delkalakedb.model.schema import Field, parse_schema
from delkalakedb.model.stats import measured_columns
from delkalakedb.model.typed import arrow_type, json_type, parse_texts, typed

__all__ = ["ADD_ACTION_COLUMNS", "add_actions"]

# The columns of files that `add_actions` looks at.
ADD_ACTION_COLUMNS = (
    "path",
    "partition_values",
    "size_bytes",
    "modification_time_ms",
    "stats",
    "num_records",
)
_AS_THEY_ARE = ["path", "size_bytes", "modification_time_ms", "num_records"]

# Each is converted by one thread, and several at once; in small ones Python's part of
# the work, which one thread at a time can do, would be too large.
_SLICE_ROWS = 40_000
# Slices on their way, which bounds the memory.
_AHEAD = 4


def add_actions(
    files: Iterable[pa.RecordBatch], metadata: Metadata, *, flatten: bool = False
) -> pa.RecordBatchReader:
    """The files as path, size, time, row count, null counts, minima, maxima, partition.

    Args:
        files: batches with at least `ADD_ACTION_COLUMNS`.
        metadata: the metadata of their version.
        flatten: one column for each part of a struct, named `min.a` and so on.
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
    """A batch in even slices: a small one takes nearly as long as a large one."""
    count = max(1, round(batch.num_rows / _SLICE_ROWS))
    step = -(-batch.num_rows // count)
    return (batch.slice(i * step, step) for i in range(count) if batch.num_rows)


def _in_parallel(
    convert: Callable[[pa.RecordBatch], pa.RecordBatch],
    slices: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """The converted slices in order; while some are converted, others are fetched."""
    firsts = list(islice(slices, 2))
    if len(firsts) < 2:
        # A thread would take longer to start than to convert them.
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
        """The columns that come out."""
        bounds = _struct(self.data, _final_type)
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
        """One batch of files."""
        schema = self.schema()
        written = _struct(self.data, _written_type, physical=True)
        kinds = {
            "nullCount": _struct(self.data, _count_type, physical=True),
            "minValues": written,
            "maxValues": written,
        }
        kinds = {name: kind for name, kind in kinds.items() if kind}
        columns = [*map(_copied, batch.select(_AS_THEY_ARE).columns)]
        if kinds:
            parsed = parse_texts(batch["stats"], pa.struct(kinds)).flatten()
            given = zip(parsed, schema.types[len(columns) :], strict=False)
            columns += [typed(stats, kind) for stats, kind in given]
        if self.partition:
            columns.append(self._partitions(batch, schema.types[-1]))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def _partitions(self, batch: pa.RecordBatch, kind: pa.StructType) -> pa.Array:
        texts = [pa.field(field.physical_name, pa.string()) for field in self.partition]
        # Few distinct values stand for many files.
        encoded = batch["partition_values"].dictionary_encode()
        parsed = parse_texts(encoded.dictionary, pa.struct(texts))
        values = [pc.if_else(pc.equal(v, ""), None, v) for v in parsed.flatten()]
        nulled = pa.StructArray.from_arrays(values, fields=texts)
        return typed(nulled, kind).take(encoded.indices)


def _copied(array: pa.Array) -> pa.Array:
    """The same in memory of its own; a driver's batch, texts and all, stays whole."""
    return pa.concat_arrays([array])


def _pruned(
    fields: Iterable[Field], paths: Set[tuple[str, ...]], above: tuple[str, ...] = ()
) -> Iterator[Field]:
    """The fields without the leaves that aren't at one of the paths."""
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
    leaf: Callable[[Field], pa.DataType | None],
    *,
    physical: bool = False,
) -> pa.StructType | None:
    """The struct of the fields that have a type; None without any."""
    found = []
    for field in fields:
        if field.type == "struct":
            kind = _struct(field.children, leaf, physical=physical)
        else:
            kind = leaf(field)
        if kind is not None:
            name = field.physical_name if physical else field.name
            found.append(pa.field(name, kind))
    return pa.struct(found) if found else None


def _final_type(field: Field) -> pa.DataType | None:
    return arrow_type(field.type)


def _partition_type(field: Field) -> pa.DataType | None:
    return pa.binary() if field.type == "binary" else arrow_type(field.type)


def _written_type(field: Field) -> pa.DataType | None:
    return json_type(field.type)


def _count_type(field: Field) -> pa.DataType:
    return pa.int64()


def _flat(table: pa.Table) -> pa.Table:
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    return table
