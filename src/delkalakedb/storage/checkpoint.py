"""The actions of a checkpoint, whatever its form.

V1 is one Parquet file or several parts; V2 is one Parquet or JSON file whose file
actions are inline or in sidecars. Parquet has no absent fields: a null is read as
absent.
"""

import math
from collections.abc import Iterable, Iterator, Set
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from delkalakedb.errors import CodecError, DeltaError
from delkalakedb.model.actions import Action, Sidecar
from delkalakedb.model.codec import KINDS, action_from_dict, decode_commit
from delkalakedb.storage.base import Store

__all__ = ["read_checkpoint", "read_sidecars"]

_SIDECARS = "_delta_log/_sidecars"
_BATCH_ROWS = 16_384
_PARSED = frozenset({"partitionValues_parsed", "stats_parsed"})
_encoder = msgspec.json.Encoder(decimal_format="number")


def read_checkpoint(
    store: Store, paths: Iterable[str], kinds: Set[str]
) -> Iterator[Action]:
    """The actions of these kinds (their names on disk) in a checkpoint's files."""
    wanted = kinds | {"sidecar"} if kinds & {"add", "remove"} else kinds
    for path in paths:
        for action in _read(store, path, wanted):
            if isinstance(action, Sidecar):
                yield from _read(store, _sidecar_path(action), kinds)
            else:
                yield action


def read_sidecars(store: Store, path: str) -> Iterator[str]:
    """The paths of the sidecars that a checkpoint's file names."""
    for action in _read(store, path, {"sidecar"}):
        if isinstance(action, Sidecar):
            yield _sidecar_path(action)


def _sidecar_path(sidecar: Sidecar) -> str:
    # They all are in one folder, whatever else a writer put before the name.
    return f"{_SIDECARS}/{unquote(sidecar.path.rsplit('/', 1)[-1])}"


def _read(store: Store, path: str, kinds: Set[str]) -> Iterator[Action]:
    try:
        read = _read_json if path.endswith(".json") else _read_parquet
        yield from read(store.get(path), kinds)
    except (pa.ArrowException, CodecError) as error:
        raise DeltaError(f"{store.url}: {path} is no checkpoint: {error}") from error


def _read_json(data: bytes, kinds: Set[str]) -> Iterator[Action]:
    wanted = tuple(KINDS[kind] for kind in kinds)
    return (action for action in decode_commit(data) if isinstance(action, wanted))


def _read_parquet(data: bytes, kinds: Set[str]) -> Iterator[Action]:
    with pq.ParquetFile(
        pa.BufferReader(data), coerce_int96_timestamp_unit="us"
    ) as file:
        columns = [name for name in file.schema_arrow.names if name in kinds]
        # Parquet can't say of these that they are in UTC, but they always are.
        utc = {leaf.path for leaf in file.schema if leaf.physical_type == "INT96"}
        for batch in file.iter_batches(_BATCH_ROWS, columns=columns) if columns else ():
            for kind in columns:
                yield from _rows(kind, batch.column(kind), utc)


def _rows(kind: str, column: pa.StructArray, utc: Set[str]) -> Iterator[Action]:
    present = column.drop_null()
    parsed = _field(present, "stats_parsed")
    plain = _plain(present)
    for index, body in enumerate(plain.to_pylist()):
        given = _given(plain.type, body)
        if parsed is not None and "stats" not in given:
            given |= _stats(parsed[index], utc)
        yield action_from_dict({kind: given})


def _plain(column: pa.StructArray) -> pa.StructArray:
    """The column without what only repeats its other fields in typed form."""
    names = [field.name for field in column.type if field.name not in _PARSED]
    return pa.StructArray.from_arrays([column.field(n) for n in names], names)


def _field(column: pa.StructArray, name: str) -> pa.Array | None:
    return column.field(name) if column.type.get_field_index(name) >= 0 else None


def _given(kind: pa.StructType, body: dict[str, Any]) -> dict[str, Any]:
    """The fields that aren't null, with maps as dictionaries."""
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


def _stats(parsed: pa.StructScalar, utc: Set[str]) -> dict[str, str]:
    try:
        values = parsed.as_py()
    except (OverflowError, ValueError):
        # A time that Python has no form for; no statistics only means no skipping.
        return {}
    if values is None:
        return {}
    return {"stats": _encoder.encode(_json(values, "add.stats_parsed", utc)).decode()}


def _json(value: Any, path: str, utc: Set[str]) -> Any:
    """A statistics value as Delta writes it in JSON; others are left out."""
    if isinstance(value, dict):
        forms = {name: _json(v, f"{path}.{name}", utc) for name, v in value.items()}
        return {name: form for name, form in forms.items() if form is not None}
    if isinstance(value, datetime):
        # Times are cut to milliseconds, which readers allow for.
        text = value.replace(tzinfo=None).isoformat(timespec="milliseconds")
        return f"{text}Z" if value.tzinfo or path in utc else text
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, bool | int | float | Decimal | str) else None
