"""The actions of a checkpoint of any form, one by one or in columns.

A V1 checkpoint is one Parquet file or several parts. A V2 checkpoint is one Parquet or
JSON file whose file actions are inline or in sidecars. Parquet can't say that a field
is absent, so a null is read as absent.

A table may have millions of files, so `read_files` keeps adds in columns. Batches that
columns can't express (with an unknown field, a field of another type, a missing
required field) are read as actions, which keep such fields or refuse them by name.
"""

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from typing import Any, TypeAlias
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from delkalakedb.errors import CodecError, DeltaError
from delkalakedb.model.actions import (
    KINDS,
    Action,
    Add,
    DeletionVector,
    Remove,
    Sidecar,
    action_from_dict,
    decode_commit,
    dv_id,
)
from delkalakedb.model.log import FileKey
from delkalakedb.model.paths import SIDECARS
from delkalakedb.storage.base import Readable

BATCH_ROWS = 16_384  # rows of Parquet, or actions of JSON, in one batch
_BUFFER_BYTES = 1 << 16  # of each column chunk that Parquet's reader holds
# Fields that repeat others in typed form.
_PARSED = frozenset({"partitionValues_parsed", "stats_parsed"})
_encoder = msgspec.json.Encoder(decimal_format="number")
# Adds in columns as `ADDS`, or actions.
Part: TypeAlias = pa.RecordBatch | Sequence[Action]

_STRINGS = pa.map_(pa.string(), pa.string())
# The fields of `add`, named and ordered as in the log; maps and structs are JSON.
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
_VECTOR = [
    name for name in DeletionVector.__struct_encode_fields__ if not name.startswith("$")
]
_ESCAPED = r'[\x00-\x1f"\\]'


@dataclass(frozen=True, slots=True)
class Rows:
    """Actions of one kind from a Parquet file, in columns.

    Args:
        kind: the name of the actions in the log, such as `add`.
        column: the actions.
        utc: the paths of INT96 columns, whose times are in UTC without saying so.
        where: the file, for errors.
    """

    kind: str
    column: pa.StructArray
    utc: Set[str]
    where: str

    def actions(self) -> Iterator[Action]:
        """Yield the actions."""
        with _naming(self.where):
            stats = self.stats()
            plain = _plain(self.column)
            for index, body in enumerate(plain.to_pylist()):
                given = _given(plain.type, body)
                if stats and (text := stats[index]) is not None:
                    given["stats"] = text
                yield action_from_dict({self.kind: given})

    def stats(self) -> list[str | None]:
        """Return the statistics as text; empty if the field `stats` has them all."""
        parsed, stats = self.field("stats_parsed"), self.field("stats")
        if parsed is None or (stats is not None and not stats.null_count):
            return []
        texts = [None] * len(parsed) if stats is None else stats.to_pylist()
        return [
            _stats(typed, self.utc) if text is None else text
            for text, typed in zip(texts, parsed, strict=True)
        ]

    def field(self, name: str) -> pa.Array | None:
        """Return a field of the actions, or None if the checkpoint doesn't have it."""
        known = self.column.type.get_field_index(name) >= 0
        return self.column.field(name) if known else None


def read_checkpoint(
    store: Readable, paths: Iterable[str], kinds: Set[str]
) -> Iterator[Action]:
    """Yield the actions of some kinds, given by their names in the log."""
    for batch in _read_batches(store, paths, kinds):
        yield from _actions_of(batch)


def _actions_of(batch: Rows | Sequence[Action]) -> Iterable[Action]:
    """Return the actions of a batch."""
    return batch.actions() if isinstance(batch, Rows) else batch


def _read_batches(
    store: Readable, paths: Iterable[str], kinds: Set[str], *, sidecars: bool = True
) -> Iterator[Rows | Sequence[Action]]:
    """Yield the actions of some kinds in batches: in columns if read from Parquet.

    Args:
        store: the store of the table.
        paths: the checkpoint's files.
        kinds: the names of the actions in the log.
        sidecars: also read the file actions in sidecars that the checkpoint names.
    """
    followed = sidecars and kinds & {"add", "remove"}
    wanted = kinds | {"sidecar"} if followed else kinds
    for path in paths:
        named: list[str] = []
        for batch in _read(store, path, wanted):
            if isinstance(batch, Rows) and batch.kind != "sidecar":
                yield batch
                continue
            actions = list(_actions_of(batch))
            named += _sidecar_paths(actions)
            yield [action for action in actions if not isinstance(action, Sidecar)]
        for sidecar in named:
            yield from _read(store, sidecar, kinds)


def read_sidecars(store: Readable, path: str) -> Iterator[str]:
    """Yield the paths of the sidecars that a checkpoint's file names."""
    for batch in _read(store, path, {"sidecar"}):
        yield from _sidecar_paths(_actions_of(batch))


def _sidecar_paths(actions: Iterable[Action]) -> Iterator[str]:
    for action in actions:
        if isinstance(action, Sidecar):
            # All sidecars are in one folder, even if a writer names another one.
            yield f"{SIDECARS}/{unquote(action.path.rsplit('/', 1)[-1])}"


