"""A column's bounds in memory, for engines that have to scan them.

What is asked of the files is kept beside their bounds, except for statistics. Nothing
of a version ever changes, so what is kept stays right. To load it takes as long as
several plans, the more the larger the table is: it is loaded once a version was planned
so often, so that no series of plans takes twice as long for it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog.backend import Backend
from delkalakedb.catalog.cache import LISTS, Listed
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.reader import load_files
from delkalakedb.catalog.rows import FILES_SCHEMA
from delkalakedb.catalog.statcolumns import TABLES, StatColumn
from delkalakedb.model.values import Kind

__all__ = ["find_bounds", "overlapping"]

# A plan without the bounds takes as long as loading those of so many files.
_FILES_PER_PLAN = 10_000
_MOST_COUNTED = 1_000
_BOUNDS = {Kind.NUMBER: pa.float64(), Kind.TEXT: pa.string()}
_BYTES_PER_FILE = 32
# An array of texts can't take more.
_MOST_BYTES = 2**31 - 1
# How often something was missed since it was last loaded, by what it is of.
_missed: dict[Listed, float] = {}


def find_bounds(
    backend: Backend, head: Head, column: StatColumn, columns: Sequence[str]
) -> pa.Table | None:
    """The bounds of a version's files in order, if they are worth their loading.

    So are `columns` of the files, which may be missing. The column's index must cover
    every file.
    """
    limits = backend.cache
    if limits is None or not limits.snapshots:
        return None
    if head.num_files * _BYTES_PER_FILE > limits.max_bytes:
        return None
    key = Listed.of(backend, head, column.column_id)
    found = LISTS.find(key, frozenset())
    if found is None:
        if not _is_due(key):
            return None
        found = _load(backend, head, column)
        # Fewer: the version has expired since it was opened.
        if found.num_rows != head.num_files:
            return None
        LISTS.keep(key, found, limits)
        return found
    missing = [name for name in columns if name not in found.column_names]
    if missing and "stats" not in missing and _is_due(key):
        wider = _widen(backend, head, found, missing, limits.max_bytes)
        if wider is None or not LISTS.keep(key, wider, limits):
            _missed[key] = float("-inf")
        else:
            found = wider
    return found


def overlapping(bounds: pa.Table, lo: Any, hi: Any) -> pa.Table:
    """The files whose interval touches a range."""
    start = _bisected(bisect_left, bounds["reach"], lo)
    end = _bisected(bisect_right, bounds["lo"], hi)
    some = bounds.slice(start, max(0, end - start))
    return some.filter(pc.and_(pc.greater_equal(some["hi"], lo), some["bounded"]))


def _is_due(key: Listed) -> bool:
    if len(_missed) >= _MOST_COUNTED:
        _missed.clear()
    before = _missed.get(key, 0)
    due = before > 0 and before * _FILES_PER_PLAN >= key.num_files
    _missed[key] = 0 if due else before + 1
    return due


def _load(backend: Backend, head: Head, column: StatColumn) -> pa.Table:
    kind = _BOUNDS[column.kind]
    schema = pa.schema(
        [
            ("file_id", pa.int64()),
            ("lo", kind),
            ("hi", kind),
            ("bounded", pa.bool_()),
        ]
    )
    text = backend.statements["plan_bounds"].replace("{table}", TABLES[column.kind])
    statement = text.replace("{alive}", backend.statements["plan_alive"])
    params = {"column_id": column.column_id, "version": head.version}
    batches = backend.batches(statement, params, schema)
    loaded = pa.Table.from_batches(batches, schema).combine_chunks()
    reach = _greatest_so_far(loaded["hi"].combine_chunks())
    return loaded.append_column("reach", reach)


def _widen(
    backend: Backend, head: Head, bounds: pa.Table, names: Sequence[str], room: int
) -> pa.Table | None:
    """The same with columns of the files, if there is room and they haven't expired."""
    schema = pa.schema([FILES_SCHEMA.field(name) for name in ("file_id", *names)])
    room = min(room - bounds.get_total_buffer_size(), _MOST_BYTES)
    batches = []
    for batch in load_files(backend, head, schema):
        room -= batch.get_total_buffer_size()
        if room < 0:
            return None
        batches.append(batch)
    files = pa.Table.from_batches(batches, schema)
    if files.num_rows != bounds.num_rows:
        return None
    places = pc.index_in(bounds["file_id"], files["file_id"])
    for name in names:
        bounds = bounds.append_column(schema.field(name), files[name].take(places))
    return bounds


def _greatest_so_far(values: pa.Array) -> pa.Array:
    if pa.types.is_floating(values.type):
        return pc.cumulative_max(values)
    return pa.array(accumulate(values.to_pylist(), max), values.type)


def _bisected(bisect: Any, values: pa.ChunkedArray, value: Any) -> int:
    at: Sequence[int] = range(len(values))
    place: int = bisect(at, value, key=lambda i: values[i].as_py())
    return place
