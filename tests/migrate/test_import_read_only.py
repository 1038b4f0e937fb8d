"""Tables that can be read here, but not written, and logs with odd lines."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import (
    CodecError,
    DeltaError,
    ProtocolError,
    ReadOnlyError,
    ReadOnlyFeatureError,
)
from delkalakedb.migrate.departure import drop_table
from delkalakedb.migrate.follower import follow, sync
from delkalakedb.migrate.importer import import_table
from delkalakedb.migrate.trees import Place, import_place, preview
from delkalakedb.model.actions import Add, CommitInfo, UnknownAction
from delkalakedb.model.log import Reads, Staged
from delkalakedb.storage import Store, open_store
from tests.support.cli import Cli
from tests.support.imports import assert_same_history, log_files, with_table
from tests.support.integrity import check_integrity
from tests.support.logs import log_path, rows

# Features that no reader has to know, with what turns them on: (what the column's
# metadata has, what the table's properties have).
WRITER_FEATURES: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "checkpointProtection": ({}, {}),
    "collations-preview": ({"__COLLATIONS": {"id": "ICU.en_US_CI"}}, {}),
    "coordinatedCommits-preview": ({}, {}),
    "icebergCompatV1": ({}, {"delta.enableIcebergCompatV1": "true"}),
    "icebergCompatV2": ({}, {"delta.enableIcebergCompatV2": "true"}),
    "liquid": ({}, {}),
    "neverHeardOf": ({}, {}),
}


def entry(store: Store, version: int) -> list[dict[str, Any]]:
    """The lines of a commit."""
    lines = store.get(log_path(version, "json")).splitlines()
    return [json.loads(line) for line in lines]


def put(store: Store, version: int, *lines: dict[str, Any]) -> None:
    """Write a commit, over one that is there."""
    body = "".join(json.dumps(line) + "\n" for line in lines)
    store.put(log_path(version, "json"), body.encode())


def protocol(*writer: str, reader: tuple[str, ...] = ()) -> dict[str, Any]:
    body: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 7}
    body["writerFeatures"] = [*writer, *reader]
    if reader:
        body |= {"minReaderVersion": 3, "readerFeatures": list(reader)}
    return {"protocol": body}


def make_table(
    location: Path,
    feature: str = "icebergCompatV2",
    *,
    reader: bool = False,
) -> Store:
    """Versions 0 and 1 by deltalake; version 2 turns on a feature."""
    deltalake.write_deltalake(str(location), rows(0))
    deltalake.write_deltalake(str(location), rows(4), mode="append")
    store = open_store(str(location))
    of_column, properties = WRITER_FEATURES.get(feature, ({}, {}))
    (metadata,) = (a["metaData"] for a in entry(store, 0) if "metaData" in a)
    schema = json.loads(metadata["schemaString"])
    schema["fields"][0]["metadata"] |= of_column
    metadata |= {"schemaString": json.dumps(schema), "configuration": properties}
    lists = protocol(reader=(feature,)) if reader else protocol(feature)
    put(store, 2, {"commitInfo": {"operation": "X"}}, lists, {"metaData": metadata})
    return store


def everything(location: Path) -> dict[str, bytes]:
    files = (path for path in location.rglob("*") if path.is_file())
    return {str(path.relative_to(location)): path.read_bytes() for path in files}


def ids(table: pa.Table) -> list[int]:
    return sorted(table["id"].to_pylist())


# ---- features


def test_feature_that_only_writers_must_know_leaves_a_table_read_only(
    catalog_uri: str, catalog: dk.Catalog, tmp_path: Path
) -> None:
    for feature in WRITER_FEATURES:
        location, uri = tmp_path / feature, with_table(catalog_uri, feature)
        store = make_table(location, feature)
        before = everything(location)

        done = import_table(store, catalog, table=feature, deep=True)

        assert done.ok, done.report
        table = dk.DeltaTable(uri)
        expected = deltalake.DeltaTable(str(location)).to_pyarrow_table()
        assert ids(table.to_pyarrow_table()) == ids(expected) == list(range(8))
        assert table.protocol().writer_features == [feature]
        with pytest.raises(ReadOnlyFeatureError, match=rf"{feature}: .*{feature} \("):
            dk.write_deltalake(uri, rows(8), mode="append")
        assert everything(location) == before
    check_integrity(catalog)


def test_identity_columns_are_for_spark_to_write(uri: str, location: Path) -> None:
    store = make_table(location, "none")
    start, _, changed = entry(store, 2)
    schema = json.loads(changed["metaData"]["schemaString"])
    schema["fields"][0]["metadata"] |= {
        "delta.identity.start": 1,
        "delta.identity.step": 1,
        "delta.identity.allowExplicitInsert": True,
    }
    changed["metaData"]["schemaString"] = json.dumps(schema)
    by_version = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 6}}
    put(store, 2, start, by_version, changed)
    dk.import_table(str(location), uri)
    before = everything(location)

    for write in (
        lambda: dk.write_deltalake(uri, rows(0), mode="append"),
        lambda: dk.DeltaTable(uri).delete("id = 1"),
    ):
        with pytest.raises(ProtocolError, match="identityColumns; Spark can"):
            write()

    assert everything(location) == before


@pytest.mark.parametrize(
    ("properties", "writer", "reason"),
    [
        ({"delta.appendOnly": "yes"}, 2, r"delta\.appendOnly is 'yes'"),
        ({"delta.logRetentionDuration": "1 month"}, 2, "logRetentionDuration is"),
        ({"delta.checkpointInterval": "0", "delta.checkpointPolicy": "v9"}, 2, "Inter"),
        ({}, 8, "writer version 8 is not known"),
    ],
    ids=["bool", "interval", "two", "version"],
)
def test_what_only_writers_must_understand_leaves_a_table_read_only(
    catalog_uri: str,
    uri: str,
    catalog: dk.Catalog,
    location: Path,
    properties: dict[str, str],
    writer: int,
    reason: str,
) -> None:
    store = make_table(location, "none")
    start, _, changed = entry(store, 2)
    changed["metaData"]["configuration"] = properties
    lists = {"writerFeatures": []} if writer > 7 else {}
    versions = {"minReaderVersion": 1, "minWriterVersion": writer, **lists}
    put(store, 2, start, {"protocol": versions}, changed)

    done = import_table(store, catalog, table="t", deep=True)

    assert done.ok, done.report
    assert ids(dk.DeltaTable(uri).to_pyarrow_table()) == list(range(8))
    with pytest.raises(ReadOnlyFeatureError, match=reason):
        dk.write_deltalake(uri, rows(8), mode="append")
    before = everything(location)
    with pytest.raises(ReadOnlyFeatureError, match=reason):
        dk.DeltaTable(uri).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert everything(location) == before
    if properties:
        with pytest.raises(DeltaError, match=reason):
            catalog.expire("t", timedelta(0))
    (stats,) = Cli(catalog_uri).json("stats", "t")
    assert stats["table"] == "t"


def test_every_writer_is_refused_by_the_name_of_the_feature(
    uri: str, catalog: dk.Catalog, location: Path
) -> None:
    make_table(location)
    dk.import_table(str(location), uri)
    before = everything(location)
    table = dk.DeltaTable(uri)
    source = rows(0)

    def in_transaction() -> None:
        with dk.transaction(catalog.uri) as tx:
            tx.write("t", source, mode="append")

    def merge() -> None:
        merged = table.merge(source, "s.id = t.id", source_alias="s", target_alias="t")
        merged.when_matched_update_all().execute()

    def unlisted() -> None:
        add = Add(
            path="x", partition_values={}, size=1, modification_time=1, data_change=True
        )
        catalog.commit(Staged("t", (add,), Reads(version=2)))

    writers: dict[str, Callable[[], Any]] = {
        "append": lambda: dk.write_deltalake(uri, source, mode="append"),
        "overwrite": lambda: dk.write_deltalake(
            uri, pa.table({"a": [1]}), mode="overwrite", schema_mode="overwrite"
        ),
        "transaction": in_transaction,
        "commit": unlisted,
        "delete": lambda: table.delete(),
        "delete some": lambda: table.delete("id = 1"),
        "old version": lambda: dk.DeltaTable(uri, version=0).delete("id = 1"),
        "old append": lambda: dk.write_deltalake(
            dk.DeltaTable(uri, version=0), source, mode="append"
        ),
        "update": lambda: table.update({"id": "id + 1"}),
        "merge": merge,
        "compact": lambda: table.optimize.compact(),
        "z-order": lambda: table.optimize.z_order(["id"]),
        "vacuum": lambda: table.vacuum(
            0, dry_run=False, enforce_retention_duration=False
        ),
        "restore": lambda: table.restore(0),
        "properties": lambda: table.alter.set_table_properties({"k": "v"}),
        "constraint": lambda: table.alter.add_constraint({"c": "id > -1"}),
        "feature": lambda: table.alter.add_feature(
            deltalake.TableFeatures.AppendOnly, allow_protocol_versions_increase=True
        ),
        "create": lambda: dk.DeltaTable.create(
            uri, schema=pa.schema([("a", pa.int64())]), mode="overwrite"
        ),
        "cleanup": lambda: table.cleanup_metadata(),
        "generate": lambda: table.generate(),
        "compact log": lambda: table._table.compact_logs(0, 1),
        "fence": lambda: dk.mirror.fence(uri),
        "cut over": lambda: dk.cut_over(uri),
        "drop": lambda: drop_table(catalog, "t", with_data=True),
    }
    for name, write in writers.items():
        with pytest.raises(ReadOnlyFeatureError, match=r"t: .* icebergCompatV2 \(no "):
            pytest.fail(f"{name} is not refused: {write()}")

    assert everything(location) == before
    assert catalog.table("t").version == 2


def test_read_only_table_can_be_read_in_every_way(
    uri: str, catalog: dk.Catalog, location: Path
) -> None:
    store = make_table(location)

    done = dk.import_table(str(location), uri, deep=True)

    assert done.ok, done.report
    assert_same_history(catalog, "t", store, first=0)
    table = dk.DeltaTable(uri)
    assert ids(table.to_pyarrow_dataset().to_table()) == list(range(8))
    assert ids(dk.DeltaTable(uri, version=0).to_pyarrow_table()) == list(range(4))
    assert len(table.history()) == 3
    assert len(table.file_uris()) == 2
    assert table.vacuum(0, enforce_retention_duration=False) == []
    found = dk.QueryBuilder().register("t", table).execute("select count(*) n from t")
    assert found.read_all()["n"].to_pylist() == [8]
    table.create_checkpoint()
    assert list(log_files(location)).count(log_path(2, "checkpoint.parquet")) == 1
    assert deltalake.DeltaTable(str(location)).to_pyarrow_table().num_rows == 8
    dk.mirror.run(uri, once=True)
    assert dk.verify(uri, deep=True).ok  # type: ignore[union-attr]


def test_checkpoint_of_a_table_with_an_unknown_feature_is_refused(
    uri: str, location: Path
) -> None:
    make_table(location, "neverHeardOf")
    dk.import_table(str(location), uri)

    with pytest.raises(ProtocolError, match=r"a checkpoint of .* neverHeardOf"):
        dk.DeltaTable(uri).create_checkpoint()


def test_log_of_a_read_only_table_is_left_to_its_writers(
    uri: str, location: Path
) -> None:
    store = make_table(location)
    dk.import_table(str(location), uri)
    for version in range(3, 12):
        put(store, version, {"commitInfo": {"operation": "X"}})
    before = everything(location)

    assert dk.sync(uri).versions == 9
    dk.mirror.run(uri, once=True)

    assert everything(location) == before


@pytest.mark.parametrize("follow", [True, False])
def test_read_only_table_takes_in_what_others_write_until_the_feature_is_dropped(
    uri: str, catalog: dk.Catalog, location: Path, follow: bool
) -> None:
    store = make_table(location)
    (dk.follow if follow else dk.import_table)(str(location), uri)
    added = next(line for line in entry(store, 1) if "add" in line)
    odd = {
        "domainMetadata": {"domain": "delta.x", "configuration": "", "removed": False}
    }
    put(store, 3, added, odd)

    assert dk.sync(uri).version == 3
    with pytest.raises(ReadOnlyError, match="icebergCompatV2"):
        dk.write_deltalake(uri, rows(8), mode="append")
    with pytest.raises(ReadOnlyFeatureError, match="icebergCompatV2"):
        dk.cut_over(uri)
    put(store, 4, protocol("appendOnly"))
    assert dk.sync(uri).version == 4
    assert_same_history(catalog, "t", store, first=0)
    if follow:
        dk.cut_over(uri)
    dk.write_deltalake(uri, rows(8), mode="append")
    assert deltalake.DeltaTable(str(location)).to_pyarrow_table().num_rows == 12


def test_own_table_that_adopts_such_a_feature_becomes_read_only(
    uri: str, catalog: dk.Catalog
) -> None:
    dk.write_deltalake(uri, rows(0))
    store = open_store(dk.DeltaTable(uri).table_uri)
    put(store, 1, protocol("icebergCompatV9"))

    assert dk.mirror.adopt(uri) == (1,)

    assert ids(dk.DeltaTable(uri).to_pyarrow_table()) == list(range(4))
    with pytest.raises(ReadOnlyFeatureError, match="icebergCompatV9"):
        dk.write_deltalake(uri, rows(4), mode="append")


def test_detached_read_only_table_is_left_as_it_was(
    uri: str, catalog: dk.Catalog, location: Path
) -> None:
    make_table(location)
    before = everything(location)
    dk.import_table(str(location), uri)

    dk.detach(uri, deep=True)

    assert catalog.tables() == []
    assert everything(location) == before


def test_copied_read_only_table_is_read_only_in_the_other_catalog(
    uri: str, catalog: dk.Catalog, location: Path, tmp_path: Path
) -> None:
    make_table(location)
    dk.import_table(str(location), uri)
    other = f"deltasql://sqlite/{tmp_path}/other.db"

    (done,) = dk.copy_catalog(catalog.uri, other)

    assert done.state == "copied"
    with pytest.raises(ReadOnlyFeatureError, match="icebergCompatV2"):
        dk.write_deltalake(f"{other}?table=t", rows(8), mode="append")


def test_feature_that_readers_must_know(
    catalog_uri: str, catalog: dk.Catalog, tmp_path: Path
) -> None:
    """One that is known here is read-only, one that isn't is refused by name."""
    owned = make_table(tmp_path / "owned", "catalogOwned-preview", reader=True)
    odd = make_table(tmp_path / "odd", "neverHeardOf", reader=True)

    assert import_table(owned, catalog, table="owned").ok
    uri = with_table(catalog_uri, "owned")
    table = dk.DeltaTable(uri)
    assert ids(table.to_pyarrow_table()) == list(range(8))
    found = dk.QueryBuilder().register("t", table).execute("select id from t")
    assert sorted(found.read_all()["id"].to_pylist()) == list(range(8))
    with pytest.raises(ReadOnlyFeatureError, match="catalogOwned-preview"):
        catalog.snapshot("owned")._check_ours()
    with pytest.raises(ProtocolError, match=r"odd can't be imported.*neverHeardOf"):
        import_table(odd, catalog, table="odd")
    assert [table.name for table in catalog.tables()] == ["owned"]


