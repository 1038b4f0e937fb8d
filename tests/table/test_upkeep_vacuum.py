"""Vacuum: what nothing needs goes, and nothing else."""

import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties

import delkalakedb as dk
from delkalakedb.deltalake.raw.raw_table import SqlRawTable
from delkalakedb.deltalake.vacuum import Vacuum
from delkalakedb.errors import DeltaError, VersionNotFoundError
from delkalakedb.model.actions import Add
from delkalakedb.storage import open_store
from tests.support.actions import DV, cdc, remove
from tests.support.lakes import Lake
from tests.support.servers.stores import Place
from tests.support.twins import Twins, rows

ANY_AGE = {"retention_hours": 0, "enforce_retention_duration": False}


@pytest.fixture
def twins(catalog_uri: str, tmp_path: Path) -> Twins:
    """Two tables with removed files, on each engine in turn."""
    twins = Twins(catalog_uri, tmp_path)
    twins.write(pa.table({"id": [1, 2], "city": ["a b", "c"]}), partition_by="city")
    twins.write(pa.table({"id": [3], "city": ["c"]}), mode="append")
    twins.do(lambda t: t.optimize.compact())
    twins.do(lambda t: t.delete("city = 'a b'"))
    return twins


@pytest.fixture
def table(tmp_path: Path) -> dk.DeltaTable:
    """A table of one file that was overwritten twice."""
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    for number in range(3):
        dk.write_deltalake(uri, pa.table({"id": [number]}), mode="overwrite")
    return dk.DeltaTable(uri)


def put(table: deltalake.DeltaTable, path: str, age_s: float = 3600) -> Path:
    """A file that no version names."""
    target = Path(table.table_uri.removeprefix("file://")) / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"x")
    os.utime(target, (time.time() - age_s,) * 2)
    return target


def data_files(table: deltalake.DeltaTable) -> int:
    folder = Path(table.table_uri.removeprefix("file://"))
    return len([*folder.rglob("*.parquet")])


def test_vacuum_deletes_as_many_files_as_plain_deltalake(twins: Twins) -> None:
    dry = [t.vacuum(**ANY_AGE) for t in (twins.ours, twins.plain)]
    assert len(dry[0]) == len(dry[1]) == 3

    ours, theirs = twins.do(lambda t: t.vacuum(dry_run=False, **ANY_AGE))

    assert sorted(ours) == sorted(dry[0])
    assert len(ours) == len(theirs)
    assert data_files(twins.ours) == data_files(twins.plain) == 1


def test_history_tells_of_a_vacuum_as_deltalake_does(twins: Twins) -> None:
    wanted = ("operation", "operationParameters")

    twins.do(lambda t: t.vacuum(dry_run=False, **ANY_AGE))

    ours, theirs = twins.ours.history(2), twins.plain.history(2)
    assert [[c[k] for k in wanted] for c in ours] == [
        [c[k] for k in wanted] for c in theirs
    ]
    assert ours[0]["operationMetrics"] == theirs[0]["operationMetrics"]
    assert ours[1]["operationMetrics"]["numFilesToDelete"] == 3


def test_full_vacuum_deletes_what_plain_deltalake_does(twins: Twins) -> None:
    for table in (twins.ours, twins.plain):
        put(table, "stray.parquet")
        put(table, "city=zz/notes.txt")
        put(table, "_change_data/old.parquet")
        put(table, "_delta_work/x/busy.parquet")
        put(table, ".hidden/file.parquet")
        put(table, "_staged.parquet")
    strays = {"stray.parquet", "city=zz/notes.txt", "_change_data/old.parquet"}

    ours, theirs = twins.do(lambda t: t.vacuum(dry_run=False, full=True, **ANY_AGE))

    assert len(ours) == len(theirs) == 6
    assert strays <= {*ours} & {*theirs}


def test_nested_log_of_another_table_stays(table: dk.DeltaTable) -> None:
    log = put(table, "nested/_delta_log/00000000000000000000.json")

    table.vacuum(dry_run=False, full=True, **ANY_AGE)

    assert log.exists()


def test_full_vacuum_leaves_files_younger_than_the_retention(
    table: dk.DeltaTable,
) -> None:
    young, old = put(table, "young.parquet", 3000), put(table, "old.parquet", 4000)

    deleted = table.vacuum(1, False, False, full=True)

    assert deleted == [old.name]
    assert young.exists()


def test_default_retention_keeps_what_went_today(table: dk.DeltaTable) -> None:
    assert table.vacuum(dry_run=False) == []
    assert table.version() == 2
    assert rows(dk.DeltaTable(table.catalog_uri, version=0))


def test_retention_below_the_tables_is_refused(table: dk.DeltaTable) -> None:
    plain = "minimum retention for vacuum is configured to be greater than 168 hours"

    with pytest.raises(DeltaError, match=f"{plain}, got 1 hours"):
        table.vacuum(1)


def test_retention_of_the_table_counts(table: dk.DeltaTable) -> None:
    short = {"delta.deletedFileRetentionDuration": "interval 1 second"}
    table.alter.set_table_properties(short)
    assert table.vacuum() == []

    time.sleep(1.1)

    assert len(table.vacuum()) == 2


def test_file_of_a_kept_version_stays(table: dk.DeltaTable) -> None:
    deleted = table.vacuum(dry_run=False, keep_versions=[0], **ANY_AGE)

    assert len(deleted) == 1
    assert rows(dk.DeltaTable(table.catalog_uri, version=0)) == ["{'id': 0}"]
    with pytest.raises(VersionNotFoundError):
        table.vacuum(keep_versions=[77], **ANY_AGE)


