"""A catalog's tables as views of a DuckDB connection: `Catalog.attach`."""

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import QueryError, TableNotFoundError


@pytest.fixture
def lake(catalog_uri: str) -> Iterator[dk.Catalog]:
    """A catalog with `sales` and a table of a hostile name."""
    with dk.connect(catalog_uri) as catalog:
        catalog.write("sales", pa.table({"id": [1, 2], "city": ["Oslo", "Rome"]}))
        catalog.write('a "b".c; DROP', pa.table({'x "y"': [1], "select": [2]}))
        yield catalog


@pytest.fixture
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def rows(duck: duckdb.DuckDBPyConnection, sql: str) -> list[tuple[Any, ...]]:
    return sorted(duck.execute(sql).fetchall(), key=str)


def test_views_read_the_newest_version(
    lake: dk.Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    duck.execute("CREATE TABLE mine AS SELECT 2 AS id")
    lake.attach(duck)
    joined = "SELECT city FROM lake.sales JOIN mine USING (id)"
    assert rows(duck, joined) == [("Rome",)]

    lake.write("sales", pa.table({"id": [2], "city": ["Bonn"]}), mode="append")
    assert rows(duck, joined) == [("Bonn",), ("Rome",)]
    lake.write("sales", pa.table({"id": [2], "city": ["Kyiv"]}), mode="overwrite")
    assert rows(duck, joined) == [("Kyiv",)]

    duck.execute("USE lake")
    assert rows(duck, "SELECT id FROM sales WHERE city = 'Kyiv'") == [(2,)]


def test_metadata_of_the_catalog_has_views(
    lake: dk.Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    lake.attach(duck)
    lake.write("sales", pa.table({"id": [3], "city": ["Bonn"]}), mode="append")

    counts = "SELECT count(*) FROM lake.deltasql.{} WHERE table_name = 'sales'"
    assert rows(duck, "SELECT version FROM lake.deltasql.tables WHERE name = 'sales'")
    for name, count in {"history": 2, "files": 2, "columns": 2, "lag": 1}.items():
        assert rows(duck, counts.format(name)) == [(count,)], name


def test_files_are_planned_by_the_filters_of_the_query(
    lake: dk.Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    lake.attach(duck)
    lake.write("sales", pa.table({"id": [9], "city": ["Bonn"]}), mode="append")
    first = lake.snapshot("sales", 0).paths()
    (Path(lake.table("sales").location.removeprefix("file://")) / first[0]).unlink()

    assert rows(duck, "SELECT city FROM lake.sales WHERE id = 9") == [("Bonn",)]
    with pytest.raises(duckdb.Error, match="No such file"):
        rows(duck, "FROM lake.sales")


def test_names_are_quoted(lake: dk.Catalog, duck: duckdb.DuckDBPyConnection) -> None:
    with lake.attach(duck, 'my "lake"; --') as attached:
        assert attached.tables == ['a "b".c; DROP', "sales"]
        table = '"my ""lake""; --"."a ""b"".c; DROP"'
        found = rows(duck, f'SELECT "select" FROM {table} WHERE "x ""y""" = 1')
        assert found == [(2,)]


def test_new_and_dropped_tables_and_columns_appear_after_a_refresh(
    lake: dk.Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    attached = lake.attach(duck)
    lake.write("prices", pa.table({"id": [1]}))
    more = pa.table({"id": [3], "city": ["Bonn"], "tax": [1]})
    lake.write("sales", more, mode="append", schema_mode="merge")
    lake.drop_table('a "b".c; DROP')

    with pytest.raises(duckdb.CatalogException, match="prices"):
        rows(duck, "FROM lake.prices")
    assert rows(duck, "SELECT * FROM lake.sales WHERE id = 3") == [(3, "Bonn")]
    with pytest.raises(duckdb.Error, match="DROP"):
        rows(duck, 'FROM lake."a ""b"".c; DROP"')

    attached.refresh()

    assert attached.tables == ["prices", "sales"]
    assert rows(duck, "FROM lake.prices") == [(1,)]
    assert rows(duck, "FROM lake.sales WHERE id = 3") == [(3, "Bonn", 1)]
    attached.refresh()
    assert rows(duck, "FROM lake.prices") == [(1,)]


def test_changed_column_says_what_to_do(
    lake: dk.Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    attached = lake.attach(duck)
    other = pa.table({"id": ["a"]})
    lake.write("sales", other, mode="overwrite", schema_mode="overwrite")

    with pytest.raises(duckdb.Error, match=r"refresh\(\)"):
        rows(duck, "SELECT id FROM lake.sales")
    attached.refresh()
    assert rows(duck, "FROM lake.sales") == [("a",)]


def test_several_catalogs_and_cursors_share_a_connection(
    lake: dk.Catalog, duck: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    with dk.connect(f"deltasql://sqlite/{tmp_path}/other.db") as other:
        other.write("sales", pa.table({"id": [7]}))
        lake.attach(duck)
        attached = other.attach(duck, "other")

        joined = "SELECT s.id, o.id FROM lake.sales s, other.sales o"
        assert rows(duck, joined) == [(1, 7), (2, 7)]
        with pytest.raises(QueryError, match="already has a database lake"):
            other.attach(duck, "LAKE")

        # A cursor is a connection of its own.
        with duck.cursor() as cursor, lake.attach(cursor, "mine"):
            found: list[Any] = []
            threads = [
                Thread(target=lambda c=c, n=n: found.append(rows(c, f"FROM {n}.sales")))
                for c, n in ((duck, "lake"), (cursor, "mine"))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert found == [[(1, "Oslo"), (2, "Rome")]] * 2

        attached.detach()
        assert rows(duck, "SELECT id FROM lake.sales") == [(1,), (2,)]
        with pytest.raises(duckdb.Error):
            rows(duck, "FROM other.sales")
        other.attach(duck, "other").detach()


def test_tables_may_be_chosen(
    lake: dk.Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    lake.write("Sales", pa.table({"id": [5]}))

    with pytest.raises(QueryError, match="differ only in case"):
        lake.attach(duck)
    with pytest.raises(TableNotFoundError, match="salse"):
        lake.attach(duck, tables=["salse"])
    with lake.attach(duck, tables=["Sales"]) as attached:
        assert attached.tables == ["Sales"]
        assert rows(duck, "FROM lake.sales") == [(5,)]


def test_closed_connections_and_catalogs_are_said(
    lake: dk.Catalog, duck: duckdb.DuckDBPyConnection, tmp_path: Path
) -> None:
    other = dk.connect(f"deltasql://sqlite/{tmp_path}/other.db")
    other.write("sales", pa.table({"id": [7]}))
    other.attach(duck, "other")
    other.close()
    with pytest.raises(duckdb.Error, match="closed"):
        rows(duck, "FROM other.sales")

    attached = lake.attach(duck)
    duck.close()
    attached.detach()
    with pytest.raises(QueryError):
        lake.attach(duck)


def test_vectors_and_mapped_columns_are_read(
    lake: dk.Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    lake.create_table(
        "odd",
        pa.schema([("id", pa.int64()), ("p", pa.string())]),
        partition_by="p",
        configuration={
            "delta.enableDeletionVectors": "true",
            "delta.columnMapping.mode": "name",
        },
    )
    odd = pa.table({"id": range(100), "p": ["a/b"] * 50 + [None] * 50})
    lake.write("odd", odd, mode="append")
    lake.attach(duck)
    lake["odd"].delete("id < 3")

    assert rows(duck, "SELECT count(*), min(id) FROM lake.odd") == [(97, 3)]
    assert rows(duck, "SELECT count(*) FROM lake.odd WHERE p = 'a/b'") == [(47,)]