def test_preview_and_outcome_of_an_import_say_that_a_table_will_be_read_only(
    catalog: dk.Catalog, location: Path
) -> None:
    place = Place("t", make_table(location))

    for outcome in (preview(catalog, place), import_place(catalog, place)):
        assert outcome.state in ("would import", "imported")
        assert "read-only here" in (outcome.message or "")
        assert "icebergCompatV2" in (outcome.message or "")


# ---- odd lines


@pytest.mark.parametrize("adopted", [True, False])
def test_unknown_actions_beside_known_ones_and_unknown_fields_are_carried(
    uri: str, catalog: dk.Catalog, location: Path, tmp_path: Path, adopted: bool
) -> None:
    deltalake.write_deltalake(str(location), rows(0))
    deltalake.write_deltalake(str(location), rows(4), mode="append")
    store = open_store(str(location))
    if adopted:
        dk.follow(str(location), uri)
        deltalake.write_deltalake(str(location), rows(8), mode="append")
    newest = 2 if adopted else 1
    info, added = sorted(entry(store, newest), key=lambda line: "add" in line)
    added["add"]["newField"] = {"x": [1, None]}
    future = {"future": {"text": "\0ü", "n": None}}
    lines = [info | {"x": 1}, added | {"remove": None} | future, {"alone": None}]
    put(store, newest, *lines)
    expected = deltalake.DeltaTable(str(location)).to_pyarrow_table()

    if adopted:
        dk.sync(uri)
    else:
        dk.import_table(str(location), uri)

    actions = catalog.log("t").commit(newest)
    unknown = {a.kind: a.body for a in actions if isinstance(a, UnknownAction)}
    assert unknown == {"x": 1, "alone": None, **future}
    assert [a.fields for a in actions if isinstance(a, CommitInfo)] == [
        info["commitInfo"]
    ]
    assert [a.extra for a in actions if isinstance(a, Add)] == [
        {"newField": {"x": [1, None]}}
    ]
    assert ids(dk.DeltaTable(uri).to_pyarrow_table()) == ids(expected)
    report = dk.verify(uri, deep=True)
    assert report.ok, report  # type: ignore[union-attr]
    if adopted:
        dk.cut_over(uri)
    other = f"deltasql://sqlite/{tmp_path}/other.db"
    dk.copy_catalog(catalog.uri, other)
    with dk.connect(other) as copied:
        assert copied.log("t").commit(newest) == actions
    dk.detach(f"{other}?table=t", deep=True)
    assert entry(store, newest) == lines
    after = deltalake.DeltaTable(str(location)).to_pyarrow_table()
    assert ids(after) == ids(expected)


