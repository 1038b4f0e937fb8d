"""pyarrow datasets of a table: the same rows, and the same files skipped."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

import delkalakedb as dk
from delkalakedb.model.actions import Add, Format, Metadata, Protocol
from delkalakedb.model.log import Staged
from delkalakedb.settings.uri import format_uri, parse_uri

F = ds.field
MORNING = datetime(2026, 1, 1, tzinfo=UTC)
COLUMNS: dict[str, list[list[Any]]] = {
    "n": [[1, 2], [3, None], [None, None], [9, 12]],
    "s": [["a", "b"], ["c", None], [None, None], ["x", "yz"]],
    "at": [
        [MORNING.replace(microsecond=1999), MORNING],
        [MORNING.replace(hour=1), None],
        [None, None],
        [MORNING.replace(hour=7, microsecond=7)] * 2,
    ],
    "d": [
        [Decimal("1.25"), Decimal(2)],
        [Decimal(-3), None],
        [None] * 2,
        [Decimal(9)] * 2,
    ],
    "yes": [[True, True], [False, None], [None, None], [True, False]],
}
TYPES = pa.schema(
    {
        "n": pa.int32(),
        "s": pa.string(),
        "at": pa.timestamp("us", "UTC"),
        "d": pa.decimal128(6, 2),
        "yes": pa.bool_(),
    }
)
FILTERS = [
    F("n") == 2,
    F("n") > 2,
    F("n") <= 1,
    F("n").isin([2, 9]),
    ~(F("n") < 9),
    F("n").is_null(),
    F("n").is_valid(),
    F("s") >= "c",
    F("s") == "yz",
    F("at") > pa.scalar(MORNING.replace(microsecond=1500), pa.timestamp("us", "UTC")),
    F("at") < pa.scalar(MORNING.replace(hour=1), pa.timestamp("us", "UTC")),
    F("d") < pa.scalar(Decimal("1.26"), pa.decimal128(6, 2)),
    F("yes") == pa.scalar(False),
    F("part") == "p1",
    F("part").is_null(),
    (F("part") == "p1") | (F("n") == 12),
    (F("n") > 1) & (F("s") < "b"),
    F("n") > 100,
]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of four files with different values and nulls, in three partitions."""
    folder = tmp_path_factory.mktemp("dataset")
    uri = f"deltasql://sqlite/{folder}/meta.db?table=t"
    for i, part in enumerate(["p0", "p1", None, "p0"]):
        values = {name: column[i] for name, column in COLUMNS.items()}
        data = pa.table(values, TYPES).append_column("part", [[part] * 2])
        dk.write_deltalake(uri, data, mode="append", partition_by=["part"])
    return uri


def both(uri: str) -> list[deltalake.DeltaTable]:
    ours = dk.DeltaTable(uri)
    return [ours, deltalake.DeltaTable(ours.table_uri)]


def kept(dataset: ds.Dataset, where: ds.Expression) -> list[str]:
    return [fragment.path for fragment in dataset.get_fragments(where)]


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_filter_skips_the_same_files_and_gives_the_same_rows(
    uri: str, where: ds.Expression
) -> None:
    ours, theirs = (table.to_pyarrow_dataset() for table in both(uri))
    assert kept(ours, where) == kept(theirs, where)
    plain = theirs.to_table().filter(where)
    assert ours.to_table(filter=where).sort_by("s") == plain.sort_by("s")


@given(
    column=st.sampled_from(["n", "s"]),
    op=st.sampled_from(["equal", "not_equal", "less", "less_equal", "greater"]),
    number=st.integers(-1, 13),
    inverted=st.booleans(),
)
def test_any_comparison_skips_the_same_files_and_no_row(
    uri: str, column: str, op: str, number: int, inverted: bool
) -> None:
    value = number if column == "n" else "abcdwxyz"[number % 8]
    where = getattr(pc, op)(F(column), pa.scalar(value))
    where = ~where if inverted else where
    ours, theirs = (table.to_pyarrow_dataset() for table in both(uri))
    assert kept(ours, where) == kept(theirs, where)
    expected = ours.to_table().filter(where)
    assert ours.to_table(filter=where).sort_by("s") == expected.sort_by("s")


@pytest.mark.parametrize(
    "predicate", ["n = 9", [("part", "=", "p0")], "part IS NULL", "n > 100"]
)
def test_pruning_predicate_keeps_the_same_files(uri: str, predicate: Any) -> None:
    ours, theirs = (
        table.to_pyarrow_dataset(file_pruning_predicate=predicate)
        for table in both(uri)
    )
    assert ours.files == theirs.files
    assert ours.to_table() == theirs.to_table()


CODED = pa.dictionary(pa.int32(), pa.string())


