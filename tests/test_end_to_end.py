"""Through every layer: written by delta-rs, ratified in SQL, read from both sides."""

import deltalake
import polars as pl
import pyarrow as pa

import delkalakedb as dk
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.storage import open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader


def with_table(new_catalog_uri: str, name: str) -> str:
    return format_uri(parse_uri(new_catalog_uri).with_table(name))


def test_append_is_read_back_from_sql_and_from_the_log(new_catalog_uri: str) -> None:
    uri = with_table(new_catalog_uri, "sales")
    first = pa.table({"id": [1, 2], "city": ["Oslo", "Rome"]})
    second = pa.table({"id": [3], "city": ["Kyiv"]})

    dk.write_deltalake(uri, first)
    dk.write_deltalake(uri, second, mode="append")

    ours = dk.DeltaTable(uri)
    rows = ours.to_pyarrow_table().sort_by("id")
    assert ours.version() == 1
    assert rows == pa.concat_tables([first, second])

    theirs = deltalake.DeltaTable(ours.table_uri)
    assert theirs.version() == 1
    assert theirs.to_pyarrow_table().sort_by("id") == rows
    assert pl.read_delta(ours.table_uri).sort("id").to_arrow().to_pylist() == (
        rows.to_pylist()
    )


def test_every_version_is_the_same_in_sql_and_in_the_log(new_catalog_uri: str) -> None:
    uri = with_table(new_catalog_uri, "sales")
    for i in range(3):
        data = pa.table({"id": [i], "day": [f"2026-01-0{i + 1}"]})
        dk.write_deltalake(uri, data, mode="append", partition_by=["day"])

    with dk.connect(new_catalog_uri) as catalog:
        sql = catalog.log("sales")
        log = FileTxnLogReader(open_store(catalog.table("sales").location))
        assert sql.latest_version() == log.latest_version() == 2
        for version in range(3):
            ours, theirs = sql.state(version), log.state(version)
            assert (ours.protocol, ours.metadata) == (theirs.protocol, theirs.metadata)
            assert sorted(sql.adds(version), key=str) == sorted(
                log.adds(version), key=str
            )
            assert sql.commit(version) == log.commit(version)
            assert ours.timestamp_ms == theirs.timestamp_ms
