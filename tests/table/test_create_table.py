"""Creating tables through `DeltaTable.create`, and registering by the environment."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties

import delkalakedb as dk
from delkalakedb.errors import DeltaError, TableExistsError

SCHEMA = pa.schema([("x", pa.int64()), ("day", pa.string())])


def named(uri: str, name: str = "t") -> str:
    return f"{uri}{'&' if '?' in uri else '?'}table={name}"


def test_created_table_is_empty_and_in_the_log(catalog_uri: str) -> None:
    table = dk.DeltaTable.create(
        named(catalog_uri), SCHEMA, partition_by="day", description="new"
    )

    assert isinstance(table, dk.DeltaTable)
    assert (table.version(), table.file_uris()) == (0, [])
    assert table.metadata().partition_columns == ["day"]
    assert deltalake.DeltaTable(table.table_uri).schema() == table.schema()


def test_existing_table_is_refused_ignored_or_replaced(catalog_uri: str) -> None:
    uri = named(catalog_uri)
    dk.write_deltalake(uri, pa.table({"x": [1], "day": ["mon"]}))

    with pytest.raises(DeltaError, match="already exists"):
        dk.DeltaTable.create(uri, SCHEMA)
    assert dk.DeltaTable.create(uri, SCHEMA, mode="ignore").version() == 0
    replaced = dk.DeltaTable.create(uri, SCHEMA, mode="overwrite")
    assert (replaced.version(), replaced.to_pyarrow_table().num_rows) == (1, 0)


def test_path_goes_to_deltalake(tmp_path: Path) -> None:
    table = dk.DeltaTable.create(tmp_path / "plain", SCHEMA)

    assert deltalake.DeltaTable(tmp_path / "plain").version() == table.version() == 0


@pytest.mark.parametrize(("switch", "works"), [("1", True), ("0", False)])
def test_environment_switch_registers_on_import(
    tmp_path: Path, switch: str, works: bool
) -> None:
    script = """
import delkalakedb, deltalake, pyarrow as pa, sys
deltalake.write_deltalake(sys.argv[1], pa.table({"x": [1]}))
"""
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    done = subprocess.run(
        [sys.executable, "-c", script, uri],
        env={**os.environ, "DELKALAKEDB_REGISTER": switch},
        capture_output=True,
        check=False,
    )

    assert (done.returncode == 0) is works


@pytest.mark.parametrize(
    "schema",
    [
        SCHEMA,
        deltalake.Schema.from_arrow(SCHEMA),
        deltalake.Schema.from_arrow(SCHEMA).to_json(),
    ],
    ids=["arrow", "deltalake", "json"],
)
def test_catalog_creates_a_table_of_any_schema(
    catalog: dk.Catalog, tmp_path: Path, schema: Any
) -> None:
    table = catalog.create_table(
        "t",
        schema,
        location=f"{tmp_path}/here",
        partition_by="day",
        configuration={"delta.appendOnly": "true"},
        description="new",
    )

    assert table == catalog.table("t")
    assert (table.version, table.num_files, table.description) == (0, 0, "new")
    assert table.partition_columns == ("day",)
    assert table.configuration == {"delta.appendOnly": "true"}
    mirrored = deltalake.DeltaTable(tmp_path / "here")
    assert mirrored.schema() == deltalake.Schema.from_json(table.schema_string)
    assert mirrored.metadata().description == "new"


def test_transaction_creates_the_same_table_as_the_catalog(
    catalog: dk.Catalog,
) -> None:
    options: dict[str, Any] = {
        "partition_by": ["day"],
        "configuration": {"delta.feature.catalogManaged": "supported"},
        "description": "new",
    }
    alone = catalog.create_table("alone", SCHEMA, **options)
    with dk.transaction(catalog) as tx:
        staged = tx.create_table("together", SCHEMA, **options)
    together = catalog.table("together")

    assert (staged.name, staged.version) == ("together", 0)
    own = ("name", "id", "location", "timestamp_ms", "created_time_ms")
    same = [
        {key: value for key, value in table.to_dict().items() if key not in own}
        for table in (alone, together, staged)
    ]
    assert same[0] == same[1]
    assert same[2]["schema_string"] == same[0]["schema_string"]


def test_catalog_refuses_to_create_a_table_twice(catalog: dk.Catalog) -> None:
    catalog.create_table("t", SCHEMA)

    with pytest.raises(TableExistsError, match="t: the table exists already"):
        catalog.create_table("t", SCHEMA)


def test_text_that_is_no_schema_is_refused(catalog: dk.Catalog) -> None:
    with pytest.raises(DeltaError, match="not a schema in Delta's JSON"):
        catalog.create_table("t", '{"type": "nothing"}')
    with pytest.raises(DeltaError, match="unknown type nothing for column id"):
        catalog.create_table("t", "id nothing")
    assert catalog.tables() == []


def test_options_by_position_are_taken_and_warned_of(catalog_uri: str) -> None:
    uri = named(catalog_uri)
    schema = pa.schema([("id", pa.int64())])
    told = CommitProperties(custom_metadata={"who": "me"})
    given = ("error", None, None, None, {"my.key": "1"}, None)

    with pytest.warns(DeprecationWarning, match="by position"):
        table = dk.DeltaTable.create(uri, schema, *given, told, None, False)

    assert table.history()[0]["who"] == "me"
    assert table.metadata().configuration == {"my.key": "1"}
    with (
        pytest.warns(DeprecationWarning, match="by position"),
        pytest.raises(TypeError, match="multiple values for 'commit_properties'"),
    ):
        dk.DeltaTable.create(uri, schema, *given, told, commit_properties=told)
    with (
        pytest.warns(DeprecationWarning, match="by position"),
        pytest.raises(TypeError, match="unexpected"),
    ):
        dk.DeltaTable.create(uri, schema, *given, told, None, False, 1)


def test_location_that_is_not_utf8_is_refused_and_nothing_is_written(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    rows = pa.table({"x": [1], "day": ["mon"]})
    location = os.fsdecode(bytes(tmp_path) + b"/place\xff")
    deltalake.write_deltalake(tmp_path / "made", rows)
    (tmp_path / "made").rename(location)
    before = {path: path.is_dir() for path in tmp_path.rglob("*")}

    with pytest.raises(DeltaError, match=r"place%FF has a folder .* isn't valid UTF-8"):
        catalog.create_table("t", SCHEMA, location=location)
    with (
        pytest.raises(DeltaError, match="isn't valid UTF-8"),
        dk.transaction(catalog) as tx,
    ):
        tx.write("t", rows, location=f"{location}/new")
    with pytest.raises(DeltaError, match="isn't valid UTF-8"):
        dk.import_table(location, catalog, table="t")

    assert catalog.tables() == []
    assert {path: path.is_dir() for path in tmp_path.rglob("*")} == before
