"""A checkpoint's files in columns, as most of them can be had: a million at a time.

What a column can't say (an unknown field, a field of another type, a required one that
is missing) is left to the actions themselves, which keep it or refuse it by name.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.model.actions import Action, Add, DeletionVector, Remove, dv_id
from delkalakedb.model.replay import FileKey
from delkalakedb.storage.base import Store
from delkalakedb.storage.checkpoint import Rows, read_batches

__all__ = ["ADDS", "Part", "read_files"]

# Adds in columns, or actions.
Part: TypeAlias = pa.RecordBatch | Sequence[Action]

_STRINGS = pa.map_(pa.string(), pa.string())
# By the names and in the order of the action; maps and structs are JSON.
ADDS = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("partitionValues", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modificationTime", pa.int64(), nullable=False),
        pa.field("dataChange", pa.bool_(), nullable=False),
        pa.field("stats", pa.string()),
        pa.field("tags", pa.string()),
        pa.field("deletionVector", pa.string()),
        pa.field("baseRowId", pa.int64()),
        pa.field("defaultRowCommitVersion", pa.int64()),
        pa.field("clusteringProvider", pa.string()),
    ]
)
_NESTED = {"partitionValues", "tags", "deletionVector"}
_REPEATED = {"stats_parsed", "partitionValues_parsed"}
_VECTOR = [
    name for name in DeletionVector.__struct_encode_fields__ if not name.startswith("$")
]
_ESCAPED = r'[\x00-\x1f"\\]'
_encode = msgspec.json.Encoder().encode


def read_files(
    store: Store,
    paths: Iterable[str],
    kinds: Set[str],
    without: Set[FileKey],
    *,
    sidecars: bool = True,
) -> Iterator[Part]:
    """The file actions of a checkpoint: adds as `ADDS` where they can be, else as such.

    In the same order each time, those in sidecars last. Those of the files in `without`
    are left out.
    """
    paths_without = pa.array({path for path, _ in without}, pa.string())
    for batch in read_batches(store, paths, kinds, sidecars=sidecars):
        columns = _columns(batch, without, paths_without)
        if columns is not None:
            yield columns
        else:
            actions = batch.actions() if isinstance(batch, Rows) else batch
            yield [action for action in actions if not _is_among(action, without)]


def _is_among(action: Action, files: Set[FileKey]) -> bool:
    return isinstance(action, Add | Remove) and (action.path, dv_id(action)) in files


def _columns(
    batch: Rows | Sequence[Action], without: Set[FileKey], paths_without: pa.Array
) -> pa.RecordBatch | None:
    if not isinstance(batch, Rows) or batch.kind != "add":
        return None
    adds = _adds(batch)
    if adds is None or not without:
        return adds
    named = pc.is_in(adds["path"], paths_without)
    vectors = adds["deletionVector"]
    if vectors.null_count < len(vectors) and named.true_count:
        return None
    if named.true_count and any(vector for _, vector in without):
        gone = {path for path, vector in without if not vector}
        named = pc.is_in(adds["path"], pa.array(gone, pa.string()))
    return adds.filter(pc.invert(named))


def _adds(rows: Rows) -> pa.RecordBatch | None:
    fields = {field.name: rows.column.field(field.name) for field in rows.column.type}
    if stats := rows.stats():
        fields["stats"] = pa.array(stats, pa.string())
    unknown = fields.keys() - set(ADDS.names) - _REPEATED
    if any(fields[name].null_count < len(rows.column) for name in unknown):
        return None
    try:
        arrays = [_column(fields.get(field.name), field, rows) for field in ADDS]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return None
    lacking = any(
        array.null_count and not field.nullable
        for array, field in zip(arrays, ADDS, strict=True)
    )
    return None if lacking else pa.RecordBatch.from_arrays(arrays, schema=ADDS)


def _column(array: pa.Array | None, field: pa.Field, rows: Rows) -> pa.Array:
    if array is None or array.null_count == len(array):
        return pa.nulls(len(rows.column), field.type)
    if field.name not in _NESTED:
        return array if array.type == field.type else _cast(array, field.type)
    if field.name == "deletionVector":
        return _objects(array)
    return _maps(array.cast(_STRINGS))


def _cast(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Numbers to wider numbers, text to text; a number is no text."""
    families = (pa.types.is_integer, pa.types.is_boolean, _is_text)
    if not any(family(array.type) and family(kind) for family in families):
        raise pa.ArrowTypeError(f"{array.type} isn't {kind}")
    return array.cast(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _maps(array: pa.MapArray) -> pa.Array:
    """Maps of strings as JSON, in their own order."""
    entries = _joined(_text(array.keys), ":", pc.fill_null(_text(array.items), "null"))
    lists = pa.ListArray.from_arrays(array.offsets, entries)
    bodies = pc.binary_join(lists, ",")
    return pc.if_else(array.is_valid(), _braced(bodies), pa.scalar(None, pa.string()))


def _objects(array: pa.StructArray) -> pa.Array:
    """Deletion vectors as JSON: what is null is absent."""
    if {field.name for field in array.type} - set(_VECTOR):
        raise pa.ArrowTypeError("a deletion vector with an unknown field")
    # Only these: Arrow drops a row of which it skips every part.
    present = array.drop_null()
    flat = {
        field.name: child
        for field, child in zip(array.type, present.flatten(), strict=True)
    }
    parts = [
        pc.binary_join_element_wise(f'"{name}":', _scalars(flat[name]), "")
        for name in _VECTOR
        if name in flat
    ]
    bodies = pc.binary_join_element_wise(*parts, ",", null_handling="skip")
    absent = pa.nulls(len(array), pa.string())
    return pc.replace_with_mask(absent, array.is_valid(), _braced(bodies))


def _scalars(array: pa.Array) -> pa.Array:
    return _text(array) if _is_text(array.type) else array.cast(pa.string())


def _text(array: pa.Array) -> pa.Array:
    """Strings as JSON."""
    array = array.cast(pa.string())
    if pc.any(pc.match_substring_regex(array, _ESCAPED)).as_py():
        texts = (None if v is None else _encode(v).decode() for v in array.to_pylist())
        return pa.array(texts, pa.string())
    return _joined('"', array, '"')


def _braced(bodies: pa.Array) -> pa.Array:
    return _joined("{", bodies, "}")


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")
