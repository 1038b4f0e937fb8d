"""What delta-rs reads for us: scans, queries, changes and deletion vectors."""

import gc
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.mirror.fences import fence
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.lakes import Lake

NUMBERS = pa.schema({"n": pa.int64(), "p": pa.string()})
FEED = {"delta.enableChangeDataFeed": "true"}
Rows = list[dict[str, Any]]


@pytest.fixture
def lake(catalog: Catalog, tmp_path: Path) -> Lake:
    """A table to be filled, on each engine in turn."""
    return Lake(catalog, tmp_path)


def opened(lake: Lake, version: int | None = None) -> dk.DeltaTable:
    uri = parse_uri(format_uri(lake.catalog.uri)).with_table(lake.name)
    return dk.DeltaTable(format_uri(uri), version)


def rows(data: Any) -> Rows:
    return sorted(pa.table(data).to_pylist(), key=str)


def query(table: deltalake.DeltaTable) -> Rows:
    return rows(dk.QueryBuilder().register("t", table).execute("SELECT * FROM t"))


def everything(lake: Lake) -> list[str]:
    return sorted(str(p) for p in Path(lake.location).rglob("*"))


@pytest.mark.parametrize("fenced", [False, True])
def test_every_version_is_scanned_and_queried(lake: Lake, fenced: bool) -> None:
    lake.create(NUMBERS, partitions=["p"])
    lake.commit(
        lake.file({"n": [1, 2], "p": ["a b", "a b"]}, "p=a b/x.parquet", p="a b")
    )
    if fenced:
        fence(lake.catalog, table=lake.name)
    lake.commit(lake.file({"n": [3], "p": [None]}, p=None))
    lake.publish()
    before = everything(lake)
    for version in range(lake.version + 1):
        table, expected = opened(lake, version), rows(lake.rows(version))
        assert rows(table.scan()) == query(table) == expected
        assert rows(table.to_pyarrow_table()) == expected
    assert everything(lake) == before


def test_version_that_wasnt_published_is_published_first(lake: Lake) -> None:
    lake.create(NUMBERS)
    lake.commit(lake.file({"n": [1], "p": ["a"]}))
    assert lake.catalog._mirror_state(lake.name)[0] < 1
    assert rows(opened(lake).scan()) == rows(lake.rows(1))
    assert lake.catalog._mirror_state(lake.name)[0] == 1


def test_version_whose_log_was_cleaned_up_is_scanned_all_the_same(lake: Lake) -> None:
    lake.create(NUMBERS)
    lake.commit(lake.file({"n": [1], "p": ["a"]}))
    lake.commit(lake.file({"n": [2], "p": ["b"]}))
    lake.publish(2)
    for version in (0, 1):
        entry = Path(lake.location) / "_delta_log" / f"{version:020}.json"
        entry.unlink()
    assert rows(opened(lake, 1).scan()) == rows(lake.rows(1))


@pytest.mark.parametrize("fenced", [False, True])
def test_deleted_rows_are_left_out_and_named_by_their_files(
    lake: Lake, fenced: bool
) -> None:
    lake.create(
        NUMBERS,
        features=["deletionVectors"],
        configuration={"delta.enableDeletionVectors": "true"},
    )
    file = lake.file({"n": [1, 2, 3], "p": ["a", "b", "c"]}, "x%20y.parquet")
    lake.commit(file, lake.file({"n": [4], "p": ["d"]}))
    lake.commit(*lake.without(file, 1))
    if fenced:
        fence(lake.catalog, table=lake.name)
    table = opened(lake)
    assert rows(table.scan()) == query(table) == rows(lake.rows(lake.version))
    (vector,) = pa.table(table.deletion_vectors()).to_pylist()
    assert vector["filepath"].removeprefix("file://") in table.file_uris()
    assert vector["selection_vector"] == [True, False, True]
    assert rows(table.to_pyarrow_dataset().to_table()) == rows(table.scan())


@pytest.mark.parametrize("fenced", [False, True])
def test_changes_are_read_over_a_range_of_versions(lake: Lake, fenced: bool) -> None:
    lake.create(NUMBERS, configuration=FEED)
    for n in range(3):
        lake.commit(lake.file({"n": [n], "p": ["a"]}))
    if fenced:
        fence(lake.catalog, table=lake.name)
        lake.commit(lake.file({"n": [3], "p": ["a"]}))
    lake.publish()
    table = opened(lake)
    found = rows(table.load_cdf(starting_version=2))
    expected = [(1, 2), (2, 3)] + ([(3, 5)] if fenced else [])
    assert [(r["n"], r["_commit_version"]) for r in found] == expected
    assert {r["_change_type"] for r in found} == {"insert"}
    assert len(rows(table.load_cdf(ending_version=1))) == 1
    if not fenced:
        theirs = deltalake.DeltaTable(lake.location)
        assert rows(table.load_cdf()) == rows(theirs.load_cdf())
        with pytest.raises(deltalake.exceptions.DeltaError):
            table.load_cdf(starting_version=99)


def test_own_log_of_a_fenced_table_lasts_as_long_as_its_reader(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    lake.create(NUMBERS)
    lake.commit(*(lake.file({"n": [n], "p": ["a"]}) for n in range(3)))
    fence(lake.catalog, table=lake.name)
    readers = [
        opened(lake).scan(),
        dk.QueryBuilder().register("t", opened(lake)).execute("SELECT n FROM t"),
    ]
    gc.collect()
    assert len(list(tmp_path.glob("delkalakedb-scans-*/*"))) == 2
    assert [len(rows(reader)) for reader in readers] == [3, 3]
    del readers
    gc.collect()
    assert list(tmp_path.glob("delkalakedb-scans-*/*")) == []


def test_query_joins_tables_of_the_catalog_and_plain_ones(
    lake: Lake, tmp_path: Path
) -> None:
    lake.create(NUMBERS)
    lake.commit(lake.file({"n": [1, 2], "p": ["a", "b"]}))
    deltalake.write_deltalake(tmp_path / "plain", pa.table({"n": [2]}))
    builder = dk.QueryBuilder({"datafusion.execution.batch_size": "16"})
    builder.register("ours", opened(lake))
    builder.register("theirs", dk.DeltaTable(tmp_path / "plain"))
    sql = "SELECT p FROM ours JOIN theirs ON ours.n = theirs.n"
    assert rows(builder.execute(sql)) == [{"p": "b"}]
