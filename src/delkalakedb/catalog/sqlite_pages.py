"""Many rows of SQLite as Arrow, without a Python object for each value.

SQLite joins the values of a page's column to one text, and Arrow takes it apart again.
Where a value holds a mark of ours the parts don't add up; the page is then read by row.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog.backend import Row

__all__ = ["joined", "taken_apart"]

_BETWEEN = "\x1f"
_NULL = "\x1e"
# Of a live file; to count the others takes as long as to join them.
_NEVER_NULL = frozenset(
    {
        "path",
        "partition_values",
        "size_bytes",
        "modification_time_ms",
        "data_change",
        "null_fields",
        "added_version",
        "file_id",
    }
)


def joined(page: str, columns: Sequence[str]) -> str:
    """The statement that gives the `file_id` a page ends at, its rows, its columns."""
    texts = ", ".join(map(_joined_column, columns))
    return f"SELECT max(page_key), count(*), {texts} FROM ({page})"


def taken_apart(row: Row, schema: pa.Schema) -> pa.RecordBatch | None:
    """The page that `row` stands for, unless its values hold the marks."""
    rows, texts = row[1], row[2:]
    arrays = [
        _column(text, rows, nulls, field.type)
        for nulls, text, field in zip(texts[::2], texts[1::2], schema, strict=True)
    ]
    if any(array is None for array in arrays):
        return None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _joined_column(name: str) -> str:
    """How many nulls a column has, and its values."""
    if name in _NEVER_NULL:
        return f"0, group_concat({name}, '{_BETWEEN}')"
    text = f"group_concat(ifnull({name}, '{_NULL}'), '{_BETWEEN}')"
    return f"count(*) - count({name}), {text}"


def _column(text: str, rows: int, nulls: int, kind: pa.DataType) -> pa.Array | None:
    if nulls == rows:
        return pa.nulls(rows, kind)
    values = pc.split_pattern(pa.array([text], pa.large_string()), _BETWEEN).values
    if len(values) != rows:
        return None
    if nulls:
        marks = pc.equal(values, _NULL)
        if marks.true_count != nulls:
            return None
        values = pc.if_else(marks, pa.scalar(None, pa.large_string()), values)
    return values.cast(kind)
