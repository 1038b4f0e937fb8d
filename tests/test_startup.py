"""What a fresh process loads: opening a table must not cost what using all of it does.

The CPU time itself is measured by `benchmarks/startup.py`.
"""

import ast
import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake._internal import RawDeltaTable

import delkalakedb as dk
from delkalakedb.catalog.engine.backend import load_backend
from delkalakedb.catalog.file_list import load_files
from delkalakedb.deltalake.raw.raw_table import SqlRawTable
from delkalakedb.errors import TableNotFoundError
from delkalakedb.settings.configuration import load_settings
from delkalakedb.settings.keys import Settings
from delkalakedb.settings.uri import (
    PlainSettings,
    format_uri,
    parse_uri,
    plain_settings,
)

HEAVY = {
    "adbc_driver_manager",
    "adbc_driver_postgresql",
    "asyncio",
    "click",
    "datafusion",
    "duckdb",
    "email",
    "numpy",
    "obstore",
    "pandas",
    "polars",
    "prompt_toolkit",
    "psycopg",
    "pyarrow",
    "pydantic",
    "pydantic_settings",
    "pyroaring",
    "pyspark",
    "rich",
    "sqlglot",
    "yaml",
}
# What a driver brings along.
DRIVERS = {
    "sqlite": set[str](),
    "duckdb": {"duckdb", "email"},
    "postgres": {"asyncio", "email", "psycopg"},
}
ROWS = pa.table({"id": [1, 2], "day": ["a b", "c"]})


def loaded_by(code: str) -> tuple[Any, set[str]]:
    """What `code` leaves in `answer`, and the heavy modules of its process."""
    report = f"\nimport sys\nprint((answer, {HEAVY} & set(sys.modules)))"
    settings = [n for n in os.environ if n.startswith("DELKALAKEDB_")]
    env = {n: value for n, value in os.environ.items() if n not in settings}
    command = [sys.executable, "-c", code + report]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    answer, heavy = ast.literal_eval(done.stdout.splitlines()[-1])
    return answer, heavy


def closed(uri: str) -> None:
    """Leave a DuckDB file to another process."""
    from delkalakedb.catalog import catalog as opened

    for key in [key for key in opened._opened if key[0] == parse_uri(uri).catalog]:
        opened._opened.pop(key).close()


def test_opening_and_listing_loads_nothing_heavy(
    new_catalog_uri: str, engine: str
) -> None:
    uri = format_uri(parse_uri(new_catalog_uri).with_table("sales"))
    for mode in ("append", "append", "overwrite", "append"):
        dk.write_deltalake(uri, ROWS, mode=mode, partition_by=["day"])
    expected = [dk.DeltaTable(uri).file_uris(), dk.DeltaTable(uri, 1).file_uris()]
    closed(uri)

    answer, heavy = loaded_by(
        "import delkalakedb as dk\n"
        f"tables = dk.DeltaTable({uri!r}), dk.DeltaTable({uri!r}, 1)\n"
        "answer = [table.file_uris() for table in tables]\n"
        "[(t.version(), t.schema(), t.metadata(), t.history()) for t in tables]\n"
    )

    assert answer == expected
    assert [len(uris) for uris in answer] == [4, 4]
    assert heavy - DRIVERS[engine] == set()


@pytest.mark.parametrize(
    ("words", "more"),
    [(["tables"], set()), (["query", "select 1"], {"duckdb", "numpy", "pyarrow"})],
    ids=["tables", "query"],
)
def test_command_loads_what_it_needs(
    words: list[str], more: set[str], tmp_path: Path
) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db"
    dk.write_deltalake(f"{uri}?table=sales", ROWS)

    _, heavy = loaded_by(
        "import sys\nfrom delkalakedb.cli import main\n"
        f"sys.argv = ['deltasql', '--catalog', {uri!r}, *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    answer = end.code\n"
    )

    assert heavy - {"email"} == {"click", *more}


# ---- names without Arrow


def paths_by_arrow(snapshot: Any) -> list[str]:
    return list(load_files(snapshot, columns=["path"]).table["path"].to_pylist())


