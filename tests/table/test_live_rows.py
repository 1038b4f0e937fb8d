"""Datasets of tables with deletion vectors: live rows, in every reader of datasets."""

import pickle
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pandas
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pa_fs
import pytest
from datafusion import SessionContext

import delkalakedb as dk
from delkalakedb.query import changed_rows, select
from tests.support.s3_tables import placed, sqlite
from tests.support.servers.stores import Place
from tests.support.twins import Twins

COUNT = 100
F = ds.field


def data(first: int) -> pa.Table:
    ids = range(first, first + COUNT)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "part": [f"p {i % 2}" for i in ids],
            "plain": [i % 2 for i in ids],
            "text": [None if i % 7 == 0 else f"t{i % 10}" for i in ids],
            "nested": [{"x": i, "y": [i]} for i in ids],
        }
    )


def make(uri: str, partition_by: str = "part", **options: Any) -> dk.DeltaTable:
    """A table of four files, of which three have deleted rows."""
    on = {"delta.enableDeletionVectors": "true"}
    for first in (0, COUNT):
        dk.write_deltalake(
            uri,
            data(first),
            mode="append",
            partition_by=partition_by,
            configuration=on,
            **options,
        )
    table = dk.DeltaTable(uri, storage_options=options.get("storage_options"))
    table.delete("id IN (5, 6, 110)")
    return table


def live(where: Any = lambda i: True) -> list[int]:
    return [i for i in range(2 * COUNT) if i not in (5, 6, 110) and where(i)]


def ids(table: Any) -> list[int]:
    return sorted(table["id"].to_pylist())


def test_scans_take_columns_and_filters(catalog_uri: str, tmp_path: Path) -> None:
    table = make(Twins(catalog_uri, tmp_path).uri)
    dataset = table.to_pyarrow_dataset()
    expected = pa.table(table.scan()).to_pylist()
    found = dataset.to_table().to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    assert dataset.schema == table.to_pyarrow_table().schema
    assert dataset.schema.names == ["id", "part", "plain", "text", "nested"]

    assert ids(dataset.to_table(columns=["id"], filter=F("text") == "t3")) == live(
        lambda i: i % 10 == 3 and i % 7
    )
    assert ids(dataset.to_table(filter=F("nested", "x") < 9)) == live(lambda i: i < 9)
    assert dataset.to_table(columns=["part"]).num_rows == len(live())
    twice = dataset.to_table(columns={"b": F("id") * 2}, filter=F("part") == "p 0")
    assert sorted(twice["b"].to_pylist()) == [2 * i for i in live(lambda i: i % 2 == 0)]
    assert dataset.count_rows() == len(live())
    assert dataset.count_rows(filter=F("id") < 7) == 5
    assert dataset.head(3).num_rows == 3
    assert sum(batch.num_rows for batch in dataset.to_batches()) == len(live())
    assert len({row["id"] for row in dataset.take([0, 5]).to_pylist()}) == 2
    some = dataset.filter(F("id") > 100).filter(F("part") == "p 1")
    assert ids(some.to_table(filter=F("id") < 120)) == live(
        lambda i: 100 < i < 120 and i % 2
    )
    with pytest.raises(pa.ArrowInvalid, match="nothing"):
        dataset.to_table(columns=["nothing"])


