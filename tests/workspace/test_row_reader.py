"""Files read as Arrow, as executors do: in the table's columns, types and rows."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st
from pyroaring import BitMap64

import delkalakedb as dk
from delkalakedb.errors import DeltaError, PredicateError, ProtocolError
from delkalakedb.model.predicate.predicate import Anything, parse_predicate
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.model.vectors import kept_rows
from delkalakedb.storage.location import canonical_location
from delkalakedb.write.engines.row_filters import row_filter, row_test
from delkalakedb.write.engines.row_reader import (
    FILE_COLUMNS,
    ArrowReader,
    DataFile,
    arrow_reader,
    data_file,
    data_files,
)
from tests.support.lakes import Lake

SMALL = pa.schema([("id", pa.int64()), ("City Name", pa.string())])
UTC_MICROS = pa.timestamp("us", "UTC")


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        yield Lake(catalog, tmp_path)


def read(lake: Lake, target: pa.Schema, **changes: Any) -> pa.Table:
    """The newest version's rows, as an executor reads them that was sent the reader."""
    snapshot = lake.catalog.snapshot(lake.name)
    reader = replace(arrow_reader(snapshot, target, None), **changes)
    sent: ArrowReader = pickle.loads(pickle.dumps(reader))
    files = data_files(snapshot.files(columns=FILE_COLUMNS).read_all())
    return pa.Table.from_batches(sent.read(files), target)


def rows(table: pa.Table) -> list[Any]:
    return sorted(table.to_pylist(), key=repr)


@pytest.mark.parametrize("kind", ["", "name", "id"])
@pytest.mark.parametrize("partitions", [[], ["City Name"]])
def test_mapped_and_partitioned_files_without_deleted_rows_are_read(
    lake: Lake, kind: str, partitions: list[str]
) -> None:
    features = ["deletionVectors"]
    configuration = {"delta.enableDeletionVectors": "true"}
    schema = SMALL
    if kind:
        lake.map_columns(**{"id": "col-1", "City Name": "col-2"})
        features.append("columnMapping")
        configuration["delta.columnMapping.mode"] = kind
        numbered = [
            f.with_metadata({"PARQUET:field_id": str(i)})
            for i, f in enumerate(SMALL, 1)
        ]
        schema = pa.schema(numbered)
    lake.create(
        schema, partitions=partitions, features=features, configuration=configuration
    )
    files = [
        lake.file(
            {"id": ids, "City Name": [city] * len(ids)},
            **(dict.fromkeys(partitions, city)),
        )
        for ids, city in (([1, 2, 3], "a b%é"), ([4, 5], None))
    ]
    lake.commit(*files)
    lake.commit(*lake.without(files[0], 0, 2))

    found = read(lake, SMALL)

    assert found.schema == SMALL
    assert rows(found) == rows(lake.rows(lake.version))
    assert len(found) == 3


def test_columns_that_came_later_are_null_and_narrow_ones_widened(lake: Lake) -> None:
    old = pa.struct([("x", pa.int32()), ("gone", pa.string())])
    new = pa.struct([("y", pa.list_(pa.int32())), ("x", pa.int64())])
    lake.create(
        pa.schema([("s", old), ("l", pa.list_(old)), ("m", pa.map_(pa.string(), old))])
    )
    value = {"x": 1, "gone": "g"}
    lake.commit(
        lake.file(
            {
                "s": [value, None, value],
                "l": [[value, None], None, []],
                "m": [[("k", value)], None, [("n", None)]],
            }
        )
    )
    target = pa.schema(
        [
            ("z", pa.decimal128(10, 2)),
            ("s", new),
            ("l", pa.list_(new)),
            ("m", pa.map_(pa.string(), new)),
        ]
    )
    lake.widen(target)

    found = read(lake, target)

    fresh = {"y": None, "x": 1}
    assert found.to_pylist() == [
        {"z": None, "s": fresh, "l": [fresh, None], "m": [("k", fresh)]},
        {"z": None, "s": None, "l": None, "m": None},
        {"z": None, "s": fresh, "l": [], "m": [("n", None)]},
    ]


