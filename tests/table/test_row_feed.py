"""The change data feed of whole files with deletion vectors.

delta-rs reports the deleted rows of such a file, so Arrow reads these feeds. Columns,
types and rows are those of plain deltalake, whose files have no deletion vectors.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import delkalakedb as dk
from tests.support.s3_tables import placed, sqlite
from tests.support.servers.stores import Place
from tests.support.twins import Twins

FEED = {"delta.enableChangeDataFeed": "true"}
VECTORS = {"delta.enableDeletionVectors": "true"}
ROWS = pa.table(
    {
        "id": pa.array(range(100), pa.int64()),
        "part": ["a", "c"] * 50,
        "ts": pa.array(range(100), pa.timestamp("us", "UTC")),
        "nested": [{"x": i, "y": [str(i)]} for i in range(100)],
    }
)
WHOLE: dict[str, Callable[[DeltaTable], Any]] = {
    "overwrite": lambda t: deltalake.write_deltalake(t, ROWS[:3], mode="overwrite"),
    "delete": lambda t: t.delete(),
    "delete a partition": lambda t: t.delete("part = 'a'"),
    "overwrite a partition": lambda t: deltalake.write_deltalake(
        t, ROWS[:1], mode="overwrite", predicate="part = 'a'"
    ),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "all": {},
    "columns": {"columns": ["_commit_version", "part", "id"]},
    "expressions": {"columns": ["id + 1 AS next", "_change_type"]},
    "predicate": {"predicate": "_change_type = 'delete' AND id % 3 = 0"},
    "both": {"columns": ["id"], "predicate": "nested.x > 7 AND _commit_version > 1"},
    "versions": {"starting_version": 2, "ending_version": 2},
    "none": {"starting_version": 7, "allow_out_of_range": True},
    "since": {"starting_timestamp": "2024-01-01T00:00:00Z"},
    "until": {"ending_timestamp": "2100-01-01T00:00:00Z"},
    "before": {"ending_timestamp": "2024-01-01T00:00:00Z"},
}


def make(uri: str, path: str, **options: Any) -> None:
    """Two tables with the same rows, of which one takes vectors; both lose two rows."""
    common = {"partition_by": "part"}
    dk.write_deltalake(
        uri, ROWS, configuration={**FEED, **VECTORS}, **common, **options
    )
    deltalake.write_deltalake(path, ROWS, configuration=FEED, **common)


def lines(table: DeltaTable, **options: Any) -> tuple[pa.Schema, list[str]]:
    """A feed's schema, and its rows without the times."""
    feed = pa.table(table.load_cdf(**options))
    times = {"_commit_timestamp"} & {*feed.column_names}
    found = feed.drop_columns(list(times)).to_pylist()
    return feed.schema, sorted(map(repr, found))


@pytest.mark.parametrize("name", WHOLE)
def test_feed_of_whole_files_is_that_of_plain_deltalake(
    catalog_uri: str, tmp_path: Path, name: str
) -> None:
    twins = Twins(catalog_uri, tmp_path)
    make(twins.uri, twins.path)
    for table in (twins.ours, twins.plain):
        table.delete("id IN (4, 5, 6)")
        WHOLE[name](table)

    for options in OPTIONS.values():
        assert lines(twins.ours, **options) == lines(twins.plain, **options), options
    for table in (twins.ours, twins.plain):
        with pytest.raises(deltalake.exceptions.DeltaError, match="version: 7"):
            table.load_cdf(starting_version=7)


def test_feed_of_a_restored_vector_has_the_rows_that_came_back(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = Twins(catalog_uri, tmp_path)
    make(twins.uri, twins.path)
    ours = twins.ours
    ours.delete("id IN (4, 5, 6)")
    ours.delete("id = 8")
    ours.delete("part = 'a'")
    ours.restore(1)

    feed = pa.table(ours.load_cdf(starting_version=4)).select(["id", "_change_type"])
    back = [i for i in range(100) if i % 2 == 0 and i not in (4, 6)]
    assert sorted(feed["id"].to_pylist()) == back
    assert feed["_change_type"].unique().to_pylist() == ["insert"]


def test_feed_before_an_import_is_read_from_the_log(
    catalog_uri: str, tmp_path: Path
) -> None:
    folder = tmp_path / "given"
    properties = {**FEED, **VECTORS}
    deltalake.write_deltalake(folder, ROWS, configuration=properties)
    deltalake.write_deltalake(folder, ROWS[:3], mode="append")
    uri = Twins(catalog_uri, tmp_path).uri
    dk.import_table(str(folder), uri)
    feed = pa.table(dk.DeltaTable(uri).load_cdf(starting_version=1))
    assert feed.num_rows == 3
    feed = pa.table(dk.DeltaTable(uri).load_cdf(starting_version=0))
    assert feed.num_rows == 103


@sqlite
def test_feed_of_whole_files_is_read_from_an_object_store(
    catalog_uri: str, tmp_path: Path, s3: Place
) -> None:
    uri, options = placed(catalog_uri, s3), s3.storage_options
    make(uri, str(tmp_path), storage_options=options)
    ours, plain = dk.DeltaTable(uri, storage_options=options), DeltaTable(tmp_path)
    for table in (ours, plain):
        table.delete("id IN (4, 5, 6)")
        table.delete("part = 'a'")

    for name in ("all", "predicate"):
        assert lines(ours, **OPTIONS[name]) == lines(plain, **OPTIONS[name])
