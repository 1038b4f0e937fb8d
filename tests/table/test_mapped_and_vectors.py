"""Column-mapped tables and deletion vectors: right through every reader, or refused."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from datafusion import SessionContext
from deltalake import DeltaTable, write_deltalake

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.errors import DeltaError, ProtocolError
from delkalakedb.query.selection import select
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.mapped_tables import FIRST, SCHEMA, Rows, make

NEW = pa.table({"id": [9, 4], "City Name": ["z", "b"]}, SCHEMA)
KINDS = ("name", "id", "vectors", "name vectors", "id partitions vectors")


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Catalog]:
    """A catalog on one engine, for what no engine has a part in."""
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        yield catalog


def read(data: Any) -> Rows:
    """Rows, none of which is there twice."""
    found = [(row["id"], row["City Name"]) for row in pa.table(data).to_pylist()]
    assert len(found) == len(set(found))
    return set(found)


def query(table: DeltaTable) -> Any:
    return dk.QueryBuilder().register("t", table).execute("SELECT * FROM t")


def by_duckdb(table: DeltaTable) -> Any:
    reader = pa.RecordBatchReader.from_stream(table.scan())
    return duckdb.from_arrow(reader).to_arrow_table()


def by_datafusion(table: DeltaTable) -> Any:
    context = SessionContext()
    context.register_table("t", table)
    return context.sql("SELECT * FROM t").to_arrow_table()


def by_dataset(table: DeltaTable) -> Any:
    context = SessionContext()
    context.register_dataset("t", table.to_pyarrow_dataset())
    return context.sql("SELECT * FROM t").to_arrow_table()


READERS: dict[str, Callable[[DeltaTable], Any]] = {
    "scan": lambda t: t.scan(),
    "table": lambda t: t.to_pyarrow_table(),
    "pandas": lambda t: pa.Table.from_pandas(t.to_pandas()),
    "dataset": lambda t: t.to_pyarrow_dataset().to_table(),
    "query": query,
    "duckdb": by_duckdb,
    "datafusion": by_datafusion,
    "datafusion's dataset": by_dataset,
    "polars's dataset": lambda t: polars.scan_pyarrow_dataset(
        t.to_pyarrow_dataset()
    ).collect(),
    "polars": lambda t: polars.scan_delta(t).collect(),
}
REFUSED = {
    "datafusion": {kind for kind in KINDS if "vectors" in kind},
    "polars": {kind for kind in KINDS if kind != "vectors"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_reader_is_right_or_refuses(
    kind: str, catalog: Catalog, tmp_path: Path
) -> None:
    table, rows = make(kind, catalog, tmp_path)
    for name, reader in READERS.items():
        if kind in REFUSED.get(name, ()):
            with pytest.raises(Exception, match=r"(?i)column.?mapping|vectors"):
                reader(table)
        else:
            assert read(reader(table)) == rows, name
    assert table.count() == len(rows)
    assert table.schema().to_arrow().names == SCHEMA.names


@pytest.mark.parametrize("kind", KINDS)
def test_plain_deltalake_reads_them_when_it_is_registered(
    kind: str, catalog: Catalog, tmp_path: Path
) -> None:
    ours, rows = make(kind, catalog, tmp_path)
    uri = format_uri(parse_uri(format_uri(catalog.uri)).with_table(ours._table.name))
    dk.register()
    try:
        table = deltalake.DeltaTable(uri)
        assert read(table.to_pyarrow_table()) == rows
        assert len(table.to_pandas()) == len(rows)
    finally:
        dk.unregister()


@pytest.mark.parametrize("kind", KINDS)
def test_queries_heed_mapped_columns_and_deleted_rows(
    kind: str, local: Catalog, tmp_path: Path
) -> None:
    table, rows = make(kind, local, tmp_path)
    name = table.metadata().name or local.tables()[0].name
    for where in ("true", "id < 4", "\"City Name\" = 'a' AND id <> 1"):
        sql = f'SELECT * FROM "{name}" WHERE {where}'
        with select(local, sql) as found, duckdb.connect() as memory:
            got = pa.Table.from_batches(found.batches, found.schema)
            every = [{"id": i, "City Name": city} for i, city in sorted(rows)]
            memory.register("rows", pa.Table.from_pylist(every, SCHEMA))
            wanted = memory.sql(f"FROM rows WHERE {where}").to_arrow_table()
        assert read(got) == read(wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_columns_and_filters_hold_in_tables(
    kind: str, local: Catalog, tmp_path: Path
) -> None:
    table, rows = make(kind, local, tmp_path)
    cities = {city for number, city in rows if number > 3}
    for filters in ([("id", ">", 3)], ds.field("id") > 3):
        found = table.to_pyarrow_table(columns=["City Name"], filters=filters)
        assert found.column_names == ["City Name"]
        assert set(found["City Name"].to_pylist()) == cities
    ids = table.to_pandas(columns=["id"])["id"]
    assert sorted(ids) == sorted(number for number, _ in rows)
    types = table.to_pyarrow_table().schema.types
    assert types == SCHEMA.types


@pytest.mark.parametrize("kind", KINDS)
def test_partitions_and_files_go_by_logical_names(
    kind: str, local: Catalog, tmp_path: Path
) -> None:
    table, _ = make(kind, local, tmp_path)
    partitioned = "partitions" in kind
    expected = [{"City Name": "a"}, {"City Name": "b"}] if partitioned else []
    assert sorted(table.partitions(), key=str) == expected
    where = "\"City Name\" = 'a'"
    kept = table.file_uris(file_pruning_predicate=where)
    assert len(kept) == (1 if partitioned else 2)
    if partitioned:
        assert (
            table.partitions(file_pruning_predicate=[("City Name", "=", "b")])
            == expected[1:]
        )
        columns = pa.table(table.get_add_actions(flatten=True))
        assert set(columns["partition.City Name"].to_pylist()) == {"a", "b"}


def test_dataset_is_plain_while_no_row_is_deleted(
    catalog: Catalog, tmp_path: Path
) -> None:
    table, _ = make("vectors", catalog, tmp_path)
    table.load_as_version(1)
    assert read(table.to_pyarrow_dataset().to_table()) == FIRST


@pytest.mark.parametrize(
    ("kind", "reason"), [("name", "columnMapping"), ("vectors", "vectors")]
)
def test_manifests_are_refused(
    kind: str, reason: str, catalog: Catalog, tmp_path: Path
) -> None:
    table, _ = make(kind, catalog, tmp_path)
    with pytest.raises(DeltaError, match=reason):
        table.generate()


def merge(table: DeltaTable) -> None:
    merger = table.merge(NEW, "s.id = t.id", source_alias="s", target_alias="t")
    merger.when_matched_delete().when_not_matched_insert_all().execute()


def replace(table: DeltaTable) -> None:
    rows = pa.table({"id": [4], "City Name": ["new"]}, SCHEMA)
    write_deltalake(table, rows, mode="overwrite", predicate="id = 4")


def updated(rows: Rows) -> Rows:
    return {(number + 100 if number == 1 else number, city) for number, city in rows}


CHANGES: dict[str, tuple[Callable[[DeltaTable], Any], Callable[[Rows], Rows]]] = {
    "append": (
        lambda t: write_deltalake(t, NEW.slice(0, 1), mode="append"),
        lambda rows: rows | {(9, "z")},
    ),
    "overwrite": (
        lambda t: write_deltalake(t, NEW, mode="overwrite"),
        lambda _: {(9, "z"), (4, "b")},
    ),
    "replace": (replace, lambda rows: (rows - {(4, "b")}) | {(4, "new")}),
    "delete": (lambda t: t.delete("id = 3"), lambda rows: rows - {(3, "a")}),
    "delete of a city": (
        lambda t: t.delete("\"City Name\" = 'a'"),
        lambda rows: {row for row in rows if row[1] != "a"},
    ),
    "update": (lambda t: t.update({"id": "id + 100"}, predicate="id = 1"), updated),
    "merge": (merge, lambda rows: (rows - {(4, "b")}) | {(9, "z")}),
    "compact": (lambda t: t.optimize.compact(), lambda rows: rows),
    "z_order": (lambda t: t.optimize.z_order(["id"]), lambda rows: rows),
    "constraint": (lambda t: t.alter.add_constraint({"c": "id > 0"}), lambda r: r),
    "comment": (
        lambda t: t.alter.set_column_metadata("id", {"comment": "key"}),
        lambda rows: rows,
    ),
    "restore": (lambda t: t.restore(1), lambda _: FIRST),
    "repair": (lambda t: t.repair(), lambda rows: rows),
    "vacuum": (
        lambda t: t.vacuum(
            0, dry_run=False, enforce_retention_duration=False, full=True
        ),
        lambda rows: rows,
    ),
}
# delta-rs says so itself.
UNMAPPED = {"compact", "z_order"}


@pytest.mark.parametrize("kind", ["name", "vectors", "id partitions vectors"])
@pytest.mark.parametrize("change", CHANGES)
def test_every_change_gives_the_right_rows_or_is_refused(
    change: str, kind: str, local: Catalog, tmp_path: Path
) -> None:
    table, rows = make(kind, local, tmp_path)
    run, expected = CHANGES[change]
    before = table.version()
    if change in UNMAPPED and kind != "vectors":
        with pytest.raises(DeltaError, match="Column mapping is not supported"):
            run(table)
        assert dk.DeltaTable(table.catalog_uri).version() == before
    elif change == "restore" and kind == "name":
        with pytest.raises(DeltaError, match="should be less"):
            run(table)
    else:
        run(table)
        rows = expected(rows)
    reopened = dk.DeltaTable(table.catalog_uri)
    assert read(reopened.scan()) == read(reopened.to_pyarrow_table()) == rows
    assert read(DeltaTable(table.table_uri).scan()) == rows
    report = dk.verify(table.catalog_uri, deep=True)
    assert report.ok, report


@pytest.mark.parametrize("kind", ["name", "id"])
def test_new_columns_are_refused_by_mapped_tables(
    kind: str, local: Catalog, tmp_path: Path
) -> None:
    table, rows = make(kind, local, tmp_path)
    wider = NEW.append_column("x", pa.array([1, 2]))
    with pytest.raises(DeltaError, match=r"column-mapped tables is not yet supported"):
        write_deltalake(table, wider, mode="append", schema_mode="merge")
    with pytest.raises(DeltaError, match=r"columnMapping\.mode"):
        table.alter.set_table_properties({"delta.columnMapping.mode": "none"})
    assert read(table.scan()) == rows


def test_vector_stays_while_a_version_needs_it_and_goes_with_the_last(
    catalog: Catalog, tmp_path: Path
) -> None:
    table, rows = make("vectors", catalog, tmp_path)
    folder = tmp_path / "a table"
    now = {"dry_run": False, "enforce_retention_duration": False}
    for full in (False, True):
        table.vacuum(0, full=full, **now)
        assert len(list(folder.glob("deletion_vector_*"))) == 1
        assert read(table.scan()) == rows
    table.optimize.compact()
    table.vacuum(0, keep_versions=[2], **now)
    assert len(list(folder.glob("deletion_vector_*"))) == 1
    table.vacuum(0, **now)
    assert not list(folder.glob("deletion_vector_*"))
    assert read(table.scan()) == rows


def test_datafusion_is_told_what_to_use_instead(
    catalog: Catalog, tmp_path: Path
) -> None:
    table, _ = make("vectors", catalog, tmp_path)
    with pytest.raises(ProtocolError, match=r"register_dataset\(\)"):
        table.__datafusion_table_provider__(SessionContext())
