"""Transactions over several tables."""

import json
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import (
    CommitFailedError,
    DeltaError,
    MirrorBehindError,
    TableExistsError,
    TableNotFoundError,
    TransactionError,
    VersionNotFoundError,
)
from delkalakedb.settings.uri import parse_uri
from tests.support.processes import run_python


@pytest.fixture
def two(catalog_uri: str) -> str:
    """A catalog with the tables `a` (1, 2, 3) and `b` (10)."""
    dk.write_deltalake(table(catalog_uri, "a"), pa.table({"x": [1, 2, 3]}))
    dk.write_deltalake(table(catalog_uri, "b"), pa.table({"x": [10]}))
    return catalog_uri


def table(uri: str, name: str) -> str:
    return f"{uri}{'&' if '?' in uri else '?'}table={name}"


def rows(handle: deltalake.DeltaTable) -> list[int]:
    return sorted(handle.to_pyarrow_table()["x"].to_pylist())


def ratified(uri: str, name: str) -> tuple[int, list[int]]:
    handle = dk.DeltaTable(table(uri, name))
    return handle.version(), rows(handle)


def mirrored(uri: str, name: str) -> list[int]:
    return rows(deltalake.DeltaTable(dk.DeltaTable(table(uri, name)).table_uri))


def data_files(uri: str) -> set[Path]:
    with dk.connect(uri) as catalog:
        folders = [Path(t.location.removeprefix("file://")) for t in catalog.tables()]
    return {path for folder in folders for path in folder.rglob("*.parquet")}


def test_operations_on_several_tables_become_true_together(two: str) -> None:
    with dk.transaction(two) as tx:
        tx.write("a", pa.table({"x": [4]}), mode="append")
        tx.delete("a", "x = 2")
        tx.update("b", updates={"x": "x + 1"})
        tx.write("new", pa.table({"x": [7]}))
        assert ratified(two, "a") == (0, [1, 2, 3])

    done = [(c.table, c.version) for c in tx.committed]
    assert done == [("a", 1), ("a", 2), ("b", 1), ("new", 0)]
    assert ratified(two, "a") == (2, [1, 3, 4])
    assert ratified(two, "b") == (1, [11])
    assert mirrored(two, "a") == [1, 3, 4]
    assert mirrored(two, "new") == [7]
    reports = dk.verify(two, deep=True)
    assert isinstance(reports, list)
    assert [str(report) for report in reports if not report.ok] == []


def test_transaction_reads_its_own_writes(two: str) -> None:
    with dk.transaction(two) as tx:
        tx.write("a", pa.table({"x": [4]}), mode="append")
        tx.delete("a", "x < 3")
        handle = tx.table("a")
        assert (handle.version(), rows(handle)) == (2, [3, 4])
        assert handle.count() == 2
        read = pa.table(handle.scan(predicate="x = 4"))
        assert read["x"].to_pylist() == [4]
        tx.write("a", pa.table({"x": [9]}), mode="overwrite")
        assert rows(tx.table("a")) == [9]

    assert ratified(two, "a") == (3, [9])


def test_merge_and_alter_are_staged(two: str) -> None:
    source = pa.table({"x": [10, 20]})
    with dk.transaction(two) as tx:
        merge = tx.merge("b", source, "s.x = t.x", source_alias="s", target_alias="t")
        merge.when_matched_update(
            updates={"x": "t.x + 5"}
        ).when_not_matched_insert_all().execute()
        field = deltalake.schema.Field("y", "string")
        tx.alter("b").add_columns(field)
        tx.write("b", pa.table({"x": [1], "y": ["new"]}), mode="append")

    assert ratified(two, "b") == (3, [1, 15, 20])
    last = dk.DeltaTable(table(two, "b")).to_pyarrow_table()
    assert sorted(last["y"].to_pylist(), key=str) == [None, None, "new"]


def test_table_is_created_and_written_in_one_transaction(two: str) -> None:
    schema = pa.schema([("x", pa.int64()), ("day", pa.string())])
    with dk.transaction(two) as tx:
        tx.create_table("c", schema, partition_by=["day"], description="made here")
        tx.write("c", pa.table({"x": [1], "day": ["mon"]}), mode="append")
        tx.delete("c", "x = 1")
        tx.write("c", pa.table({"x": [2], "day": ["tue"]}), mode="append")

    created = dk.DeltaTable(table(two, "c"))
    assert ratified(two, "c") == (3, [2])
    assert created.metadata().partition_columns == ["day"]
    assert created.metadata().description == "made here"


