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

__all__ = ["find_bounds", "overlapping", "widen"]

# A plan without what is kept takes as long as loading that of so many files.
_FILES_PER_PLAN = 10_000
_MOST_COUNTED = 1_000
_BOUNDS = {Kind.NUMBER: pa.float64(), Kind.TEXT: pa.string()}
_BYTES_PER_FILE = 32
# An array of texts can't take more.
_MOST_BYTES = 2**31 - 1
# How often something was missed since it was last loaded, and how often loaded.
_missed: dict[Listed, tuple[int, int]] = {}


def find_bounds(backend: Backend, head: Head, column: StatColumn) -> pa.Table | None:
    """The bounds of a version's files in order, if they are worth their loading.

    Columns of the files may be there beside them. The column's index must cover every
    file.
    """
    limits = backend.cache
    if limits is None or not limits.snapshots:
        return None
    if head.num_files * _BYTES_PER_FILE > limits.max_bytes:
        return None
    key = Listed.of(backend, head, column.column_id)
    found = LISTS.find(key, frozenset())
    if found is None and _is_due(key):
        found = _load(backend, head, column)
        # Fewer: the version has expired since it was opened.
        if found.num_rows != head.num_files:
            return None
        LISTS.keep(key, found, limits)
    return found


def widen(
    backend: Backend,
    head: Head,
    column: StatColumn,
    bounds: pa.Table,
    columns: Sequence[str],
) -> pa.Table:
    """Bounds with columns of the files, if these are worth their loading."""
    missing = sorted(set(columns) - set(bounds.column_names))
    limits = backend.cache
    if not missing or limits is None or "stats" in missing:
        return bounds
    if not _is_due(Listed.of(backend, head, column.column_id, *missing)):
        return bounds
    wider = _load_files(backend, head, bounds, missing, limits.max_bytes)
    if wider is None:
        return bounds
    LISTS.keep(Listed.of(backend, head, column.column_id), wider, limits)
    return wider


def overlapping(bounds: pa.Table, lo: Any, hi: Any) -> pa.Array:
    """The rows of the files whose interval touches a range."""
    start = _bisected(bisect_left, bounds["reach"], lo)
    end = _bisected(bisect_right, bounds["lo"], hi)
    count = max(0, end - start)
    reaching = pc.greater_equal(bounds["hi"].slice(start, count), lo)
    touching = pc.and_(reaching, bounds["bounded"].slice(start, count))
    return pc.add(pc.indices_nonzero(touching), pa.scalar(start, pa.uint64()))


def _is_due(key: Listed) -> bool:
    if len(_missed) >= _MOST_COUNTED:
        _missed.clear()
    misses, loads = _missed.get(key, (0, 0))
    # The more often it was driven out, the longer it waits.
    due = misses > 0 and misses * _FILES_PER_PLAN >= key.num_files << loads
    _missed[key] = (0, loads + 1) if due else (misses + 1, loads)
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


def _load_files(
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
