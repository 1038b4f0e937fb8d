"""The actions of a checkpoint, whatever its form.

V1 is one Parquet file or several parts; V2 is one Parquet or JSON file whose file
actions are inline or in sidecars. Parquet has no absent fields: a null is read as
absent.
"""

import math
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from itertools import islice
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from delkalakedb.errors import CodecError, DeltaError
from delkalakedb.model.actions import Action, Sidecar
from delkalakedb.model.codec import KINDS, action_from_dict, decode_commit
from delkalakedb.storage.base import Store

__all__ = ["Rows", "read_batches", "read_checkpoint", "read_sidecars"]

_SIDECARS = "_delta_log/_sidecars"
BATCH_ROWS = 16_384
_BUFFER_BYTES = 1 << 16
_PARSED = frozenset({"partitionValues_parsed", "stats_parsed"})
_encoder = msgspec.json.Encoder(decimal_format="number")


@dataclass(frozen=True, slots=True)
class Rows:
    """Actions of one kind, by column.

    `utc` are times that don't say so themselves, `where` is the file.
    """

    kind: str
    column: pa.StructArray
    utc: Set[str]
    where: str

    def actions(self) -> Iterator[Action]:
        """The actions, one by one."""
        with _naming(self.where):
            yield from self._actions()

    def _actions(self) -> Iterator[Action]:
        stats = self.stats()
        plain = _plain(self.column)
        for index, body in enumerate(plain.to_pylist()):
            given = _given(plain.type, body)
            if stats and (text := stats[index]) is not None:
                given["stats"] = text
            yield action_from_dict({self.kind: given})

    def stats(self) -> list[str | None]:
        """The statistics as text, if some of them are only there in typed form."""
        parsed, stats = self.field("stats_parsed"), self.field("stats")
        if parsed is None or (stats is not None and not stats.null_count):
            return []
        texts = [None] * len(parsed) if stats is None else stats.to_pylist()
        return [
            _stats(typed, self.utc) if text is None else text
            for text, typed in zip(texts, parsed, strict=True)
        ]

    def field(self, name: str) -> pa.Array | None:
        """A field of the actions, if the checkpoint has it."""
        known = self.column.type.get_field_index(name) >= 0
        return self.column.field(name) if known else None


def read_checkpoint(
    store: Store, paths: Iterable[str], kinds: Set[str]
) -> Iterator[Action]:
    """The actions of these kinds (their names on disk) in a checkpoint's files."""
    for batch in read_batches(store, paths, kinds):
        yield from batch.actions() if isinstance(batch, Rows) else batch


def read_batches(
    store: Store, paths: Iterable[str], kinds: Set[str], *, sidecars: bool = True
) -> Iterator[Rows | Sequence[Action]]:
    """The same in batches: by column from Parquet, else as actions."""
    followed = sidecars and kinds & {"add", "remove"}
    wanted = kinds | {"sidecar"} if followed else kinds
    for path in paths:
        named: list[str] = []
        for batch in _read(store, path, wanted):
            if isinstance(batch, Rows) and batch.kind != "sidecar":
                yield batch
                continue
            actions = list(batch.actions() if isinstance(batch, Rows) else batch)
            named += _sidecar_paths(actions)
            yield [action for action in actions if not isinstance(action, Sidecar)]
        for sidecar in named:
            yield from _read(store, sidecar, kinds)


def read_sidecars(store: Store, path: str) -> Iterator[str]:
    """The paths of the sidecars that a checkpoint's file names."""
    for batch in _read(store, path, {"sidecar"}):
        yield from _sidecar_paths(batch.actions() if isinstance(batch, Rows) else batch)


def _sidecar_paths(actions: Iterable[Action]) -> Iterator[str]:
    for action in actions:
        if isinstance(action, Sidecar):
            # They all are in one folder, whatever else a writer put before the name.
            yield f"{_SIDECARS}/{unquote(action.path.rsplit('/', 1)[-1])}"


def _read(
    store: Store, path: str, kinds: Set[str]
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
    """Errors name the file."""
    try:
        yield
    except (pa.ArrowException, CodecError) as error:
        raise DeltaError(f"{where} is no checkpoint: {error}") from error


def _read_json(data: bytes, kinds: Set[str]) -> Iterator[Sequence[Action]]:
    wanted = tuple(KINDS[kind] for kind in kinds)
    found = (action for action in decode_commit(data) if isinstance(action, wanted))
    while some := list(islice(found, BATCH_ROWS)):
        yield some


def _read_parquet(data: pa.NativeFile, kinds: Set[str], where: str) -> Iterator[Rows]:
    # Page by page: a row group may be the whole of a large table.
    with pq.ParquetFile(
        data,
        coerce_int96_timestamp_unit="us",
        buffer_size=_BUFFER_BYTES,
        pre_buffer=False,
    ) as file:
        columns = [name for name in file.schema_arrow.names if name in kinds]
        # Parquet can't say of these that they are in UTC, but they always are.
        utc = {leaf.path for leaf in file.schema if leaf.physical_type == "INT96"}
        for batch in file.iter_batches(BATCH_ROWS, columns=columns) if columns else ():
            for kind in columns:
                if len(present := batch.column(kind).drop_null()):
                    yield Rows(kind, present, utc, where)


def _plain(column: pa.StructArray) -> pa.StructArray:
    """The column without what only repeats its other fields in typed form."""
    names = [field.name for field in column.type if field.name not in _PARSED]
    return pa.StructArray.from_arrays([column.field(n) for n in names], names)


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


def _stats(parsed: pa.StructScalar, utc: Set[str]) -> str | None:
    try:
        values = parsed.as_py()
    except (OverflowError, ValueError):
        # A time that Python has no form for; no statistics only means no skipping.
        return None
    if values is None:
        return None
    return _encoder.encode(_json(values, "add.stats_parsed", utc)).decode()


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
