"""Write to a SQL-backed Delta table, and read it from SQL and from `_delta_log`."""

import tempfile
from pathlib import Path

import deltalake
import pyarrow as pa

import delkalakedb as dk


def main(folder: Path) -> None:
    uri = f"deltasql://sqlite/{folder}/meta.db?table=sales"

    dk.write_deltalake(
        uri, pa.table({"id": [1, 2], "city": ["Oslo", "Rome"]}), mode="append"
    )
    dk.write_deltalake(uri, pa.table({"id": [3], "city": ["Kyiv"]}), mode="append")

    table = dk.DeltaTable(uri)
    print(f"version {table.version()} at {table.table_uri}")
    print(table.to_pyarrow_table().sort_by("id").to_pylist())

    mirrored = deltalake.DeltaTable(table.table_uri)
    assert mirrored.version() == table.version()
    assert mirrored.to_pyarrow_table().num_rows == 3
    print("plain deltalake reads the same rows from _delta_log")

    with dk.connect(f"deltasql://sqlite/{folder}/meta.db") as catalog:
        for commit in catalog.snapshot("sales").history():
            print(commit.version, commit.operation, commit.os_user, commit.host)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
