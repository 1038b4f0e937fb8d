"""What a table of the catalog says of itself is what deltalake says of its log."""

import itertools
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import numpy as np
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import DeltaError
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.processes import run_python

ODD = "x y%z/ü:1"
FILTERS: list[Any] = [
    "n >= 2",
    "p = 'b1'",
    "p IS NULL",
    "p = 'b1' OR n = 0",
    "day = '2026-01-01'",
    [("p", "=", ODD)],
    [("p", "=", "")],
    [("p", "!=", "")],
    [("p", "in", ["b0", "b2"])],
    [("p", "not in", ["b0", "b2"])],
    [("day", ">=", date(2026, 1, 2))],
    [("n", ">", 1), ("p", "=", ODD)],
    [[("p", "=", "b1")], [("day", "=", "2026-01-02"), ("n", "<=", 2)]],
]


def test_numbers_of_other_libraries_are_versions(catalog_uri: str) -> None:
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    for i in range(2):
        dk.write_deltalake(uri, pa.table({"id": [i]}), mode="append")
    table = dk.DeltaTable(uri, version=np.int64(0))

    assert table.version() == 0
    assert len(dk.DeltaTable(uri).history(np.int64(1))) == 1
    dk.DeltaTable(uri).restore(np.int64(0))
    assert dk.DeltaTable(uri).count() == 1
    with pytest.raises(DeltaError, match="t: restore needs a version or a time"):
        table.restore(None)


def test_table_by_path_has_no_catalog(tmp_path: Path) -> None:
    dk.write_deltalake(str(tmp_path / "t"), pa.table({"id": [1]}))

    with pytest.raises(AttributeError, match="a table by path has no catalog"):
        _ = dk.DeltaTable(str(tmp_path / "t")).catalog_uri


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"])
def test_asking_for_a_table_makes_no_database(new_catalog_uri: str) -> None:
    file = Path(parse_uri(new_catalog_uri).database)

    assert not dk.DeltaTable.is_deltatable(f"{new_catalog_uri}?table=t")
    assert not file.exists()


def test_ignored_options_are_warned_of(catalog_uri: str) -> None:
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    dk.write_deltalake(uri, pa.table({"id": [1]}))

    with pytest.warns(DeprecationWarning, match="'without_files' .* ignored"):
        dk.DeltaTable(uri, without_files=True)


def rows(i: int) -> pa.Table:
    """Three rows in three partitions."""
    return pa.table(
        {
            "n": pa.array([i, i + 1, None], pa.int64()),
            "p": [ODD, None, f"b{i}"],
            "day": [date(2026, 1, 1), date(2026, 1, 2), None],
            "f": [1.5, 2.5 + i, None],
            "s": ["a", f"b{i}", None],
            "at": [datetime(2026, 1, 1, 0, 0, i, 1999, UTC)] * 3,
            "d": pa.array([Decimal("1.20"), Decimal("-2.30"), None]),
            "nested": [{"a": i, "b": {"c": "z"}}] * 3,
            "items": [[1, 2]] * 3,
            "raw": [b"x", b"y", None],
            "yes": [True, False, None],
        }
    )


def table_uri(catalog_uri: str, name: str = "t") -> str:
    return format_uri(parse_uri(catalog_uri).with_table(name))


@pytest.fixture
def uri(catalog_uri: str) -> str:
    """A table of three versions, on each engine in turn."""
    uri = table_uri(catalog_uri)
    for i in range(3):
        options = {"commit_properties": deltalake.CommitProperties({"round": str(i)})}
        dk.write_deltalake(
            uri, rows(i), mode="append", partition_by=["p", "day"], **options
        )
    return uri


def both(uri: str, version: int | None = None) -> list[deltalake.DeltaTable]:
    """The table as the catalog has it, and as deltalake reads its log."""
    ours = dk.DeltaTable(uri, version)
    return [ours, deltalake.DeltaTable(ours.table_uri, version)]


def ratified(uri: str, version: int) -> datetime:
    """When a version was committed."""
    with dk.connect(uri) as catalog:
        at_ms = catalog.snapshot("t", version).table.timestamp_ms
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)


def sorted_rows(table: Any) -> list[str]:
    return sorted(map(str, pa.table(table).to_pylist()))


def test_a_table_is_deltalakes_and_says_where_it_is(uri: str) -> None:
    ours, theirs = both(uri)
    assert isinstance(ours, deltalake.DeltaTable)
    assert ours.table_uri == theirs.table_uri
    assert ours._table.get_latest_version() == ours.version() == theirs.version() == 2


