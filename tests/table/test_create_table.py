"""Creating tables through `DeltaTable.create`, and registering by the environment."""

import os
import subprocess
import sys
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import DeltaError

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