def test_exception_leaves_no_trace(two: str) -> None:
    before = data_files(two)

    def fail() -> None:
        with dk.transaction(two) as tx:
            tx.write("a", pa.table({"x": [4]}), mode="append")
            tx.delete("b")
            tx.write("c", pa.table({"x": [5]}))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert (ratified(two, "a"), ratified(two, "b")) == ((0, [1, 2, 3]), (0, [10]))
    assert data_files(two) == before
    assert not dk.DeltaTable.is_deltatable(table(two, "c"))


def test_tables_are_read_as_they_were_at_one_moment(two: str) -> None:
    with dk.transaction(two) as tx:
        dk.write_deltalake(table(two, "a"), pa.table({"x": [4]}), mode="append")
        dk.write_deltalake(table(two, "b"), pa.table({"x": [11]}), mode="append")
        assert rows(tx.table("a")) == [1, 2, 3]
        assert rows(tx.table("b")) == [10]
        tx.write("a", pa.table({"x": [5]}), mode="append")

    assert ratified(two, "a") == (2, [1, 2, 3, 4, 5])


def test_history_shows_nothing_that_others_did_since(two: str) -> None:
    with dk.transaction(two) as tx:
        tx.write("a", pa.table({"x": [5]}), mode="append")
        dk.write_deltalake(table(two, "a"), pa.table({"x": [4]}), mode="append")
        assert [entry["version"] for entry in tx.table("a").history()] == [0]

    assert ratified(two, "a") == (2, [1, 2, 3, 4, 5])


def test_conflict_in_one_table_undoes_all(two: str) -> None:
    before = data_files(two)

    def lose() -> None:
        with dk.transaction(two) as tx:
            tx.write("b", pa.table({"x": [11]}), mode="append")
            tx.delete("a", "x = 1")
            dk.DeltaTable(table(two, "a")).delete("x = 1")

    with pytest.raises(CommitFailedError, match="a: version 1 was taken"):
        lose()

    assert ratified(two, "a") == (1, [2, 3])
    assert ratified(two, "b") == (0, [10])
    assert len(data_files(two) - before) == 1


def test_second_write_of_a_lost_race_is_checked_too(two: str) -> None:
    """What others did since is a winner for every commit, not only for the first."""

    def lose() -> None:
        with dk.transaction(two) as tx:
            tx.write("a", pa.table({"x": [4]}), mode="append")
            dk.DeltaTable(table(two, "a")).delete("x = 1")
            tx.delete("a", "x = 1")

    with pytest.raises(CommitFailedError):
        lose()

    assert ratified(two, "a") == (1, [2, 3])


def test_log_names_the_transaction_and_its_participants(two: str) -> None:
    with dk.transaction(two) as tx:
        tx.write("a", pa.table({"x": [4]}), mode="append")
        tx.write("b", pa.table({"x": [11]}), mode="append")

    infos = []
    for name in "ab":
        location = dk.DeltaTable(table(two, name)).table_uri.removeprefix("file://")
        entry = Path(location) / "_delta_log" / f"{1:020}.json"
        infos.append(json.loads(entry.read_text().splitlines()[0])["commitInfo"])
    assert infos[0]["txnId"] == infos[1]["txnId"] == tx.committed[0].transaction_id
    ids = [dk.DeltaTable(table(two, name)).metadata().id for name in "ab"]
    expected = [{"tableId": id_, "version": 1} for id_ in ids]
    assert infos[0]["participants"] == infos[1]["participants"] == expected


def test_transaction_without_operations_commits_nothing(two: str) -> None:
    with dk.transaction(two) as tx:
        assert rows(tx.table("a")) == [1, 2, 3]

    assert tx.committed == ()
    assert ratified(two, "a")[0] == 0


def test_open_catalog_can_be_given(two: str) -> None:
    with dk.connect(two) as catalog:
        with dk.transaction(catalog) as tx:
            tx.write("a", pa.table({"x": [4]}), mode="append")
        assert catalog.table("a").version == 1


