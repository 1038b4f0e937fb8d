"""commitInfo as operations stage it, and as the catalog writes it."""

from delkalakedb.model.actions import Add, CommitInfo
from delkalakedb.model.new_actions import (
    final_commit_info,
    in_commit_timestamp_of,
    merged_commit_info,
    new_commit_info,
)

KNOWN = {
    "transaction_id": "t",
    "timestamp_ms": 5,
    "blind_append": True,
    "isolation_level": "Serializable",
}


def test_new_commit_info_has_what_is_said_in_deltas_order() -> None:
    info = new_commit_info(
        "WRITE",
        {"mode": "Append"},
        {"numFiles": 1},
        engine_info="me",
        timestamp_ms=7,
        custom={"userMetadata": "mine", "operation": "lost"},
    )

    assert [*info.fields.items()] == [
        ("userMetadata", "mine"),
        ("operation", "WRITE"),
        ("timestamp", 7),
        ("operationParameters", {"mode": "Append"}),
        ("operationMetrics", {"numFiles": 1}),
        ("engineInfo", "me"),
    ]
    assert new_commit_info("FSCK", {}, {}).fields == {
        "operation": "FSCK",
        "operationParameters": {},
        "operationMetrics": {},
    }
    assert "operationMetrics" not in new_commit_info("DROP FEATURE", {}).fields


def test_commit_info_keeps_what_was_staged() -> None:
    info = CommitInfo({"operation": "WRITE", "timestamp": 1, "txnId": "staged"})
    found = merged_commit_info(
        [info], {"txnId": "ours"}, {"timestamp": 2, "readVersion": 3}
    )
    expected = {"operation": "WRITE", "timestamp": 1, "txnId": "ours", "readVersion": 3}
    assert found == CommitInfo(expected)
    assert info.fields["txnId"] == "staged"


def test_commit_without_info_gets_one() -> None:
    assert merged_commit_info([], {"txnId": "ours"}) == CommitInfo({"txnId": "ours"})


def test_several_infos_become_one_in_which_the_first_wins() -> None:
    staged = [CommitInfo({"a": 1}), CommitInfo({"a": 2, "b": 2})]
    assert merged_commit_info(staged, {}) == CommitInfo({"a": 1, "b": 2})


def test_commit_info_already_complete_is_unchanged_by_a_second_pass() -> None:
    once = merged_commit_info([], {"txnId": "t"}, {"timestamp": 1})
    assert merged_commit_info([once], {"txnId": "t"}, {"timestamp": 9}) == once


def test_ratified_commit_info_has_what_only_the_commit_knows() -> None:
    staged = CommitInfo({"operation": "MERGE", "isBlindAppend": False})
    plain = final_commit_info([staged], stamped=False, read_version=3, **KNOWN)
    first = final_commit_info(
        [], stamped=True, read_version=-1, participants=[{"table": "b"}], **KNOWN
    )

    assert [*plain.fields.items()] == [
        ("operation", "MERGE"),
        ("isBlindAppend", True),
        ("timestamp", 5),
        ("isolationLevel", "Serializable"),
        ("readVersion", 3),
        ("txnId", "t"),
    ]
    assert [*first.fields] == [
        "timestamp",
        "operation",
        "isolationLevel",
        "txnId",
        "isBlindAppend",
        "participants",
        "inCommitTimestamp",
    ]
    assert first.fields["operation"] == "WRITE"
    assert (in_commit_timestamp_of(first), in_commit_timestamp_of(plain)) == (5, None)


def test_only_a_number_is_an_in_commit_timestamp() -> None:
    add = Add(
        path="a", partition_values={}, size=1, modification_time=1, data_change=True
    )
    texts = CommitInfo({"inCommitTimestamp": "5"})

    assert [*map(in_commit_timestamp_of, (None, add, texts))] == [None] * 3
