"""Mistakes that are easily made: each error says what was meant, or how to go on."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import (
    ConfigError,
    DeltaError,
    QueryError,
    SchemaMismatchError,
    TableNotFoundError,
    UnknownColumnError,
    UriError,
)
from delkalakedb.settings.uri import format_uri

ROWS = pa.table({"id": [1, 2], "city": ["Oslo", "Rome"]})


@pytest.fixture
def sales(catalog: dk.Catalog) -> dk.DeltaTable:
    """The table `sales`, beside one whose name is far from all others."""
    catalog.write("sales", ROWS)
    catalog.write("zz", ROWS)
    return catalog.open("sales")


def uri_of(catalog: dk.Catalog, table: str) -> str:
    return format_uri(catalog.uri.with_table(table))


UNKNOWN_TABLE: dict[str, Callable[[dk.Catalog, str], object]] = {
    "open": lambda catalog, name: catalog.open(name),
    "table": lambda catalog, name: catalog.table(name),
    "[]": lambda catalog, name: catalog[name],
    "DeltaTable": lambda catalog, name: dk.DeltaTable(uri_of(catalog, name)),
    "rename": lambda catalog, name: catalog.rename_table(name, "x"),
    "drop": lambda catalog, name: catalog.drop_table(name),
    "expire": lambda catalog, name: catalog.expire(name),
    "log": lambda catalog, name: catalog.log(name).head(),
    "verify": lambda catalog, name: dk.verify(uri_of(catalog, name)),
    "detach": lambda catalog, name: dk.detach(uri_of(catalog, name)),
    "sync": lambda catalog, name: dk.sync(uri_of(catalog, name)),
    "mirror": lambda catalog, name: dk.mirror.run(uri_of(catalog, name)),
    "lag": lambda catalog, name: dk.mirror.status(uri_of(catalog, name)),
    "transaction": lambda catalog, name: (
        dk.transaction(catalog).__enter__().delete(name)
    ),
    "query": lambda catalog, name: catalog.sql(f'SELECT * FROM "{name}"').fetchall(),
}


@pytest.mark.every_engine
def test_error_about_an_unknown_table_names_near_ones(
    catalog: dk.Catalog, sales: dk.DeltaTable
) -> None:
    for call in UNKNOWN_TABLE.values():
        with pytest.raises(TableNotFoundError, match=r"; did you mean sales\?"):
            call(catalog, "Sale")
        with pytest.raises(TableNotFoundError) as found:
            call(catalog, "unlike any other")
        assert "did you mean" not in str(found.value)


@pytest.mark.every_engine
def test_first_write_looks_for_no_near_names(
    catalog: dk.Catalog, sales: dk.DeltaTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    session = type(catalog._backend)
    reading = session.reading

    def spy(self: Any) -> Any:
        asked.append("read")
        return reading(self)

    monkeypatch.setattr(session, "reading", spy)
    assert catalog.find("sale") is None
    assert len(asked) <= 1
    assert catalog.find("sales") is not None


def test_name_in_a_large_catalog_is_found_among_those_that_begin_alike(
    catalog: dk.Catalog,
) -> None:
    with dk.transaction(catalog) as tx:
        for name in ("wages", "wares", "a", "b"):
            tx.create_table(name, ROWS.schema)

    with pytest.raises(TableNotFoundError, match=r"did you mean wages or wares\?"):
        catalog.open("wagés")


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "new": (
        {"id": [3], "city": ["Bonn"], "price": [1.5]},
        'the table has no column price; schema_mode="merge" adds the new columns',
    ),
    "missing": (
        {"id": [3]},
        'the data has no column city; schema_mode="merge" fills the missing ones with '
        "null",
    ),
    "misspelt": (
        {"id": [3], "citty": ["Bonn"]},
        "the table has no column citty (did you mean city?); the data has no column "
        'city; schema_mode="merge" adds the new columns and fills the missing ones '
        "with null",
    ),
    "type": (
        {"id": ["abc"], "city": ["Bonn"]},
        "id is STRING in the data and BIGINT in the table; cast the data, or replace "
        'the table\'s rows and columns with mode="overwrite" and '
        'schema_mode="overwrite"',
    ),
    "struct": (
        {"id": [{"a": 1}], "city": ["Bonn"]},
        "id is STRUCT<a: BIGINT> in the data and BIGINT in the table; cast the data, "
        'or replace the table\'s rows and columns with mode="overwrite" and '
        'schema_mode="overwrite"',
    ),
}


@pytest.mark.parametrize("name", MISFITS)
@pytest.mark.parametrize("mode", ["append", "overwrite"])
def test_data_that_does_not_fit_is_refused_by_its_columns(
    catalog: dk.Catalog, sales: dk.DeltaTable, name: str, mode: Any
) -> None:
    columns, message = MISFITS[name]

    with pytest.raises(SchemaMismatchError) as found:
        catalog.write("sales", pa.table(columns), mode=mode)

    assert str(found.value) == f"sales: {mode} on version 0: {message}"
    assert found.value.__cause__ is not None
    with pytest.raises(SchemaMismatchError) as staged, dk.transaction(catalog) as tx:
        tx.write("sales", pa.table(columns), mode=mode)
    assert message in str(staged.value)
    assert catalog.table("sales").version == 0
    if name in ("new", "missing"):
        catalog.write("sales", pa.table(columns), mode=mode, schema_mode="merge")
        assert catalog.open("sales").count() in (1, 3)


DATA: dict[str, Any] = {
    "rows": [{"id": 3}, {"id": 4, "city": "Bonn"}],
    "row tuple": ({"id": 3, "city": None}, {"id": 4, "city": "Bonn"}),
    "columns": {"id": [3, 4], "city": [None, "Bonn"]},
    "pandas": pd.DataFrame({"id": [3, 4], "city": [None, "Bonn"]}),
}


@pytest.mark.parametrize("kind", DATA)
def test_rows_and_columns_of_python_are_data(
    catalog: dk.Catalog, sales: dk.DeltaTable, tmp_path: Path, kind: str
) -> None:
    catalog.write("sales", DATA[kind], mode="append")
    catalog.write("new", DATA[kind])
    dk.write_deltalake(tmp_path / "plain", DATA[kind])
    with dk.transaction(catalog) as tx:
        tx.write("sales", DATA[kind], mode="append")
        tx.write("newer", DATA[kind])

    rows = [{"id": 3, "city": None}, {"id": 4, "city": "Bonn"}]
    for table in ("new", "newer", tmp_path / "plain"):
        opened = catalog[table] if isinstance(table, str) else dk.DeltaTable(table)
        assert opened.to_pyarrow_table().sort_by("id").to_pylist() == rows
    assert catalog["sales"].to_pyarrow_table().num_rows == 6


MISTAKES: dict[str, tuple[type[Exception], str, Callable[[dk.Catalog], object]]] = {
    "a path": (
        UriError,
        r"give the URI deltasql://sqlite/a/meta\.db or deltasql://duckdb/a/meta\.db",
        lambda catalog: dk.connect(Path("a/meta.db")),  # type: ignore[arg-type]
    ),
    "no URI": (
        UriError,
        "such as deltasql://sqlite/meta.db, not by NoneType",
        lambda catalog: dk.connect(None),  # type: ignore[arg-type]
    ),
    "a time for a version": (
        DeltaError,
        r"give a time as timestamp=\.\.\.",
        lambda catalog: catalog.snapshot("sales", datetime.now(UTC)),  # type: ignore[arg-type]
    ),
    "a number for a name": (
        DeltaError,
        "a table is given by its name, not by 3",
        lambda catalog: catalog[3],  # type: ignore[index]
    ),
    "one row": (
        DeltaError,
        "give a dictionary of lists, or a list of dictionaries",
        lambda catalog: catalog.write("sales", {"id": 3, "city": "x"}, mode="append"),  # type: ignore[dict-item]
    ),
    "no data": (
        DeltaError,
        "data can't be NoneType; give Arrow data such as a DataFrame",
        lambda catalog: catalog.write("sales", None, mode="append"),  # type: ignore[arg-type]
    ),
    "no rows": (
        DeltaError,
        "data can't be an empty list",
        lambda catalog: catalog.write("sales", [], mode="append"),
    ),
    "a mode": (
        DeltaError,
        r"no mode 'apend'; did you mean append\?; the modes are error, append, over",
        lambda catalog: catalog.write("sales", ROWS, mode="apend"),  # type: ignore[arg-type]
    ),
    "a partition column": (
        DeltaError,
        r"'citty' not found in schema; did you mean city\?",
        lambda catalog: catalog.write("other", ROWS, partition_by="citty"),
    ),
    "a column to set": (
        UnknownColumnError,
        r"update on version 0: no column citty; did you mean city\?; the table has "
        "id, city",
        lambda catalog: catalog["sales"].update({"citty": "'x'"}),
    ),
    "a column to read": (
        QueryError,
        r"sales: no column citty; did you mean city\?; the table has id, city",
        lambda catalog: catalog["sales"].to_pandas(columns=["citty"]),
    ),
    "a column to filter by": (
        QueryError,
        r"no column Ids; did you mean id\?",
        lambda catalog: catalog["sales"].to_pyarrow_table(filters=[("Ids", "=", 1)]),
    ),
    "a column of the order": (
        UnknownColumnError,
        r"z_order on version 0: no column citty; did you mean city\?",
        lambda catalog: catalog["sales"].optimize.z_order(["citty"]),
    ),
    "a column of files": (
        DeltaError,
        r"files have no column pathh; did you mean path\?",
        lambda catalog: catalog.snapshot("sales").files(columns=["pathh"]),
    ),
    "a property": (
        DeltaError,
        r"no table property delta.appendOnlyy; did you mean delta.appendOnly\?",
        lambda catalog: catalog["sales"].alter.set_table_properties(
            {"delta.appendOnlyy": "true"}
        ),
    ),
    "a schema": (
        DeltaError,
        "a schema can't be dict; give an Arrow schema, or columns as text",
        lambda catalog: catalog.create_table("new", {"id": "long"}),  # type: ignore[arg-type]
    ),
    "a section": (
        ConfigError,
        r"unknown key pooll, from an argument; did you mean pool\?",
        lambda catalog: dk.connect(catalog.uri, pooll={"size": 3}),  # type: ignore[call-arg]
    ),
    "a parameter": (
        UriError,
        r"unknown parameter 'pool_sizee'; did you mean pool_size\?",
        lambda catalog: dk.connect("deltasql://sqlite/x.db?pool_sizee=3"),
    ),
    "an engine": (
        UriError,
        r"unknown engine 'sqllite'; did you mean sqlite\?",
        lambda catalog: dk.connect("deltasql://sqllite/x.db"),
    ),
    "a path without a table": (
        TableNotFoundError,
        "there is no Delta log",
        lambda catalog: dk.import_table(Path("/nothing/here"), catalog, table="q"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_answered_by_what_was_meant(
    catalog: dk.Catalog, sales: dk.DeltaTable, mistake: str
) -> None:
    kind, message, call = MISTAKES[mistake]

    with pytest.raises(kind, match=message) as found:
        call(catalog)

    assert type(found.value) is kind
    assert catalog.table("sales").version == 0


def test_columns_as_text_are_a_schema(catalog: dk.Catalog) -> None:
    made = catalog.create_table("t", "id BIGINT NOT NULL, day DATE", partition_by="day")

    assert [(f.name, f.type, f.nullable) for f in made.schema.fields] == [
        ("id", "long", False),
        ("day", "date", True),
    ]