def test_use_before_and_after_the_block_is_refused(two: str) -> None:
    tx = dk.transaction(two)
    with pytest.raises(TransactionError, match="enter"):
        tx.write("a", pa.table({"x": [4]}), mode="append")
    with tx:
        kept = tx.table("a")
    with pytest.raises(TransactionError, match="ended"):
        tx.write("a", pa.table({"x": [4]}), mode="append")
    with pytest.raises(TransactionError, match="ended"):
        tx.delete("a")
    with pytest.raises(TransactionError, match="ended"):
        kept.delete("x = 1")
    assert ratified(two, "a") == (0, [1, 2, 3])
    with pytest.raises(TransactionError, match="once"), tx:
        pass


def test_nested_use_is_refused(two: str) -> None:
    with dk.transaction(two) as tx, pytest.raises(TransactionError, match="nested"), tx:
        pass


def test_unknown_and_existing_tables_are_named(two: str) -> None:
    with dk.transaction(two) as tx:
        with pytest.raises(TableNotFoundError, match="nowhere"):
            tx.delete("nowhere")
        with pytest.raises(TableExistsError, match="a: the table exists"):
            tx.create_table("a", pa.schema([("x", pa.int64())]))
        with pytest.raises(TableExistsError):
            tx.write("a", pa.table({"x": [4]}))


def test_upkeep_is_refused_within_a_transaction(two: str) -> None:
    dk.write_deltalake(table(two, "a"), pa.table({"x": [4]}), mode="append")

    with dk.transaction(two) as tx:
        tx.write("a", pa.table({"x": [5]}), mode="append")
        handle = tx.table("a")
        for name, call in {
            "restore": lambda: handle.restore(0),
            "vacuum": handle.vacuum,
            "repair": handle.repair,
            "generate": handle.generate,
            "create_checkpoint": handle.create_checkpoint,
            "cleanup_metadata": handle.cleanup_metadata,
            "compact_logs": lambda: handle.compact_logs(0, 1),
        }.items():
            with pytest.raises(TransactionError, match=f"{name} can't be part"):
                call()
        with pytest.raises(TransactionError, match="once the transaction has ended"):
            handle.load_cdf()
        handle.load_as_version(handle.version())
        assert parse_uri(handle.catalog_uri).table == "a"

    assert ratified(two, "a") == (2, [1, 2, 3, 4, 5])


def test_mode_of_a_first_write_is_kept(two: str) -> None:
    with dk.transaction(two) as tx:
        tx.write("new", pa.table({"x": [1]}), mode="append")
        with pytest.raises(DeltaError, match="Invalid save mode"):
            tx.write("other", pa.table({"x": [1]}), mode="bogus")

    (commit,) = dk.DeltaTable(table(two, "new")).history()
    assert commit["operationParameters"]["mode"] == "Append"


def test_table_is_not_made_where_another_log_lies(two: str) -> None:
    with dk.connect(two) as catalog:
        left = catalog.drop_table("a").location
    before = {*Path(left.removeprefix("file://")).rglob("*")}

    with (
        pytest.raises(TableExistsError, match="there is a Delta table at"),
        dk.transaction(two) as tx,
    ):
        tx.write("a", pa.table({"x": [4]}))
    with (
        pytest.raises(TableExistsError, match="there is a Delta table at"),
        dk.transaction(two) as tx,
    ):
        tx.create_table("a", pa.schema({"x": pa.int64()}))

    after = {*Path(left.removeprefix("file://")).rglob("*")}
    assert {path for path in after - before if path.is_file()} == set()


def test_handle_that_was_taken_before_keeps_to_what_was_altered_since(
    two: str,
) -> None:
    with dk.transaction(two) as tx:
        handle = tx.table("a")
        tx.alter("a").add_constraint({"positive": "x > 0"})
        with pytest.raises(DeltaError, match="1 rows failed validation"):
            deltalake.write_deltalake(handle, pa.table({"x": [-1]}), mode="append")
        deltalake.write_deltalake(handle, pa.table({"x": [4]}), mode="append")

    assert ratified(two, "a") == (2, [1, 2, 3, 4])