def _read(
    store: Readable, path: str, kinds: Set[str]
) -> Iterator[Rows | Sequence[Action]]:
    where = f"{store.url}: {path}"
    with _naming(where):
        if path.endswith(".json"):
            yield from _read_json(store.get(path), kinds)
        else:
            with store.open(path) as data:
                yield from _read_parquet(data, kinds, where)


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Raise errors of the codec and of Arrow as `DeltaError` that names the file."""
    try:
        yield
    except (pa.ArrowException, CodecError) as error:
        raise DeltaError(f"{where} isn't a valid checkpoint: {error}") from error


def _read_json(data: bytes, kinds: Set[str]) -> Iterator[Sequence[Action]]:
    wanted = tuple(KINDS[kind] for kind in kinds)
    found = (action for action in decode_commit(data) if isinstance(action, wanted))
    while some := list(islice(found, BATCH_ROWS)):
        yield some


def _read_parquet(data: pa.NativeFile, kinds: Set[str], where: str) -> Iterator[Rows]:
    # Page by page, because a single row group may hold all files of a large table.
    with pq.ParquetFile(
        data,
        coerce_int96_timestamp_unit="us",
        buffer_size=_BUFFER_BYTES,
        pre_buffer=False,
    ) as file:
        columns = [name for name in file.schema_arrow.names if name in kinds]
        # INT96 times are always in UTC, although Parquet has no way to say so.
        utc = {leaf.path for leaf in file.schema if leaf.physical_type == "INT96"}
        for batch in file.iter_batches(BATCH_ROWS, columns=columns) if columns else ():
            for kind in columns:
                if len(present := batch.column(kind).drop_null()):
                    yield Rows(kind, present, utc, where)


def _plain(column: pa.StructArray) -> pa.StructArray:
    """Return the column without the fields that repeat others in typed form."""
    names = [field.name for field in column.type if field.name not in _PARSED]
    return pa.StructArray.from_arrays([column.field(n) for n in names], names)


def _given(kind: pa.StructType, body: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that aren't null, with maps as dictionaries."""
    given = {}
    for field in kind:
        value = body[field.name]
        if value is None:
            continue
        if pa.types.is_map(field.type):
            value = dict(value)
        elif pa.types.is_struct(field.type):
            value = _given(field.type, value)
        given[field.name] = value
    return given


def _stats(parsed: pa.StructScalar, utc: Set[str]) -> str | None:
    try:
        values = parsed.as_py()
    except (OverflowError, ValueError):
        # Python can't hold the time. Without statistics the file is never skipped.
        return None
    if values is None:
        return None
    return _encoder.encode(_json(values, "add.stats_parsed", utc)).decode()


def _json(value: Any, path: str, utc: Set[str]) -> Any:
    """Return a value in the JSON form of Delta's statistics; None if it has none."""
    if isinstance(value, dict):
        forms = {name: _json(v, f"{path}.{name}", utc) for name, v in value.items()}
        return {name: form for name, form in forms.items() if form is not None}
    if isinstance(value, datetime):
        # Statistics have times in milliseconds, rounded down; readers allow for that.
        text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return f"{text}Z" if value.tzinfo or path in utc else text
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | Decimal | str) else None


def read_files(
    store: Readable,
    paths: Iterable[str],
    kinds: Set[str],
    without: Set[FileKey],
    *,
    sidecars: bool = True,
) -> Iterator[Part]:
    """Yield the file actions of a checkpoint: adds in columns if possible.

    The order is always the same, with the actions of sidecars last.

    Args:
        store: the store of the table.
        paths: the checkpoint's files.
        kinds: the names of the actions in the log.
        without: files whose actions are left out.
        sidecars: also read the sidecars that the checkpoint names.
    """
    paths_without = pa.array({path for path, _ in without}, pa.string())
    for batch in _read_batches(store, paths, kinds, sidecars=sidecars):
        columns = _columns(batch, without, paths_without)
        if columns is not None:
            yield columns
        else:
            yield [a for a in _actions_of(batch) if not _is_among(a, without)]


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
    unknown = fields.keys() - set(ADDS.names) - _PARSED
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
    """Cast integers to integers, booleans to booleans and strings to strings.

    Raises:
        pa.ArrowTypeError: The types are of different families.
    """
    families = (pa.types.is_integer, pa.types.is_boolean, _is_text)
    if not any(family(array.type) and family(kind) for family in families):
        raise pa.ArrowTypeError(f"{array.type} isn't {kind}")
    return array.cast(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _maps(array: pa.MapArray) -> pa.Array:
    """Return maps of strings as JSON, with their keys in the order they have."""
    entries = _joined(_text(array.keys), ":", pc.fill_null(_text(array.items), "null"))
    lists = pa.ListArray.from_arrays(array.offsets, entries)
    bodies = pc.binary_join(lists, ",")
    objects = _joined("{", bodies, "}")
    return pc.if_else(array.is_valid(), objects, pa.scalar(None, pa.string()))


def _objects(array: pa.StructArray) -> pa.Array:
    """Return deletion vectors as JSON, without the fields that are null."""
    if {field.name for field in array.type} - set(_VECTOR):
        raise pa.ArrowTypeError("a deletion vector with an unknown field")
    # Nulls apart, because Arrow drops a row of which it skips every part.
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
    return pc.replace_with_mask(absent, array.is_valid(), _joined("{", bodies, "}"))


def _scalars(array: pa.Array) -> pa.Array:
    return _text(array) if _is_text(array.type) else array.cast(pa.string())


def _text(array: pa.Array) -> pa.Array:
    """Return strings as JSON."""
    array = array.cast(pa.string())
    if pc.any(pc.match_substring_regex(array, _ESCAPED)).as_py():
        texts = (
            None if v is None else _encoder.encode(v).decode()
            for v in array.to_pylist()
        )
        return pa.array(texts, pa.string())
    return _joined('"', array, '"')


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")
