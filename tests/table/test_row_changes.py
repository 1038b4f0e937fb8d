"""Changes of a few rows by deletion vectors: plain deltalake's rows, and few bytes."""

import json
import math
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings, strategies as st

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.errors import CommitFailedError, DeltaError
from delkalakedb.model.actions import Add, Remove, decode_commit, known
from delkalakedb.model.predicate.predicate import Anything, parse_predicate
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.model.vectors import vector_path
from delkalakedb.settings.uri import format_uri
from delkalakedb.storage import open_store
from delkalakedb.write.engines import takes_vectors
from delkalakedb.write.engines.row_filters import row_filter, widened
from tests.support.examples import examples
from tests.support.mapped_tables import make as make_mapped
from tests.support.s3_tables import placed, sqlite
from tests.support.servers.stores import Place
from tests.support.twins import Twins

ON = {"delta.enableDeletionVectors": "true"}
FEED = {"delta.enableChangeDataFeed": "true"}
ROWS = 200


def data(first: int, count: int = ROWS) -> pa.Table:
    """Rows of two partitions, some with nulls."""
    ids = range(first, first + count)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "part": [f"p{i % 2}" for i in ids],
            "text": pa.array(
                [None if i % 7 == 0 else f"t{i % 10}" for i in ids], pa.string()
            ),
            "amount": [math.nan if i % 11 == 0 else i / 4 for i in ids],
            "nested": [{"x": i, "y": [i]} for i in ids],
        }
    )


def rows(table: DeltaTable) -> list[str]:
    """The rows, as delta-rs's scan finds them, in an order of their own."""
    return sorted(map(repr, pa.table(table.scan()).to_pylist()))


class Pair(Twins):
    """A table that takes vectors, and plain deltalake's, which doesn't."""

    def check(self) -> None:
        """Compare rows and version, ours by each reader and by the log."""
        ours, plain = self.ours, self.plain
        mirror = deltalake.DeltaTable(ours.table_uri)
        assert ours.version() == mirror.version() == plain.version()
        assert rows(ours) == rows(mirror) == rows(plain)
        assert sorted(map(repr, ours.to_pyarrow_table().to_pylist())) == rows(plain)
        assert ours.count() == plain.count()
        report = dk.verify(self.uri, deep=True)
        assert report.ok, report


def make(
    catalog_uri: str,
    folder: Path,
    feed: dict[str, str] | None = None,
    partition_by: str | None = None,
) -> Pair:
    """A pair of tables with the same two files."""
    twins = Pair(catalog_uri, folder)
    common = {"mode": "append", "partition_by": partition_by}
    for first in (0, ROWS):
        dk.write_deltalake(
            twins.uri, data(first), configuration={**ON, **(feed or {})}, **common
        )
        deltalake.write_deltalake(twins.path, data(first), configuration=feed, **common)
    twins.check()
    return twins


def last(table: DeltaTable) -> list[Any]:
    """The actions of the newest log entry."""
    folder = Path(table.table_uri.removeprefix("file://"))
    entry = folder / "_delta_log" / f"{table.version():020}.json"
    return list(decode_commit(entry.read_bytes()))


def rewritten(table: DeltaTable) -> set[str]:
    """The files that the newest version removes and doesn't add again."""
    actions = last(table)
    adds = {a.path for a in actions if isinstance(a, Add)}
    return {a.path for a in actions if isinstance(a, Remove)} - adds


def upsert(table: DeltaTable, source: pa.Table) -> dict[str, Any]:
    return (
        table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_update_all(predicate="s.id % 5 <> 0")
        .when_matched_delete(predicate="s.id % 5 = 0")
        .when_not_matched_insert_all()
        .execute()
    )


def changes(table: DeltaTable) -> Counter[str]:
    """The change data feed, without times."""
    feed = pa.table(table.load_cdf(starting_version=1)).drop_columns(
        ["_commit_timestamp"]
    )
    return Counter(map(repr, feed.select(sorted(feed.column_names)).to_pylist()))


