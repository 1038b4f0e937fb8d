"""DML, maintenance and alterations: the same outcome as plain deltalake's."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType
from deltalake.table import TableFeatures
from deltalake.transaction import AddAction

import delkalakedb as dk
from delkalakedb.errors import DeltaError
from tests.support.twins import Twins, rows

DATA = pa.table({"id": [1, 2, 3, 4], "city": ["a b", "a b", "c", "c"]})
SOURCE = pa.table({"id": [2, 3, 9], "city": ["x", "c", "new"]})


@pytest.fixture
def twins(catalog_uri: str, tmp_path: Path) -> Twins:
    """Two tables with the same rows in two commits, on each engine in turn."""
    twins = Twins(catalog_uri, tmp_path)
    twins.write(DATA, partition_by="city")
    twins.write(pa.table({"id": [5, 6], "city": ["a b", "c"]}), mode="append")
    return twins


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of three files."""
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    for number in range(3):
        data = pa.table({"id": [number, number + 10]})
        dk.write_deltalake(uri, data, mode="append")
    return uri


def without_times(metrics: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in metrics.items() if not k.endswith("time_ms")}


def test_delete_and_update_give_the_rows_of_plain_deltalake(twins: Twins) -> None:
    for operation in (
        lambda t: t.delete("id = 1 AND city = 'a b'"),
        lambda t: t.delete("city = 'c' AND id > 5"),
        lambda t: t.update({"id": "id + 100"}, predicate="id = 4"),
        lambda t: t.update(new_values={"city": "z"}),
        lambda t: t.delete("id = -1"),
        lambda t: t.delete(),
    ):
        ours, theirs = twins.do(operation)
        assert without_times(ours) == without_times(theirs)


def test_literals_of_other_types_find_the_rows_that_plain_deltalake_finds(
    tmp_path: Path,
) -> None:
    """Each row has a file, which must not be passed over."""
    twins = Twins(f"deltasql://sqlite/{tmp_path}/meta.db", tmp_path)
    costs = ["9.50", "-9.50", "99999999.99", "0.10"]
    numbers = [2**53, 2**53 + 1, -5, 10]
    for number, cost in zip(numbers, costs, strict=True):
        kind = pa.decimal128(10, 2)
        data = pa.table({"i": [number], "c": pa.array([Decimal(cost)], kind)})
        twins.write(data, mode="append")
    for predicate in (
        "c = 9.504",
        "c <= -9.496",
        "c = 99999999.994",
        "c <> 9.504",
        "i = 9007199254740993.0",
        "i <> 9007199254740993.0",
        "i IN (9007199254740993.0, 1e1)",
        "i = '10'",
    ):
        ours, plain = (
            pa.table(table.scan(predicate=predicate)).num_rows
            for table in (twins.ours, twins.plain)
        )
        assert ours == plain, predicate
        ours, plain = twins.do(lambda t, where=predicate: t.delete(where))
        assert ours["num_deleted_rows"] == plain["num_deleted_rows"], predicate
        twins.do(lambda t: t.restore(3))


