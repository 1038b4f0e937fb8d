"""Logs read by executors: the result is that of one process."""

import sqlite3
from pathlib import Path

import deltalake
import pytest
from pyspark.sql import SparkSession

import delkalakedb as dk
from delkalakedb import spark as dks
from delkalakedb.errors import CodecError, UriError
from delkalakedb.mirror.checkpoint import checkpoint, checkpoint as checkpoint_state
from delkalakedb.storage import open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader
from tests.support.imports import assert_same_history
from tests.support.logs import (
    COLUMNS,
    FORMS,
    LAST,
    add,
    drop_commits,
    lines_at,
    log_path,
    parquet,
    remove,
    rows,
    write_history,
    write_log,
)

# Other for each import: who writes, when, and the ids of commits that have none.
_OWN = {"created_at_ms", "occurred_at_ms", "transaction_id"}


@pytest.fixture
def location(tmp_path: Path) -> str:
    write_history(str(tmp_path / "a table"))
    return str(tmp_path / "a table")


def _catalog_rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All that a catalog holds of its tables."""
    found = {}
    with sqlite3.connect(path) as connection:
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'dl_%'"
        )
        for (name,) in names.fetchall():
            columns = [
                column
                for _, column, *_ in connection.execute(f"PRAGMA table_info({name})")
                if column not in _OWN and name != "dl_schema_versions"
            ]
            if columns:
                query = f"SELECT {', '.join(columns)} FROM {name}"
                found[name] = sorted(connection.execute(query).fetchall(), key=repr)
    return found


def _import_both(spark: SparkSession, location: str, folder: Path) -> str:
    """Import by Spark and by one process; both catalogs say the same."""
    here, there = (f"deltasql://sqlite/{folder}/{n}.db?table=t" for n in "ab")
    one, many = (
        dk.import_table(location, here),
        dks.import_table(spark, location, there),
    )
    assert many == one
    assert many.ok, many.report
    assert _catalog_rows(folder / "a.db") == _catalog_rows(folder / "b.db")
    return there


def test_log_of_commits_is_imported_as_by_one_process(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    uri = _import_both(spark, location, tmp_path)

    with dk.connect(uri.partition("?")[0]) as catalog:
        assert_same_history(catalog, "t", open_store(location), first=0)
    assert dks.verify(spark, uri) == dk.verify(uri)


@pytest.mark.parametrize("form", FORMS)
def test_checkpoint_of_any_form_is_imported_as_by_one_process(
    spark: SparkSession, location: str, tmp_path: Path, form: str
) -> None:
    store = open_store(location)
    odd = [add("a file", tags={"k": '"v'}, stats='{"numRecords":1}'), remove("gone")]
    write_log(store, odd, first=LAST + 1)
    FORMS[form](store, LAST + 1, *lines_at(FileTxnLogReader(store), LAST + 1))
    drop_commits(store, range(LAST + 1))
    deltalake.write_deltalake(location, rows(40), mode="append")

    uri = _import_both(spark, location, tmp_path)

    assert dks.verify(spark, uri, deep=False) == dk.verify(uri)


def test_difference_is_found_and_named(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    store = open_store(location)
    others, files = lines_at(FileTxnLogReader(store), LAST)
    FORMS["multi-part"](store, LAST, others, files)
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    assert dks.import_table(spark, location, uri).ok
    for line in files:
        line.get("add", {})["size"] = 5
    part = parquet(files[::2], COLUMNS)
    store.put(log_path(LAST, "checkpoint.0000000002.0000000003.parquet"), part)

    report = dks.verify(spark, uri)

    assert not report.ok
    assert report == dk.verify(uri)
    assert any("size" in difference.message for difference in report.differences)


def test_broken_commit_is_named(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    open_store(location).put(log_path(LAST + 1, "json"), b'{"add": 1}\n')

    with pytest.raises(CodecError, match=r"00000000000000000010\.json"):
        dks.import_table(
            spark, location, f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
        )


def test_checkpoint_is_that_of_one_process(
    spark: SparkSession, location: str, tmp_path: Path
) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    dks.import_table(spark, location, uri)
    log = Path(location, "_delta_log", f"{LAST:020}.checkpoint.parquet")

    dks.checkpoint(spark, uri)
    written = log.read_bytes()
    dk.DeltaTable(uri).create_checkpoint()

    assert log.read_bytes() == written
    assert deltalake.DeltaTable(location).version() == LAST


def test_checkpoint_has_sidecars_where_the_protocol_allows_them(
    spark: SparkSession, location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    dks.import_table(spark, location, uri)
    table = dk.DeltaTable(uri)
    table.alter.add_feature(
        deltalake.TableFeatures.V2Checkpoint, allow_protocol_versions_increase=True
    )
    monkeypatch.setattr(checkpoint, "_SIDECAR_ROWS", 1)
    monkeypatch.setattr(checkpoint_state, "_CHUNK_ROWS", 1)

    dks.checkpoint(spark, uri)

    log = Path(location, "_delta_log")
    assert len(list(log.glob("_sidecars/*.parquet"))) > 1
    assert dks.verify(spark, uri).ok
    for commit in log.glob("*.json"):
        commit.unlink()
    plain = deltalake.DeltaTable(location)
    assert plain.version() == table.version()
    ours, theirs = (t.get_add_actions()["path"].to_pylist() for t in (table, plain))
    assert sorted(ours) == sorted(theirs)


def test_uri_without_a_table_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db"
    with pytest.raises(UriError):
        dks.import_table(spark, str(tmp_path), uri)
    with pytest.raises(UriError):
        dks.verify(spark, uri)
