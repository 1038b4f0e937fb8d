"""Lists of files compared by sums of their rows' hashes, many rows at a time.

Equal sums mean equal files, field for field and letter for letter. Others may still be
equal in a form that leaves something out: that is for `compare` to say.
"""

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog.base import adds_of, named
from delkalakedb.catalog.rows import ADD_COLUMNS, FILES_SCHEMA, file_columns
from delkalakedb.model.actions import Action, Add
from delkalakedb.storage.columns import Part

__all__ = ["as_actions", "sum_log", "sum_rows", "summed_schema"]

_UNKEPT = ("data_change", "null_fields", "extra")
_KEPT = tuple(name for name in ADD_COLUMNS if name not in _UNKEPT)
_BETWEEN, _NULL = "\x1f", "\x1e"


def summed_schema(*, checkpointed: bool) -> pa.Schema:
    """The columns that count: a checkpoint doesn't keep all of them."""
    names = _KEPT if checkpointed else (*_KEPT, *_UNKEPT)
    return pa.schema([FILES_SCHEMA.field(name) for name in names])


def sum_rows(batches: Iterable[pa.RecordBatch]) -> tuple[int, int]:
    """How many rows there are, and the sum of their hashes."""
    count = total = 0
    for batch in batches:
        texts = [column.cast(pa.string()) for column in batch.columns]
        rows = pc.binary_join_element_wise(
            *texts, _BETWEEN, null_handling="replace", null_replacement=_NULL
        )
        count += len(batch)
        # Salted by the process: nobody can aim at a sum.
        total += sum(map(hash, rows.to_pylist()))
    return count, total


def sum_log(parts: Iterable[Part], schema: pa.Schema) -> tuple[int, int]:
    """The same of a log's adds, as rows of the catalog."""
    return sum_rows(
        named(part).select(schema.names)
        if isinstance(part, pa.RecordBatch)
        else _batch([add for add in part if isinstance(add, Add)], schema)
        for part in parts
    )


def as_actions(parts: Iterable[Part]) -> Iterator[Action]:
    """The actions, one by one."""
    for part in parts:
        yield from adds_of(part) if isinstance(part, pa.RecordBatch) else part


def _batch(adds: Sequence[Add], schema: pa.Schema) -> pa.RecordBatch:
    columns = file_columns(adds)
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[field.name], field.type) for field in schema], schema=schema
    )
