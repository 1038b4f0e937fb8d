"""From a catalog to its tables: open, write, times, and pairs of catalog and name."""

import importlib.metadata
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import transaction

import delkalakedb as dk
from delkalakedb.errors import DeltaError, TableNotFoundError, VersionNotFoundError
from tests.support.imports import with_table


def ids(table: deltalake.DeltaTable) -> list[int]:
    return sorted(table.to_pyarrow_table()["id"].to_pylist())


def rows(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def test_catalog_opens_and_writes_its_tables(catalog_uri: str) -> None:
    with dk.connect(catalog_uri) as catalog:
        assert (len(catalog), list(catalog), "sales" in catalog) == (0, [], False)
        assert catalog
        catalog.write("sales", rows(1))
        catalog.write("sales", rows(2), mode="append")
        dated = rows(3).append_column("day", pa.array(["2026-11-19"]))
        catalog.write("costs", dated, partition_by=["day"])

        assert (len(catalog), list(catalog)) == (2, ["costs", "sales"])
        assert "sales" in catalog
        assert "nonsense" not in catalog
        assert ids(catalog["sales"]) == ids(catalog.open("sales")) == [1, 2]
        assert ids(catalog.open("sales", 0)) == [1]
        assert ids(catalog.open("sales", version=0)) == [1]
        assert catalog["costs"].metadata().partition_columns == ["day"]
        with pytest.raises(TableNotFoundError, match="nonsense"):
            catalog["nonsense"]
        with pytest.raises(VersionNotFoundError):
            catalog.open("sales", 7)


def test_pair_of_catalog_and_name_is_a_table(catalog_uri: str) -> None:
    with dk.connect(catalog_uri) as catalog:
        dk.write_deltalake((catalog, "sales"), rows(1))
        dk.write_deltalake((catalog, "sales"), rows(2), mode="append")
        table = dk.DeltaTable(catalog, "sales")
        table.delete("id = 1")

        assert ids(table) == ids(dk.DeltaTable((catalog, "sales"))) == [2]
        assert ids(dk.DeltaTable((catalog, "sales"), version=1)) == [1, 2]
        assert ids(dk.DeltaTable(table.catalog_uri.replace("***", "s3cret"))) == [2]
        # A URI of the catalog is its table, wherever a name is taken.
        dk.write_deltalake((catalog, with_table(catalog_uri, "more")), rows(5))
        assert list(catalog) == ["more", "sales"]
        for odd in (catalog, (catalog,), (catalog, 3), (catalog, "sales", 1)):
            with pytest.raises(DeltaError, match=r"name one of its tables|a pair of"):
                dk.DeltaTable(odd)  # type: ignore[arg-type]
            with pytest.raises(DeltaError, match=r"name one of its tables|a pair of"):
                dk.write_deltalake(odd, rows(1))  # type: ignore[arg-type]
    with pytest.raises(dk.errors.CatalogUnavailableError, match="closed"):
        table.update_incremental()


def test_table_of_a_catalog_has_the_catalogs_settings(catalog_uri: str) -> None:
    with dk.connect(catalog_uri, mirror={"mode": "external"}) as catalog:
        catalog.write("sales", rows(1))
        catalog["sales"].delete()

        (status,) = dk.mirror.status(catalog, "sales")
        assert (status.ratified_version, status.published_version) == (1, -1)


def test_times_are_datetimes_in_and_out(catalog_uri: str) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=1)
    with dk.connect(catalog_uri) as catalog:
        catalog.write("sales", rows(1))
        snapshot = catalog.snapshot("sales")
        first = snapshot.history()[0].timestamp
        while datetime.now(UTC) - first < timedelta(milliseconds=5):
            continue
        catalog.write("sales", rows(2), mode="append")
        newest = catalog.snapshot("sales")

        assert before <= first == snapshot.table.timestamp < newest.table.timestamp
        assert first.tzinfo is UTC
        naive = first.replace(tzinfo=None)
        for when in (first, naive, naive.isoformat(), first.isoformat()):
            assert catalog.snapshot("sales", timestamp=when).version == 0
            assert catalog.open("sales", when).version() == 0
            assert [c.version for c in newest.history(until=when)] == [0]
            assert [c.version for c in newest.history(since=when)] == [1, 0]
        tomorrow = date.today() + timedelta(days=2)
        assert catalog.snapshot("sales", timestamp=tomorrow).version == 1
        (file, _) = newest.iter_files()
        assert before <= file.modification_time <= datetime.now(UTC)
        with dk.transaction(catalog) as tx:
            tx.delete("sales")
        assert tx.committed[0].timestamp == catalog.table("sales").timestamp


