"""A merge looks at the files that its source can match, and changes the same rows."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable
from hypothesis import HealthCheck, given, settings, strategies as st

import delkalakedb as dk
from delkalakedb.errors import CommitFailedError
from delkalakedb.model.predicate.merge_condition import parse_merge
from delkalakedb.model.schema.schema import parse_schema
from tests.support.twins import Twins

NAMES = {"source_alias": "s", "target_alias": "t"}
FILES = 4
# To delta-rs what follows the AND belongs to the right operand.
ODD = "(t.id = s.id)\nIS NOT DISTINCT FROM true AND"


@pytest.fixture
def twins(tmp_path: Path) -> Twins:
    """Four files of three rows: ids 0 to 2, 10 to 12, and so on, and one null."""
    twins = Twins(f"deltasql://sqlite/{tmp_path}/meta.db", tmp_path)
    for number in range(FILES):
        twins.write(rows(*range(number * 10, number * 10 + 3)), mode="append")
    twins.write(rows(None), mode="append")
    return twins


def rows(*ids: int | None, kind: pa.DataType | None = None) -> pa.Table:
    texts = [None if i is None else f"k{i:03}" for i in ids]
    numbers = pa.array(ids, kind or pa.int64())
    return pa.table({"id": numbers, "k": pa.array(texts, pa.string())})


def merge(
    source: Any, condition: str = "s.id = t.id", **names: str
) -> Callable[[DeltaTable], dict[str, Any]]:
    def execute(table: DeltaTable) -> dict[str, Any]:
        merger = table.merge(source, condition, **{**NAMES, **names})
        merger.when_matched_update({"k": "'changed'"}).when_not_matched_insert_all()
        return merger.execute()

    return execute


def looked_at(metrics: dict[str, Any]) -> int:
    scanned: int = metrics["num_target_files_scanned"]
    skipped: int = metrics["num_target_files_skipped_during_scan"]
    return scanned + skipped


@pytest.mark.parametrize(
    ("source", "condition", "files"),
    [
        (rows(11, 15), "s.id = t.id", 1),
        (rows(11, 25), "t.id = s.id AND s.k > 'a'", 2),
        (rows(None, 11), "s.id = t.id", 1),
        (rows(None), "s.id = t.id", 0),
        (rows(), "s.id = t.id", 0),
        (rows(1, 21), "s.id = t.id AND t.id > 15", 1),
        (rows(1, 31), "(s.k = t.k) AND (t.id = s.id AND t.k = 'k001')", 1),
        (rows(11), "s.k = t.k", 1),
        (rows(11, kind=pa.int32()), "s.id = t.id", 1),
        (rows(11, kind=pa.uint64()), "s.id = t.id", 1),
        (rows(11), "s.id < t.id", FILES + 1),
        (rows(11), "s.id = t.id OR t.id = 1", FILES + 1),
        (rows(11), "NOT s.id = t.id", FILES + 1),
        (rows(11), "s.id + 10 = t.id", FILES + 1),
        (rows(11), "s.id IS NOT DISTINCT FROM t.id", FILES + 1),
        (rows(11), "CAST(s.id AS VARCHAR) = t.k", FILES + 1),
        (rows(11), "s.id = t.id AND s.k IS NOT DISTINCT FROM t.k", 1),
        (rows(11), "(t.k IS DISTINCT FROM s.k) AND s.id = t.id", 1),
        (rows(11), f"{ODD} t.id = s.id", FILES + 1),
        (rows(11), f"NOT {ODD} t.id = 11", FILES + 1),
        (rows(11), f"t.id = s.id OR {ODD} t.k = 'k011'", FILES + 1),
        (rows(11), f"s.id = t.id AND {ODD} t.id < 5", FILES + 1),
        (rows(11, kind=pa.float64()), "s.id = t.id", FILES + 1),
        (rows(11), "true", FILES + 1),
    ],
)
def test_condition_chooses_files_and_the_rows_are_those_of_deltalake(
    twins: Twins, source: pa.Table, condition: str, files: int
) -> None:
    ours, _ = twins.do(merge(source, condition))
    assert looked_at(ours) == files


def test_rows_that_no_source_row_matches_need_every_file(twins: Twins) -> None:
    def execute(table: DeltaTable) -> dict[str, Any]:
        merger = table.merge(rows(11), "s.id = t.id", **NAMES)
        return merger.when_not_matched_by_source_delete("t.id > 20").execute()

    ours, _ = twins.do(execute)
    assert looked_at(ours) == FILES + 1


def test_one_shot_source_is_read_once_and_merged_whole(twins: Twins) -> None:
    batches = [rows(i).to_batches()[0] for i in (11, 12, 13)]
    schema = batches[0].schema

    def execute(table: DeltaTable) -> dict[str, Any]:
        reader = pa.RecordBatchReader.from_batches(schema, iter(batches))
        return merge(reader)(table)

    ours, _ = twins.do(execute)
    assert ours["num_target_rows_updated"] == 2
    assert ours["num_target_rows_inserted"] == 1
    assert looked_at(ours) == 1


@pytest.mark.parametrize(
    "values",
    [
        [date(2024, 1, day) for day in (1, 2, 3)],
        [datetime(2024, 1, day, 3, 4, 5, 678901, UTC) for day in (1, 2, 3)],
        [datetime(2024, 1, day, 3, 4, 5, 678901) for day in (1, 2, 3)],
        ["a", "b", "c"],
    ],
    ids=["date", "timestamp", "timestamp_ntz", "string"],
)
@pytest.mark.parametrize("partition_by", [None, ["key"]])
def test_keys_of_other_types_choose_files(
    tmp_path: Path, values: list[Any], partition_by: list[str] | None
) -> None:
    twins = Twins(f"deltasql://sqlite/{tmp_path}/meta.db", tmp_path)
    for value in values:
        data = pa.table({"key": [value], "n": [1]})
        twins.write(data, mode="append", partition_by=partition_by)

    def execute(table: DeltaTable) -> dict[str, Any]:
        source = pa.table({"key": [values[1], None], "n": [7, 8]})
        merger = table.merge(source, "s.key = t.key", **NAMES)
        return merger.when_matched_update_all().when_not_matched_insert_all().execute()

    ours, _ = twins.do(execute)
    assert looked_at(ours) == 1


def test_rival_outside_of_the_keys_is_no_conflict(twins: Twins) -> None:
    stale = twins.ours
    dk.DeltaTable(twins.uri).delete("id = 31")
    merge(rows(11))(stale)
    assert twins.ours.version() == FILES + 2


def test_rival_among_the_keys_is_seen(twins: Twins) -> None:
    stale = twins.ours
    dk.write_deltalake(twins.uri, rows(15), mode="append")
    metrics = merge(rows(11, 15))(stale)
    assert metrics["num_target_rows_updated"] == 2


def test_rival_among_the_keys_is_a_conflict_without_retries(twins: Twins) -> None:
    stale = twins.ours
    dk.write_deltalake(twins.uri, rows(15), mode="append")
    properties = CommitProperties(max_commit_retries=0)
    merger = stale.merge(
        rows(11, 15), "s.id = t.id", commit_properties=properties, **NAMES
    )
    with pytest.raises(CommitFailedError):
        merger.when_matched_delete().execute()


def test_merge_in_a_transaction_sees_what_that_wrote(twins: Twins) -> None:
    with dk.transaction(twins.uri) as tx:
        tx.write("t", rows(55), mode="append")
        merger = tx.merge("t", rows(55), "s.id = t.id", **NAMES)
        metrics = merger.when_matched_update({"k": "'changed'"}).execute()
    assert metrics["num_target_rows_updated"] == 1


def test_condition_that_is_not_understood_says_nothing() -> None:
    schema = parse_schema('{"type": "struct", "fields": []}')
    for condition in ("((", "s.id = t.id; DROP TABLE x", ""):
        found = parse_merge(
            condition, schema, ["id"], target_alias="t", source_alias="s"
        )
        assert not found.keys
        assert not found.parts


ids = st.lists(st.none() | st.integers(0, 40), max_size=6)
conditions = st.sampled_from(
    [
        "s.id = t.id",
        "s.id = t.id AND s.k = t.k",
        "s.id = t.id AND t.id > 20",
        "s.k = t.k AND (t.id < 5 OR t.id IS NULL)",
        "s.id = t.id AND NOT t.k = 'k011'",
    ]
)


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(source=ids.map(set), condition=conditions)
def test_any_source_gives_the_rows_of_deltalake(
    twins: Twins, source: set[int | None], condition: str
) -> None:
    """Each source on top of what the ones before it left."""
    twins.do(merge(rows(*sorted(source, key=str)), condition))
