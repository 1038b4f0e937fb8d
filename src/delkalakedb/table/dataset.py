"""pyarrow datasets of a table's files.

Each file comes with an expression that holds for all of its rows: its partition's
values, and what its statistics say. pyarrow skips a file whose expression contradicts
a filter, and drops from the filter what the expression makes certain.
"""

from collections.abc import Iterator, Sequence
from functools import cache, reduce
from itertools import chain
from operator import and_
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.parquet import filters_to_expression

from delkalakedb.catalog import Snapshot
from delkalakedb.errors import ProtocolError
from delkalakedb.model.actions import known
from delkalakedb.model.addactions import add_actions
from delkalakedb.model.partition import parse_partition_value
from delkalakedb.model.properties import parse_properties
from delkalakedb.table.files import Files, has_vectors

__all__ = ["check_plain", "dataset_files", "make_dataset", "odd_files", "scan_table"]

# Reader features that the files of a dataset know nothing of, or that pyarrow knows.
_PLAIN = frozenset(
    {
        "catalogManaged",
        "timestampNanos",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
    }
)
# Those that matter only where they are made use of.
_SCANNED = frozenset({"columnMapping", "deletionVectors"})
# Statistics hold times cut to milliseconds.
_CUT = pa.scalar(1_000, pa.duration("us"))
# Statistics hold decimals as doubles, which are exact up to here.
_EXACT_DIGITS = 15

# For each file, what holds for all of its rows.
_Parts = Iterator[Sequence[ds.Expression]]


def make_dataset(
    files: Files,
    schema: pa.Schema,
    filesystem: Any,
    read_options: ds.ParquetReadOptions | None,
) -> ds.FileSystemDataset:
    """The dataset of some files."""
    layout = ds.ParquetFileFormat(
        read_options=read_options,
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True),
    )
    fragments = [
        layout.make_fragment(path, filesystem, partition_expression=expression)
        for path, expression in _described(files, schema)
    ]
    encoded = layout.read_options.dictionary_columns or ()
    fields = [
        f.with_type(pa.dictionary(pa.int32(), f.type)) if f.name in encoded else f
        for f in schema
    ]
    schema = pa.schema(fields, schema.metadata)
    return ds.FileSystemDataset(fragments, schema, layout, filesystem)


def scan_table(
    raw: Any, schema: pa.Schema, columns: list[str] | None, filters: Any
) -> pa.Table:
    """The rows that delta-rs reads, as a dataset's `to_table` would give them."""
    # A filter may ask for columns that aren't wanted.
    read = list(dict.fromkeys(columns)) if columns and filters is None else None
    reader = pa.RecordBatchReader.from_stream(raw.scan(read, None))
    fields = [schema.field(name) for name in reader.schema.names]
    rows = None if filters is None else filters_to_expression(filters)
    typed = reader.cast(pa.schema(fields))
    return ds.Scanner.from_batches(typed, columns=columns, filter=rows).to_table()


def dataset_files(
    files: Files, schema: pa.Schema
) -> list[tuple[str, ds.Expression | None]]:
    """The files' names, each with what holds for all its rows."""
    return list(_described(files, schema))


def _described(
    files: Files, schema: pa.Schema
) -> Iterator[tuple[str, ds.Expression | None]]:
    # One file after the other: there may be a million, each with a dozen expressions.
    check_plain(files.snapshot)
    columns = [_partitions(files, schema), *_statistics(files, schema)]
    rows = zip(*columns, strict=True)
    for path, parts in zip(files.paths(), rows, strict=True):
        sides = list(chain.from_iterable(parts))
        yield path, reduce(and_, sides) if sides else None


def check_plain(snapshot: Snapshot) -> None:
    """Refuse a table whose files don't say by themselves what its rows are."""
    protocol, name = snapshot.protocol, snapshot.table.name
    odd = sorted({*(known(protocol.reader_features) or ())} - _PLAIN - _SCANNED)
    scanned = odd_files(snapshot)
    if odd or scanned or protocol.min_reader_version > 3:
        needs = ", ".join(scanned + odd) or f"reader {protocol.min_reader_version}"
        others = "Spark" if odd or not scanned else "scan() or a QueryBuilder"
        raise ProtocolError(
            f"{name}: its files can't be read as a pyarrow dataset, which knows "
            f"nothing of {needs}; read the table with {others}"
        )