def test_paths_without_arrow_are_those_with_it(catalog: dk.Catalog) -> None:
    uri = format_uri(catalog.uri.with_table("sales"))
    for mode in ("append", "append", "overwrite", "append"):
        dk.write_deltalake(uri, ROWS, mode=mode, partition_by=["day"])

    for version in range(4):
        snapshot = catalog.snapshot("sales", version)
        assert snapshot.paths() == paths_by_arrow(snapshot) != []


def test_paths_of_a_dropped_table_are_refused(catalog: dk.Catalog) -> None:
    dk.write_deltalake(format_uri(catalog.uri.with_table("sales")), ROWS)
    snapshot = catalog.snapshot("sales")
    catalog.drop_table("sales")

    with pytest.raises(TableNotFoundError, match="dropped since"):
        snapshot.paths()


def test_paths_in_a_transaction_are_with_its_own(tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db"
    dk.write_deltalake(f"{uri}?table=sales", ROWS, partition_by=["day"])
    with dk.transaction(uri) as tx:
        for step in ("append", "overwrite"):
            tx.write("sales", ROWS, mode=step)
            snapshot = tx._tables.snapshot("sales")
            assert snapshot.paths() == paths_by_arrow(snapshot) != []


# ---- handles


def test_handle_delegates_what_it_is_asked_for(tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=sales"
    dk.write_deltalake(uri, ROWS)
    table = dk.DeltaTable(uri)
    handle: Any = table._table
    assert type(handle) is SqlRawTable

    table.delete("id = 1")

    assert (table.version(), table.to_pyarrow_table()["id"].to_pylist()) == (1, [2])
    theirs = {name for name in dir(RawDeltaTable) if not name.startswith("_")}
    # `is_deltatable` is asked before there is a handle.
    assert theirs - {name for name in dir(handle) if getattr(handle, name, None)} == {
        "is_deltatable"
    }


# ---- settings


@pytest.mark.parametrize(
    ("parameters", "given"),
    [
        ("", {}),
        ("", {"sql": {"schema": "error"}}),
        ("?pool_size=3&connect_timeout=2.5&data_path=/lake", {}),
        ("?data_path=none", {}),
    ],
)
def test_plain_settings_are_those_that_pydantic_makes(
    parameters: str,
    given: Mapping[str, object],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DELKALAKEDB_REGISTER", "1")
    uri = parse_uri(f"deltasql://sqlite/m.db{parameters}")
    expected = load_settings(uri, **given)
    plain = plain_settings(uri, given)
    # Made with the settings of when it was opened, whatever becomes of their sources.
    monkeypatch.setenv("DELKALAKEDB_MIRROR__MODE", "external")

    assert isinstance(plain, PlainSettings)
    assert plain.full() == expected
    for section in ("sql", "pool", "cache"):
        fields = type(getattr(expected, section)).model_fields
        ours, theirs = getattr(plain, section), getattr(expected, section)
        assert [getattr(ours, n) for n in fields] == [
            getattr(theirs, n) for n in fields
        ]


def test_every_other_source_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    uri = f"deltasql://sqlite/{tmp_path}/m.db"

    def retries(**given: Any) -> int:
        with dk.connect(uri, **given) as catalog:
            assert isinstance(catalog.settings, Settings)
            return catalog.settings.concurrency.retries

    assert retries() == 15
    assert retries(concurrency={"retries": 1}) == 1
    monkeypatch.setenv("delkalakedb_concurrency__retries", "2")
    assert retries() == 2
    monkeypatch.delenv("delkalakedb_concurrency__retries")
    Path("deltalakedb.toml").write_text("[concurrency]\nretries = 3\n")
    assert retries() == 3
    Path("other.toml").write_text("[concurrency]\nretries = 4\n")
    monkeypatch.setenv("DELKALAKEDB_CONFIG", "other.toml")
    assert retries() == 4


def test_registered_backends_are_the_built_in_ones() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    registered = project["project"]["entry-points"]["delkalakedb.backends"]

    for engine, place in registered.items():
        found = load_backend(engine)
        assert f"{found.__module__}:{found.__name__}" == place