def test_files_are_chosen_by_the_filter(
    catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(Twins(catalog_uri, tmp_path).uri)
    dataset = table.to_pyarrow_dataset()
    assert len(list(dataset.get_fragments())) == 4
    assert len(list(dataset.get_fragments(F("id") < 50))) == 2
    (file,) = dataset.get_fragments((F("id") < 50) & (F("part") == "p 1"))
    assert ids(file.to_table(columns=["id"])) == live(lambda i: i < 100 and i % 2)
    assert (file.count_rows(), file.physical_schema) == (49, dataset.schema)
    assert sum(batch.num_rows for batch in file.to_batches()) == 49

    pruned = table.to_pyarrow_dataset(file_pruning_predicate="part = 'p 1'")
    assert ids(pruned.to_table()) == live(lambda i: i % 2)
    assert ids(pruned.to_table(filter=F("id") < 10)) == [1, 3, 7, 9]
    # Only the file that is needed is opened.
    for path in table.file_uris(file_pruning_predicate="part = 'p 0'"):
        Path(path.removeprefix("file://")).unlink()
    assert ids(pruned.to_table()) == live(lambda i: i % 2)


def test_consumers_of_datasets_find_the_live_rows(
    catalog_uri: str, tmp_path: Path
) -> None:
    table = make(Twins(catalog_uri, tmp_path).uri)
    dataset = table.to_pyarrow_dataset()
    wanted = live(lambda i: i < 20 and i % 2)
    where = "id < 20 AND part = 'p 1'"
    by_duckdb = duckdb.sql(f"SELECT id FROM dataset WHERE {where}").fetchall()
    assert sorted(i for (i,) in by_duckdb) == wanted

    lazy = polars.scan_pyarrow_dataset(dataset)
    kept = (polars.col("id") < 20) & (polars.col("part") == "p 1")
    assert sorted(lazy.filter(kept).select("id").collect()["id"]) == wanted
    assert sorted(polars.scan_delta(table).filter(kept).collect()["id"]) == wanted

    context = SessionContext()
    context.register_dataset("t", dataset)
    found = context.sql(f"SELECT id FROM t WHERE {where}").to_arrow_table()
    assert ids(found) == wanted
    assert context.sql("SELECT count(*) AS n FROM t").to_pydict() == {"n": [197]}

    with pytest.warns(DeprecationWarning, match="partitions"):
        frame = table.to_pandas(partitions=[("part", "=", "p 1")], columns=["id"])
    assert isinstance(frame, pandas.DataFrame)
    assert sorted(frame["id"]) == live(lambda i: i % 2)
    filters = [("part", "=", "p 1"), ("id", "<", 20)]
    assert ids(table.to_pyarrow_table(filters=filters)) == wanted
    ds.write_dataset(dataset, tmp_path / "copy", format="parquet")
    assert ds.dataset(tmp_path / "copy").count_rows() == len(live())


def test_functions_that_bypass_the_scanner_raise_an_error(
    catalog_uri: str, tmp_path: Path
) -> None:
    dataset = make(Twins(catalog_uri, tmp_path).uri).to_pyarrow_dataset()
    for call in (
        lambda: ds.dataset([dataset]).to_table(),
        lambda: dataset.sort_by("id"),
        lambda: dataset.replace_schema(dataset.schema).to_table(),
        lambda: pickle.loads(pickle.dumps(dataset)).to_table(),
    ):
        with pytest.raises(FileNotFoundError, match="can't apply deletion vectors"):
            call()


def test_types_and_filesystems_may_be_asked_for(
    catalog_uri: str, tmp_path: Path
) -> None:
    table = make(Twins(catalog_uri, tmp_path).uri)
    large = table.to_pyarrow_dataset(as_large_types=True).to_table(columns=["part"])
    assert large.schema.types == [pa.large_string()]
    options = ds.ParquetReadOptions(dictionary_columns=["text"])
    encoded = table.to_pyarrow_dataset(parquet_read_options=options)
    assert pa.types.is_dictionary(encoded.to_table(columns=["text"]).schema.types[0])
    folder = table.table_uri.removeprefix("file://")
    below = pa_fs.SubTreeFileSystem(folder, pa_fs.LocalFileSystem())
    assert table.to_pyarrow_dataset(filesystem=below).count_rows() == len(live())


def test_queries_and_differences_heed_vectors(catalog_uri: str, tmp_path: Path) -> None:
    make(Twins(catalog_uri, tmp_path).uri)
    with dk.connect(catalog_uri) as catalog:
        with select(catalog, "SELECT id FROM t WHERE id < 8") as found:
            rows = pa.Table.from_batches(found.batches, found.schema)
        assert ids(rows) == [0, 1, 2, 3, 4, 7]
        before, after = (catalog.snapshot("t", version) for version in (1, 2))
        changes = list(changed_rows(catalog, before, after))
    assert sorted(change.before["id"] for change in changes) == [5, 6, 110]
    assert {change.change for change in changes} == {"removed"}


@pytest.mark.parametrize("inline_bytes", ["4096", "0"])
def test_readers_by_path_leave_deleted_rows_out_or_refuse(
    catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inline_bytes: str
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__INLINE_BYTES", inline_bytes)
    path = make(Twins(catalog_uri, tmp_path).uri, "plain").table_uri
    theirs = deltalake.DeltaTable(path)
    assert ids(pa.table(theirs.scan())) == live()
    query = deltalake.QueryBuilder().register("t", theirs).execute("SELECT id FROM t")
    assert ids(pa.table(query)) == live()
    for found in (polars.scan_delta(path).collect(), polars.read_delta(path)):
        assert sorted(found["id"]) == live()
    with pytest.raises(deltalake.exceptions.DeltaProtocolError):
        theirs.to_pyarrow_table()
    context = SessionContext()
    context.register_table("t", theirs)
    with pytest.raises(Exception, match="deletion vector"):
        context.sql("SELECT id FROM t").to_arrow_table()


@sqlite
def test_dataset_reads_an_object_store(catalog_uri: str, s3: Place) -> None:
    table = make(placed(catalog_uri, s3), storage_options=s3.storage_options)
    dataset = table.to_pyarrow_dataset()
    assert ids(dataset.to_table(columns=["id"])) == live()
    assert ids(dataset.to_table(filter=F("id") < 9)) == live(lambda i: i < 9)