def test_definition_is_the_same_at_every_version(uri: str) -> None:
    for version in range(3):
        ours, theirs = both(uri, version)
        assert ours.schema() == theirs.schema()
        assert str(ours.metadata()) == str(theirs.metadata())
        assert ours.protocol() == theirs.protocol()
        assert ours._table.table_config() == theirs._table.table_config()
        with pytest.warns(DeprecationWarning, match="deprecated"):
            assert ours.table_config.without_files is False


def test_files_are_the_same_in_the_same_order_at_every_version(uri: str) -> None:
    for version in range(3):
        ours, theirs = both(uri, version)
        assert len(ours.file_uris()) == 3 * (version + 1)
        assert ours.file_uris() == theirs.file_uris()
        assert ours._table.files() == theirs._table.files()
        sizes = ours._table.get_add_file_sizes()
        assert sizes == theirs._table.get_add_file_sizes()


@pytest.mark.parametrize("flatten", [False, True])
def test_add_actions_are_the_same_in_the_order_of_the_files(
    uri: str, flatten: bool
) -> None:
    ours, theirs = (pa.table(t.get_add_actions(flatten=flatten)) for t in both(uri))
    assert ours.schema == theirs.schema
    assert ours.to_pylist() == theirs.to_pylist()


def test_filtered_files_and_partitions_are_the_same(uri: str) -> None:
    ours, theirs = both(uri)
    for given in FILTERS:
        found = [t.file_uris(file_pruning_predicate=given) for t in (ours, theirs)]
        assert found[0] == found[1], given
        parts = [
            {frozenset(p.items()) for p in t.partitions(file_pruning_predicate=given)}
            for t in (ours, theirs)
        ]
        assert parts[0] == parts[1], given
    assert ours._table.files("n >= 2") == theirs._table.files("n >= 2")


def test_partitions_are_the_same_at_every_version(uri: str) -> None:
    for version in range(3):
        ours, theirs = both(uri, version)
        found = ours._table.get_active_partitions()
        assert found == theirs._table.get_active_partitions()
        assert len(ours.partitions()) == 2 + version + 1


def test_deprecated_partition_filters_warn_and_work(uri: str) -> None:
    ours, theirs = both(uri)
    with pytest.warns(DeprecationWarning, match="deprecated"):
        found = ours.file_uris([("p", "=", "b1")])
    assert found == theirs.file_uris(file_pruning_predicate=[("p", "=", "b1")])


def test_history_is_the_same_and_ends_at_the_loaded_version(uri: str) -> None:
    ours, theirs = both(uri)
    assert ours.history() == theirs.history()
    assert ours.history(2) == theirs.history(2)
    assert ours.history(0) == []
    ours.load_as_version(1)
    assert ours.history() == theirs.history()[1:]
    assert [entry["version"] for entry in ours.history(1)] == [1]
    assert ours.history()[0]["round"] == "1"


def test_rows_are_the_same_by_every_reader_at_every_version(uri: str) -> None:
    for version in range(3):
        ours, theirs = both(uri, version)
        expected = sorted_rows(theirs.to_pyarrow_table())
        assert len(expected) == ours.count() == theirs.count() == 3 * (version + 1)
        assert sorted_rows(ours.to_pyarrow_table()) == expected
        assert sorted_rows(ours.scan()) == expected
        narrow = {"columns": ["n"], "predicate": "n > 0"}
        assert sorted_rows(ours.scan(**narrow)) == sorted_rows(theirs.scan(**narrow))
        frame = ours.to_pandas(columns=["n", "p"], filters=[("n", ">", 0)])
        other = theirs.to_pandas(columns=["n", "p"], filters=[("n", ">", 0)])
        assert frame.sort_values("n").equals(other.sort_values("n"))


def test_time_travel_moves_the_handle_by_number_text_and_time(uri: str) -> None:
    table, theirs = both(uri)
    for version in range(3):
        table.load_as_version(version)
        assert table.version() == version
        moment = ratified(uri, version)
        for given in (moment, moment.replace(tzinfo=None), moment.isoformat()):
            theirs.load_as_version(given)
            table.load_as_version(given)
            assert table.version() == theirs.version() >= version
            assert dk.DeltaTable(uri, version=given).version() == theirs.version()
    table.load_as_version("2001-01-01T00:00:00+02:00")
    assert table.version() == 0
    table.load_as_version(datetime.now(UTC) + timedelta(days=1))
    assert table.version() == 2


def test_update_incremental_moves_to_what_was_committed_since(uri: str) -> None:
    table, old = dk.DeltaTable(uri), dk.DeltaTable(uri, version=0)
    dk.write_deltalake(uri, rows(3), mode="append")
    assert (table.version(), old.version()) == (2, 0)
    table.update_incremental()
    old.update_incremental()
    assert (table.version(), old.version()) == (3, 3)
    assert len(table.file_uris()) == 12


