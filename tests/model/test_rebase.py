"""Row ids, in-commit timestamps and commitInfo at the version a commit gets."""

import json

import pytest
from hypothesis import given, settings, strategies as st
from msgspec import UNSET, structs

from delkalakedb.errors import ProtocolError
from delkalakedb.model.actions import (
    Add,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    Remove,
    Txn,
    encode_commit,
    known,
)
from delkalakedb.model.new_actions import (
    NO_ROW_IDS,
    assign_row_ids,
    carry_row_ids,
    gives_row_ids,
    in_commit_timestamp,
    row_id_high_water_mark,
    row_tracking_domain,
    with_row_ids,
    with_timestamp_enablement,
)
from tests.support.examples import examples

ENABLED = {"delta.enableInCommitTimestamps": "true"}
SINCE = {
    "delta.inCommitTimestampEnablementVersion": "3",
    "delta.inCommitTimestampEnablementTimestamp": "500",
}


def add(path: str, records: int | None = None, base: int | None = None) -> Add:
    return Add(
        path=path,
        partition_values={},
        size=1,
        modification_time=0,
        data_change=True,
        stats=UNSET if records is None else json.dumps({"numRecords": records}),
        base_row_id=UNSET if base is None else base,
    )


def metadata(**configuration: str) -> Metadata:
    return Metadata(
        id="t",
        format=Format(provider="parquet"),
        schema_string="{}",
        partition_columns=[],
        configuration=dict(configuration),
    )


def test_new_files_get_consecutive_ranges_above_the_mark() -> None:
    adds, mark = assign_row_ids([add("a", 3), add("b", 0), add("c", 5)], 9, version=7)
    assert [a.base_row_id for a in adds] == [10, 13, 13]
    assert [a.default_row_commit_version for a in adds] == [7, 7, 7]
    assert mark == 17


def test_first_row_of_a_table_is_zero() -> None:
    adds, mark = assign_row_ids([add("a", 2)], NO_ROW_IDS, version=0)
    assert (adds[0].base_row_id, mark) == (0, 1)


def test_file_that_was_there_before_keeps_its_ids() -> None:
    old = structs.replace(add("a", base=4), default_row_commit_version=2)
    assert assign_row_ids([old], 9, version=7) == ((old,), 9)


def test_file_with_an_id_but_no_version_gets_this_version() -> None:
    adds, _ = assign_row_ids([add("a", base=4)], 9, version=7)
    assert adds[0].default_row_commit_version == 7


def test_new_file_with_another_commit_version_gets_this_one() -> None:
    staged = structs.replace(add("a", 1), default_row_commit_version=3)
    adds, _ = assign_row_ids([staged], 9, version=7)
    assert adds[0].default_row_commit_version == 7


@pytest.mark.parametrize(
    "stats", [UNSET, None, "{}", '{"numRecords":null}', "not json"]
)
def test_file_without_a_row_count_is_refused(stats: str | None) -> None:
    staged = structs.replace(add("a.parquet"), stats=stats)
    with pytest.raises(ProtocolError, match=r"a\.parquet"):
        assign_row_ids([staged], 0, version=1)


def test_id_above_the_mark_is_refused() -> None:
    with pytest.raises(ProtocolError, match="high water mark 9"):
        assign_row_ids([add("a", 1, base=10)], 9, version=1)


staged_adds = st.lists(
    st.tuples(st.integers(0, 50), st.none() | st.integers(0, 99)), max_size=12
)


@settings(max_examples=examples(200), deadline=None)
@given(staged_adds, st.integers(99, 10**12), st.integers(0, 10**6))
def test_fresh_ranges_are_disjoint_above_the_old_mark_and_end_at_the_new(
    files: list[tuple[int, int | None]], mark: int, version: int
) -> None:
    staged = [add(str(i), n, base) for i, (n, base) in enumerate(files)]
    adds, new_mark = assign_row_ids(staged, mark, version)
    fresh = [
        row
        for (records, base), given in zip(files, adds, strict=True)
        if base is None
        for row in rows(given, records)
    ]
    assert fresh == list(range(mark + 1, new_mark + 1))
    assert [a.path for a in adds] == [a.path for a in staged]
    kept = [(base, a.base_row_id) for (_, base), a in zip(files, adds, strict=True)]
    assert all(base == now for base, now in kept if base is not None)


def rows(given: Add, records: int) -> range:
    base = known(given.base_row_id)
    assert base is not None
    return range(base, base + records)