def test_stale_handle_deletes_nothing_that_is_live_now(table: dk.DeltaTable) -> None:
    stale = dk.DeltaTable(table.catalog_uri)
    table.restore(0)

    deleted = stale.vacuum(dry_run=False, full=True, **ANY_AGE)

    assert len(deleted) == 2
    assert rows(dk.DeltaTable(table.catalog_uri)) == ["{'id': 0}"]
    assert dk.verify(table.catalog_uri, deep=True).ok


@pytest.mark.parametrize("full", [False, True])
def test_file_that_came_back_since_the_plan_stays(
    table: dk.DeltaTable, full: bool
) -> None:
    raw = table._table
    store = open_store(table.table_uri)
    vacuum = Vacuum(raw.catalog, raw.log, store, 0, full, ())
    back = dk.DeltaTable(table.catalog_uri, version=0).file_uris()
    plan = vacuum.plan()

    table.restore(0)

    (left,) = vacuum.still(plan)
    assert len(plan) == 2
    assert not back[0].endswith(left)


def test_remove_that_claims_to_be_old_counts_from_its_commit(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    lake = Lake(catalog, tmp_path)
    file = lake_file(lake)

    lake.commit(remove(file, deletion_timestamp=1))

    raw = SqlRawTable(catalog, lake.name, None)
    assert raw.vacuum(True) == []
    assert raw.vacuum(True, 0, False) == [file.path]


def test_deletion_vectors_go_with_their_versions(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    lake = Lake(catalog, tmp_path)
    file = lake_file(lake, features=["deletionVectors"], configuration={DV: "true"})
    lake.commit(*lake.without(file, 0))
    (first,) = vectors(lake)
    now = next(catalog.log(lake.name).adds())
    lake.commit(remove(now), lake.without(file, 0, 1)[1])
    raw = SqlRawTable(catalog, lake.name, None)

    assert raw.vacuum(True, 0, False, keep_versions=[2]) == []
    assert raw.vacuum(True, 0, False, full=True) == [first]
    assert raw.vacuum(False, 0, False) == [first]

    assert len(vectors(lake)) == 1
    assert Path(lake.location, file.path).exists()


def test_change_data_of_a_promised_version_stays(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    lake = Lake(catalog, tmp_path)
    lake_file(lake)
    changes = Path(lake.location, "_change_data/c.parquet")
    changes.parent.mkdir()
    changes.write_bytes(b"x")
    lake.commit(cdc("_change_data/c.parquet"))
    os.utime(changes, (1, 1))
    raw = SqlRawTable(catalog, lake.name, None)

    assert raw.vacuum(True, full=True) == []
    assert raw.vacuum(True, 0, False, full=True) == ["_change_data/c.parquet"]


def test_retention_may_be_a_fraction_of_hours(table: dk.DeltaTable) -> None:
    put(table, "orphan.parquet", age_s=50 * 60)

    def found(hours: Any) -> list[str]:
        return table.vacuum(hours, enforce_retention_duration=False, full=True)

    assert found(0.9) == found(1) == []
    assert found(0.8) == ["orphan.parquet"]
    with pytest.raises(DeltaError, match=r"greater than 168 hours, got 0\.9 hours"):
        table.vacuum(0.9)  # type: ignore[arg-type]
    for odd in (float("nan"), float("inf")):
        with pytest.raises(DeltaError, match="0 hours or more"):
            found(odd)
    options: Any = {"enforce_retention_duration": False, "full": True}
    table.vacuum(0.8, dry_run=False, **options)  # type: ignore[arg-type]
    parameters = table.history(2)[1]["operationParameters"]
    assert parameters["specifiedRetentionMillis"] == "2880000"


def test_commit_properties_reach_both_commits(table: dk.DeltaTable) -> None:
    properties = CommitProperties(custom_metadata={"userName": "me"})

    table.vacuum(dry_run=False, commit_properties=properties, **ANY_AGE)

    assert [commit["userName"] for commit in table.history(2)] == ["me", "me"]


def test_vacuum_on_an_object_store_deletes_there(s3: Place, tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={s3.location}"
    options = s3.storage_options
    for number in range(2):
        data = pa.table({"id": [number]})
        dk.write_deltalake(uri, data, mode="overwrite", storage_options=options)
    table = dk.DeltaTable(uri, storage_options=options)

    deleted = table.vacuum(dry_run=False, full=True, **ANY_AGE)

    assert len(deleted) == 1
    assert deltalake.DeltaTable(s3.location, storage_options=options).version() == 3
    with pytest.raises(DeltaError, match="missing file"):
        table.restore(0)


def lake_file(lake: Lake, **options: Any) -> Add:
    """The one file of a table of three rows."""
    lake.create(pa.schema([("x", pa.int64())]), **options)
    file = lake.file({"x": [1, 2, 3]})
    lake.commit(file)
    return file


def vectors(lake: Lake) -> list[str]:
    return [path.name for path in Path(lake.location).glob("*.bin")]


def test_full_vacuum_leaves_another_table_below_alone(tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table="
    for name, place in (("outer", "a b"), ("inner", "a b/in ner")):
        location = quote(str(tmp_path / place), safe="")
        data = pa.table({"id": [1]})
        dk.write_deltalake(f"{uri}{name}&location={location}", data)

    deleted = dk.DeltaTable(f"{uri}outer").vacuum(dry_run=False, full=True, **ANY_AGE)

    assert deleted == []
    assert dk.DeltaTable(f"{uri}inner").to_pyarrow_table().num_rows == 1
