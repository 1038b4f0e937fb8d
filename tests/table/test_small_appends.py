"""Appends of a few rows: delta-rs, which writes all others, is the referee."""

import itertools
import math
import string
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Field
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType
from hypothesis import HealthCheck, example, given, settings, strategies as st

import delkalakedb as dk
from delkalakedb.catalog.engine.backend import CLIENT
from delkalakedb.errors import CommitFailedError
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.examples import examples
from tests.support.twins import Twins, rows

EPOCH = datetime(1970, 1, 1)
TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int16(): st.integers(-(2**15), 2**15 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=40) | st.text("a\U0010ffff", min_size=30),
    pa.binary(): st.binary(max_size=40),
    pa.date32(): st.dates(),
    pa.timestamp("us", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(12, 3): st.decimals(-(10**8), 10**8, places=3),
    pa.decimal128(38, 10): st.decimals(-(10**20), 10**20, places=10),
}
DIVIDING = [pa.int32(), pa.int64(), pa.bool_(), pa.date32(), pa.string()]
# What a folder can't be called by everybody.
texts = st.sampled_from(["a", "a b", "x=1/%", "%20", "ü:*?'", ""])
DIVIDED = {**TYPES, pa.string(): texts}


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, list[str]]:
    """A few rows, and the columns that their table is partitioned by."""
    count = draw(st.integers(1, 4))
    kinds = draw(st.lists(st.sampled_from([*TYPES]), min_size=1, max_size=5))
    parts = draw(st.lists(st.sampled_from(DIVIDING), max_size=2))
    names = iter(string.ascii_lowercase)
    columns: dict[str, pa.Array] = {}
    for source, chosen in ((TYPES, kinds), (DIVIDED, parts)):
        for kind in chosen:
            values = st.lists(st.none() | source[kind], min_size=count, max_size=count)
            columns[next(names)] = pa.array(draw(values), kind)
    return pa.table(columns), list(columns)[len(kinds) :]


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    return itertools.count()


