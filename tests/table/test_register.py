"""Plain deltalake and polars calls take `deltasql://` strings once registered."""

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datafusion
import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import fs, query, table, transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.fs import _base_handler
from deltalake.transaction import create_table_with_add_actions
from deltalake.writer import convert_to, writer

import delkalakedb as dk
from delkalakedb.deltalake import check_deltalake
from delkalakedb.deltalake.registration import register, unregister
from delkalakedb.errors import CatalogUnavailableError
from delkalakedb.settings.uri import format_uri, parse_uri

ROWS = pa.table({"id": [1, 2], "p": ["a", "b"]})
REPLACED: tuple[tuple[object, str], ...] = (
    (table, "RawDeltaTable"),
    (table, "_create_deltalake"),
    (writer, "write_deltalake_rust"),
    (convert_to, "_convert_to_deltalake"),
    (transaction, "_create_table_with_add_actions"),
    (query, "PyQueryBuilder"),
    (_base_handler, "DeltaFileSystemHandler"),
    (deltalake.DeltaTable, "count"),
    (deltalake.DeltaTable, "to_pyarrow_dataset"),
)


def routes() -> list[Any]:
    return [getattr(owner, name) for owner, name in REPLACED]


ORIGINALS = routes()


@pytest.fixture
def registered() -> Iterator[None]:
    register()
    yield
    unregister()


@pytest.fixture
def uri(registered: None, catalog_uri: str) -> str:
    """A table that isn't there yet, with everything registered."""
    return format_uri(parse_uri(catalog_uri).with_table("orders"))


# ---- deltalake's own calls


def test_first_write_by_plain_deltalake_creates_a_table_of_the_catalog(
    uri: str,
) -> None:
    deltalake.write_deltalake(uri, ROWS, partition_by="p", name="orders of 2026")

    opened = deltalake.DeltaTable(uri)
    assert opened.to_pyarrow_table().sort_by("id") == ROWS
    assert opened.metadata().partition_columns == ["p"]
    assert opened.metadata().name == "orders of 2026"
    with dk.connect(uri) as catalog:
        assert [t.name for t in catalog.tables()] == ["orders"]


def test_append_by_plain_deltalake_becomes_the_next_version(uri: str) -> None:
    deltalake.write_deltalake(uri, ROWS)
    deltalake.write_deltalake(uri, ROWS, mode="append")

    assert deltalake.DeltaTable(uri).version() == 1
    assert deltalake.DeltaTable(uri).to_pyarrow_table().num_rows == 4
    assert deltalake.DeltaTable(uri, version=0).to_pyarrow_table().num_rows == 2
    with dk.connect(uri) as catalog:
        assert catalog.table("orders").version == 1


def test_second_creation_by_plain_deltalake_is_refused(uri: str) -> None:
    deltalake.write_deltalake(uri, ROWS)

    with pytest.raises(DeltaError, match="already exists"):
        deltalake.write_deltalake(uri, ROWS)


def test_is_deltatable_asks_the_catalog(uri: str) -> None:
    assert deltalake.DeltaTable.is_deltatable(uri) is False
    deltalake.write_deltalake(uri, ROWS)
    assert deltalake.DeltaTable.is_deltatable(uri) is True


def test_absent_table_is_deltalakes_own_error(uri: str) -> None:
    with pytest.raises(TableNotFoundError, match="orders"):
        deltalake.DeltaTable(uri)


def test_unreachable_catalog_is_not_an_absent_table(registered: None) -> None:
    uri = "deltasql://postgres/nobody@127.0.0.1:1/db/public/orders?connect_timeout=1"

    with pytest.raises(CatalogUnavailableError):
        deltalake.DeltaTable.is_deltatable(uri)
    with pytest.raises(CatalogUnavailableError):
        deltalake.write_deltalake(uri, ROWS)


def test_table_created_by_plain_deltalake_has_its_definition(uri: str) -> None:
    created = deltalake.DeltaTable.create(
        uri,
        ROWS.schema,
        partition_by="p",
        description="by day",
        configuration={"delta.appendOnly": "true"},
    )

    assert created.version() == 0
    assert created.metadata().partition_columns == ["p"]
    assert created.metadata().description == "by day"
    assert created.metadata().configuration == {"delta.appendOnly": "true"}
    assert created.history()[0]["operation"] == "CREATE TABLE"


def test_creating_an_existing_table_goes_by_the_mode(uri: str) -> None:
    other = pa.schema([("n", pa.float64())])
    deltalake.write_deltalake(uri, ROWS)

    with pytest.raises(DeltaError, match="already exists"):
        deltalake.DeltaTable.create(uri, other)
    assert deltalake.DeltaTable.create(uri, other, mode="ignore").version() == 0
    replaced = deltalake.DeltaTable.create(uri, other, mode="overwrite")

    assert replaced.version() == 1
    assert [field.name for field in replaced.schema().fields] == ["n"]
    assert replaced.file_uris() == []
    assert deltalake.DeltaTable(uri, version=0).to_pyarrow_table() == ROWS


