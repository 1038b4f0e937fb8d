"""Libraries that take a deltalake `DeltaTable` take ours; its surface is the same."""

import inspect
from collections import defaultdict
from pathlib import Path
from typing import Any

import datafusion
import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import transaction

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.lakes import Lake

ROWS = pa.table(
    {"n": [1, 2, 3, 4], "p": ["x y%/ü", None, "b", "b"], "f": [0.5, None, 2.0, 3.0]}
)


@pytest.fixture
def table(catalog_uri: str) -> dk.DeltaTable:
    """A partitioned table of two versions, on each engine in turn."""
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    dk.write_deltalake(uri, ROWS[:2], partition_by=["p"])
    dk.write_deltalake(uri, ROWS[2:], mode="append")
    return dk.DeltaTable(uri)


def test_polars_reads_it_lazily_and_at_once(table: dk.DeltaTable) -> None:
    expected = pl.from_arrow(ROWS)
    assert pl.read_delta(table).sort("n").equals(expected)
    lazy = pl.scan_delta(table).filter(pl.col("n") > 2).select("f").collect()
    assert sorted(lazy["f"]) == [2.0, 3.0]
    assert pl.scan_delta(table).filter(pl.col("p") == "b").collect().height == 2
    frame = pl.scan_delta(table, use_pyarrow=True).collect()
    assert frame.sort("n").equals(expected)


def test_polars_leaves_out_deleted_rows(catalog: Catalog, tmp_path: Path) -> None:
    lake = Lake(catalog, tmp_path)
    lake.create(
        pa.schema({"n": pa.int64()}),
        features=["deletionVectors"],
        configuration={"delta.enableDeletionVectors": "true"},
    )
    file = lake.file({"n": [1, 2, 3]}, "odd %20 name.parquet")
    lake.commit(file)
    lake.commit(*lake.without(file, 1))
    uri = parse_uri(format_uri(catalog.uri)).with_table(lake.name)
    frame = pl.read_delta(dk.DeltaTable(format_uri(uri)))
    assert sorted(frame["n"]) == [1, 3]


def test_pandas_reads_it(table: dk.DeltaTable) -> None:
    frame = table.to_pandas().sort_values("n", ignore_index=True)
    assert frame.equals(ROWS.to_pandas())


def test_duckdb_reads_its_dataset_and_its_scan(table: dk.DeltaTable) -> None:
    dataset, reader = table.to_pyarrow_dataset(), table.scan()
    with duckdb.connect() as connection:
        connection.register("d", dataset)
        found = connection.execute("SELECT sum(n) FROM d WHERE p = 'b'").fetchall()
        assert found == [(7,)]
        connection.register("r", pa.RecordBatchReader.from_stream(reader))
        assert connection.execute("SELECT count(*) FROM r").fetchall() == [(4,)]


def test_datafusion_reads_it(table: dk.DeltaTable) -> None:
    context = datafusion.SessionContext()
    context.register_table("t", table)
    (batch,) = context.sql("SELECT sum(n) AS n FROM t").collect()
    assert batch.to_pylist() == [{"n": 10}]


def test_datafusion_can_not_go_round_the_catalog(table: dk.DeltaTable) -> None:
    context = datafusion.SessionContext()
    context.register_table("t", table)
    for statement in ("INSERT INTO t VALUES (5, 'b', 1.0)", "DELETE FROM t"):
        with pytest.raises(Exception, match=r"not (implemented|supported)"):
            context.sql(statement).collect()
    assert deltalake.DeltaTable(table.table_uri).version() == table.version() == 1


def check_appended(table: dk.DeltaTable) -> None:
    """Two more rows are in the catalog and in the log, as the next version."""
    mirror = deltalake.DeltaTable(table.table_uri)
    for opened in (table, mirror):
        rows = opened.to_pyarrow_table().sort_by("n")
        assert rows["n"].to_pylist() == [1, 2, 3, 4, 5, 6]
        assert rows["p"].to_pylist()[4:] == ["new", None]
        assert opened.version() == 2


def new_rows(library: str) -> Any:
    rows = pa.table({"n": [5, 6], "p": ["new", None], "f": [None, 6.5]})
    if library == "pandas":
        return rows.to_pandas()
    if library == "polars":
        return pl.from_arrow(rows)
    if library == "duckdb":
        return duckdb.connect().from_arrow(rows)
    return datafusion.SessionContext().from_arrow(rows)


@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb", "datafusion"])
def test_frame_of_a_library_is_appended(table: dk.DeltaTable, library: str) -> None:
    dk.write_deltalake(table, new_rows(library), mode="append")

    check_appended(table)


def test_polars_writes_by_handle(table: dk.DeltaTable) -> None:
    new_rows("polars").write_delta(table, mode="append")

    check_appended(table)


def test_polars_sinks_by_handle(table: dk.DeltaTable) -> None:
    new_rows("polars").lazy().sink_delta(table, mode="append")

    check_appended(table)


def test_polars_merges_by_handle(table: dk.DeltaTable) -> None:
    options = {
        "predicate": "s.n = t.n",
        "source_alias": "s",
        "target_alias": "t",
    }
    merger = new_rows("polars").write_delta(
        table, mode="merge", delta_merge_options=options
    )
    merger.when_not_matched_insert_all().execute()

    check_appended(table)


# Arguments that deltalake's methods don't have.
OURS = defaultdict[str, list[str]](list, vacuum=["progress"])


def public(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


def parameters(call: Any) -> list[tuple[str, Any, str]]:
    given = inspect.signature(call).parameters.values()
    return [(p.name, p.kind, repr(p.default)) for p in given]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(dk.DeltaTable, deltalake.DeltaTable), (dk.QueryBuilder, deltalake.QueryBuilder)],
)
def test_members_and_signatures_are_deltalakes(ours: type, theirs: type) -> None:
    assert set(public(theirs)) <= set(public(ours))
    for name in ["__init__", *public(theirs)]:
        mine, other = getattr(ours, name), getattr(theirs, name)
        if isinstance(other, property):
            assert isinstance(mine, property)
        else:
            # Given by name only, so every call means what it means in deltalake.
            more = [(o, inspect.Parameter.KEYWORD_ONLY, "None") for o in OURS[name]]
            assert parameters(mine) == parameters(other) + more, name


def test_functions_that_take_a_uri_are_deltalakes() -> None:
    theirs = {
        name: call
        for module in (deltalake, transaction)
        for name, call in inspect.getmembers(module, inspect.isfunction)
        if any("uri" in given[0] for given in parameters(call)[:1])
    }

    assert set(theirs) == {
        "convert_to_deltalake",
        "create_table_with_add_actions",
        "write_deltalake",
    }
    for name, call in theirs.items():
        # deltalake deprecates options by position.
        kept = [given for given in parameters(call) if given[0] != "args"]
        assert parameters(getattr(dk, name)) == kept, name
