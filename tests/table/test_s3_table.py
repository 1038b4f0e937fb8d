"""A table on a real S3 server through the whole of deltalake's API."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datafusion
import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import Field, QueryBuilder
from deltalake.schema import PrimitiveType
from deltalake.table import TableFeatures

import delkalakedb as dk
from delkalakedb.errors import DeltaError, StorageError
from delkalakedb.settings.uri import parse_uri
from delkalakedb.storage import open_store
from tests.support.engines import shared
from tests.support.s3_tables import (
    ANY_AGE,
    DATA,
    MORE,
    S3Twins,
    everything,
    placed,
    sqlite,
    texts,
)
from tests.support.servers.stores import Place
from tests.support.twins import rows

CHANGES = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def twins(catalog_uri: str, tmp_path: Path, s3: Place) -> Iterator[S3Twins]:
    """Two tables of two versions, ours on S3; in the end its mirror is whole."""
    twins = S3Twins(catalog_uri, tmp_path, s3)
    twins.write(DATA, partition_by="city")
    twins.write(MORE, mode="append")
    yield twins
    report = dk.verify(twins.uri, deep=True, storage_options=s3.storage_options)
    assert report.ok, report


@shared
def test_writes_give_the_rows_of_plain_deltalake(twins: S3Twins) -> None:
    wide = MORE.append_column("size", pa.array([0.5, None]))
    twins.write(wide, mode="append", schema_mode="merge")
    twins.write(wide.slice(1), mode="overwrite", predicate="city = 'c'")
    other = wide.select(["size", "city"])
    twins.write(other, mode="overwrite", schema_mode="overwrite")
    twins.write(other.slice(1), mode="overwrite")
    before = twins.paths()
    twins.write(DATA, mode="ignore")
    with pytest.raises(DeltaError, match="already exists"):
        dk.write_deltalake(twins.uri, DATA, storage_options=twins.options)
    assert twins.paths() == before


@shared
def test_dml_gives_the_rows_of_plain_deltalake(twins: S3Twins) -> None:
    source = pa.table({"id": [2, 3, 9], "city": ["x", "y", "new"]})
    names = {"source_alias": "s", "target_alias": "t"}
    operations: list[Callable[[deltalake.DeltaTable], Any]] = [
        lambda t: t.delete("id = 1 AND city = 'a b'"),
        lambda t: t.update({"id": "id + 100"}, predicate="city = 'c'"),
        lambda t: (
            t.merge(source, "s.id = t.id", **names)
            .when_matched_delete("s.city = 'y'")
            .when_matched_update({"city": "s.city"})
            .when_not_matched_insert_all()
            .when_not_matched_by_source_delete("t.id = 4")
            .execute()
        ),
        lambda t: t.optimize.compact(),
        lambda t: t.optimize.z_order(["id"]),
    ]
    for operation in operations:
        twins.do(operation)


@shared
def test_change_data_is_written_and_read(
    catalog_uri: str, tmp_path: Path, s3: Place
) -> None:
    twins = S3Twins(catalog_uri, tmp_path, s3)
    twins.write(MORE, partition_by="city", configuration=CHANGES)
    twins.do(lambda t: t.update({"id": "id + 10"}, predicate="id = 5"))
    twins.do(lambda t: t.delete("city = 'c'"))

    tables = (twins.ours, twins.mirror, twins.plain)
    ours, mirror, plain = (changes(table) for table in tables)
    assert ours == mirror == plain
    assert len(ours) == 5


def changes(table: deltalake.DeltaTable) -> list[str]:
    found = everything(table.load_cdf(starting_version=0))
    names = ["id", "city", "_change_type", "_commit_version"]
    return texts(found.select(names))


@sqlite
def test_alterations_give_the_metadata_of_plain_deltalake(twins: S3Twins) -> None:
    column = Field("size", PrimitiveType("double"))
    operations: list[Callable[[deltalake.DeltaTable], Any]] = [
        lambda t: t.alter.add_columns(column),
        lambda t: t.alter.add_constraint({"positive": "id > 0"}),
        lambda t: t.alter.drop_constraint("positive"),
        lambda t: t.alter.set_table_properties({"delta.appendOnly": "false"}),
        lambda t: t.alter.add_feature(TableFeatures.AppendOnly, True),
        lambda t: t.alter.set_table_name("orders"),
        lambda t: t.alter.set_table_description("by city"),
        lambda t: t.alter.set_column_metadata("id", {"comment": "the key"}),
    ]
    for operation in operations:
        twins.do(operation)
    ours, plain = twins.ours.metadata(), twins.plain.metadata()
    assert (ours.name, ours.description) == (plain.name, plain.description)
    assert ours.configuration == plain.configuration
    with pytest.raises(DeltaError, match="failed validation"):
        twins.ours.alter.add_constraint({"big": "id > 5"})


@sqlite
def test_created_table_takes_rows_and_nulls(catalog_uri: str, s3: Place) -> None:
    uri, options = placed(catalog_uri, s3), s3.storage_options
    column = Field("id", PrimitiveType("long"), nullable=False)
    schema = deltalake.Schema([column])
    table = dk.DeltaTable.create(uri, schema, storage_options=options)
    with pytest.raises(DeltaError, match="id"):
        dk.write_deltalake(table, pa.table({"id": pa.nulls(1, "int64")}), mode="append")
    table.alter.drop_column_not_null("id")
    dk.write_deltalake(table, pa.table({"id": [1, None]}), mode="append")

    mirror = deltalake.DeltaTable(s3.location, storage_options=options)
    assert mirror.to_pyarrow_table()["id"].to_pylist() == [1, None]
    assert dk.DeltaTable.is_deltatable(uri, options)


@shared
def test_vacuum_and_restore_change_what_is_on_s3(twins: S3Twins) -> None:
    twins.do(lambda t: t.delete("id = 1"))
    twins.do(lambda t: t.restore(1))
    twins.do(lambda t: t.delete("city = 'c'"))
    before = twins.paths()
    planned = twins.ours.vacuum(full=True, **ANY_AGE)
    assert twins.paths() == before
    deleted, _ = twins.do(lambda t: t.vacuum(dry_run=False, full=True, **ANY_AGE))
    assert set(planned) == set(deleted) == before - twins.paths()
    assert len(deleted) == 2
    with pytest.raises(DeltaError, match="missing file"):
        twins.ours.restore(1)


@sqlite
def test_repair_takes_out_what_is_gone_from_s3(twins: S3Twins) -> None:
    (gone,) = (path for path in twins.paths() if path.startswith("city=c/"))
    open_store(twins.location, twins.options).delete(gone)
    with pytest.raises(
        StorageError, match=rf": there is no file s3://.*{gone}"
    ) as told:
        twins.ours.to_pyarrow_table()
    assert isinstance(told.value, FileNotFoundError)

    dry = twins.ours.repair(dry_run=True)
    assert twins.ours.repair() == {**dry, "dry_run": False}

    assert rows(twins.ours) == rows(twins.mirror)
    assert twins.ours.to_pyarrow_table().num_rows == 5


@sqlite
def test_care_of_the_log_is_seen_on_s3(twins: S3Twins) -> None:
    store = open_store(twins.location, twins.options)
    table = twins.ours
    table.create_checkpoint()
    last = json.loads(store.get("_delta_log/_last_checkpoint"))
    assert last["version"] == 1
    table.compact_logs(0, 1)
    assert store.exists(f"_delta_log/{0:020}.{1:020}.compacted.json")
    table.generate()
    manifests = list(store.list("_symlink_format_manifest"))
    named = b"".join(store.get(file.path) for file in manifests).decode().split("\n")
    assert sorted(filter(None, named)) == sorted(table.file_uris())
    twins.do(lambda t: t.alter.set_table_properties(_short_log()))
    table.update_incremental()
    table.create_checkpoint()
    table.cleanup_metadata()
    twins.check()


def _short_log() -> dict[str, str]:
    return {"delta.logRetentionDuration": "interval 0 days"}


@shared
def test_reads_give_what_plain_deltalake_does(twins: S3Twins) -> None:
    ours, mirror = twins.ours, twins.mirror
    expected = ours.to_pyarrow_table()
    assert texts(everything(ours.scan(predicate="id > 4"))) == texts(MORE)
    builder = QueryBuilder().register("t", mirror)
    theirs = everything(builder.execute("SELECT * FROM t"))
    found = everything(dk_query(ours, "SELECT * FROM t"))
    assert texts(found) == texts(theirs) == texts(expected)
    one_city = ours.to_pyarrow_table(filters=[("city", "=", "ü/%")])
    assert one_city["id"].to_pylist() == [3]
    assert sorted(ours.to_pandas()["id"]) == [1, 2, 3, 4, 5, 6]
    assert sorted(ours.file_uris()) == sorted(mirror.file_uris())
    assert sorted(map(str, ours.partitions())) == sorted(map(str, mirror.partitions()))
    added = (pa.table(t.get_add_actions(flatten=True)) for t in (ours, mirror))
    sizes = [texts(a.select(["path", "size_bytes", "num_records"])) for a in added]
    assert sizes[0] == sizes[1]
    assert ours.count() == mirror.count() == 6
    assert [c["operation"] for c in ours.history()] == ["WRITE", "WRITE"]
    ours.load_as_version(0)
    assert texts(everything(ours.scan())) == texts(DATA.select(["id", "city"]))
    assert texts(ours.to_pyarrow_table()) == texts(DATA)


def dk_query(table: dk.DeltaTable, sql: str) -> Any:
    return dk.QueryBuilder().register("t", table).execute(sql)


@sqlite
def test_other_libraries_read_and_write_it(twins: S3Twins) -> None:
    table = twins.ours
    frame = pl.scan_delta(table).filter(pl.col("id") > 4).collect()
    assert sorted(frame["id"]) == [5, 6]
    dataset = table.to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("d", dataset)
        assert connection.execute("SELECT sum(id) FROM d").fetchall() == [(21,)]
    context = datafusion.SessionContext()
    context.register_dataset("t", dataset)
    (batch,) = context.sql("SELECT sum(id) AS n FROM t").collect()
    assert batch.to_pylist() == [{"n": 21}]
    pl.DataFrame({"id": [7], "city": ["c"]}).write_delta(table, mode="append")
    frame = pl.read_delta(twins.location, storage_options=twins.options)
    assert sorted(frame["id"]) == [1, 2, 3, 4, 5, 6, 7]


def _second(twins: S3Twins) -> str:
    return f"{twins.location}-second"


@shared
def test_transaction_over_two_tables_is_on_s3_whole_or_not_at_all(
    twins: S3Twins,
) -> None:
    options, before = twins.options, twins.paths()
    catalog = parse_uri(twins.uri).catalog

    def give_up() -> None:
        with dk.transaction(catalog, storage_options=options) as tx:
            tx.write("t", MORE, mode="append")
            tx.write("second", MORE, location=_second(twins))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        give_up()
    second = open_store(_second(twins), options)
    assert (twins.paths(), [*second.list()]) == (before, [])

    with dk.transaction(catalog, storage_options=options) as tx:
        tx.write("t", MORE, mode="append")
        tx.delete("t", "id = 5")
        tx.write("second", MORE, location=_second(twins))
        assert tx.table("t").to_pyarrow_table().num_rows == 6
    deltalake.write_deltalake(twins.path, MORE, mode="append")
    twins.plain.delete("id = 5")
    twins.check()
    other = deltalake.DeltaTable(_second(twins), storage_options=options)
    assert texts(other.to_pyarrow_table()) == texts(MORE)
