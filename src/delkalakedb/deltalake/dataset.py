"""pyarrow datasets of a table's files.

Each file has a guarantee: an expression that is true for all of its rows, made of its
partition values and statistics. pyarrow skips a file whose guarantee contradicts a
filter, and drops from the filter what the guarantee implies.
"""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import cache, partial, reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog import Files, Snapshot, has_vectors
from delkalakedb.errors import ProtocolError
from delkalakedb.model.actions import known
from delkalakedb.model.rules.features import (
    COLUMN_MAPPING,
    DELETION_VECTORS,
    Use,
    features_for,
)
from delkalakedb.model.schema.partition import parse_partition_value
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.stats.add_actions import add_actions

if TYPE_CHECKING:
    # Imported where it is needed, because it loads pandas.
    import pyarrow.dataset as ds

# Statistics have times cut to milliseconds.
_CUT = timedelta(milliseconds=1)
# Digits; statistics have decimals as doubles, which are exact up to here.
_EXACT_DIGITS = 15

# A file's guarantee, None if nothing is known.
_Known: TypeAlias = pc.Expression | None
# The share of distinct bounds above which files don't share guarantees.
_MOSTLY_DISTINCT = 0.8
# Files; below this, sharing costs more than it saves.
_FEW_FILES = 16
# These take half the time of the operators, which look functions up by name.
_call, _literal = pc.Expression._call, pc.Expression._scalar


def make_dataset(
    files: Files,
    schema: pa.Schema,
    filesystem: Any,
    read_options: "ds.ParquetReadOptions | None",
) -> "ds.FileSystemDataset":
    """Return the dataset of some files."""
    import pyarrow.dataset as ds

    layout = ds.ParquetFileFormat(
        read_options=read_options,
        default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=True),
    )
    fragments = [
        layout.make_fragment(path, filesystem, expression)
        for path, expression in _guaranteed(files, schema)
    ]
    schema = dataset_schema(schema, layout.read_options)
    return ds.FileSystemDataset(fragments, schema, layout, filesystem)


def dataset_schema(
    schema: pa.Schema, read_options: "ds.ParquetReadOptions | None"
) -> pa.Schema:
    """Return `schema` with the dictionary columns that `read_options` ask for."""
    encoded = (read_options and read_options.dictionary_columns) or ()
    fields = [
        f.with_type(pa.dictionary(pa.int32(), f.type)) if f.name in encoded else f
        for f in schema
    ]
    return pa.schema(fields, schema.metadata)


def scan_rows(
    raw: Any, schema: pa.Schema, columns: list[str] | None, filters: Any
) -> "ds.Scanner":
    """Return a scanner of the rows that delta-rs reads."""
    import pyarrow.dataset as ds
    from pyarrow.parquet import filters_to_expression

    # With a filter, read all columns: the filter may use columns that aren't selected.
    read = None
    if columns is not None and filters is None:
        read = list(dict.fromkeys(columns))
    reader = pa.RecordBatchReader.from_stream(raw.scan(read, None))
    fields = [schema.field(name) for name in reader.schema.names]
    rows = None if filters is None else filters_to_expression(filters)
    typed = reader.cast(pa.schema(fields))
    return ds.Scanner.from_batches(typed, columns=columns, filter=rows)


def dataset_files(files: Files, schema: pa.Schema) -> list[tuple[str, _Known]]:
    """Return the files' paths, each with its guarantee."""
    return list(_guaranteed(files, schema))


def _guaranteed(files: Files, schema: pa.Schema) -> Iterator[tuple[str, _Known]]:
    # Lazily, because a million files may have a dozen expressions each.
    check_plain(files.snapshot)
    if files.outside:
        table = files.snapshot.table
        raise ProtocolError(
            f"{table.name}: its files can't be read as a pyarrow dataset, because some "
            f"lie outside its location {table.location}; read the table with scan() or "
            "dk.QueryBuilder"
        )
    return zip(files.paths(), _known_of(files, schema), strict=True)


def _known_of(files: Files, schema: pa.Schema) -> Iterator[_Known]:
    partitions = _partitions(files, schema)
    if "stats" not in files.table.column_names:
        return partitions
    batches, metadata = files.table.to_batches(), files.snapshot.metadata
    actions = add_actions(batches, metadata).read_all()
    columns = _statistics(actions, _indexed(files, schema), schema)
    return map(partial(reduce, _both), zip(partitions, *columns, strict=True))


def check_plain(snapshot: Snapshot) -> None:
    """Raise `ProtocolError` if a table's Parquet files alone don't give its rows."""
    protocol, name = snapshot.protocol, snapshot.table.name
    readers = {*(known(protocol.reader_features) or ())}
    odd = sorted(readers - features_for(Use.DATASET))
    scanned = odd_files(snapshot)
    if odd or scanned or protocol.min_reader_version > 3:
        needs = ", ".join(scanned + odd) or f"reader {protocol.min_reader_version}"
        others = "Spark" if odd or not scanned else "scan() or dk.QueryBuilder"
        raise ProtocolError(
            f"{name}: its files can't be read as a pyarrow dataset, which doesn't "
            f"support {needs}; read the table with {others}"
        )