def odd_files(snapshot: Snapshot) -> list[str]:
    """The features that delta-rs heeds in reading the files, and pyarrow doesn't."""
    odd = []
    if parse_properties(snapshot.metadata).column_mapping_mode != "none":
        odd.append("columnMapping")
    if has_vectors(snapshot):
        odd.append("deletionVectors")
    return odd


def _partitions(files: Files, schema: pa.Schema) -> _Parts:
    table = files.snapshot.table
    types = {field.name: field.type for field in table.schema.fields}
    columns = [
        (name, types[name], schema.field(name).type) for name in table.partition_columns
    ]
    # Few distinct values stand for many files.
    equalities = cache(
        lambda text: tuple(_equalities(msgspec.json.decode(text), columns))
    )
    return map(equalities, files.table["partition_values"].to_pylist())


def _equalities(
    values: dict[str, str | None], columns: list[tuple[str, str, pa.DataType]]
) -> Iterator[ds.Expression]:
    for name, kind, arrow_type in columns:
        value = parse_partition_value(values.get(name), kind)
        column = ds.field(name)
        if value is None:
            yield column.is_null()
        else:
            yield column == pa.scalar(value, arrow_type)


def _statistics(files: Files, schema: pa.Schema) -> Iterator[_Parts]:
    if "stats" not in files.table.column_names:
        return
    metadata = files.snapshot.metadata
    actions = add_actions(files.table.to_batches(), metadata).read_all()
    if not actions.num_rows:
        return
    actions = actions.combine_chunks()
    rows = actions["num_records"].chunk(0)
    nulls, lows, highs = (
        actions[name].chunk(0) for name in ("null_count", "min", "max")
    )
    bounded = {field.name for field in lows.type}
    for name in _indexed(files, schema):
        if nulls.type.get_field_index(name) < 0 or pa.types.is_nested(
            nulls.field(name).type
        ):
            continue
        kind, length = schema.field(name).type, len(rows)
        lo = hi = pa.nulls(length, kind)
        if name in bounded:
            lo, hi = _bounds(lows.field(name), highs.field(name), kind)
        yield _column(ds.field(name), lo, hi, _nullness(nulls.field(name), rows))


def _indexed(files: Files, schema: pa.Schema) -> list[str]:
    """The columns whose statistics are looked at, as deltalake chooses them."""
    properties = parse_properties(files.snapshot.metadata)
    named = properties.data_skipping_stats_columns
    if named is not None:
        names = {path[0] for path in named if len(path) == 1}
        return [f.name for f in schema if f.name in names]
    most = properties.data_skipping_num_indexed_cols
    names = schema.names if most < 0 else schema.names[:most]
    return [n for n in names if not pa.types.is_nested(schema.field(n).type)]


def _bounds(lo: pa.Array, hi: pa.Array, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Bounds in a column's type, and none where they aren't any."""
    if pa.types.is_decimal(kind) and kind.precision > _EXACT_DIGITS:
        return pa.nulls(len(lo), kind), pa.nulls(len(hi), kind)
    if pa.types.is_timestamp(hi.type):
        hi = pc.add(hi, _CUT)
    crossed = pc.greater(lo, hi)
    sides = (pc.if_else(crossed, None, side) for side in (lo, hi))
    try:
        low, high = (side.cast(kind) for side in sides)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(lo), kind), pa.nulls(len(hi), kind)
    return low, high


def _nullness(nulls: pa.Array, rows: pa.Array) -> list[bool | None]:
    """Whether all of a file's values are null; None where some are, or may be."""
    none = pc.equal(nulls, 0)
    every = pc.and_(pc.equal(nulls, rows), pc.invert(none))
    known_of = pc.if_else(every, True, pc.if_else(none, False, None))
    return list(known_of.to_pylist())


def _column(
    field: ds.Expression, lo: pa.Array, hi: pa.Array, nullness: list[bool | None]
) -> _Parts:
    is_null, is_valid = field.is_null(), field.is_valid()
    for low, high, null in zip(lo, hi, nullness, strict=True):
        if null:
            yield (is_null,)
            continue
        sides = []
        if low.is_valid:
            sides.append(field >= low)
        if high.is_valid:
            sides.append(field <= high)
        if null is None:
            yield [side | is_null for side in sides]
        else:
            # A bound says so, too: that no value is null.
            yield sides or (is_valid,)
