"""SQL from Python: `dk.sql` and `Catalog.sql`."""

from datetime import timedelta
from multiprocessing import get_context
from typing import Any

import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import QueryError, TableNotFoundError


@pytest.fixture
def lake(catalog_uri: str) -> str:
    """A catalog with `sales`, of two versions, and `Odd Name`."""
    with dk.connect(catalog_uri) as catalog:
        catalog.write("sales", pa.table({"id": [1, 2], "city": ["Oslo", "Rome"]}))
        catalog.write("sales", pa.table({"id": [3], "city": [None]}), mode="append")
        catalog.write("Odd Name", pa.table({"id": [1], "price": [2.5]}))
    return catalog_uri


def test_rows_are_given_in_every_form(lake: str, capsys: pytest.CaptureFixture) -> None:
    found = dk.sql("SELECT id, city FROM sales ORDER BY id", lake)
    rows = [(1, "Oslo"), (2, "Rome"), (3, None)]

    assert found.columns == ["id", "city"]
    assert found.fetchall() == rows
    assert found.arrow().to_pydict() == {
        "id": [1, 2, 3],
        "city": ["Oslo", "Rome", None],
    }
    assert found.pl().rows() == rows
    assert found.df()["id"].tolist() == [1, 2, 3]
    with found.reader() as batches:
        assert batches.read_all() == found.arrow()
    table = "id  city\n1   Oslo\n2   Rome\n3   NULL"
    assert repr(found) == table
    found.show(limit=1)
    assert capsys.readouterr().out == "id  city\n1   Oslo\n… more than 1 row\n"


def test_tables_are_joined_at_one_moment_and_rows_are_read_anew(lake: str) -> None:
    with dk.connect(lake) as catalog:
        joined = catalog.sql(
            'SELECT s.city, o.price FROM sales s JOIN "Odd Name" o USING (id)'
        )
        counted = catalog.sql("SELECT count(*) FROM sales")
        assert joined.fetchall() == [("Oslo", 2.5)]
        assert counted.fetchall() == [(3,)]

        catalog.write("sales", pa.table({"id": [4], "city": ["Bonn"]}), mode="append")

        assert counted.fetchall() == [(4,)]


def test_versions_and_times_are_named_in_several_ways(lake: str) -> None:
    with dk.connect(lake) as catalog:
        newest = catalog.snapshot("sales").table.timestamp
        before = (newest - timedelta(milliseconds=1)).isoformat()
        catalog.write('we"ird', pa.table({"id": [9]}))

        def count(table: str) -> int:
            ((number,),) = catalog.sql(f"SELECT count(*) FROM {table}").fetchall()
            return int(number)

        for table in (
            "sales@0",
            '"sales"@0 AS s',
            "sales VERSION AS OF 0",
            "sales FOR version  as of 0",
            f"sales TIMESTAMP AS OF '{before}'",
            f"sales FOR TIMESTAMP AS OF '{before}' s WHERE s.id > 0",
            "sales@0 WHERE id > 0",
            "sales VERSION AS OF 0 LEFT JOIN (SELECT 1) ON true",
            "sales AT (VERSION => 0)",
        ):
            assert count(table) == 2, table
        assert count("sales") == count("sales@1") == 3
        assert count('"we""ird"@0') == 1
        # Neither in texts nor in comments.
        (row,) = catalog.sql(
            "SELECT 'sales@0', ' VERSION AS OF 0', count(*) -- sales@0\n"
            "FROM sales /* @0 */ WHERE city IS DISTINCT FROM 'it''s sales@0'"
        ).fetchall()
        assert row == ("sales@0", " VERSION AS OF 0", 3)


@pytest.mark.parametrize(
    "name", ["my sales@0 c", "x VERSION AS OF 3", "x TIMESTAMP AS OF '2026'", 'a"b@1']
)
def test_quoted_names_and_escaped_texts_stay_as_they_are(lake: str, name: str) -> None:
    quoted = name.replace('"', '""')
    text = f"SELECT count(*) AS \"{quoted}\", e'it\\'s sales@0' AS t FROM sales@0"

    found = dk.sql(text, lake)

    assert found.columns == [name, "t"]
    assert found.fetchall() == [(2, "it's sales@0")]


def test_values_are_parameters(lake: str) -> None:
    with dk.connect(lake) as catalog:
        by_place = catalog.sql(
            "SELECT id FROM sales WHERE id > ? AND city = ?", params=[1, "Rome"]
        )
        by_name = dk.sql(
            "SELECT id FROM sales WHERE city = $city", catalog, params={"city": "Oslo"}
        )

        assert by_place.fetchall() == [(2,)]
        assert by_name.fetchall() == [(1,)]
        hostile = "'; DROP TABLE sales; --"
        assert dk.sql("SELECT ?", catalog, params=[hostile]).fetchall() == [(hostile,)]


def test_wrong_query_says_what_to_do(lake: str) -> None:
    with pytest.raises(TableNotFoundError, match="did you mean sales"):
        dk.sql("SELECT * FROM salse", lake).fetchall()
    with pytest.raises(QueryError, match="cty"):
        dk.sql("SELECT cty FROM sales", lake).fetchall()
    with pytest.raises(QueryError, match="only queries are run"):
        dk.sql("DELETE FROM sales", lake).fetchall()
    with pytest.raises(QueryError, match="can't parse"):
        dk.sql("SELEC 1", lake).arrow()


def test_forked_child_has_databases_of_its_own(lake: str) -> None:
    counted = dk.sql("SELECT count(*) FROM sales", lake)
    assert counted.fetchall() == [(3,)]

    with get_context("fork").Pool(1) as pool:
        found = pool.apply(counted_in, ("SELECT max(id) FROM sales", lake))
    assert found == [(3,)]
    assert counted.fetchall() == [(3,)]


def counted_in(text: str, uri: str) -> list[tuple[Any, ...]]:
    return dk.sql(text, uri).fetchall()


def test_lag_of_the_mirror_is_a_table(lake: str) -> None:
    with dk.connect(lake) as catalog:
        rows = catalog.sql(
            "SELECT table_name, published_version, versions_behind, state "
            "FROM deltasql.lag ORDER BY 1 DESC"
        ).fetchall()

    assert rows == [("sales", 1, 0, "published"), ("Odd Name", 0, 0, "published")]