def step(chance: random.Random) -> Any:
    """One change of few rows."""
    ids = sorted(chance.sample(range(2 * ROWS + 20), chance.randint(1, 9)))
    low, text = chance.randrange(2 * ROWS), chance.randrange(10)
    listed = ", ".join(map(str, ids))
    kind = chance.randrange(8)
    if kind == 0:
        return lambda t: t.delete(f"id IN ({listed})")
    if kind == 1:
        return lambda t: t.delete(f"id >= {low} AND id < {low + 9} AND id % 2 = 1")
    if kind == 2:
        # Without NaN, of which delta-rs finds only some: no statistics tell of it.
        where = f"text = 't{text}' AND amount > {low / 4} AND amount < 1000"
        return lambda t: t.delete(where)
    if kind == 3:
        return lambda t: t.update(
            {"text": "concat('u', text)", "amount": "amount + 1"},
            predicate=f"id IN ({listed}) AND part = 'p1'",
        )
    if kind == 4:
        # After an update that changes nothing, delta-rs has no change data.
        where = f"id = {low} AND text IS NOT NULL"
        return lambda t: t.update({"text": "NULL"}, predicate=where)
    if kind == 5:
        return lambda t: t.delete(f"nested.x = {low}")
    if kind == 6:
        return lambda t: t.delete(f"text IS NULL AND id < {low % 60}")
    source = pa.concat_tables([data(i, 1) for i in ids])
    return lambda t: upsert(t, source)


@pytest.mark.every_engine
@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(n, marks=pytest.mark.soak) for n in range(3, 99))],
)
def test_random_histories_have_the_rows_and_changes_of_plain_deltalake(
    catalog_uri: str, tmp_path: Path, seed: int
) -> None:
    chance = random.Random(seed)
    partition_by = chance.choice([None, "part"])
    twins = make(catalog_uri, tmp_path, chance.choice([FEED, {}]), partition_by)
    for _ in range(8):
        ours, theirs = twins.do(step(chance))
        told = {k for k in theirs if "rows" in k and "copied" not in k}
        told -= {"num_output_rows"}
        assert {k: ours[k] for k in told} == {k: theirs[k] for k in told}
    versions = range(twins.plain.version() + 1)
    for version in versions:
        assert rows(dk.DeltaTable(twins.uri, version)) == rows(
            deltalake.DeltaTable(twins.path, version)
        )
    table = twins.ours
    assert len(polars.scan_delta(table).collect()) == table.count()
    if table.metadata().configuration.get("delta.enableChangeDataFeed"):
        assert changes(twins.ours) == changes(twins.plain)