def test_condition_that_deltalake_reads_its_own_way_finds_the_same_rows(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = Twins(catalog_uri, tmp_path, "truth")
    truth = {"b": [True, False, None, False], "p": ["a", "b", "a", "a"]}
    twins.write(pa.table({**truth, "v": [1, 2, 3, 4]}), partition_by="p")

    twins.do(lambda t: t.delete("b IS NOT DISTINCT FROM true AND p = 'a'"))
    new = {"v": "100"}
    twins.do(lambda t: t.update(new, predicate="b IS DISTINCT FROM true AND p = 'b'"))
    twins.do(lambda t: t.update(new, predicate="b IS\nDISTINCT\nFROM b AND p = 'b'"))
    twins.do(lambda t: t.delete("NOT b IS DISTINCT FROM true AND p = 'b'"))


def test_merge_with_many_clauses_gives_the_rows_of_plain_deltalake(
    twins: Twins,
) -> None:
    def merge(table: DeltaTable) -> dict[str, Any]:
        return (
            table.merge(SOURCE, "s.id = t.id", source_alias="s", target_alias="t")
            .when_matched_delete("s.city = 'x'")
            .when_matched_update({"id": "s.id + 1000"})
            .when_not_matched_insert_all()
            .when_not_matched_by_source_update({"id": "t.id * 2"}, "t.id = 4")
            .when_not_matched_by_source_delete("t.id = 5")
            .execute()
        )

    ours, theirs = twins.do(merge)
    assert without_times(ours) == without_times(theirs)


def test_merge_that_brings_columns_gives_the_schema_of_plain_deltalake(
    twins: Twins,
) -> None:
    wide = SOURCE.append_column("size", pa.array([1.5, 2.5, 3.5]))

    def merge(table: DeltaTable) -> None:
        source = pa.RecordBatchReader.from_stream(wide)
        table.merge(
            source,
            "s.id = t.id",
            source_alias="s",
            target_alias="t",
            merge_schema=True,
        ).when_matched_update_all().when_not_matched_insert_all().execute()

    twins.do(merge)


def test_optimize_keeps_the_rows_and_changes_no_data(twins: Twins) -> None:
    for optimize in (
        lambda t: t.optimize.compact(partition_filters=[("city", "=", "c")]),
        lambda t: t.optimize.compact(),
        lambda t: t.optimize.z_order(["id"]),
    ):
        ours, theirs = twins.do(optimize)
        kept = ("numFilesAdded", "numFilesRemoved", "totalConsideredFiles")
        assert [ours[k] for k in kept] == [theirs[k] for k in kept]
    log = Path(twins.ours.table_uri.removeprefix("file://")) / "_delta_log"
    lines = (log / f"{3:020}.json").read_text().splitlines()
    actions = [json.loads(line) for line in lines]
    changed = [
        v["dataChange"] for a in actions for v in a.values() if "dataChange" in v
    ]
    assert changed
    assert not any(changed)


def test_compaction_with_an_interval_makes_consecutive_versions(twins: Twins) -> None:
    twins.do(lambda t: t.optimize.compact(min_commit_interval=0))
    assert twins.ours.version() == 3


def test_alterations_give_the_metadata_of_plain_deltalake(twins: Twins) -> None:
    size = Field("size", PrimitiveType("double"))
    for alteration in (
        lambda t: t.alter.add_columns([size]),
        lambda t: t.alter.add_constraint({"small": "id < 100"}),
        lambda t: t.alter.drop_constraint("small"),
        lambda t: t.alter.set_table_properties({"delta.enableChangeDataFeed": "true"}),
        lambda t: t.alter.set_table_name("name"),
        lambda t: t.alter.set_table_description("description"),
        lambda t: t.alter.set_column_metadata("id", {"comment": "key"}),
    ):
        twins.do(alteration)
    ours, theirs = twins.ours.metadata(), twins.plain.metadata()
    assert (ours.name, ours.description) == (theirs.name, theirs.description)
    assert ours.configuration == theirs.configuration


def test_handle_moves_with_each_operation(uri: str) -> None:
    table = dk.DeltaTable(uri)
    table.delete("id = 0")
    table.update({"id": "id + 1"}, predicate="id = 1")
    table.alter.set_table_description("d")
    table.optimize.compact()
    assert table.version() == 6


def test_feature_keeps_those_that_older_versions_imply(uri: str) -> None:
    table = dk.DeltaTable(uri)
    table.alter.add_feature(TableFeatures.DeletionVectors, True)
    assert {"appendOnly", "invariants", "deletionVectors"} <= set(
        table.protocol().writer_features or ()
    )


def test_constraint_is_checked_against_every_row_there_is(uri: str) -> None:
    with pytest.raises(DeltaError, match="t: add_constraints on version 2: "):
        dk.DeltaTable(uri).alter.add_constraint({"c": "id < 12"})
    assert dk.DeltaTable(uri).version() == 2


def test_row_that_violates_a_constraint_is_refused(uri: str) -> None:
    dk.DeltaTable(uri).alter.add_constraint({"c": "id < 100"})
    with pytest.raises(DeltaError, match="1 rows failed validation check"):
        dk.write_deltalake(uri, pa.table({"id": [100]}), mode="append")
    assert dk.DeltaTable(uri).version() == 3


def test_only_files_that_may_match_are_rewritten(uri: str) -> None:
    before = set(dk.DeltaTable(uri).file_uris())
    dk.DeltaTable(uri).delete("id = 10")
    assert len(before & set(dk.DeltaTable(uri).file_uris())) == 2


def test_change_data_is_written_and_read_from_the_mirror(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = Twins(catalog_uri, tmp_path)
    twins.write(DATA, configuration={"delta.enableChangeDataFeed": "true"})
    twins.do(lambda t: t.delete("id = 1"))
    twins.do(lambda t: t.update({"city": "'z'"}, predicate="id = 2"))
    merge = {"source_alias": "s", "target_alias": "t"}
    twins.do(
        lambda t: (
            t.merge(SOURCE, "s.id = t.id", **merge)
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )
    )
    mirror = deltalake.DeltaTable(twins.ours.table_uri)
    changes = [_changes(table) for table in (twins.ours, mirror, twins.plain)]
    assert changes[0] == changes[1] == changes[2]
    assert any("update_preimage" in change for change in changes[0])


def _changes(table: DeltaTable) -> list[str]:
    found = pa.RecordBatchReader.from_stream(table.load_cdf(starting_version=0))
    columns = found.read_all().drop_columns("_commit_timestamp")
    return sorted(map(repr, columns.to_pylist()))


def test_write_transaction_commits_files_in_place_and_leaves_the_handle(
    uri: str,
) -> None:
    table = dk.DeltaTable(uri)
    folder = Path(table.table_uri.removeprefix("file://"))
    source = Path(table.file_uris()[0].removeprefix("file://"))
    (folder / "new.parquet").write_bytes(source.read_bytes())
    (folder / "newer.parquet").write_bytes(source.read_bytes())
    size, stats = source.stat().st_size, '{"numRecords":2}'
    for name, mode in (("new", "append"), ("newer", "overwrite")):
        add = AddAction(f"{name}.parquet", size, {}, 1, True, stats)
        table.create_write_transaction([add], mode, table.schema(), [])
        assert table.version() == 2

    assert dk.DeltaTable(uri).version() == 4
    assert dk.DeltaTable(uri).count() == 2


def test_fenced_table_takes_every_operation(uri: str) -> None:
    table = dk.DeltaTable(uri)
    fence = {"delta.feature.catalogManaged": "supported"}
    table.alter.set_table_properties(fence)
    table.delete("id = 0")
    table.optimize.compact()
    dk.write_deltalake(table, pa.table({"id": [7]}), mode="overwrite")
    assert "catalogManaged" in (table.protocol().writer_features or ())
    assert rows(table) == ["{'id': 7}"]
    report = dk.verify(uri, deep=True)
    assert report.ok, report
