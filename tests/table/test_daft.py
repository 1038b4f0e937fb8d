"""daft reads and writes tables of the catalog."""

import json
import subprocess

import deltalake

import delkalakedb as dk
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.environments import ensure_daft
from tests.support.processes import program

ROWS = {"id": [1, 2], "p": ["x y%/ü", "b"]}
TWICE = {"id": [1, 1, 2, 2], "p": ["x y%/ü", "x y%/ü", "b", "b"]}


def test_daft_reads_and_writes_by_string_and_by_handle(catalog_uri: str) -> None:
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    # A DuckDB catalog serves one process at a time: this one comes after it.
    done = subprocess.run(
        program("daft_worker", uri, python=ensure_daft()),
        capture_output=True,
        check=False,
        text=True,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "written by string": ROWS,
        "appended by string": TWICE,
        "appended by handle": {"id": [*TWICE["id"], 3], "p": [*TWICE["p"], "c"]},
        "overwritten by handle": {"id": [3], "p": ["c"]},
        "appended by deltalake": {"id": [3, 4], "p": ["c", "d"]},
        "version 1": TWICE,
        "filtered": {"p": ["d"]},
        "deletion vectors": True,
    }
    table = dk.DeltaTable(uri)
    expected = {"id": [3, 4], "p": ["c", "d"]}
    for opened in (table, deltalake.DeltaTable(table.table_uri)):
        assert opened.version() == 4
        rows = opened.to_pyarrow_table().sort_by("id")
        assert rows.to_pydict() == expected
    assert dk.verify(uri, deep=True).ok