def test_few_rows_are_marked_and_many_are_rewritten(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = make(catalog_uri, tmp_path)
    done, _ = twins.do(lambda t: t.delete("id IN (1, 2, 300)"))
    assert rewritten(twins.ours) == set()
    assert (done["num_removed_files"], done["num_deletion_vectors_added"]) == (0, 2)
    adds = [a for a in last(twins.ours) if isinstance(a, Add)]
    assert {known(a.deletion_vector).storage_type for a in adds} == {"i"}
    assert [json.loads(known(a.stats))["tightBounds"] for a in adds] == [False, False]
    assert {json.loads(known(a.stats))["numRecords"] for a in adds} == {ROWS}

    done, _ = twins.do(lambda t: t.delete("id < 100"))
    assert len(rewritten(twins.ours)) == 1
    assert "num_deletion_vectors_added" not in done


CONDITIONS = {
    "superset": "id < 190 AND upper(text) = 'T8' AND id % 10 = 8 AND id > 170",
    "function": "upper(text) = 'T5' AND abs(id) < 20",
    "cast": "CAST(id AS STRING) = '17'",
    "modulo": "id % 100 = 3",
    "nested": "nested.x = 35",
    "partition": "part = 'p1' AND nested.x = 35",
    "comment": "id % 100 = 4 -- four",
    "all of a file": "id + 0 < 4",
}


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
@pytest.mark.parametrize("partition_by", [None, "part"], ids=["plain", "partitioned"])
def test_rows_that_only_delta_rs_finds_are_marked(
    catalog_uri: str, tmp_path: Path, condition: str, partition_by: str | None
) -> None:
    twins = make(catalog_uri, tmp_path, FEED, partition_by)
    first = {*twins.ours.file_uris()}
    updates = {"amount": "amount + 1"}
    done, told = twins.do(lambda t: t.update(updates, predicate=condition))
    assert done["num_deletion_vectors_added"] > 0
    assert done["num_updated_rows"] == told["num_updated_rows"] > 0
    done, told = twins.do(lambda t: t.delete(condition))
    assert done["num_deleted_rows"] == told["num_deleted_rows"] > 0
    assert first <= {*twins.ours.file_uris()}
    if not partition_by:
        assert changes(twins.ours) == changes(twins.plain)


def test_many_rows_that_only_delta_rs_finds_are_rewritten(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = make(catalog_uri, tmp_path)
    done, _ = twins.do(lambda t: t.delete("id % 2 = 0"))
    assert "num_deletion_vectors_added" not in done
    done, _ = twins.do(lambda t: t.delete("id % 1000 = 999"))
    assert done["num_deleted_rows"] == 0


KEYS: dict[str, pa.Array] = {
    "double": pa.array([0.0, -0.0, math.nan, 0.1, 1e300, -7.5, 2.0, 3.0]),
    "float": pa.array([0.0, -0.0, math.nan, 0.1, 1e30, -7.5, 2.0, 3.0], pa.float32()),
    "decimal": pa.array([Decimal(n) / 4 for n in range(8)], pa.decimal128(12, 2)),
    "binary": pa.array([bytes([n]) for n in range(8)], pa.binary()),
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_rows_of_a_merge_are_found_by_keys_of_any_type(
    catalog_uri: str, tmp_path: Path, keys: pa.Array
) -> None:
    twins = Pair(catalog_uri, tmp_path)
    more = pa.nulls(92, keys.type)
    given = pa.table({"k": pa.concat_arrays([keys, more]), "v": range(100)})
    dk.write_deltalake(twins.uri, given, configuration=ON)
    deltalake.write_deltalake(twins.path, given)
    first = {*twins.ours.file_uris()}
    for at in range(len(keys)):
        source = pa.table({"k": keys.slice(at, 1), "v": [1000 + at]})
        done, told = twins.do(
            lambda t, source=source: (
                t.merge(source, "t.k = s.k", "s", "t")
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute()
            )
        )
        names = ("num_target_rows_updated", "num_target_rows_inserted")
        assert [done[n] for n in names] == [told[n] for n in names]
        assert first <= {*twins.ours.file_uris()}


def test_merge_by_source_finds_the_rows_of_its_clauses(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = make(catalog_uri, tmp_path, FEED)
    first = {*twins.ours.file_uris()}

    def merge(table: DeltaTable, gone: str | None) -> Any:
        source = pa.concat_tables([data(i, 1) for i in (5, 6, 205, 1000)])
        return (
            table.merge(source, "t.id = s.id", "s", "t")
            .when_matched_update({"text": "'matched'"})
            .when_not_matched_insert_all()
            .when_not_matched_by_source_update(
                {"text": "'left'"}, predicate="t.id > 205 AND t.id < 209"
            )
            .when_not_matched_by_source_delete(predicate=gone)
            .execute()
        )

    names = ("updated", "deleted", "inserted")
    for gone in ("t.id < 7 AND t.part = 'p1'", "t.id >= 385 AND upper(t.text) = 'T9'"):
        done, told = twins.do(lambda t, gone=gone: merge(t, gone))
        wanted = [f"num_target_rows_{name}" for name in names]
        assert [done[n] for n in wanted] == [told[n] for n in wanted]
        assert done["num_deletion_vectors_added"] > 0
        assert first <= {*twins.ours.file_uris()}
    assert changes(twins.ours) == changes(twins.plain)
    done, _ = twins.do(lambda t: merge(t, None))
    assert "num_deletion_vectors_added" not in done


@pytest.mark.parametrize("predicate", ["id < 7 AND id > 2", "id + 0 = 5"])
def test_overwrite_of_few_rows_marks_them(
    catalog_uri: str, tmp_path: Path, predicate: str
) -> None:
    twins = make(catalog_uri, tmp_path, FEED)

    def replace(table: DeltaTable) -> None:
        write = dk.write_deltalake if isinstance(table, dk.DeltaTable) else None
        (write or deltalake.write_deltalake)(
            table, data(5, 1), mode="overwrite", predicate=predicate
        )

    twins.do(replace)
    assert rewritten(twins.ours) == set()
    twins.check()
    assert changes(twins.ours) == changes(twins.plain)
    ours, plain = (t.history(1)[0] for t in (twins.ours, twins.plain))
    found, told = ours["operationMetrics"], plain["operationMetrics"]
    assert found.keys() == {*told, "num_deletion_vectors_added"}
    assert found["num_added_rows"] == told["num_added_rows"]
    assert found["num_removed_files"] == 0
    with pytest.raises(Exception, match=r"(?i)predicate|invalid|match"):
        dk.write_deltalake(
            twins.ours, data(900, 1), mode="overwrite", predicate=predicate
        )


def test_file_whose_last_rows_go_is_removed(
    catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__MODE", "always")
    uri = Twins(catalog_uri, tmp_path).uri
    for first in (0, 10):
        dk.write_deltalake(uri, data(first, 10), mode="append", configuration=ON)
    table = dk.DeltaTable(uri)
    table.delete("id IN (0, 1, 2)")
    table.delete("id < 10 AND id > 2")

    assert table.count() == 10
    assert len(rewritten(table)) == 1
    assert len(table.file_uris()) == 1
    assert dk.verify(uri, deep=True).ok


@pytest.mark.parametrize("mode", ["never", "always"])
def test_setting_forces_the_way(
    catalog_uri: str, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__MODE", mode)
    uri = Twins(catalog_uri, tmp_path).uri
    dk.write_deltalake(uri, data(0), configuration=ON)
    dk.DeltaTable(uri).delete("amount >= 1 OR id = 3")
    assert len(rewritten(dk.DeltaTable(uri))) == (mode == "never")
    assert dk.DeltaTable(uri).count() == data(0).num_rows - len(
        [r for r in data(0).to_pylist() if not r["amount"] < 1 or r["id"] == 3]
    )


def test_large_vectors_share_a_file_that_vacuum_knows(
    catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__INLINE_BYTES", "0")
    monkeypatch.setenv("DELKALAKEDB_MIRROR__CHECKPOINT_INTERVAL", "1")
    uri = Twins(catalog_uri, tmp_path).uri
    for first in (0, ROWS):
        dk.write_deltalake(uri, data(first), mode="append", configuration=ON)
    table = dk.DeltaTable(uri)
    table.delete("id IN (5, 6, 205)")
    first = [known(a.deletion_vector) for a in last(table) if isinstance(a, Add)]
    assert [one.storage_type for one in first] == ["u", "u"]
    assert len({one.path_or_inline_dv for one in first}) == 1
    table.update({"text": "'new'"}, predicate="id = 6 OR id = 7")
    folder = Path(table.table_uri.removeprefix("file://"))
    assert len(list(folder.glob("deletion_vector_*.bin"))) == 2
    expected = rows(table)
    assert rows(deltalake.DeltaTable(table.table_uri)) == expected
    (folder / "deletion_vector_00000000-0000-0000-0000-000000000000.bin").touch()

    gone = table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)

    # The second vector of the first file replaced one of two in the older file.
    assert gone == ["deletion_vector_00000000-0000-0000-0000-000000000000.bin"]
    assert rows(dk.DeltaTable(uri)) == expected
    assert dk.verify(uri, deep=True).ok


def test_compaction_folds_vectors_into_new_files(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = make(catalog_uri, tmp_path)
    twins.do(lambda t: t.delete("id IN (1, 2, 300)"))
    expected = rows(twins.ours)
    twins.ours.optimize.compact()
    assert rows(twins.ours) == expected
    assert twins.ours.get_add_actions()["num_records"].to_pylist() == [2 * ROWS - 3]


def test_changes_of_one_transaction_build_on_each_other(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = make(catalog_uri, tmp_path)
    with dk.transaction(catalog_uri) as tx:
        tx.delete("t", "id = 1")
        tx.update("t", predicate="id IN (2, 3)", updates={"text": "'two'"})
        tx.delete("t", "id = 2")
    table = twins.ours
    assert table.count() == 2 * ROWS - 2
    found = table.to_pyarrow_table(filters=[("text", "=", "two")])
    assert found["id"].to_pylist() == [3]
    assert dk.verify(twins.uri, deep=True).ok


def test_rules_of_the_table_hold(catalog_uri: str, tmp_path: Path) -> None:
    twins = make(catalog_uri, tmp_path)
    twins.ours.alter.add_constraint({"low": "id < 100000"})
    before = twins.ours.version()
    with pytest.raises(Exception, match="validation"):
        twins.ours.update({"id": "200000"}, predicate="id = 5")
    source = pa.concat_tables([data(5, 1), data(5, 1)])
    with pytest.raises(Exception, match=r"(?i)multiple|matched"):
        upsert(twins.ours, source)
    twins.ours.alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(DeltaError, match="append"):
        twins.ours.delete("id = 5")
    assert twins.ours.version() == before + 1
    assert twins.ours.count() == 2 * ROWS


ONCE = deltalake.CommitProperties(max_commit_retries=0)
Change = Callable[[DeltaTable], Any]


def deleting(*ids: int) -> Change:
    where = f"id IN ({', '.join(map(str, ids))})"
    return lambda t: t.delete(where, commit_properties=ONCE)


def updating(text: str, *ids: int) -> Change:
    where = f"id IN ({', '.join(map(str, ids))})"
    new = {"text": f"'{text}'"}
    return lambda t: t.update(new, predicate=where, commit_properties=ONCE)


def merging(*ids: int) -> Change:
    source = pa.concat_tables([data(i, 1) for i in ids])
    return lambda t: (
        t.merge(source, "t.id = s.id", "s", "t", commit_properties=ONCE)
        .when_matched_update({"text": "'merged'"})
        .when_not_matched_insert_all()
        .execute()
    )


def compacting(table: DeltaTable) -> None:
    table.optimize.compact(commit_properties=ONCE)


# bytes: all vectors are inline, those of one or two rows of a file, or none
LIMITS = {"inline": "4096", "few rows": "37", "files": "0"}


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize(
    ("first", "then", "goes"),
    [
        (deleting(1, 2), deleting(3, 4), True),
        (deleting(1, 2), deleting(2, 3), False),
        (deleting(1), updating("x", 5), True),
        (updating("x", 1), updating("y", 150), True),
        (updating("x", 1), updating("y", 1), False),
        (updating("x", 3), deleting(3), False),
        (merging(7), deleting(8, 250), True),
        # The new file's ids are from 7 to 1000, so it may hold the rows to delete.
        (merging(7, 1000), deleting(8, 250), False),
        (merging(7), merging(7), False),
        (deleting(5), compacting, False),
        (compacting, deleting(5), False),
        (
            deleting(1),
            lambda t: t.delete("amount < 1000", commit_properties=ONCE),
            False,
        ),
    ],
    ids=range(12),
)
def test_changes_of_other_rows_of_one_file_both_go_through(
    catalog_uri: str,
    tmp_path: Path,
    first: Change,
    then: Change,
    goes: bool,
    limit: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__INLINE_BYTES", limit)
    twins = make(catalog_uri, tmp_path)
    twins.do(deleting(0))
    stale = twins.ours
    first(twins.ours)
    if not goes:
        with pytest.raises(CommitFailedError):
            then(stale)
        return
    then(stale)
    first(twins.plain)
    then(twins.plain)
    twins.check()
    assert rewritten(twins.ours) == set()


@pytest.mark.parametrize("limit", ["4096", "0"], ids=["inline", "files"])
def test_transaction_of_two_changes_of_one_file_keeps_what_another_deletes(
    catalog_uri: str, tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__INLINE_BYTES", limit)
    twins = make(catalog_uri, tmp_path)
    twins.do(deleting(0))
    with dk.transaction(catalog_uri) as tx:
        tx.delete("t", "id = 1")
        tx.update("t", predicate="id = 2", updates={"text": "'two'"})
        tx.delete("t", "id IN (3, 250)")
        twins.ours.delete("id IN (5, 251)")
    for change in (deleting(5, 251), deleting(1), updating("two", 2)):
        change(twins.plain)
    deleting(3, 250)(twins.plain)
    assert rows(twins.ours) == rows(twins.plain)
    assert dk.verify(twins.uri, deep=True).ok


def test_transaction_that_deletes_a_row_of_another_conflicts(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = make(catalog_uri, tmp_path)

    def change() -> None:
        with dk.transaction(catalog_uri) as tx:
            tx.delete("t", "id = 1")
            tx.delete("t", "id = 2")
            twins.ours.delete("id IN (2, 3)")

    with pytest.raises(CommitFailedError):
        change()
    assert twins.ours.count() == 2 * ROWS - 2


def test_rows_that_are_restored_meanwhile_conflict(
    catalog_uri: str, tmp_path: Path
) -> None:
    twins = make(catalog_uri, tmp_path)
    twins.ours.delete("id IN (1, 2)")
    stale = twins.ours
    twins.ours.restore(twins.ours.version() - 1)
    with pytest.raises(CommitFailedError):
        stale.delete("id = 3", commit_properties=ONCE)
    stale.delete("id < 5")
    assert twins.ours.count() == 2 * ROWS - 5


def test_last_rows_of_a_file_deleted_by_two_remove_it(
    catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__MODE", "always")
    uri = Twins(catalog_uri, tmp_path).uri
    dk.write_deltalake(uri, data(0, 10), configuration=ON)
    stale = dk.DeltaTable(uri)
    deleting(0, 1, 2, 3, 4)(dk.DeltaTable(uri))
    deleting(5, 6, 7, 8, 9)(stale)
    assert dk.DeltaTable(uri).file_uris() == []
    assert dk.verify(uri, deep=True).ok


def stored_vectors(table: DeltaTable) -> list[str]:
    """The files of vectors at a table's location."""
    folder = Path(table.table_uri.removeprefix("file://"))
    return sorted(path.name for path in folder.glob("*.bin"))


@pytest.mark.parametrize("row", [3, 1], ids=["other row", "same row"])
def test_files_of_vectors_are_left_to_versions_only(
    catalog_uri: str, tmp_path: Path, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__INLINE_BYTES", "0")
    twins = make(catalog_uri, tmp_path)
    stale = twins.ours
    deleting(1, 201)(twins.ours)
    if row == 3:
        deleting(row, 202)(stale)
    else:
        with pytest.raises(CommitFailedError):
            deleting(row, 202)(stale)
    named = {
        vector_path(known(action.deletion_vector))
        for version in range(2, twins.ours.version() + 1)
        for action in last(dk.DeltaTable(twins.uri, version))
        if isinstance(action, Add)
    }
    assert stored_vectors(twins.ours) == sorted(filter(None, named))
    assert len(named) == (2 if row == 3 else 1)


def test_union_beyond_the_bound_of_a_commit_is_in_a_file(
    catalog_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Bytes: two vectors of two rows each are inline, and not two of four rows each.
    monkeypatch.setenv("DELKALAKEDB_VECTORS__INLINE_COMMIT_BYTES", "75")
    twins = make(catalog_uri, tmp_path)
    stale = twins.ours
    deleting(1, 11, 201, 211)(twins.ours)
    deleting(21, 31, 221, 231)(stale)
    adds = [a for a in last(twins.ours) if isinstance(a, Add)]
    sizes = {known(a.deletion_vector).storage_type for a in adds}
    assert sizes == {"i", "u"}
    assert twins.ours.count() == 2 * ROWS - 8
    assert dk.verify(twins.uri, deep=True).ok


@pytest.mark.parametrize("limit", LIMITS.values(), ids=LIMITS)
def test_writers_that_delete_other_rows_of_one_file_never_run_again(
    catalog_uri: str, tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__INLINE_BYTES", limit)
    twins = make(catalog_uri, tmp_path)
    tables = [twins.ours for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: deleting(n, n + 10)(tables[n]), range(6)))
    left = {row["id"] for row in pa.table(twins.ours.scan()).to_pylist()}
    gone = {*range(6), *range(10, 16)}
    assert left == set(range(2 * ROWS)) - gone
    assert dk.verify(twins.uri, deep=True).ok


@sqlite
def test_rows_on_an_object_store_are_found_and_marked(
    catalog_uri: str, s3: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__INLINE_BYTES", "0")
    uri, options = placed(catalog_uri, s3), s3.storage_options
    for first in (0, ROWS):
        rows_of = data(first).drop_columns(["nested"])
        dk.write_deltalake(
            uri, rows_of, mode="append", configuration=ON, storage_options=options
        )
    table = dk.DeltaTable(uri, storage_options=options)
    table.delete("id IN (1, 201)")
    table.update({"text": "'new'"}, predicate="id = 2")
    stored = open_store(s3.location, options).list()
    assert sum(file.path.endswith(".bin") for file in stored) == 2
    mirror = deltalake.DeltaTable(s3.location, storage_options=options)
    found = {r["id"]: r["text"] for r in pa.table(mirror.scan()).to_pylist()}
    assert found.keys() == {*range(2 * ROWS)} - {1, 201}
    assert found[2] == "new"
    assert dk.verify(uri, deep=True, storage_options=options).ok


def test_columns_of_odd_names_are_found(catalog_uri: str, tmp_path: Path) -> None:
    uri = Twins(catalog_uri, tmp_path).uri
    names = ["a b", 'we"ird', "Ünï"]
    dk.write_deltalake(
        uri, pa.table({name: range(50) for name in names}), configuration=ON
    )
    table = dk.DeltaTable(uri)
    for number, name in enumerate(names):
        quoted = name.replace('"', '""')
        table.delete(f'"{quoted}" = {number}')
    assert table.count() == 47
    assert rewritten(table) == set()


def test_rows_that_stay_are_found_in_partitions_of_odd_names(
    catalog_uri: str, tmp_path: Path
) -> None:
    uri = Twins(catalog_uri, tmp_path).uri
    parts = ["a b", "x=1/%", "ü:*?'"]
    given = pa.table(
        {"id": range(90), "part": parts * 30, "text": [f"t{i}" for i in range(90)]}
    )
    dk.write_deltalake(uri, given, partition_by=["part"], configuration=ON)
    # Of the rows with these ids, some don't match the condition.
    dk.DeltaTable(uri).delete("id < 6 AND text LIKE '%4'")
    assert rewritten(dk.DeltaTable(uri)) == set()
    assert dk.DeltaTable(uri).count() == 89


def test_statistics_stay_as_their_writer_wrote_them(
    catalog_uri: str, tmp_path: Path
) -> None:
    uri = Twins(catalog_uri, tmp_path).uri
    folder = tmp_path / "foreign"
    numbers = [Decimal("0.5"), Decimal("12345678901234567890.9999999999")]
    values = pa.array(numbers * 10, pa.decimal128(38, 10))
    data = pa.table({"id": range(20), "d": values})
    deltalake.write_deltalake(folder, data, configuration=ON)
    # as Delta Spark writes statistics
    entry = folder / "_delta_log" / f"{0:020}.json"
    spark = entry.read_text().replace("1.2345678901234567e+19", str(numbers[1]))
    entry.write_text(spark)
    assert dk.import_table(str(folder), uri).ok
    table = dk.DeltaTable(uri)
    table.delete("id = 1")
    (add,) = (a for a in last(table) if isinstance(a, Add))
    assert '"d":12345678901234567890.9999999999' in str(add.stats)
    assert json.loads(known(add.stats))["tightBounds"] is False


def test_mapped_columns_are_left_to_delta_rs(catalog: Catalog, tmp_path: Path) -> None:
    make_mapped("name vectors", catalog, tmp_path)
    table = dk.DeltaTable(format_uri(catalog.uri.with_table(catalog.tables()[0].name)))
    table.alter.set_table_properties(ON)
    assert not takes_vectors(catalog.snapshot(table._table.name))


# --- the search for rows ----------------------------------------------------------

SCHEMA = parse_schema(
    '{"type":"struct","fields":['
    + ",".join(
        f'{{"name":"{n}","type":"{t}","nullable":true,"metadata":{{}}}}'
        for n, t in {
            "i": "integer",
            "l": "long",
            "f": "float",
            "d": "double",
            "s": "string",
            "b": "boolean",
            "day": "date",
        }.items()
    )
    + "]}"
)
FLOATS = st.sampled_from([0.0, -0.0, 0.1, -1.5, math.nan, math.inf, -math.inf, 7.0])
VALUES = {
    "i": (pa.int32(), st.integers(-3, 3)),
    "l": (pa.int64(), st.integers(-3, 3) | st.sampled_from([2**53, 2**53 + 1])),
    "f": (pa.float32(), FLOATS),
    "d": (pa.float64(), FLOATS),
    "s": (pa.string(), st.sampled_from(["", "a", "A", "ab", "é", "\U0001f600"])),
    "b": (pa.bool_(), st.booleans()),
    "day": (
        pa.date32(),
        st.dates(date(2020, 1, 1), date(2020, 1, 4)),
    ),
}
LITERALS = {
    "i": ["1", "-2", "1.5", "0"],
    "l": ["1", "9007199254740993", "9007199254740992.0", "0.5"],
    "f": ["0.1", "0.0", "-0.0", "7", "1e300"],
    "d": ["0.1", "0", "-0.0", "-1.5", "7"],
    "s": ["'a'", "'ab'", "''", "'é'"],
    "b": ["true", "false"],
    "day": ["'2020-01-02'", "DATE '2020-01-03'"],
}


@st.composite
def conditions(draw: st.DrawFn) -> str:
    def leaf() -> str:
        name = draw(st.sampled_from([*LITERALS]))
        one = draw(st.sampled_from(LITERALS[name]))
        kind = draw(st.sampled_from(["cmp", "in", "null", "func"]))
        if kind == "cmp":
            op = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
            if name == "b":
                op = draw(st.sampled_from(["=", "<>"]))
            return f"{name} {op} {one}"
        if kind == "in":
            return f"{name} IN ({one}, {draw(st.sampled_from(LITERALS[name]))})"
        if kind == "null":
            return f"{name} IS {draw(st.sampled_from(['', 'NOT ']))}NULL"
        return "i % 2 = 1"

    text = leaf()
    for _ in range(draw(st.integers(0, 2))):
        text = f"({text}) {draw(st.sampled_from(['AND', 'OR']))} ({leaf()})"
    return f"NOT ({text})" if draw(st.booleans()) else text


@settings(max_examples=examples(120))
@given(
    st.lists(
        st.fixed_dictionaries({n: st.none() | v for n, (_, v) in VALUES.items()}),
        min_size=1,
        max_size=6,
    ),
    conditions(),
)
def test_search_finds_every_row_that_delta_rs_deletes(
    found: list[dict[str, Any]], condition: str
) -> None:
    columns = {n: pa.array([r[n] for r in found], t) for n, (t, _) in VALUES.items()}
    table = pa.table({"n": pa.array(range(len(found)), pa.int64()), **columns})
    with tempfile.TemporaryDirectory() as folder:
        deltalake.write_deltalake(folder, table)
        plain = deltalake.DeltaTable(folder)
        try:
            plain.delete(condition)
        except Exception:
            # delta-rs refuses some comparisons of types
            return
        left = set(plain.to_pyarrow_table(columns=["n"])["n"].to_pylist())
    predicate = widened(parse_predicate(condition, SCHEMA), frozenset(VALUES))
    if isinstance(predicate, Anything):
        return
    kept = table.to_batches()[0].filter(row_filter(predicate))["n"].to_pylist()
    assert set(range(len(found))) - left <= set(kept)