def test_mark_survives_its_domain_in_the_protocols_form() -> None:
    domain = row_tracking_domain(41)
    assert encode_commit([domain]) == (
        b'{"domainMetadata":{"domain":"delta.rowTracking",'
        b'"configuration":"{\\"rowIdHighWaterMark\\":41}","removed":false}}\n'
    )
    assert row_id_high_water_mark(domain) == 41


def test_table_without_the_domain_has_given_no_ids() -> None:
    removed = structs.replace(row_tracking_domain(41), removed=True)
    assert row_id_high_water_mark(None) == NO_ROW_IDS
    assert row_id_high_water_mark(removed) == NO_ROW_IDS


def test_domain_that_holds_no_mark_is_refused() -> None:
    broken = structs.replace(row_tracking_domain(1), configuration="{}")
    with pytest.raises(ProtocolError, match=r"delta\.rowTracking"):
        row_id_high_water_mark(broken)


def test_staged_mark_is_replaced_and_other_actions_stay_in_order() -> None:
    txn = Txn(app_id="a", version=1)
    other = DomainMetadata(domain="x", configuration="", removed=False)
    staged = [row_tracking_domain(2), txn, add("a", 3), other, add("b", 1)]
    found = with_row_ids(staged, 9, version=4)
    assert found[0] == row_tracking_domain(13)
    assert found[1] == txn
    assert found[3] == other
    assert [a.base_row_id for a in found if isinstance(a, Add)] == [10, 13]


def test_commit_without_new_rows_writes_no_mark() -> None:
    remove = Remove(path="a", data_change=True)
    assert with_row_ids([remove], 9, version=4) == (remove,)


def test_same_commit_at_a_later_version_is_numbered_anew() -> None:
    staged = [add("a", 3)]
    first = with_row_ids(staged, 9, version=4)
    second = with_row_ids(staged, 20, version=5)
    assert [a.base_row_id for a in (*first, *second) if isinstance(a, Add)] == [10, 21]


def test_remove_and_readded_file_carry_the_ids_of_their_path() -> None:
    last = structs.replace(add("a", base=4), default_row_commit_version=2)
    staged = [Remove(path="a", data_change=True), add("a", 3), add("new", 1)]
    removed, readded, new = carry_row_ids(staged, {"a": last})
    assert isinstance(removed, Remove)
    assert (removed.base_row_id, removed.default_row_commit_version) == (4, 2)
    assert isinstance(readded, Add)
    assert (readded.base_row_id, readded.default_row_commit_version) == (4, 2)
    assert new == staged[2]


@pytest.mark.parametrize(
    ("feature", "configuration", "expected"),
    [
        ("rowTracking", {}, True),
        ("rowTracking", {"delta.rowTrackingSuspended": "true"}, False),
        ("domainMetadata", {}, False),
    ],
)
def test_row_ids_are_given_where_supported_and_not_suspended(
    feature: str, configuration: dict[str, str], expected: bool
) -> None:
    protocol = Protocol(
        min_reader_version=1, min_writer_version=7, writer_features=[feature]
    )
    assert gives_row_ids(protocol, metadata(**configuration)) is expected


@pytest.mark.parametrize(
    ("now_ms", "previous_ms", "expected"),
    [(100, None, 100), (100, 50, 100), (100, 100, 101), (100, 200, 201)],
)
def test_timestamp_is_now_but_after_the_commit_before(
    now_ms: int, previous_ms: int | None, expected: int
) -> None:
    assert in_commit_timestamp(now_ms, previous_ms) == expected


def test_turning_timestamps_on_later_records_since_when() -> None:
    found = with_timestamp_enablement(metadata(**ENABLED), metadata(), 3, 500)
    assert found.configuration == {**ENABLED, **SINCE}


def test_timestamps_from_the_first_version_on_need_no_record() -> None:
    first = metadata(**ENABLED)
    assert with_timestamp_enablement(first, None, 0, 500) == first
    assert with_timestamp_enablement(first, first, 1, 600) == first


def test_record_is_kept_when_the_metadata_is_replaced() -> None:
    before = metadata(**ENABLED, **SINCE)
    found = with_timestamp_enablement(metadata(**ENABLED), before, 9, 900)
    assert found == before


def test_metadata_without_timestamps_is_left_alone() -> None:
    before = metadata(**ENABLED, **SINCE)
    assert with_timestamp_enablement(metadata(), before, 9, 900) == metadata()