def odd_files(snapshot: Snapshot) -> list[str]:
    """Return the features of the files that delta-rs supports and pyarrow doesn't."""
    odd = []
    if parse_properties(snapshot.metadata).column_mapping_mode != "none":
        odd.append(COLUMN_MAPPING)
    if has_vectors(snapshot):
        odd.append(DELETION_VECTORS)
    return odd


def _partitions(files: Files, schema: pa.Schema) -> Iterator[_Known]:
    table = files.snapshot.table
    types = {field.name: field.type for field in table.schema.fields}
    columns = [
        (name, types[name], schema.field(name).type) for name in table.partition_columns
    ]
    # Cached, because few distinct values stand for many files.
    equalities = cache(
        lambda text: reduce(
            _both, _equalities(msgspec.json.decode(text), columns), None
        )
    )
    return map(equalities, files.table["partition_values"].to_pylist())


def _equalities(
    values: dict[str, str | None], columns: list[tuple[str, str, pa.DataType]]
) -> Iterator[pc.Expression]:
    for name, kind, arrow_type in columns:
        value = parse_partition_value(values.get(name), kind)
        column = pc.field(name)
        if value is None:
            yield column.is_null()
        else:
            yield column == pa.scalar(value, arrow_type)


def _statistics(
    actions: pa.Table, names: Sequence[str], schema: pa.Schema
) -> Iterator[Iterator[_Known]]:
    """Yield, for each column with statistics, the guarantees of the files."""
    rows = actions["num_records"].combine_chunks()
    nulls, lows, highs = (
        actions[name].combine_chunks()
        if name in actions.column_names
        else pa.nulls(len(rows), pa.struct([]))
        for name in ("null_count", "min", "max")
    )
    for name in names:
        if nulls.type.get_field_index(name) < 0 or pa.types.is_nested(
            nulls.field(name).type
        ):
            continue
        lo = hi = pa.nulls(len(rows))
        if lows.type.get_field_index(name) >= 0:
            kind = schema.field(name).type
            lo, hi = _bounds(lows.field(name), highs.field(name), kind)
        yield _column(pc.field(name), lo, hi, _nullness(nulls.field(name), rows))


def _indexed(files: Files, schema: pa.Schema) -> list[str]:
    """Return the columns whose statistics count, as deltalake chooses them."""
    properties = parse_properties(files.snapshot.metadata)
    named = properties.data_skipping_stats_columns
    if named is not None:
        names = {path[0] for path in named if len(path) == 1}
        return [f.name for f in schema if f.name in names]
    most = properties.data_skipping_num_indexed_cols
    names = schema.names if most < 0 else schema.names[:most]
    return [n for n in names if not pa.types.is_nested(schema.field(n).type)]


def _bounds(lo: pa.Array, hi: pa.Array, kind: pa.DataType) -> tuple[pa.Array, pa.Array]:
    """Return bounds in a column's type, null where they don't bound its values."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_decimal(kind) and kind.precision > _EXACT_DIGITS:
        return pa.nulls(len(lo)), pa.nulls(len(hi))
    if pa.types.is_timestamp(hi.type):
        hi = pc.add(hi, _CUT)
    crossed, sides = pc.greater(lo, hi), (lo, hi)
    if crossed.null_count or crossed.true_count:
        sides = tuple(pc.if_else(crossed, None, side) for side in sides)
    try:
        low, high = (s if s.type == kind else s.cast(kind) for s in sides)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return pa.nulls(len(lo)), pa.nulls(len(hi))
    return low, high


def _nullness(nulls: pa.Array, rows: pa.Array) -> list[bool | None]:
    """Return for each file whether all values are null, None if some are or may be."""
    none = pc.equal(nulls, 0)
    if none.true_count == len(none):
        return [False] * len(none)
    every = pc.and_(pc.equal(nulls, rows), pc.invert(none))
    known_of = pc.if_else(every, True, pc.if_else(none, False, None))
    return list(known_of.to_pylist())


def _column(
    field: pc.Expression, lo: pa.Array, hi: pa.Array, nullness: list[bool | None]
) -> Iterator[_Known]:
    is_null, is_valid = field.is_null(), field.is_valid()

    def known_of(low: pa.Scalar, high: pa.Scalar, null: bool | None) -> _Known:
        if null:
            return is_null
        at_least = _call("greater_equal", [field, _literal(low)])
        at_most = _call("less_equal", [field, _literal(high)])
        if null is None:
            at_least, at_most = at_least | is_null, at_most | is_null
        if low.is_valid and high.is_valid:
            return _call("and_kleene", [at_least, at_most])
        if low.is_valid or high.is_valid:
            return at_least if low.is_valid else at_most
        # Only without a bound, because a comparison with a bound implies it.
        return None if null is None else is_valid

    if len(lo) < _FEW_FILES:
        return map(known_of, lo, hi, nullness)
    lows, highs = (side.dictionary_encode("encode") for side in (lo, hi))
    distinct = max(len(lows.dictionary), len(highs.dictionary))
    if distinct > _MOSTLY_DISTINCT * len(lo):
        return map(known_of, lo, hi, nullness)
    low_values, high_values = lows.dictionary, highs.dictionary
    shared = cache(
        lambda low, high, null: known_of(low_values[low], high_values[high], null)
    )
    return map(shared, lows.indices.to_pylist(), highs.indices.to_pylist(), nullness)


def _both(one: _Known, other: _Known) -> _Known:
    if one is None or other is None:
        return other if one is None else one
    return _call("and_kleene", [one, other])