def test_options_are_taken_as_by_deltalake(uri: str) -> None:
    options: list[dict[str, Any]] = [
        {"as_large_types": True},
        {"schema": pa.schema({"n": pa.int64(), "part": pa.large_string()})},
        {"schema": pa.schema({"n": pa.int64(), "s": CODED, "part": pa.string()})},
        {"parquet_read_options": ds.ParquetReadOptions(dictionary_columns={"s"})},
    ]
    for given_options in options:
        ours, theirs = (t.to_pyarrow_dataset(**given_options) for t in both(uri))
        assert ours.schema == theirs.schema
        assert ours.to_table() == theirs.to_table()
        assert kept(ours, F("n") > 8) == kept(theirs, F("n") > 8)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        found = dk.DeltaTable(uri).to_pyarrow_dataset([("part", "=", "p1")])
    assert found.count_rows() == 2


def test_filesystem_of_ones_own_is_used(uri: str) -> None:
    table = dk.DeltaTable(uri)
    root = table.table_uri.removeprefix("file://")
    system = pa.fs.SubTreeFileSystem(root, pa.fs.LocalFileSystem())
    dataset = table.to_pyarrow_dataset(filesystem=system)
    assert dataset.filesystem == system
    assert dataset.count_rows() == 8


def test_empty_table_gives_an_empty_dataset(catalog_uri: str) -> None:
    uri = format_uri(parse_uri(catalog_uri).with_table("empty"))
    dk.write_deltalake(uri, pa.table({"n": pa.array([], pa.int64())}))
    table = dk.DeltaTable(uri)
    assert table.to_pyarrow_table() == pa.table({"n": pa.array([], pa.int64())})
    assert (table.count(), table.partitions()) == (0, [])


def field(name: str, kind: str, **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def staged_table(
    folder: Path, fields: list[dict[str, Any]], data: pa.Table, stats: Any, **more: Any
) -> dk.DeltaTable:
    """A table of one file, with given statistics."""
    pq.write_table(data, folder / "a.parquet")
    schema = json.dumps({"type": "struct", "fields": fields})
    metadata = Metadata(
        id="m",
        format=Format(provider="parquet", options={}),
        schema_string=schema,
        partition_columns=[],
        configuration=more.get("configuration", {}),
    )
    protocol = more.get(
        "protocol", Protocol(min_reader_version=1, min_writer_version=2)
    )
    add = Add(
        path="a.parquet",
        partition_values={},
        size=(folder / "a.parquet").stat().st_size,
        modification_time=1,
        data_change=True,
        stats=json.dumps(stats),
    )
    uri = f"deltasql://sqlite/{folder}/meta.db"
    with dk.connect(uri) as catalog:
        catalog.commit(Staged("t", (protocol, metadata, add), location=str(folder)))
    return dk.DeltaTable(f"{uri}?table=t")


def test_file_whose_nulls_werent_counted_may_have_nulls(tmp_path: Path) -> None:
    stats = {"numRecords": 2, "minValues": {"n": 1}, "maxValues": {"n": 1}}
    data = pa.table({"n": pa.array([1, None], pa.int64())})
    table = staged_table(tmp_path, [field("n", "long")], data, stats)
    dataset = table.to_pyarrow_dataset()
    assert dataset.to_table(filter=F("n").is_null()).num_rows == 1
    assert dataset.to_table(filter=F("n") == 1).num_rows == 1
    assert kept(dataset, F("n") > 1) == []


def test_bounds_that_cross_or_are_inexact_skip_nothing(tmp_path: Path) -> None:
    exact = Decimal("12345678901234567.89")
    stats = {
        "numRecords": 1,
        "minValues": {"n": 5, "d": 12345678901234568.0},
        "maxValues": {"n": 1, "d": 12345678901234568.0},
        "nullCount": {"n": 0, "d": 0},
    }
    fields = [field("n", "long"), field("d", "decimal(19,2)")]
    data = pa.table({"n": [3], "d": pa.array([exact], pa.decimal128(19, 2))})
    dataset = staged_table(tmp_path, fields, data, stats).to_pyarrow_dataset()
    assert dataset.count_rows(filter=F("n") == 3) == 1
    assert dataset.count_rows(filter=F("d") == pa.scalar(exact)) == 1


@pytest.mark.parametrize("reader", [2, 3])
def test_column_mapped_table_is_read_by_the_dataset_and_by_scan(
    tmp_path: Path, reader: int
) -> None:
    names = {"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "c1"}
    lists = {"writer_features": ["columnMapping"], "reader_features": ["columnMapping"]}
    protocol = Protocol(
        min_reader_version=reader,
        min_writer_version=5 if reader == 2 else 7,
        **(lists if reader == 3 else {}),
    )
    table = staged_table(
        tmp_path,
        [field("n", "long", **names)],
        pa.table({"c1": [7, 8]}),
        {"numRecords": 2},
        protocol=protocol,
        configuration={
            "delta.columnMapping.mode": "name",
            "delta.columnMapping.maxColumnId": "1",
        },
    )
    assert table.to_pyarrow_dataset().to_table().to_pydict() == {"n": [7, 8]}
    assert table.to_pyarrow_table().to_pydict() == {"n": [7, 8]}
    assert table.to_pandas()["n"].tolist() == [7, 8]
    with pytest.raises(deltalake.exceptions.DeltaProtocolError):
        table._table.dataset_partitions(pa.schema(table.schema().to_arrow()))
    assert pa.table(table.scan()).to_pylist() == [{"n": 7}, {"n": 8}]