@settings(
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(tables())
@example((pa.table({"a": [math.nan, 1.0], "b": [-0.0, 0.0]}), []))
@example((pa.table({"a": [math.inf, -math.inf, None]}), []))
@example((pa.table({"a": [None], "b": pa.array([None], pa.string())}), ["b"]))
def test_rows_and_what_is_said_of_them_are_as_delta_rs_has_them(
    tmp_path: Path, numbers: Iterator[int], given: tuple[pa.Table, list[str]]
) -> None:
    data, partition_by = given
    if pa.types.is_null(data.schema.field(0).type):
        data = data.set_column(0, "a", pa.array([None], pa.int32()))
    made = []
    for options in ({}, {"target_file_size": 1 << 30}):
        location = tmp_path / str(next(numbers))
        uri = f"deltasql://sqlite/{tmp_path}/c.db?table={location.name}"
        dk.DeltaTable.create(
            f"{uri}&location={location}", data.schema, partition_by=partition_by
        )
        dk.write_deltalake(uri, data, mode="append", **options)
        made.append(dk.DeltaTable(uri))
    ours, theirs = made
    assert wrote_itself(ours)
    assert not wrote_itself(theirs)
    plain = deltalake.DeltaTable(ours.table_uri)
    assert rows(ours) == rows(plain) == rows(theirs)
    assert said_of_commit(ours) == said_of_commit(theirs)
    assert by_partition(ours) == by_partition(theirs)
    # deltalake passes over infinities: its own reader is no judge of bounds.
    check_bounds(ours, data)


def wrote_itself(table: deltalake.DeltaTable) -> bool:
    return bool(table.history(1)[0]["engineInfo"] == CLIENT)


def said_of_commit(table: deltalake.DeltaTable) -> tuple[Any, ...]:
    info = table.history(1)[0]
    metrics = info["operationMetrics"]
    metrics.pop("execution_time_ms")
    return info["operation"], info["operationParameters"], metrics


def by_partition(table: deltalake.DeltaTable) -> list[tuple[str, ...]]:
    """What the log says of each file, but for its bounds."""
    adds = pa.table(table.get_add_actions()).to_pylist()
    # delta-rs counts no nulls in columns without bounds.
    bounded = {f.name for f in table.schema().fields if f.type.type != "binary"}
    return sorted(
        (
            repr(add.get("partition")),
            repr(add["num_records"]),
            repr({n: v for n, v in add["null_count"].items() if n in bounded}),
        )
        for add in adds
    )


def check_bounds(table: deltalake.DeltaTable, data: pa.Table) -> None:
    """No filter that holds for a row may pass over its file."""
    for name in data.column_names:
        for value in data[name].to_pylist():
            # In a partition column an empty text is null.
            if value in (None, "") or isinstance(value, bytes):
                continue
            for operator in ("=", ">=", "<="):
                found = table.to_pyarrow_table(filters=[(name, operator, value)])
                held = found[name].to_pylist()
                assert value in held or value != value, (name, operator, value)


def test_partition_value_too_long_for_a_folder_is_written(
    catalog_uri: str, tmp_path: Path
) -> None:
    """And an empty one, which is null to readers."""
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    data = pa.table({"id": [1, 2, 3], "part": ["y" * 300, "", None]})
    location = str(tmp_path / "t")
    with dk.connect(catalog_uri) as catalog:
        catalog.create_table("t", data.schema, partition_by="part", location=location)
    dk.write_deltalake(uri, data, mode="append")
    for table in (dk.DeltaTable(uri), deltalake.DeltaTable(location)):
        parts = dict(zip(*table.to_pyarrow_table().to_pydict().values(), strict=True))
        assert parts == {1: "y" * 300, 2: None, 3: None}


def folders_of(table: deltalake.DeltaTable) -> set[str]:
    """The folders of a table's files, as the log has them."""
    paths = pa.table(table.get_add_actions())["path"].to_pylist()
    return {path.rpartition("/")[0] for path in paths}


@pytest.mark.parametrize("name", ["_p q", "p/q", "ü%?"])
def test_folder_of_a_partition_is_called_as_delta_rs_calls_it(
    catalog_uri: str, tmp_path: Path, name: str
) -> None:
    twins = Twins(catalog_uri, tmp_path)
    data = pa.table({"id": [1, 2, 3], name: ["a b", "ü/%", None]})
    twins.write(data, partition_by=[name])
    twins.write(data, mode="append")
    assert wrote_itself(twins.ours)
    assert folders_of(twins.ours) == folders_of(twins.plain)
    assert len(folders_of(twins.ours)) == 3

    twins.do(lambda table: table.delete())
    at_once = {"retention_hours": 0, "enforce_retention_duration": False}
    twins.ours.vacuum(dry_run=False, **at_once)

    folder = Path(twins.ours.table_uri.removeprefix("file://"))
    assert not [*folder.rglob("*.parquet")]


def test_partition_column_that_would_lead_out_of_the_location_stays_inside(
    catalog_uri: str, tmp_path: Path
) -> None:
    location = tmp_path / "lake" / "t"
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    data = pa.table({"id": [1], "../../x": ["a"]})
    with dk.connect(catalog_uri) as catalog:
        catalog.create_table(
            "t", data.schema, partition_by="../../x", location=str(location)
        )
    dk.write_deltalake(uri, data, mode="append")
    assert rows(dk.DeltaTable(uri)) == ["{'id': 1, '../../x': 'a'}"]
    assert [path.name for path in location.parent.iterdir()] == ["t"]
    assert len([*location.rglob("*.parquet")]) == 1


def test_text_that_stands_for_null_in_folders_is_what_delta_rs_makes_of_it(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = Twins(catalog_uri, tmp_path)
    null = "__HIVE_DEFAULT_PARTITION__"
    data = pa.table({"id": [1, 2, 3], "p": [null, None, "x"]})
    twins.write(data.slice(2), partition_by=["p"])
    twins.write(data, mode="append")
    assert rows(twins.ours)[0] == "{'id': 1, 'p': None}"
    twins.write(data.slice(0, 1), mode="append")


# --- what is left to delta-rs ---------------------------------------------------------


ROW = pa.table({"id": pa.array([1], pa.int64()), "name": ["x"]})
SCHEMA = deltalake.Schema(
    [Field("id", PrimitiveType("long")), Field("name", PrimitiveType("string"))]
)


@pytest.fixture
def twins(catalog_uri: str, tmp_path: Path) -> Twins:
    twins = Twins(catalog_uri, tmp_path)
    twins.write(ROW)
    return twins


def test_small_append_is_written_here_and_a_large_one_by_delta_rs(twins: Twins) -> None:
    twins.write(ROW, mode="append")
    assert wrote_itself(twins.ours)
    twins.write(pa.table({"id": range(20_000), "name": ["y"] * 20_000}), mode="append")
    assert not wrote_itself(twins.ours)


@pytest.mark.parametrize(
    "data",
    [
        ROW.cast(pa.schema([("id", pa.int32()), ("name", pa.string())])),
        ROW.select(["name", "id"]),
        ROW.slice(0, 0),
        pa.table({"id": [1.0], "name": ["x"]}),
    ],
    ids=["narrower", "other order", "no rows", "other type"],
)
def test_rows_of_another_shape_come_out_as_with_deltalake(
    twins: Twins, data: pa.Table
) -> None:
    twins.write(data, mode="append")
    assert not wrote_itself(twins.ours)


@pytest.mark.parametrize(
    "kinds",
    [(pa.large_string(), True), (pa.string_view(), True), (pa.string(), False)],
    ids=["large", "view", "not null"],
)
def test_other_forms_of_text_are_the_same_rows(
    twins: Twins, kinds: tuple[pa.DataType, bool]
) -> None:
    kind, nullable = kinds
    field = pa.field("name", kind, nullable)
    twins.write(ROW.cast(pa.schema([ROW.schema.field("id"), field])), mode="append")
    assert wrote_itself(twins.ours)


@pytest.mark.parametrize(
    "options",
    [
        {"schema_mode": "merge"},
        {"target_file_size": 1000},
        {"commit_properties": CommitProperties(custom_metadata={"why": "so"})},
        {"writer_properties": deltalake.WriterProperties(compression="ZSTD")},
    ],
    ids=lambda options: next(iter(options)),
)
def test_options_of_a_write_are_honoured_by_delta_rs(
    twins: Twins, options: dict[str, Any]
) -> None:
    twins.write(ROW, mode="append", **options)
    assert not wrote_itself(twins.ours)


def test_constraint_is_checked_by_delta_rs(twins: Twins) -> None:
    twins.do(lambda table: table.alter.add_constraint({"positive": "id > 0"}))
    with pytest.raises(DeltaError):
        dk.write_deltalake(
            twins.uri, ROW.set_column(0, "id", pa.array([-1])), mode="append"
        )
    twins.write(ROW, mode="append")


def test_null_where_none_may_be_is_refused_by_delta_rs(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = Twins(catalog_uri, tmp_path)
    schema = pa.schema([pa.field("id", pa.int64(), False), ("name", pa.string())])
    twins.write(ROW.cast(schema))
    twins.write(ROW, mode="append")
    assert wrote_itself(twins.ours)
    hole = pa.table({"id": pa.array([None], pa.int64()), "name": ["x"]})
    for target in (twins.uri, twins.path):
        with pytest.raises(DeltaError):
            deltalake_write(target, hole)
    twins.check()


def deltalake_write(target: str, data: Any) -> None:
    dk.write_deltalake(target, data, mode="append")


def test_nested_columns_are_written_by_delta_rs(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = Twins(catalog_uri, tmp_path)
    nested = pa.table({"s": [{"a": 1}], "l": [[1, 2]]})
    twins.write(nested)
    twins.write(nested, mode="append")
    assert not wrote_itself(twins.ours)


def test_rows_for_many_partitions_are_written_by_delta_rs(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = Twins(catalog_uri, tmp_path)
    spread = pa.table({"id": range(40), "part": [str(n) for n in range(40)]})
    twins.write(spread, partition_by=["part"])
    twins.write(spread, mode="append")
    assert not wrote_itself(twins.ours)
    twins.write(spread.slice(0, 3), mode="append")
    assert wrote_itself(twins.ours)


# --- nothing is lost, nothing is left -------------------------------------------------


def test_stream_longer_than_a_few_rows_arrives_whole(twins: Twins) -> None:
    batch = pa.record_batch({"id": range(3000), "name": ["z"] * 3000})

    def stream() -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(batch.schema, iter([batch] * 7))

    dk.write_deltalake(twins.uri, stream(), mode="append")
    deltalake.write_deltalake(twins.path, stream(), mode="append")
    twins.check()


@pytest.mark.parametrize("before", [0, 2])
def test_stream_that_fails_fails_as_with_deltalake(twins: Twins, before: int) -> None:
    def stream() -> pa.RecordBatchReader:
        def batches() -> Iterator[pa.RecordBatch]:
            yield from ROW.to_batches() * before
            raise ValueError("the source is broken")

        return pa.RecordBatchReader.from_batches(ROW.schema, batches())

    for target in (twins.uri, twins.path):
        with pytest.raises(DeltaError, match="the source is broken"):
            deltalake_write(target, stream())
    twins.check()


def test_folder_that_cannot_be_made_fails_the_append_and_leaves_nothing(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = Twins(catalog_uri, tmp_path)
    twins.write(ROW, partition_by=["name"])
    folder = Path(twins.ours.table_uri.removeprefix("file://"))
    before = files_below(folder)
    (folder / "name=y").write_bytes(b"in the way")
    data = pa.table({"id": [1, 2], "name": ["x", "y"]})
    with pytest.raises(DeltaError, match="t: append on version 0"):
        dk.write_deltalake(twins.uri, data, mode="append")
    (folder / "name=y").unlink()
    assert files_below(folder) == before
    twins.check()


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_append_that_is_refused_leaves_no_file(twins: Twins) -> None:
    stale = twins.ours
    folder = Path(stale.table_uri.removeprefix("file://"))
    twins.do(lambda t: t.alter.add_columns([Field("note", PrimitiveType("string"))]))
    before = files_below(folder)
    with pytest.raises(CommitFailedError):
        dk.write_deltalake(stale, ROW, mode="append")
    assert files_below(folder) == before


def test_statistics_follow_the_properties(catalog_uri: str, tmp_path: Path) -> None:
    twins = Twins(catalog_uri, tmp_path)
    configuration = {"delta.dataSkippingNumIndexedCols": "1"}
    twins.write(ROW, configuration=configuration)
    twins.write(ROW, mode="append")
    assert wrote_itself(twins.ours)
    with dk.connect(catalog_uri) as catalog:
        found = catalog.snapshot("t").files().read_all()["stats"].to_pylist()
    measured = {tuple(msgspec.json.decode(text)["minValues"]) for text in found}
    assert measured == {("id",)}


def test_small_appends_of_a_transaction_come_to_be_together(
    catalog_uri: str, tmp_path: Path
) -> None:
    with dk.transaction(catalog_uri) as tx:
        for name in ("a", "b"):
            tx.create_table(name, SCHEMA, location=str(tmp_path / name))
    with dk.transaction(catalog_uri) as tx:
        tx.write("a", ROW, mode="append")
        tx.write("a", ROW, mode="append")
        tx.write("b", ROW, mode="append")
    for name, count in (("a", 2), ("b", 1)):
        plain = deltalake.DeltaTable(tmp_path / name)
        assert (plain.version(), plain.count()) == (count, count)


def test_time_beyond_what_statistics_can_say_is_still_found(tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/c.db?table=t&location={tmp_path}/t"
    late = EPOCH + timedelta(days=2_932_896, hours=23)
    data = pa.table({"at": [late], "cost": [Decimal("1.20")]})
    dk.DeltaTable.create(uri, data.schema)
    dk.write_deltalake(uri, data, mode="append")
    assert wrote_itself(dk.DeltaTable(uri))
    plain = deltalake.DeltaTable(str(tmp_path / "t"))
    assert plain.to_pyarrow_table(filters=[("at", ">=", late)]).num_rows == 1


def test_partition_by_a_date_that_python_does_not_know_is_written_by_delta_rs(
    tmp_path: Path,
) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/c.db?table=t&location={tmp_path}/t"
    days = pa.array([3_000_000], pa.int32()).cast(pa.date32())
    data = pa.table({"n": pa.array([1], pa.int64()), "day": days})
    dk.DeltaTable.create(uri, data.schema, partition_by=["day"])
    dk.write_deltalake(uri, data, mode="append")
    assert dk.DeltaTable(uri).count() == 1
