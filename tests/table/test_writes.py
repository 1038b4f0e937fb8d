"""Writing with deltalake's calls: ours holds what plain deltalake would hold."""

import inspect
from collections.abc import Iterator
from pathlib import Path

import deltalake
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, WriterProperties

import delkalakedb as dk
from delkalakedb.errors import (
    CommitFailedError,
    DeltaError,
    SchemaMismatchError,
    TableExistsError,
    UriError,
)
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.twins import Twins, rows

FIRST = pa.table({"id": [1, 2, 3], "city": ["Oslo", "Rome", "Rome"]})
MORE = pa.table({"id": [4], "city": ["Kyiv"]})


@pytest.fixture
def twins(catalog_uri: str, tmp_path: Path) -> Twins:
    """Two tables with the same rows, on each engine in turn."""
    twins = Twins(catalog_uri, tmp_path)
    twins.write(FIRST, partition_by="city")
    return twins


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table that isn't there yet."""
    return f"deltasql://sqlite/{tmp_path}/meta.db?table=t"


def test_modes_and_predicates_give_the_rows_of_plain_deltalake(twins: Twins) -> None:
    twins.write(MORE, mode="append")
    oslo = pa.table({"id": [9], "city": ["Oslo"]})
    twins.write(oslo, mode="overwrite", predicate="city = 'Oslo'")
    twins.write(MORE, mode="overwrite")

    theirs, ours = twins.plain.history(1)[0], twins.ours.history(1)[0]
    for history in (theirs, ours):
        history["operationMetrics"].pop("execution_time_ms")
    assert ours["operationMetrics"] == theirs["operationMetrics"]
    assert ours["operationMetrics"]["num_removed_files"] == 3


def test_schema_modes_give_the_schema_of_plain_deltalake(twins: Twins) -> None:
    wide = pa.table({"id": [5], "city": ["Bonn"], "size": [1.5]})
    twins.write(wide, mode="append", schema_mode="merge")
    other = pa.table({"key": ["k"], "value": [1]})
    twins.write(other, mode="overwrite", schema_mode="overwrite", partition_by=["key"])

    assert twins.ours.metadata().partition_columns == ["key"]


def test_handle_that_is_written_to_moves_to_the_new_version(twins: Twins) -> None:
    table = twins.ours
    dk.write_deltalake(table, MORE, mode="append")
    assert table.version() == 1
    deltalake.write_deltalake(table, MORE, mode="append")
    assert table.version() == 2


def test_stale_handle_appends_as_the_newest_version(twins: Twins) -> None:
    stale = twins.ours
    dk.write_deltalake(twins.uri, MORE, mode="append")
    dk.write_deltalake(stale, MORE, mode="append")
    assert stale.version() == 2
    assert len(rows(stale)) == 5


def test_existing_table_is_an_error_or_ignored_by_mode(twins: Twins) -> None:
    with pytest.raises(TableExistsError, match="A table already exists at"):
        dk.write_deltalake(twins.uri, MORE)
    dk.write_deltalake(twins.uri, MORE, mode="ignore")
    assert twins.ours.version() == 0


def test_arrow_data_of_any_library_is_written(uri: str) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(3):
            yield from MORE.to_batches()

    query = duckdb.sql("SELECT 4::BIGINT AS id, 'Kyiv' AS city")
    reader = pa.RecordBatchReader.from_batches(MORE.schema, batches())
    dk.write_deltalake(uri, pd.DataFrame({"id": [4], "city": ["Kyiv"]}))
    for data in (pl.from_arrow(MORE), query, reader, MORE.to_batches()):
        dk.write_deltalake(uri, data, mode="append")

    assert rows(dk.DeltaTable(uri)) == ["{'id': 4, 'city': 'Kyiv'}"] * 7


def test_properties_of_the_commit_and_of_the_files_are_honoured(uri: str) -> None:
    properties = CommitProperties(
        custom_metadata={"job": "nightly"},
        app_transactions=[Transaction("app", 7)],
    )
    dk.write_deltalake(
        uri,
        FIRST,
        name="n",
        description="d",
        configuration={"delta.appendOnly": "true"},
        commit_properties=properties,
        writer_properties=WriterProperties(compression="ZSTD"),
    )
    table = dk.DeltaTable(uri)
    metadata = table.metadata()
    assert (metadata.name, metadata.description) == ("n", "d")
    assert metadata.configuration == {"delta.appendOnly": "true"}
    assert table.history(1)[0]["job"] == "nightly"
    assert table.transaction_version("app") == 7
    assert table.file_uris()[0].endswith(".zstd.parquet")


