"""The same reads and writes through Spark Connect, whose server is another process."""

import json
import subprocess
from pathlib import Path

import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.settings.uri import format_uri
from tests.support.lakes import Lake
from tests.support.processes import program

pytest.importorskip("grpc", reason="Connect needs pyspark[connect]")


def test_connect_reads_lists_partitions_and_vectors_and_writes_in_every_way(
    tmp_path: Path,
) -> None:
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        plain = format_uri(catalog.uri.with_table("plain"))
        for start in (0, 100, 200):
            rows = pa.table({"n": range(start, start + 100)})
            dk.write_deltalake(plain, rows, mode="append")
        lake = Lake(catalog, tmp_path)
        schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
        vectors = {"delta.enableDeletionVectors": "true"}
        lake.create(
            schema,
            partitions=["p"],
            features=["deletionVectors"],
            configuration=vectors,
        )
        odd = lake.file({"id": [1, 2], "p": ["a %é"] * 2}, "x y.parquet", p="a %é")
        cut = lake.file({"id": [3, 4], "p": [None] * 2}, "cut.parquet", p=None)
        lake.commit(odd, cut)
        lake.commit(*lake.without(cut, 0))
        target = format_uri(catalog.uri.with_table(lake.name))
        written = format_uri(catalog.uri.with_table("written"))

    ran = subprocess.run(
        program("connect_worker", plain, target, "0", written),
        capture_output=True,
        text=True,
        timeout=300,
    )

    assert ran.returncode == 0, ran.stderr[-4000:]
    rows = {i: i % 2 for i in range(10)} | dict.fromkeys(range(10, 20), 7)
    rows |= {i: i % 2 for i in (*range(20, 50), *range(50, 70))} | {1: 9}
    del rows[2]
    table = dk.DeltaTable(written).to_pyarrow_table().sort_by("id")
    assert list(zip(*table.to_pydict().values(), strict=True)) == sorted(rows.items())
    assert json.loads(ran.stdout.splitlines()[-1]) == {
        "written": ["WRITE", "MERGE", "UPDATE", "DELETE", "WRITE", "WRITE"],
        "rows": [list(row) for row in sorted(rows.items())],
        "classic": False,
        "named": [-4, [[i, "delete"] for i in (0, 1, 3, 4)], ["DELETE", "CLONE"]],
        "where": [150, 2],
        "before": 100,
        "view": [["a %é", 1], ["a %é", 2], [None, 4]],
    }
