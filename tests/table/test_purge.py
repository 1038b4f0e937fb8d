"""Purges and compactions rewrite files without the rows that vectors delete."""

import json
import math
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.errors import DeltaError, PredicateError
from delkalakedb.model.actions import Action, Add, Remove, decode_commit, known
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.mapped_tables import make as make_mapped
from tests.support.s3_tables import placed, sqlite
from tests.support.servers.stores import Place
from tests.support.twins import Twins

ON = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
COUNT = 200


def data(first: int, count: int = COUNT) -> pa.Table:
    """Rows of two partitions, with NaNs, nulls and nested values."""
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "part": [f"p {i % 2}" for i in ids],
            "amount": [math.nan if i % 11 == 0 else i / 4 for i in ids],
            "ts": pa.array([None if i % 7 == 0 else i for i in ids]).cast(
                pa.timestamp("us", "UTC")
            ),
            "nested": [{"x": i, "y": [i]} for i in ids],
        }
    )


def make(uri: str, partition_by: str | None = "part", **options: Any) -> dk.DeltaTable:
    """A table of two commits; of each partition's files, the first loses most rows."""
    for first in (0, COUNT):
        dk.write_deltalake(
            uri,
            data(first),
            mode="append",
            partition_by=partition_by,
            configuration={**ON, **FEED},
            **options,
        )
    table = dk.DeltaTable(uri, storage_options=options.get("storage_options"))
    table.delete("id >= 20 AND id < 30")
    table.delete("id = 301")
    return table


def rows(table: DeltaTable) -> list[str]:
    return sorted(map(repr, pa.table(table.scan()).to_pylist()))


def last(table: DeltaTable) -> list[Action]:
    """The actions of the newest log entry."""
    folder = Path(table.table_uri.removeprefix("file://"))
    entry = folder / "_delta_log" / f"{table.version():020}.json"
    return list(decode_commit(entry.read_bytes()))


def vectors(table: DeltaTable) -> int:
    return len(pa.table(table.deletion_vectors()))