def test_value_that_is_no_time_or_version_is_told_what_to_give(
    catalog_uri: str,
) -> None:
    with dk.connect(catalog_uri) as catalog:
        catalog.write("sales", rows(1))

        with pytest.raises(DeltaError, match=r"'yesterday' isn't a time; give a datet"):
            catalog.snapshot("sales", timestamp="yesterday")
        with pytest.raises(DeltaError, match="1700000000 isn't a time"):
            catalog.snapshot("sales", timestamp=1700000000)  # type: ignore[arg-type]
        with pytest.raises(DeltaError, match="a version is a number, not datetime"):
            catalog.snapshot("sales", datetime.now(UTC))  # type: ignore[arg-type]
        with pytest.raises(DeltaError, match="a version or a timestamp, not both"):
            catalog.snapshot("sales", 0, timestamp=datetime.now(UTC))


def test_converts_parquet_files(catalog_uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    pq.write_table(rows(1, 2), folder / "a.parquet")
    uri = (
        with_table(f"{catalog_uri}&location={folder}", "t")
        if ("?" in catalog_uri)
        else with_table(f"{catalog_uri}?location={folder}", "t")
    )

    dk.convert_to_deltalake(uri)
    dk.convert_to_deltalake(uri, mode="ignore")

    assert ids(dk.DeltaTable(uri)) == [1, 2]
    with pytest.raises(DeltaError, match="exists"):
        dk.convert_to_deltalake(uri)
    with pytest.raises(ValueError, match="partition_strategy"):
        dk.convert_to_deltalake(uri, partition_by=dk.DeltaTable(uri).schema())
    plain = tmp_path / "plain"
    plain.mkdir()
    pq.write_table(rows(3), plain / "a.parquet")
    dk.convert_to_deltalake(str(plain))
    assert ids(dk.DeltaTable(str(plain))) == [3]


def test_table_is_created_with_files_that_are_there(
    catalog_uri: str, tmp_path: Path
) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    pq.write_table(rows(1, 2), folder / "a.parquet")
    size = (folder / "a.parquet").stat().st_size
    action = transaction.AddAction("a.parquet", size, {}, 0, True, "{}")
    fields = deltalake.Schema.from_arrow(rows(1).schema)
    mark = "&" if "?" in catalog_uri else "?"
    uri = with_table(f"{catalog_uri}{mark}location={folder}", "t")

    dk.create_table_with_add_actions(uri, fields, [action])
    dk.create_table_with_add_actions(uri, fields, [], mode="ignore")

    assert ids(dk.DeltaTable(uri)) == [1, 2]
    with pytest.raises(DeltaError, match="exists"):
        dk.create_table_with_add_actions(uri, fields, [action])
    plain = tmp_path / "plain"
    plain.mkdir()
    pq.write_table(rows(1, 2), plain / "a.parquet")
    dk.create_table_with_add_actions(str(plain), fields, [action])
    assert ids(dk.DeltaTable(str(plain))) == [1, 2]


def test_package_names_its_version_and_only_what_is_public() -> None:
    assert dk.__version__ == importlib.metadata.version("delkalakedb")
    assert set(dir(dk)) == {*dk.__all__, "aio", "errors", "mirror"}


def test_handles_describe_themselves_in_a_line(catalog_uri: str) -> None:
    with dk.connect(catalog_uri) as catalog:
        catalog.write("sales", rows(1))
        table, snapshot = catalog["sales"], catalog.snapshot("sales")
        size = f"{snapshot.table.size_bytes} B"

        assert repr(snapshot) == f"Snapshot(sales, version 0, 1 file, {size})"
        shown = f"DeltaTable(sales, version 0, 1 file, {size}, {table.catalog_uri})"
        assert repr(table) == shown
        assert "s3cret" not in shown
    plain = dk.DeltaTable(table.table_uri)
    assert repr(plain) == f"DeltaTable({table.table_uri}, version 0)"
