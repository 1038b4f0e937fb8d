"""Workspaces: what delta-rs gets to see, and what is made of what it commits."""

from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.errors import DeltaError, ProtocolError
from delkalakedb.model.actions import Add, Metadata, Protocol
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.predicate.predicate import Anything, parse_predicate
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.write.engines.deltars.workspace import DeltaRs
from delkalakedb.write.operation import Operation, Target
from tests.support.catalogs import table_of_three_files
from tests.support.servers.stores import Place


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of three files with one row each."""
    return table_of_three_files(tmp_path)


def seen(catalog: Catalog, **options: Any) -> int:
    """How many files an operation gets to see."""
    look = Operation("look", DeltaRs(lambda raw: len(raw.file_uris())), **options)
    staging = look.stage(Target.at(catalog.snapshot("t")))
    assert not staging.commits
    return staging.result


def test_only_candidates_are_in_the_workspace(uri: str) -> None:
    with dk.connect(uri) as catalog:
        schema = parse_schema(catalog.snapshot("t").metadata.schema_string)
        assert seen(catalog) == 0
        assert seen(catalog, files=parse_predicate("id = 1", schema)) == 1
        assert seen(catalog, files=Anything()) == 3


def test_append_and_overwrite_look_at_no_file(uri: str) -> None:
    """They work where the files are gone, so that their number doesn't matter."""
    folder = Path(dk.DeltaTable(uri).table_uri.removeprefix("file://"))
    for file in folder.glob("*.parquet"):
        file.unlink()
    dk.write_deltalake(uri, pa.table({"id": [9]}), mode="append")
    dk.write_deltalake(uri, pa.table({"id": [10]}), mode="overwrite")
    table = dk.DeltaTable(uri)
    assert table.to_pyarrow_table().to_pylist() == [{"id": 10}]
    assert table.history(1)[0]["operationMetrics"]["num_removed_files"] == 4


@pytest.mark.parametrize("changes", ["true", "false"])
@pytest.mark.parametrize("predicate", [None, "p = 'a'", "p IN ('a', 'c')"])
def test_files_that_go_whole_are_not_opened(
    tmp_path: Path, predicate: str | None, changes: str
) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/t"
    data = pa.table({"id": [1, 2, 3], "p": ["a", "a", "b"]})
    feed = {"delta.enableChangeDataFeed": changes}
    dk.write_deltalake(uri, data, partition_by="p", configuration=feed)
    for file in (tmp_path / "t").rglob("*.parquet"):
        file.unlink()

    found = dk.DeltaTable(uri).delete(predicate)

    gone = 3 if predicate is None else 2
    assert (found["num_deleted_rows"], found["num_added_files"]) == (gone, 0)
    assert dk.DeltaTable(uri).count() == 3 - gone


@pytest.mark.parametrize("named", [True, False])
def test_files_that_are_large_enough_are_not_opened(
    tmp_path: Path, named: bool
) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/t"
    dk.write_deltalake(uri, pa.table({"id": range(50_000)}))
    if named:
        size = {"delta.targetFileSize": "50000"}
        dk.DeltaTable(uri).alter.set_table_properties(size)
    (big,) = (tmp_path / "t").glob("*.parquet")
    assert big.stat().st_size > 50_000
    big.unlink()
    for number in range(2):
        dk.write_deltalake(uri, pa.table({"id": [number]}), mode="append")

    target = None if named else 50_000
    found = dk.DeltaTable(uri).optimize.compact(target_size=target)

    assert (found["numFilesRemoved"], found["numFilesAdded"]) == (2, 1)


def test_many_appends_with_changes_in_between_each_add_their_own_file(
    uri: str,
) -> None:
    """What delta-rs's handle has seen of others shows in none of them."""
    table = dk.DeltaTable(uri)
    for number in range(3, 30):
        if number == 12:
            table.alter.add_columns([deltalake.Field("note", "string")])
        if number == 20:
            table.delete("id = 0")
        rows = pa.table({"id": [number], "note": [str(number)]})
        columns = ["id", "note"] if number >= 12 else ["id"]
        dk.write_deltalake(table, rows.select(columns), mode="append")
        added = table.get_add_actions().column("path").to_pylist()
        assert len(added) == len(set(added))
    assert sorted(table.to_pyarrow_table()["id"].to_pylist()) == list(range(1, 30))
    writes = [c for c in table.history() if c["operation"] == "WRITE"]
    assert {c["operationMetrics"]["num_added_files"] for c in writes} == {1}
    plain = deltalake.DeltaTable(table.table_uri)
    assert sorted(plain.file_uris()) == sorted(table.file_uris())
    assert plain.version() == table.version()


