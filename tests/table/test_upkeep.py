"""Repair, and the upkeep of the log and of manifests."""

import json
import os
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.deltalake.raw.raw_table import SqlRawTable
from delkalakedb.errors import DeltaError, VersionNotFoundError
from tests.support.actions import DV
from tests.support.lakes import Lake
from tests.support.twins import Twins, rows


@pytest.fixture
def twins(tmp_path: Path) -> Twins:
    """Two partitioned tables of four versions."""
    twins = Twins(f"deltasql://sqlite/{tmp_path}/meta.db", tmp_path)
    twins.write(pa.table({"id": [1, 2], "city": ["a b", "c"]}), partition_by="city")
    twins.write(pa.table({"id": [3], "city": ["c"]}), mode="append")
    twins.do(lambda t: t.delete("id = 1"))
    twins.write(pa.table({"id": [4], "city": ["d"]}), mode="append")
    return twins


def folder(table: deltalake.DeltaTable) -> Path:
    return Path(table.table_uri.removeprefix("file://"))


def log(table: deltalake.DeltaTable, name: str) -> Path:
    return folder(table) / "_delta_log" / name


def test_repair_takes_out_the_files_that_are_gone(twins: Twins) -> None:
    for table in (twins.ours, twins.plain):
        gone = table.file_uris(file_pruning_predicate="city = 'd'")
        Path(gone[0]).unlink()
        paths = [Path(gone[0]).relative_to(folder(table)).as_posix()]
        assert table.repair(dry_run=True) == {"dry_run": True, "files_removed": paths}
        assert table.version() == 3

    ours, theirs = twins.do(lambda t: t.repair())

    assert len(ours["files_removed"]) == len(theirs["files_removed"]) == 1
    assert ours["dry_run"] is theirs["dry_run"] is False
    for key in ("operation", "operationParameters", "readVersion"):
        assert twins.ours.history(1)[0][key] == twins.plain.history(1)[0][key]


def test_repair_names_files_as_they_are_called(twins: Twins) -> None:
    twins.write(pa.table({"id": [5], "city": ["x y"]}), mode="append")
    for table in (twins.ours, twins.plain):
        (gone,) = table.file_uris(file_pruning_predicate="city = 'x y'")
        name = gone.removeprefix("file://").removeprefix(f"{folder(table)}/")
        os.remove(folder(table) / name)
        assert table.repair(dry_run=True)["files_removed"] == [name]


def test_repair_of_a_whole_table_commits_nothing(twins: Twins) -> None:
    ours, theirs = twins.do(lambda t: t.repair())

    assert ours == theirs == {"dry_run": False, "files_removed": []}


def test_checkpoint_of_the_loaded_version_is_where_readers_begin(twins: Twins) -> None:
    table = twins.ours

    table.create_checkpoint()

    assert json.loads(log(table, "_last_checkpoint").read_bytes())["version"] == 3
    for version in range(3):
        log(table, f"{version:020}.json").unlink()
    assert rows(deltalake.DeltaTable(table.table_uri)) == rows(table)


def test_checkpoint_of_an_older_version_leaves_the_newest_where_it_is(
    twins: Twins,
) -> None:
    twins.ours.create_checkpoint()

    dk.DeltaTable(twins.uri, version=1).create_checkpoint()

    assert log(twins.ours, f"{1:020}.checkpoint.parquet").exists()
    last = json.loads(log(twins.ours, "_last_checkpoint").read_bytes())
    assert last["version"] == 3
    assert dk.verify(twins.uri, deep=True).ok


def test_checkpoint_of_what_waits_is_made_after_it_is_published(tmp_path: Path) -> None:
    base = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELKALAKEDB_MIRROR__MODE", "external")
        dk.write_deltalake(base, pa.table({"id": [1]}))
        table = dk.DeltaTable(base)
        assert not log(table, f"{0:020}.json").exists()
        table.create_checkpoint()

    assert log(table, f"{0:020}.json").exists()
    assert rows(deltalake.DeltaTable(table.table_uri)) == ["{'id': 1}"]


def test_cleanup_takes_what_has_expired_of_the_log(twins: Twins) -> None:
    table = twins.ours
    table.create_checkpoint()
    for entry in (folder(table) / "_delta_log").iterdir():
        os.utime(entry, (1, 1))

    table.cleanup_metadata()

    assert not log(table, f"{2:020}.json").exists()
    assert log(table, f"{3:020}.json").exists()
    assert rows(deltalake.DeltaTable(table.table_uri)) == rows(table)
    assert [commit["version"] for commit in table.history()] == [3, 2, 1, 0]


@pytest.mark.parametrize("first", [0, 1])
def test_compacted_entry_says_what_plain_deltalakes_does(
    twins: Twins, first: int
) -> None:
    name = f"{first:020}.{3:020}.compacted.json"

    twins.do(lambda t: t.compact_logs(first, 3))

    said = [entry(log(t, name)) for t in (twins.ours, twins.plain)]
    assert said[0] == said[1]


def entry(path: Path) -> list[tuple[str, str]]:
    """What each line is of, but for names that differ between two tables."""
    lines = map(json.loads, path.read_text().splitlines())
    pairs = [next(iter(line.items())) for line in lines]
    return sorted(
        (kind, json.dumps(body.get("partitionValues"), sort_keys=True))
        for kind, body in pairs
    )


def test_range_that_can_not_be_compacted_is_refused(twins: Twins) -> None:
    with pytest.raises(DeltaError, match="end_version 1 must be greater than"):
        twins.ours.compact_logs(1, 1)
    with pytest.raises(VersionNotFoundError):
        twins.ours.compact_logs(1, 99)


def test_manifests_are_those_of_plain_deltalake(twins: Twins) -> None:
    twins.do(lambda t: t.generate())

    said = [manifests(t) for t in (twins.ours, twins.plain)]
    assert said[0].keys() == said[1].keys()
    named = sorted(uri for uris in said[0].values() for uri in uris)
    assert named == sorted(twins.ours.file_uris())


def test_manifest_of_a_partition_without_files_goes(twins: Twins) -> None:
    twins.ours.generate()
    table = twins.ours
    table.delete("city = 'd'")

    table.generate()

    assert not any("city=d" in path for path in manifests(table))


def manifests(table: deltalake.DeltaTable) -> dict[str, list[str]]:
    top = folder(table) / "_symlink_format_manifest"
    return {
        file.relative_to(top).as_posix(): file.read_text().splitlines()
        for file in top.rglob("manifest")
    }


def test_manifest_that_would_bring_rows_back_is_refused(tmp_path: Path) -> None:
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        lake = Lake(catalog, tmp_path)
        schema, on = pa.schema([("x", pa.int64())]), {DV: "true"}
        lake.create(schema, features=["deletionVectors"], configuration=on)
        file = lake.file({"x": [1, 2, 3]})
        lake.commit(file)
        lake.commit(*lake.without(file, 0))

        with pytest.raises(DeltaError, match="deletion vectors of version 2"):
            SqlRawTable(catalog, lake.name, None).generate()