def test_write_of_an_application_is_skipped_when_it_is_repeated(uri: str) -> None:
    properties = CommitProperties(app_transactions=[Transaction("app", 1)])
    dk.write_deltalake(uri, FIRST)
    for _ in range(2):
        dk.write_deltalake(uri, MORE, mode="append", commit_properties=properties)
    table = dk.DeltaTable(uri)
    assert (table.version(), len(rows(table))) == (1, 4)
    files = {Path(u).name for u in table.file_uris()}
    folder = Path(table.table_uri.removeprefix("file://"))
    assert {f.name for f in folder.glob("*.parquet")} == files


def test_target_file_size_splits_files(uri: str) -> None:
    numbers = pa.table({"id": pa.array(range(200_000))})
    parts = WriterProperties(max_row_group_size=10_000)
    dk.write_deltalake(uri, numbers, target_file_size=50_000, writer_properties=parts)
    table = dk.DeltaTable(uri)
    assert len(table.file_uris()) > 1
    assert table.to_pyarrow_table().num_rows == 200_000


def test_overwrite_of_an_append_only_table_is_refused_and_leaves_no_file(
    uri: str,
) -> None:
    dk.write_deltalake(uri, FIRST, configuration={"delta.appendOnly": "true"})
    with pytest.raises(CommitFailedError, match="append-only"):
        dk.write_deltalake(uri, MORE, mode="overwrite")
    folder = Path(dk.DeltaTable(uri).table_uri.removeprefix("file://"))
    assert len(list(folder.glob("*.parquet"))) == 1


def test_data_that_does_not_fit_says_table_operation_and_version(uri: str) -> None:
    dk.write_deltalake(uri, FIRST)
    with pytest.raises(SchemaMismatchError, match="t: append on version 0: ") as info:
        dk.write_deltalake(uri, pa.table({"other": [1]}), mode="append")
    assert type(info.value.__cause__) is deltalake.exceptions.SchemaMismatchError


def test_error_of_the_data_names_no_folder_of_ours(uri: str) -> None:
    dk.write_deltalake(uri, FIRST)
    with pytest.raises(DeltaError) as info:
        dk.DeltaTable(uri).delete("nothing = 1")
    assert "_delta_work" not in str(info.value)
    assert str(info.value).startswith("t: delete on version 0: ")


@pytest.mark.parametrize(
    "catalog",
    ["sqlite/{}/meta.db", "duckdb/{}/meta.duckdb", "postgres/localhost:1/nowhere"],
)
def test_uri_without_a_table_is_refused_before_anything_is_opened(
    catalog: str, tmp_path: Path
) -> None:
    with pytest.raises(UriError, match="no table"):
        dk.write_deltalake(f"deltasql://{catalog.format(tmp_path)}", FIRST)
    assert not list(tmp_path.iterdir())


def test_first_write_without_a_location_says_how_to_give_one() -> None:
    with pytest.raises(DeltaError, match=r"\?location="):
        dk.write_deltalake("deltasql://duckdb/:memory:?table=t", FIRST)


def test_first_write_goes_to_the_location_of_the_uri(uri: str, tmp_path: Path) -> None:
    dk.write_deltalake(f"{uri}&location={tmp_path}/here", FIRST)
    assert rows(deltalake.DeltaTable(str(tmp_path / "here"))) == rows(
        dk.DeltaTable(uri)
    )


def test_other_uris_are_written_by_deltalake_itself(tmp_path: Path) -> None:
    dk.write_deltalake(tmp_path / "plain", FIRST)
    assert len(rows(deltalake.DeltaTable(str(tmp_path / "plain")))) == 3


def test_signature_is_that_of_deltalake() -> None:
    ours = inspect.signature(dk.write_deltalake)
    theirs = inspect.signature(deltalake.write_deltalake)
    assert [(p.name, p.kind, p.default) for p in ours.parameters.values()] == [
        (p.name, p.kind, p.default) for p in theirs.parameters.values()
    ]


@pytest.mark.parametrize(
    "name", ["größe", "a/b", "..", ".hidden", "100%", "a%2Fb", "what?#", "~", "日本 語"]
)
def test_table_of_any_name_has_a_folder_of_its_own(tmp_path: Path, name: str) -> None:
    catalog = parse_uri(f"deltasql://sqlite/{tmp_path}/meta.db")
    uri = format_uri(catalog.with_table(name))

    dk.write_deltalake(uri, pa.table({"id": [1]}))
    dk.write_deltalake(uri, pa.table({"id": [2]}), mode="append")
    dk.DeltaTable(uri).delete("id = 1")

    table = dk.DeltaTable(uri)
    assert table.to_pyarrow_table().to_pylist() == [{"id": 2}]
    (folder,) = (tmp_path / "meta_tables").iterdir()
    assert (folder / "_delta_log").is_dir()
    assert deltalake.DeltaTable(folder).to_pyarrow_table().to_pylist() == [{"id": 2}]
    assert dk.verify(uri, deep=True).ok