def test_purge_rewrites_the_files_with_deleted_rows(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = Twins(catalog_uri, tmp_path)
    table = make(twins.uri)
    expected, paths, before = rows(table), {*table.file_uris()}, table.version()
    assert vectors(table) == 3

    done = table.optimize.purge()
    assert table.version() == before + 1
    assert (done["numFilesRemoved"], done["numFilesAdded"]) == (3, 3)
    assert done["numDeletionVectorsRemoved"] == 3
    assert done["numDeletionVectorRowsRemoved"] == 11
    assert (done["totalConsideredFiles"], done["totalFilesSkipped"]) == (4, 1)
    assert len({*table.file_uris()} & paths) == 1
    for seen in (table, deltalake.DeltaTable(table.table_uri)):
        assert rows(seen) == expected
        assert vectors(seen) == 0
    assert table.count() == table.to_pyarrow_table().num_rows == len(expected)
    changed = [a for a in last(table) if isinstance(a, Add | Remove)]
    assert len(changed) == 6
    assert not any(a.data_change for a in changed)
    assert table.history(1)[0]["operation"] == "REORG"
    assert pa.table(table.load_cdf(starting_version=before + 1)).num_rows == 0
    assert dk.verify(twins.uri, deep=True).ok

    # Nothing is left to do.
    assert table.optimize.purge()["numFilesRemoved"] == 0
    assert table.version() == before + 1


def test_copies_have_the_statistics_that_delta_rs_writes(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = Twins(catalog_uri, tmp_path)
    table = make(twins.uri, None)
    live = pa.concat_tables([data(0, 20), data(30, COUNT - 30)])
    deltalake.write_deltalake(twins.path, live)
    table.optimize.purge()

    theirs, mine = (
        [json.loads(known(a.stats) or "") for a in last(t) if isinstance(a, Add)]
        for t in (twins.plain, table)
    )
    (same,) = (one for one in mine if one["minValues"]["id"] == 0)
    # delta-rs ignores that NaN is above all numbers, and cuts times to milliseconds.
    assert theirs[0]["maxValues"].pop("amount") == 49.75
    for stats in (theirs[0], same):
        del stats["minValues"]["ts"], stats["maxValues"]["ts"]
    assert same == theirs[0]


def test_purge_takes_a_share_and_partitions(catalog_uri: str, tmp_path: Path) -> None:
    table = make(Twins(catalog_uri, tmp_path).uri)
    expected = rows(table)
    filters = [("part", "=", "p 0")]
    assert table.optimize.purge(dead_share=0.06)["numFilesRemoved"] == 0
    assert table.optimize.purge(filters, dead_share=0.05)["numFilesRemoved"] == 0
    assert table.optimize.purge(filters, dead_share=0.04)["numFilesRemoved"] == 1
    assert table.history(1)[0]["operationParameters"] == {
        "predicate": '[["part","=","p 0"]]',
        "applyPurge": "true",
    }
    assert table.optimize.purge(dead_share=0.02)["numFilesRemoved"] == 1
    assert table.optimize.purge()["numFilesRemoved"] == 1
    assert rows(table) == expected
    with pytest.raises(PredicateError, match="partition columns: part"):
        table.optimize.purge([("id", "=", "5")])


def test_commit_properties_are_those_of_the_purge(
    catalog_uri: str, tmp_path: Path
) -> None:
    table = make(Twins(catalog_uri, tmp_path).uri)
    table.optimize.purge(
        commit_properties=CommitProperties(
            custom_metadata={"why": "tidy"}, app_transactions=[Transaction("app", 7)]
        )
    )
    assert table.history(1)[0]["why"] == "tidy"
    assert table.transaction_version("app") == 7


def test_compaction_purges_the_files_that_delta_rs_leaves(
    catalog_uri: str, tmp_path: Path
) -> None:
    # Each partition has one file, which delta-rs doesn't compact.
    uri = Twins(catalog_uri, tmp_path).uri
    dk.write_deltalake(uri, data(0), partition_by="part", configuration={**ON, **FEED})
    table = dk.DeltaTable(uri)
    table.delete("id = 8")
    expected, before = rows(table), table.version()

    done = table.optimize.compact(target_size=1)
    assert (done["numFilesRemoved"], table.version()) == (0, before)
    done = table.optimize.compact()
    assert (done["numFilesRemoved"], done["numFilesAdded"]) == (1, 1)
    assert done["numDeletionVectorsRemoved"] == 1
    assert table.history(1)[0]["operation"] == "OPTIMIZE"
    assert (rows(table), vectors(table)) == (expected, 0)

    # Of a large file, more than a twentieth of the rows has to be deleted.
    table.delete("id < 12")
    expected = rows(table)
    assert table.optimize.compact(target_size=1)["numFilesRemoved"] == 2
    assert (rows(table), vectors(table)) == (expected, 0)
    assert dk.verify(uri, deep=True).ok


def test_compaction_of_both_kinds_is_one_version(
    catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__MODE", "always")
    uri = Twins(catalog_uri, tmp_path).uri
    make(uri)
    dk.write_deltalake(uri, data(0, 1).set_column(1, "part", [["lone"]]), mode="append")
    more = pa.table({**data(1, 3).to_pydict(), "part": ["lone"] * 3})
    dk.write_deltalake(
        uri, more.cast(data(0).schema), mode="overwrite", predicate="part = 'lone'"
    )
    table = dk.DeltaTable(uri)
    table.delete("part = 'lone' AND id = 2")
    expected, before = rows(table), table.version()

    done = table.optimize.compact()
    assert table.version() == before + 1
    # Two files of each of two partitions become one, and the lone one is purged.
    assert (done["numFilesRemoved"], done["numFilesAdded"]) == (5, 3)
    assert done["partitionsOptimized"] == 3
    assert done["numDeletionVectorsRemoved"] == 4
    metrics = table.history(1)[0]["operationMetrics"]
    assert {name: done[name] for name in metrics} == metrics
    assert (rows(table), vectors(table)) == (expected, 0)
    assert dk.verify(uri, deep=True).ok


@pytest.mark.parametrize("kind", ["name vectors", "id vectors partitions"])
def test_tables_with_mapped_columns_are_purged(
    catalog: Catalog, tmp_path: Path, kind: str
) -> None:
    table, expected = make_mapped(kind, catalog, tmp_path)
    assert table.optimize.purge()["numFilesRemoved"] == 1
    for seen in (table, deltalake.DeltaTable(table.table_uri)):
        found = pa.table(seen.scan()).to_pylist()
        assert {(row["id"], row["City Name"]) for row in found} == expected
        assert vectors(seen) == 0
    uri = parse_uri(format_uri(catalog.uri)).with_table(table._table.name)
    assert dk.verify(format_uri(uri), deep=True).ok


@pytest.mark.parametrize("codec", ["zstd", "gzip", "none"])
def test_copies_keep_codec_and_types(
    catalog_uri: str, tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__MODE", "always")
    folder = tmp_path / "given"
    folder.mkdir()
    texts = [None if i % 3 else f"t{i}" for i in range(COUNT)]
    views = {
        "view": pa.array(texts, pa.string_view()),
        "views": pa.array([[t] for t in texts], pa.list_(pa.string_view())),
        "map": pa.array(
            [{"k": {"b": b"x"}}] * COUNT,
            pa.map_(pa.string(), pa.struct([("b", pa.binary())])),
        ),
    }
    given = data(0).select(["id", "ts"])
    for name, column in views.items():
        given = given.append_column(name, column)
    pq.write_table(
        given,
        folder / "a.parquet",
        compression=codec,
        use_deprecated_int96_timestamps=True,
        row_group_size=30,
    )
    deltalake.convert_to_deltalake(folder, configuration=ON)
    dk.import_table(str(folder), uri := Twins(catalog_uri, tmp_path).uri)
    table = dk.DeltaTable(uri)
    table.alter.set_table_properties(ON)
    table.delete("id > 25 AND id < 100 OR id = 199")
    expected = rows(table)
    table.optimize.purge()

    assert rows(table) == rows(deltalake.DeltaTable(table.table_uri)) == expected
    (path,) = table.file_uris()
    footer = pq.read_metadata(path.removeprefix("file://"))
    column = footer.row_group(0).column(1)
    assert column.physical_type == "INT96"
    assert column.compression == {"none": "UNCOMPRESSED"}.get(codec, codec.upper())
    # Of seven row groups, two had no live rows.
    assert footer.num_row_groups == 5


def test_purge_is_part_of_a_transaction(catalog_uri: str, tmp_path: Path) -> None:
    table = make(uri := Twins(catalog_uri, tmp_path).uri)
    expected = rows(table)
    with dk.transaction(catalog_uri) as tx:
        handle = tx.table("t")
        handle.optimize.purge()
        tx.delete("t", "id = 5")
    assert len(rows(dk.DeltaTable(uri))) == len(expected) - 1
    assert dk.verify(uri, deep=True).ok


def test_only_tables_of_a_catalog_are_purged(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path, data(0))
    with pytest.raises(DeltaError, match="only tables of a catalog"):
        dk.DeltaTable(tmp_path).optimize.purge()


@sqlite
def test_files_of_an_object_store_are_purged(catalog_uri: str, s3: Place) -> None:
    options = s3.storage_options
    table = make(placed(catalog_uri, s3), storage_options=options)
    expected = rows(table)
    assert table.optimize.purge()["numFilesAdded"] == 3
    mirror = deltalake.DeltaTable(s3.location, storage_options=options)
    assert rows(table) == rows(mirror) == expected