def test_version_in_the_workspace_is_the_one_that_was_read(uri: str) -> None:
    with dk.connect(uri) as catalog:
        look = Operation("look", DeltaRs(lambda raw: raw.version()))
        staging = look.stage(Target.at(catalog.snapshot("t")))
    assert staging.result == 2


def test_feature_that_delta_rs_can_not_honour_is_refused_by_name(uri: str) -> None:
    with dk.connect(uri) as catalog:
        widening = Protocol(
            min_reader_version=3,
            min_writer_version=7,
            reader_features=["typeWidening"],
            writer_features=["typeWidening", "appendOnly", "invariants"],
        )
        catalog.commit(Staged("t", [widening], Reads(version=2)))
    with pytest.raises(ProtocolError, match="typeWidening"):
        dk.write_deltalake(uri, pa.table({"id": [9]}), mode="append")


def test_features_of_the_commit_are_kept_from_delta_rs(uri: str) -> None:
    features = ["rowTracking", "domainMetadata", "appendOnly", "invariants"]
    with dk.connect(uri) as catalog:
        tracking = Protocol(
            min_reader_version=1, min_writer_version=7, writer_features=features
        )
        catalog.commit(Staged("t", [tracking], Reads(version=2)))
    table = dk.DeltaTable(uri)
    dk.write_deltalake(table, pa.table({"id": [9]}), mode="append")
    table.alter.add_constraint({"c": "id < 10"})
    table.delete("id = 1")

    listed = set(table.protocol().writer_features or ())
    assert listed == {*features, "checkConstraints"}
    with dk.connect(uri) as catalog:
        (new,) = [a for a in catalog.log("t").commit(4) if isinstance(a, Add)]
    assert (new.base_row_id, new.default_row_commit_version) == (0, 4)


def test_file_outside_of_the_location_is_not_rewritten(uri: str) -> None:
    table = dk.DeltaTable(uri)
    with dk.connect(uri) as catalog:
        (first,) = [a for a in catalog.log("t").commit(0) if isinstance(a, Add)]
        outside = msgspec.structs.replace(first, path="file:///elsewhere/x.parquet")
        catalog.commit(Staged("t", [outside], Reads(version=2)))
    table.update_incremental()
    with pytest.raises(DeltaError, match="outside of the table's location"):
        table.delete("id = 0")


def test_create_names_the_location_of_the_table(tmp_path: Path) -> None:
    from delkalakedb.write.committer import make_table

    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    schema = deltalake.Schema.from_arrow(pa.schema([("id", pa.int64())]))
    create = DeltaRs(lambda folder: _create(folder, schema))
    with dk.connect(uri) as catalog:
        make_table(catalog, "t", None, Operation("create", create))
    table = dk.DeltaTable(uri)
    parameters = table.history()[0]["operationParameters"]
    assert parameters["location"] == table.table_uri.rstrip("/")
    with dk.connect(uri) as catalog:
        kinds = [type(action) for action in catalog.log("t").commit(0)]
    assert Metadata in kinds


def _create(folder: str, schema: deltalake.Schema) -> None:
    deltalake.DeltaTable.create(folder, schema)


def test_table_on_an_object_store_takes_every_operation(
    tmp_path: Path, s3: Place
) -> None:
    options = s3.storage_options
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={s3.location}"
    data = pa.table({"id": [1, 2], "p": ["a b", "c"]})
    for _ in range(2):
        dk.write_deltalake(
            uri, data, mode="append", partition_by=["p"], storage_options=options
        )
    table = dk.DeltaTable(uri, storage_options=options)
    table.delete("id = 2 AND p = 'c'")
    table.update({"id": "id + 10"})
    table.optimize.compact()
    other = data.filter(pc.field("p") == "c")
    dk.write_deltalake(table, other, mode="overwrite", predicate="p = 'c'")

    mirror = deltalake.DeltaTable(s3.location, storage_options=options)
    found = sorted(map(str, mirror.to_pyarrow_table().to_pylist()))
    expected = [{"id": 11, "p": "a b"}, {"id": 11, "p": "a b"}, {"id": 2, "p": "c"}]
    assert found == sorted(map(str, expected))
    report = dk.verify(uri, deep=True, storage_options=options)
    assert report.ok, report