def test_table_is_created_with_files_that_are_there(uri: str) -> None:
    handler = fs.DeltaStorageHandler(uri)
    with handler.open_output_stream("part.parquet", {}) as file:
        pq.write_table(ROWS, file)
    (info,) = handler.get_file_info(["part.parquet"])
    action = transaction.AddAction("part.parquet", info.size, {}, 0, True, "{}")

    create_table_with_add_actions(
        uri, deltalake.Schema.from_arrow(ROWS.schema), [action]
    )

    assert deltalake.DeltaTable(uri).to_pyarrow_table() == ROWS


def test_parquet_files_at_the_location_become_a_table(uri: str, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    (folder / "p=a").mkdir(parents=True)
    pq.write_table(ROWS.select(["id"]), folder / "p=a" / "part.parquet")
    placed = f"{uri}{'&' if '?' in uri else '?'}location={folder}"
    columns = deltalake.Schema.from_arrow(pa.schema([("p", pa.string())]))

    deltalake.convert_to_deltalake(
        placed, partition_by=columns, partition_strategy="hive"
    )

    rows = deltalake.DeltaTable(uri).to_pyarrow_table()
    assert rows.select(["id", "p"]).to_pydict() == {"id": [1, 2], "p": ["a", "a"]}
    assert (folder / "p=a" / "part.parquet").is_file()
    assert not (folder / "p=a" / "part.parquet").is_symlink()
    with pytest.raises(DeltaError, match="exists"):
        deltalake.convert_to_deltalake(placed)
    deltalake.convert_to_deltalake(placed, mode="ignore")
    assert deltalake.DeltaTable(uri).version() == 0


def test_storage_handler_serves_the_tables_folder(uri: str) -> None:
    deltalake.write_deltalake(uri, ROWS)
    (file_uri,) = deltalake.DeltaTable(uri).file_uris()

    with fs.DeltaStorageHandler(uri).open_input_file(Path(file_uri).name) as file:
        assert pq.read_table(file) == ROWS


def test_storage_handler_of_a_new_table_makes_its_folder(uri: str) -> None:
    handler = fs.DeltaStorageHandler(uri)

    with handler.open_output_stream("part.parquet", {}) as file:
        pq.write_table(ROWS, file)

    with handler.open_input_file("part.parquet") as file:
        assert pq.read_table(file) == ROWS


def test_query_builder_takes_tables_of_the_catalog_and_others(
    uri: str, tmp_path: Path
) -> None:
    deltalake.write_deltalake(uri, ROWS)
    deltalake.write_deltalake(tmp_path / "plain", ROWS)
    builder = deltalake.QueryBuilder()
    builder.register("ours", deltalake.DeltaTable(uri))
    builder.register("plain", deltalake.DeltaTable(tmp_path / "plain"))

    reader = builder.execute("SELECT ours.id FROM ours JOIN plain ON ours.p = plain.p")

    assert pa.table(reader.read_all()).num_rows == 2


def test_fenced_table_is_read_by_plain_deltalake(uri: str) -> None:
    fence = {"delta.feature.catalogManaged": "supported"}
    deltalake.write_deltalake(uri, ROWS, configuration=fence)

    opened = deltalake.DeltaTable(uri)
    builder = deltalake.QueryBuilder().register("t", opened)

    assert opened.to_pyarrow_table() == ROWS
    assert opened.count() == 2
    rows = pa.table(builder.execute("SELECT * FROM t").read_all())
    assert rows.to_pydict() == ROWS.to_pydict()


# ---- polars, pandas, duckdb, datafusion


def test_polars_writes_and_reads_by_string(uri: str) -> None:
    frame = pl.from_arrow(ROWS)
    assert isinstance(frame, pl.DataFrame)

    frame.write_delta(uri)
    frame.write_delta(uri, mode="append")

    assert pl.read_delta(uri).height == 4
    assert pl.read_delta(uri, version=0).equals(frame)
    assert pl.scan_delta(uri).filter(pl.col("id") > 1).collect().height == 2


def test_polars_sinks_by_string(uri: str) -> None:
    pl.LazyFrame({"id": [1, 2, 3]}).sink_delta(uri)

    assert pl.read_delta(uri)["id"].to_list() == [1, 2, 3]


def test_pandas_frames_go_in_and_come_out(uri: str) -> None:
    frame = ROWS.to_pandas()

    deltalake.write_deltalake(uri, frame)

    assert deltalake.DeltaTable(uri).to_pandas().equals(frame)


def test_duckdb_relation_goes_in_and_its_rows_come_out(uri: str) -> None:
    with duckdb.connect() as connection:
        connection.register("source", ROWS)
        deltalake.write_deltalake(uri, connection.sql("SELECT * FROM source"))

        connection.register("found", deltalake.DeltaTable(uri).to_pyarrow_dataset())
        rows = connection.execute("SELECT * FROM found ORDER BY id").fetchall()

    assert rows == [(1, "a"), (2, "b")]


def test_datafusion_frame_goes_in_and_its_rows_come_out(uri: str) -> None:
    context = datafusion.SessionContext()
    deltalake.write_deltalake(uri, context.from_arrow(ROWS))

    context.register_table("found", deltalake.DeltaTable(uri))
    batches = context.sql("SELECT * FROM found ORDER BY id").collect()

    assert pa.Table.from_batches(batches).to_pydict() == ROWS.to_pydict()


def test_polars_merges_by_string(uri: str) -> None:
    frame = pl.DataFrame({"id": [2, 3], "p": ["z", "c"]})
    deltalake.write_deltalake(uri, ROWS)
    options = {"predicate": "s.id = t.id", "source_alias": "s", "target_alias": "t"}

    merger = frame.write_delta(uri, mode="merge", delta_merge_options=options)
    merger.when_matched_update_all().when_not_matched_insert_all().execute()

    rows = pl.read_delta(uri).sort("id").to_dict(as_series=False)
    assert rows == {"id": [1, 2, 3], "p": ["a", "z", "c"]}


# ---- everything else stays deltalake's


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("text", ["{}/absent", "{}", "file://{}/absent", "foo://x/y"])
def test_other_uris_fail_as_they_do_unregistered(tmp_path: Path, text: str) -> None:
    text = text.format(tmp_path)
    calls: list[Callable[[], Any]] = [
        lambda: deltalake.DeltaTable(text),
        lambda: deltalake.DeltaTable(text, version=3, storage_options={"a": "b"}),
        lambda: deltalake.DeltaTable.is_deltatable(text),
        lambda: deltalake.convert_to_deltalake(text, partition_strategy="odd"),  # type: ignore[arg-type]
    ]
    before = [outcome(call) for call in calls]
    register()
    after = [outcome(call) for call in calls]
    unregister()

    assert after == before


def test_plain_tables_work_as_before(registered: None, tmp_path: Path) -> None:
    path = tmp_path / "plain"
    deltalake.write_deltalake(path, ROWS)
    deltalake.write_deltalake(str(path), ROWS, mode="append")
    opened = deltalake.DeltaTable(path)

    assert type(opened._table) is deltalake._internal.RawDeltaTable
    assert isinstance(opened._table, routes()[0])
    assert opened.to_pyarrow_table().num_rows == 4
    assert deltalake.DeltaTable.is_deltatable(str(path))
    builder = deltalake.QueryBuilder().register("t", opened)
    assert pa.table(builder.execute("SELECT id FROM t").read_all()).num_rows == 4


def test_plain_tables_are_created_and_converted_as_before(
    registered: None, tmp_path: Path
) -> None:
    schema = deltalake.Schema.from_arrow(ROWS.schema)
    created = deltalake.DeltaTable.create(tmp_path / "created", schema)
    create_table_with_add_actions(str(tmp_path / "added"), schema, [])
    (tmp_path / "files").mkdir()
    pq.write_table(ROWS, tmp_path / "files" / "part.parquet")
    deltalake.convert_to_deltalake(tmp_path / "files")

    assert created.version() == 0
    assert deltalake.DeltaTable(tmp_path / "added").version() == 0
    assert deltalake.DeltaTable(tmp_path / "files").to_pyarrow_table() == ROWS


# ---- registering


def test_unregister_gives_back_the_very_objects() -> None:
    register()
    replaced = routes()
    unregister()

    assert not any(a is b for a, b in zip(replaced, ORIGINALS, strict=True))
    assert all(a is b for a, b in zip(routes(), ORIGINALS, strict=True))


def test_registering_twice_is_undone_at_once() -> None:
    register()
    register()
    unregister()

    assert all(a is b for a, b in zip(routes(), ORIGINALS, strict=True))
    unregister()
    assert all(a is b for a, b in zip(routes(), ORIGINALS, strict=True))


def test_registering_from_many_threads_replaces_once() -> None:
    together = threading.Barrier(8)

    def run() -> None:
        together.wait()
        for _ in range(50):
            register()
            unregister()
        register()

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    unregister()

    assert all(a is b for a, b in zip(routes(), ORIGINALS, strict=True))


def test_string_is_foreign_to_deltalake_again_after_unregister(uri: str) -> None:
    deltalake.write_deltalake(uri, ROWS)
    unregister()

    assert not deltalake.DeltaTable.is_deltatable(uri)


def test_importing_auto_registers(tmp_path: Path) -> None:
    code = (
        "import delkalakedb.auto, deltalake, pyarrow as pa\n"
        "uri = 'deltasql://sqlite/meta.db?table=t'\n"
        "deltalake.write_deltalake(uri, pa.table({'id': [1, 2]}))\n"
        "print(deltalake.DeltaTable(uri).to_pyarrow_table().num_rows)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "2"


@pytest.mark.parametrize("version", ["1.5.9", "1.7.0", "2.0.0", "1.60.0"])
def test_unknown_deltalake_is_refused(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(deltalake, "__version__", version)

    with pytest.raises(DeltaError, match=rf"deltalake {version} .* install .* 1\.6\.x"):
        register()

    assert all(a is b for a, b in zip(routes(), ORIGINALS, strict=True))


@pytest.mark.parametrize("version", ["1.6.0", "1.6.6", "1.6.12rc1"])
def test_supported_deltalake_is_accepted(
    monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setattr(deltalake, "__version__", version)

    check_deltalake()