def test_times_of_any_unit_and_zone_come_in_microseconds(
    lake: Lake, tmp_path: Path
) -> None:
    schema = pa.schema([("t", UTC_MICROS), ("n", pa.timestamp("us"))])
    lake.create(schema, features=["timestampNtz"])
    add = lake.file({"t": [], "n": []})
    moment = datetime(1582, 1, 1, 1, 2, 3, 4, UTC)
    written = pa.table(
        {
            "t": pa.array([moment.replace(tzinfo=None)], pa.timestamp("ms")),
            "n": pa.array([1_000_000_001], pa.timestamp("ns")),
        }
    )
    pq.write_table(written, Path(lake.location) / add.path, version="2.6")
    lake.commit(add)

    (found,) = read(lake, schema).to_pylist()

    assert found["t"] == moment.replace(microsecond=0)
    assert found["n"] == datetime(1970, 1, 1, 0, 0, 1)


def test_file_elsewhere_is_read_by_its_url(lake: Lake, tmp_path: Path) -> None:
    lake.create(SMALL)
    add = lake.file({"id": [7], "City Name": ["x"]})
    elsewhere = tmp_path / "else where"
    elsewhere.mkdir()
    (Path(lake.location) / add.path).rename(elsewhere / "f.parquet")
    moved = data_file(add)
    url = f"{canonical_location(str(elsewhere))}/f.parquet"
    reader = arrow_reader(lake.catalog.snapshot(lake.name), SMALL, None)

    (batch,) = reader.read([replace(moved, path=url)])

    assert batch.to_pylist() == [{"id": 7, "City Name": "x"}]


def test_file_column_says_the_path_of_the_log(lake: Lake) -> None:
    lake.create(SMALL)
    lake.commit(lake.file({"id": [7], "City Name": ["x"]}, "a b.parquet"))
    target = pa.schema([SMALL.field("id"), ("file", pa.string())])

    found = read(lake, target, file_column="file")

    assert found.to_pylist() == [{"id": 7, "file": "a%20b.parquet"}]


def test_feature_that_readers_must_know_is_refused_by_name(lake: Lake) -> None:
    schema = SMALL.append(pa.field("t", pa.timestamp("ns")))
    lake.create(schema, features=["timestampNanos"])

    with pytest.raises(ProtocolError, match="timestampNanos"):
        read(lake, SMALL)


def test_feature_that_brings_a_type_which_no_column_has_is_no_hindrance(
    lake: Lake,
) -> None:
    lake.create(SMALL, features=["timestampNanos"])

    assert read(lake, SMALL).num_rows == 0


# ---- filters over rows

VALUES = pa.table(
    {
        "i": pa.array([1, 2, None, -5], pa.int32()),
        "f": pa.array([1.5, float("nan"), None, -0.0]),
        "s": pa.array(["a", "é", None, ""]),
        "b": pa.array([True, False, None, True]),
        "d": pa.array([date(2026, 1, 1), date(1582, 1, 1), None, date(2030, 1, 1)]),
        "t": pa.array(
            [datetime(2026, 1, 1, 1, tzinfo=UTC), None, None, None], UTC_MICROS
        ),
        "n": pa.array(
            [Decimal("1.25"), Decimal("-7.00"), None, Decimal(0)], pa.decimal128(9, 2)
        ),
        "o": pa.array(
            [{"x": 1}, {"x": None}, None, {"x": 4}], pa.struct([("x", pa.int64())])
        ),
    }
)


def test_filters_keep_the_rows_that_spark_keeps() -> None:
    from deltalake import Schema

    schema = parse_schema(Schema.from_arrow(VALUES.schema).to_json())
    expected: dict[str, list[int]] = {
        "i > 1": [1],
        "i <> 1": [1, 3],
        "NOT (i = 1 OR i = 2)": [3],
        "i IN (1, -5, 99999999999)": [0, 3],
        "i NOT IN (1, 2)": [3],
        "i BETWEEN -5 AND 1": [0, 3],
        "f > 1": [0, 1],
        "f >= 1.5": [0, 1],
        "f < 2": [0, 3],
        "f = 0": [3],
        "s = '' OR s > 'b'": [1, 3],
        "b": [0, 3],
        "NOT b": [1],
        "d < '2026-01-01'": [1],
        "d >= DATE '2026-01-01'": [0, 3],
        "t = '2026-01-01T01:00:00Z'": [0],
        "n > 0.5": [0],
        "n = -7": [1],
        "o.x > 1": [3],
        "o.x IS NULL": [1, 2],
        "i IS NOT NULL AND s <=> NULL": [],
        "i = NULL": [],
        "true": [0, 1, 2, 3],
    }
    table = VALUES.append_column("row", pa.array(range(4)))

    for text, kept in expected.items():
        condition = row_filter(parse_predicate(text, schema))
        assert table.filter(condition)["row"].to_pylist() == kept, text