def test_repeated_transaction_of_an_application_leaves_no_files(two: str) -> None:
    once = deltalake.CommitProperties(
        app_transactions=[deltalake.Transaction("app", 1)]
    )
    counts = []
    for _ in range(3):
        with dk.transaction(two) as tx:
            tx.write("a", pa.table({"x": [4]}), mode="append", commit_properties=once)
        counts.append((len(tx.committed), len(data_files(two))))

    assert counts == [(1, 3), (0, 3), (0, 3)]
    assert ratified(two, "a") == (1, [1, 2, 3, 4])


def test_refused_commit_leaves_no_files(
    two: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_MIRROR__MODE", "external")
    monkeypatch.setenv("DELKALAKEDB_MIRROR__MAX_UNPUBLISHED", "1")
    limited = f"{two}{'&' if '?' in two else '?'}pool_size=3"
    dk.write_deltalake(table(limited, "a"), pa.table({"x": [4]}), mode="append")
    before = data_files(two)

    with pytest.raises(MirrorBehindError):
        dk.write_deltalake(table(limited, "a"), pa.table({"x": [5]}), mode="append")
    with pytest.raises(MirrorBehindError), dk.transaction(limited) as tx:
        tx.write("a", pa.table({"x": [5]}), mode="append")

    assert data_files(two) == before


def test_transaction_of_an_application_that_a_rival_committed_meanwhile_fails(
    two: str,
) -> None:
    once = deltalake.CommitProperties(
        app_transactions=[deltalake.Transaction("app", 1)]
    )
    files = data_files(two)

    def race() -> None:
        options = {"mode": "append", "commit_properties": once}
        with dk.transaction(two) as tx:
            tx.write("a", pa.table({"x": [4]}), **options)
            tx.write("b", pa.table({"x": [11]}), mode="append")
            dk.write_deltalake(table(two, "a"), pa.table({"x": [99]}), **options)

    with pytest.raises(CommitFailedError, match="application app has committed"):
        race()

    assert ratified(two, "a") == (1, [1, 2, 3, 99])
    assert ratified(two, "b") == (0, [10])
    assert len(data_files(two)) == len(files) + 1


def test_handle_is_of_no_use_after_the_block(two: str) -> None:
    with dk.transaction(two) as tx:
        tx.write("a", pa.table({"x": [4]}), mode="append")
        handle = tx.table("a")
        assert rows(handle) == [1, 2, 3, 4]

    for use in (handle.version, handle.to_pyarrow_table, handle.update_incremental):
        with pytest.raises(TransactionError, match="ended"):
            use()


def test_time_travel_stays_within_what_the_transaction_sees(two: str) -> None:
    with dk.transaction(two) as tx:
        tx.write("a", pa.table({"x": [4]}), mode="append")
        tx.write("a", pa.table({"x": [5]}), mode="append")
        dk.write_deltalake(table(two, "a"), pa.table({"x": [99]}), mode="append")
        handle = tx.table("a")

        with pytest.raises(VersionNotFoundError, match="sees no version 1"):
            handle.load_as_version(1)
        handle.load_as_version("2100-01-01T00:00:00Z")
        assert (handle.version(), rows(handle)) == (0, [1, 2, 3])
        handle.load_as_version(2)
        assert rows(handle) == [1, 2, 3, 4, 5]
        tx.delete("b")

    assert ratified(two, "a") == (3, [1, 2, 3, 4, 5, 99])


def test_location_is_for_a_table_that_is_not_there_yet(
    two: str, tmp_path: Path
) -> None:
    for x in (1, 2):
        with dk.transaction(two) as tx:
            place = str(tmp_path / "place")
            tx.write("n", pa.table({"x": [x]}), mode="append", location=place)

    assert ratified(two, "n") == (1, [1, 2])
    assert dk.DeltaTable(table(two, "n")).table_uri == f"file://{place}/"


@pytest.mark.parametrize("end", ["sys.exit(0)", "pass"])
@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
def test_forked_child_leaves_the_transaction_to_its_parent(two: str, end: str) -> None:
    run_python(
        f"""
import os, sys
import pyarrow as pa
import delkalakedb as dk
with dk.transaction({two!r}) as tx:
    tx.write("a", pa.table({{"x": [4]}}), mode="append")
    child = os.fork()
    if child == 0:
        sys.stderr = open(os.devnull, "w")
        {end}
    else:
        status = os.waitpid(child, 0)[1]
assert (status == 0) == ({end!r} != "pass")
"""
    )

    assert ratified(two, "a") == (1, [1, 2, 3, 4])