def test_transaction_versions_are_the_same(catalog_uri: str) -> None:
    uri = table_uri(catalog_uri)
    for i in range(2):
        marks = deltalake.CommitProperties(
            app_transactions=[deltalake.Transaction("app", 7 + i)]
        )
        dk.write_deltalake(uri, rows(i), mode="append", commit_properties=marks)
    for table in both(uri):
        assert table.transaction_version("app") == 8
        assert table.transaction_version("other") is None
        table.load_as_version(0)
        assert table.transaction_version("app") == 7


def test_is_deltatable_asks_the_catalog(uri: str, catalog_uri: str) -> None:
    assert dk.DeltaTable.is_deltatable(uri)
    assert not dk.DeltaTable.is_deltatable(table_uri(catalog_uri, "absent"))


def test_opening_loads_no_file(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*_: Any) -> None:
        raise AssertionError("files were loaded")

    monkeypatch.setattr(dk.Snapshot, "files", loaded)
    table = dk.DeltaTable(uri)
    table.load_as_version(1)
    table.update_incremental()
    assert (table.version(), len(table.history())) == (2, 3)
    assert table.metadata().partition_columns == ["p", "day"]


def test_paths_and_urls_go_to_deltalake_untouched(uri: str) -> None:
    location = dk.DeltaTable(uri).table_uri
    path = location.removeprefix("file://")
    for place in (location, path):
        table = dk.DeltaTable(place, version=1)
        assert isinstance(table._table, type(deltalake.DeltaTable(place)._table))
        assert dk.DeltaTable.is_deltatable(place)
        assert table.count() == 6
        found = table.to_pyarrow_dataset(file_pruning_predicate="n >= 1")
        theirs = deltalake.DeltaTable(place, 1).to_pyarrow_dataset(
            file_pruning_predicate="n >= 1"
        )
        assert found.files == theirs.files


@pytest.mark.parametrize(
    ("values", "literals"),
    [
        (
            pa.array([Decimal("1.10"), Decimal("0.00"), None], pa.decimal128(10, 2)),
            ["1.10", "0.00", "0.50"],
        ),
        (pa.array([1.0, 0.1, math.nan, None]), ["1.0", "0.1", "7.5"]),
        (pa.array([1.0, 0.1, math.nan, None], pa.float32()), ["1.0", "0.1"]),
        (pa.array([b"a", b"b", None]), ["a", "b", "c"]),
        (pa.array([1, 2, None]), ["1", "2", "3"]),
    ],
    ids=lambda given: str(getattr(given, "type", "")),
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_partitions_chosen_by_tuples_are_those_that_deltalake_chooses(
    catalog_uri: str, tmp_path: Path, values: pa.Array, literals: list[str]
) -> None:
    rows = pa.table({"id": range(len(values)), "p": values})
    uri = format_uri(parse_uri(catalog_uri).with_table("by_value"))
    dk.write_deltalake(uri, rows, partition_by="p")
    deltalake.write_deltalake(tmp_path / "plain", rows, partition_by="p")
    tables = dk.DeltaTable(uri), deltalake.DeltaTable(tmp_path / "plain")

    for op, literal in itertools.product(("=", "!=", "<", "<=", ">", ">="), literals):
        ours, theirs = (
            table.to_pyarrow_table(partitions=[("p", op, literal)])["id"].to_pylist()
            for table in tables
        )
        assert sorted(ours) == sorted(theirs), (op, literal)


NANOS = """
import deltalake, pyarrow as pa, delkalakedb as dk
deltalake.enable_nanosecond_timestamps()
times = pa.array([1_700_000_000_123_456_789, None, 5], pa.timestamp("ns"))
rows = pa.table({{"id": [1, 2, 3], "at": times}})
for n, partition_by in enumerate((None, "at")):
    uri = f"deltasql://sqlite/{folder}/meta.db?table=t{{n}}"
    dk.write_deltalake(uri, rows, partition_by=partition_by)
    ours = dk.DeltaTable(uri)
    plain = deltalake.DeltaTable(ours.table_uri)
    assert ours.to_pyarrow_table().sort_by("id") == rows
    actions = [
        pa.table(t.get_add_actions(flatten=True)).sort_by("path") for t in (ours, plain)
    ]
    assert actions[0] == actions[1], actions
"""


def test_nanoseconds_are_read_as_deltalake_reads_them(tmp_path: Path) -> None:
    # In a process of its own, because nanoseconds can't be disabled again.
    run_python(NANOS.format(folder=tmp_path))