@pytest.mark.parametrize(
    "text", ["i % 2 = 0", "s LIKE 'a%'", "i = 1 AND upper(s) = 'A'"]
)
def test_filter_that_spark_has_to_judge_is_refused(text: str) -> None:
    from deltalake import Schema

    schema = parse_schema(Schema.from_arrow(VALUES.schema).to_json())

    with pytest.raises(PredicateError, match="where"):
        row_filter(parse_predicate(text, schema))


@given(st.lists(st.integers(0, 299), unique=True, min_size=1))
def test_rows_that_stay_are_those_not_in_the_vector(gone: list[int]) -> None:
    from delkalakedb.write.engines.row_reader import _taken

    rows, deleted = pa.record_batch({"i": range(300)}), BitMap64(gone)
    parts = [
        _taken(rows.slice(at, 100), kept_rows(deleted, at, 100))
        for at in range(0, 300, 100)
    ]

    found = pa.Table.from_batches(parts)["i"].to_pylist()
    assert found == [i for i in range(300) if i not in gone]


@pytest.mark.parametrize("start", ["./", ".//", "s%2F..%2F", "file:{}/", "{}/"])
def test_file_is_read_however_the_log_spells_its_path(lake: Lake, start: str) -> None:
    lake.create(SMALL)
    file = lake.file({"id": [1], "City Name": ["a"]}, "f.parquet")
    path = start.format(quote(lake.location)) + file.path
    lake.commit(msgspec.structs.replace(file, path=path))

    assert read(lake, SMALL).to_pylist() == [{"id": 1, "City Name": "a"}]


@pytest.mark.parametrize("path", ["../f.parquet", "..%2Ff.parquet", "%2e./f.parquet"])
def test_file_by_a_path_that_leads_out_is_not_read(lake: Lake, path: str) -> None:
    lake.create(SMALL)
    snapshot = lake.catalog.snapshot(lake.name)
    reader = arrow_reader(snapshot, SMALL, None)

    with pytest.raises(DeltaError, match="doesn't lead to a file below"):
        list(reader.read([DataFile(path, "{}", 1)]))


KEYS = {
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1) | st.integers(0, 40)),
    "short": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (UTC_MICROS, st.datetimes().map(lambda at: at.replace(tzinfo=UTC))),
    "double": (pa.float64(), st.floats()),
    "boolean": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=3)),
    "decimal": (pa.decimal128(9, 2), st.decimals(-9, 9, places=2)),
    "binary": (pa.binary(), st.binary(max_size=2)),
}


@given(st.data(), st.sampled_from(sorted(KEYS)))
def test_rows_with_one_of_some_values_pass_as_if_each_was_looked_up(
    data: st.DataObject, name: str
) -> None:
    kind, values = KEYS[name]
    column = pa.array(data.draw(st.lists(values | st.none(), max_size=30)), kind)
    if data.draw(st.booleans()) and name != "double":
        column = column.sort()
    own = [value for value in column.to_pylist() if value is not None]
    some = values | st.sampled_from(own) if own else values
    keys = pa.array(data.draw(st.lists(some, max_size=15)), kind)
    rows = pa.record_batch({"key": column})
    found = row_test(Anything(), {"key": keys}, None, rows.schema).passing(rows)
    assert found["key"].equals(column.filter(pc.is_in(column, keys)))


def test_found_rows_have_their_numbers_and_all_columns(lake: Lake) -> None:
    rows = pa.table({"id": range(100), "City Name": [f"city {n}" for n in range(100)]})
    lake.create(SMALL)
    lake.commit(lake.file({"id": [7], "City Name": ["x"]}, "one.parquet"))
    path = Path(lake.location) / "groups.parquet"
    pq.write_table(rows, path, row_group_size=10)
    schema = pa.schema([*SMALL, ("row", pa.int64())])
    snapshot = lake.catalog.snapshot(lake.name)
    reader = arrow_reader(snapshot, schema, None, "row")
    keys = {"id": pa.array([99, 3, 31, 1000])}
    test = row_test(Anything(), keys, None, SMALL)
    file = DataFile("groups.parquet", "{}", path.stat().st_size)
    found = pa.Table.from_batches(reader.find(file, test), schema)
    wanted = rows.take([3, 31, 99])
    assert found.select(wanted.column_names).equals(wanted.cast(SMALL))
    assert found["row"].to_pylist() == [3, 31, 99]
    taken = pa.Table.from_batches(reader.take(file, BitMap64([3, 31, 99])), schema)
    assert taken.equals(found)
