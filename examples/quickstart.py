"""Create a table in a SQLite catalog, append, merge, and read it in three ways."""

import tempfile
from pathlib import Path

import deltalake
import pyarrow as pa

import delkalakedb as dk


def main(folder: Path) -> None:
    uri = f"deltasql://sqlite/{folder}/meta.db?table=sales"

    dk.write_deltalake(uri, pa.table({"id": [1, 2], "city": ["Oslo", "Rome"]}))
    dk.write_deltalake(uri, pa.table({"id": [3], "city": ["Kyiv"]}), mode="append")

    table = dk.DeltaTable(uri)
    late = pa.table({"id": [3, 4], "city": ["Lviv", "Bonn"]})
    merge = table.merge(late, "n.id = o.id", source_alias="n", target_alias="o")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()
    print(f"version {table.version()} at {table.table_uri}")
    print(table.to_pyarrow_table().sort_by("id").to_pylist())

    first = dk.DeltaTable(uri, version=0).to_pyarrow_table()
    print(f"version 0 had {first.num_rows} rows")

    mirrored = deltalake.DeltaTable(table.table_uri).to_pyarrow_table()
    assert mirrored.sort_by("id") == table.to_pyarrow_table().sort_by("id")
    print("plain deltalake reads the same rows from _delta_log")

    with dk.connect(f"deltasql://sqlite/{folder}/meta.db") as catalog:
        for commit in catalog.snapshot("sales").history():
            print(commit.version, commit.operation, commit.os_user, commit.host)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