def test_line_with_two_known_actions_is_refused(
    catalog: dk.Catalog, location: Path
) -> None:
    deltalake.write_deltalake(str(location), rows(0))
    store = open_store(str(location))
    put(store, 1, {"txn": {"appId": "a", "version": 1}} | entry(store, 0)[-1])

    with pytest.raises(
        CodecError, match=r"line 1 .* expected one action, got txn, add"
    ):
        import_table(store, catalog, table="t")


@pytest.mark.parametrize("schema", [{}, {"schemaString": None}])
def test_old_metadata_without_a_schema_is_carried(
    uri: str, catalog: dk.Catalog, location: Path, schema: dict[str, None]
) -> None:
    deltalake.write_deltalake(str(location), rows(0))
    store = open_store(str(location))
    info, lists, metadata, added = entry(store, 0)
    bare = {k: v for k, v in metadata["metaData"].items() if k != "schemaString"}
    put(store, 0, info, lists, {"metaData": bare | schema})
    with pytest.raises(ProtocolError, match=r"the newest version, 0, has no schemaStr"):
        import_table(store, catalog, table="t")
    assert catalog.tables() == []
    put(store, 1, metadata, added)

    done = import_table(store, catalog, table="t", deep=True)

    assert done.ok, done.report
    assert_same_history(catalog, "t", store, first=0)
    assert ids(dk.DeltaTable(uri).to_pyarrow_table()) == list(range(4))
    assert dk.DeltaTable(uri, version=0).schema().fields == []
    dk.write_deltalake(uri, rows(4), mode="append")
    before = {k: v for k, v in log_files(location).items() if k.endswith(".json")}
    dk.detach(uri, deep=True)
    after = {k: v for k, v in log_files(location).items() if k.endswith(".json")}
    assert after == before


def test_followed_table_without_a_schema_for_a_while_is_followed_on(
    catalog: dk.Catalog, location: Path
) -> None:
    deltalake.write_deltalake(str(location), rows(0))
    store = open_store(str(location))
    follow(store, catalog, table="t")
    (metadata,) = (line for line in entry(store, 0) if "metaData" in line)
    bare = {k: v for k, v in metadata["metaData"].items() if k != "schemaString"}
    put(store, 1, {"metaData": bare})

    assert sync(catalog, table="t").version == 1
    with pytest.raises(ReadOnlyFeatureError, match="no schemaString"):
        catalog.snapshot("t")._check_ours()
    put(store, 2, metadata)
    assert sync(catalog, table="t").version == 2
    assert_same_history(catalog, "t", store, first=0)
