"""What a commit changes beside files: protocol, metadata, applications, domains."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from delkalakedb import Catalog
from delkalakedb.catalog.commit.outcome import Conflicted, Skipped
from delkalakedb.errors import ProtocolError
from delkalakedb.model.actions import Action, Add, CommitInfo, DomainMetadata, Protocol
from delkalakedb.model.rules.conflicts import ROW_TRACKING_DOMAIN, Rule
from tests.support.actions import (
    add,
    attempt,
    commit,
    create,
    domain,
    metadata,
    paths,
    protocol,
    remove,
    schema,
    staged,
    stats,
    txn,
)

ICT = {"delta.enableInCommitTimestamps": "true"}


def info(catalog: Catalog, version: int) -> dict[str, Any]:
    """The commitInfo of a version, which is its first action."""
    first = catalog.log("t").commit(version)[0]
    assert isinstance(first, CommitInfo)
    return first.fields


# Metadata and protocol


def test_metadata_change_holds_from_its_version_on(catalog: Catalog) -> None:
    old = metadata(schema(x="long"))
    new = metadata(schema(x="long", y="date"), description="wider", name="n")
    create(catalog, "t", meta=old)
    commit(catalog, new)
    commit(catalog, add("a"))

    found = [catalog.snapshot("t", v).metadata for v in range(3)]
    assert found == [old, new, new]
    assert catalog.table("t").description == "wider"
    assert [f.name for f in catalog.table("t").schema.fields] == ["x", "y"]


def test_properties_are_those_of_the_version(catalog: Catalog) -> None:
    create(catalog, "t", meta=metadata(configuration={"k": "1"}))
    commit(catalog, metadata(configuration={"k": "2", "nil": None}))

    assert catalog.snapshot("t", 0).table.configuration == {"k": "1"}
    assert catalog.table("t").configuration == {"k": "2", "nil": None}


def test_protocol_upgrade_holds_from_its_version_on(catalog: Catalog) -> None:
    create(catalog)
    upgraded = protocol("appendOnly", "invariants", "deletionVectors")
    commit(catalog, upgraded)

    assert catalog.snapshot("t", 0).protocol == protocol()
    assert catalog.snapshot("t").protocol == upgraded
    assert catalog.table("t").reader_features == ("deletionVectors",)
    assert catalog.table("t").min_writer_version == 7


def test_protocol_that_drops_a_feature_is_refused(catalog: Catalog) -> None:
    create(catalog, "t", features=("deletionVectors", "domainMetadata"))

    with pytest.raises(ProtocolError, match="drop domainMetadata"):
        commit(catalog, protocol("deletionVectors"))


@pytest.mark.parametrize("feature", ["liquid", "icebergCompatV2", "somethingNew"])
def test_feature_that_cannot_be_honoured_is_refused_by_name(
    catalog: Catalog, feature: str
) -> None:
    configuration = {"delta.enableIcebergCompatV2": "true"}
    meta = metadata(schema(x="long"), configuration=configuration)

    with pytest.raises(ProtocolError, match=f"can't write a table with {feature}"):
        create(catalog, "t", meta=meta, features=(feature,))
    assert catalog.tables() == []


def test_unknown_reader_feature_is_refused_by_name(catalog: Catalog) -> None:
    create(catalog)
    strange = Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=["strangeLayout"],
        writer_features=["strangeLayout", "appendOnly", "invariants"],
    )

    with pytest.raises(ProtocolError, match="strangeLayout"):
        commit(catalog, strange)
    assert catalog.table("t").version == 0


# Applications


def test_newest_transaction_of_each_application_counts(catalog: Catalog) -> None:
    create(catalog, "t", txn("a", 1))
    commit(catalog, txn("a", 5), txn("b", 1))
    commit(catalog, txn("a", 3))

    log = catalog.log("t")
    assert log.txns(0) == {"a": txn("a", 1)}
    assert log.txns(1) == {"a": txn("a", 5), "b": txn("b", 1)}
    assert log.txns() == {"a": txn("a", 3), "b": txn("b", 1)}
    assert catalog.snapshot("t").txn_version("a") == 3
    assert catalog.snapshot("t", 1).txn_version("a") == 5
    assert catalog.snapshot("t").txn_version("c") is None


def test_replayed_transaction_is_skipped_and_writes_nothing(catalog: Catalog) -> None:
    create(catalog)
    first = staged(catalog, add("a"), txn("stream", 7), app_ids=frozenset({"stream"}))
    catalog.commit(first)
    commit(catalog, add("b"))

    assert catalog.commit(first) == (Skipped("t", 1, "stream"),)
    older = attempt(catalog, add("c"), txn("stream", 6), app_ids=frozenset({"stream"}))
    assert isinstance(older, Skipped)
    assert paths(catalog) == ["a", "b"]
    assert catalog.table("t").version == 2


def test_next_transaction_of_an_application_is_committed(catalog: Catalog) -> None:
    create(catalog)
    for version in (7, 8):
        commit(
            catalog,
            add(f"f{version}"),
            txn("stream", version),
            app_ids=frozenset({"stream"}),
        )

    assert paths(catalog) == ["f7", "f8"]


def test_transaction_is_no_replay_once_its_application_went_back(
    catalog: Catalog,
) -> None:
    create(catalog)
    commit(catalog, txn("a", 9))
    commit(catalog, txn("a", 3))
    apps = frozenset({"a"})

    commit(catalog, add("f"), txn("a", 4), app_ids=apps)

    assert attempt(catalog, txn("a", 4), app_ids=apps) == Skipped("t", 3, "a")
    assert attempt(catalog, txn("a", 3), app_ids=apps) == Skipped("t", 1, "a")


def test_transaction_that_asks_for_no_check_is_written_again(catalog: Catalog) -> None:
    create(catalog)
    commit(catalog, txn("a", 7))

    assert commit(catalog, txn("a", 7)).version == 2


def test_replay_of_which_only_a_part_is_there_is_a_conflict(catalog: Catalog) -> None:
    create(catalog)
    commit(catalog, txn("a", 1))
    both = frozenset({"a", "b"})

    outcome = attempt(catalog, add("f"), txn("a", 1), txn("b", 1), app_ids=both)

    assert isinstance(outcome, Conflicted)
    assert (outcome.rule, outcome.winner_version) == (Rule.CONCURRENT_TRANSACTION, 1)
    assert paths(catalog) == []


def test_same_application_beside_itself_is_a_conflict(catalog: Catalog) -> None:
    create(catalog)
    commit(catalog, txn("a", 1))

    outcome = attempt(catalog, txn("a", 2), version=0)

    assert isinstance(outcome, Conflicted)
    assert outcome.rule == Rule.CONCURRENT_TRANSACTION


# Domains


def test_domains_are_set_changed_and_removed(catalog: Catalog) -> None:
    create(catalog, "t", domain("x", "1"), features=("domainMetadata",))
    commit(catalog, domain("x", "2"), domain("y", "{}"))
    commit(catalog, domain("x", "2", removed=True))
    commit(catalog, domain("x", "3"))

    found = [catalog.snapshot("t", v).domains() for v in range(4)]
    y = {"y": domain("y", "{}")}
    assert found == [
        {"x": domain("x", "1")},
        {"x": domain("x", "2"), **y},
        y,
        {"x": domain("x", "3"), **y},
    ]
    assert domain("x", "2", removed=True) in catalog.log("t").commit(2)


def test_domain_without_the_feature_or_of_the_system_is_refused(
    catalog: Catalog,
) -> None:
    create(catalog, "plain")
    create(catalog, "t", features=("domainMetadata",))

    with pytest.raises(ProtocolError, match="needs feature domainMetadata"):
        commit(catalog, domain("x"), table="plain")
    with pytest.raises(ProtocolError, match=r"delta\.novel is reserved"):
        commit(catalog, domain("delta.novel"))


# Row tracking


def high_water_mark(catalog: Catalog, version: int | None = None) -> DomainMetadata:
    return catalog.snapshot("t", version).domains()[ROW_TRACKING_DOMAIN]


def row_ids(actions: Sequence[Action]) -> dict[str, tuple[Any, Any]]:
    return {
        a.path: (a.base_row_id, a.default_row_commit_version)
        for a in actions
        if isinstance(a, Add)
    }


def test_row_ids_are_given_in_order_with_their_high_water_mark(
    catalog: Catalog,
) -> None:
    features = ("rowTracking", "domainMetadata")
    create(catalog, "t", add("a", stats=stats(10)), features=features)
    commit(catalog, add("b", stats=stats(5)), add("c", stats=stats(1)))
    commit(catalog, add("d", stats=stats(1)), version=0)

    log = catalog.log("t")
    given = row_ids(log.commit(0)) | row_ids(log.commit(1)) | row_ids(log.commit(2))
    assert given == {"a": (0, 0), "b": (10, 1), "c": (15, 1), "d": (16, 2)}
    marks = [high_water_mark(catalog, v).configuration for v in range(3)]
    assert marks == [f'{{"rowIdHighWaterMark":{n}}}' for n in (9, 15, 16)]


def test_row_ids_are_carried_to_removes_and_new_statistics(catalog: Catalog) -> None:
    features = ("rowTracking", "domainMetadata")
    a, b = add("a", stats=stats(10)), add("b", stats=stats(5))
    create(catalog, "t", a, b, features=features)

    commit(catalog, add("b", stats=stats(5, x=(1, 2, 0)), data_change=False))
    commit(catalog, remove(a))

    assert row_ids(catalog.log("t").commit(1)) == {"b": (10, 0)}
    (tombstone,) = catalog.log("t").removes()
    assert (tombstone.base_row_id, tombstone.default_row_commit_version) == (0, 0)
    assert high_water_mark(catalog).configuration == '{"rowIdHighWaterMark":14}'


def test_file_without_a_row_count_gets_no_row_ids(catalog: Catalog) -> None:
    create(catalog, "t", features=("rowTracking", "domainMetadata"))

    with pytest.raises(ProtocolError, match="numRecords"):
        commit(catalog, add("a", stats="{}"))
    assert paths(catalog) == []


# Timestamps


def test_commit_info_names_the_transaction_and_comes_first(catalog: Catalog) -> None:
    create(catalog)
    operation = CommitInfo(
        {"operation": "MERGE", "engineInfo": "me", "own": {"k": [1]}}
    )

    committed = commit(catalog, add("a"), operation)

    written = info(catalog, 1)
    assert written["txnId"] == committed.transaction_id
    assert (written["operation"], written["own"]) == ("MERGE", {"k": [1]})
    assert written["timestamp"] == committed.timestamp_ms
    assert (written["readVersion"], written["isBlindAppend"]) == (0, True)
    assert "inCommitTimestamp" not in written


def test_in_commit_timestamps_are_the_versions_own_and_rise(catalog: Catalog) -> None:
    meta = metadata(configuration=ICT)
    create(catalog, "t", meta=meta, features=("inCommitTimestamp",))
    for i in range(5):
        commit(catalog, add(f"f{i}"), CommitInfo({"inCommitTimestamp": 5}))

    stamps = [info(catalog, v)["inCommitTimestamp"] for v in range(6)]
    assert stamps == [catalog.snapshot("t", v).table.timestamp_ms for v in range(6)]
    assert all(a < b for a, b in pairwise(stamps))


def test_in_commit_timestamps_turned_on_later_say_since_when(catalog: Catalog) -> None:
    create(catalog, "t", features=("inCommitTimestamp",))
    commit(catalog, add("a"))
    commit(catalog, metadata(configuration=ICT))

    at = catalog.snapshot("t").table
    assert at.configuration == {
        **ICT,
        "delta.inCommitTimestampEnablementVersion": "2",
        "delta.inCommitTimestampEnablementTimestamp": str(at.timestamp_ms),
    }
    assert info(catalog, 2)["inCommitTimestamp"] == at.timestamp_ms
    assert "inCommitTimestamp" not in info(catalog, 1)


@pytest.mark.parametrize("clock", [[1_000, 1_000, 1_000], [5_000, 3_000, 1_000]])
def test_timestamps_rise_though_the_clock_does_not(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, clock: list[int]
) -> None:
    for i, now in enumerate(clock):
        monkeypatch.setattr(
            "delkalakedb.catalog.commit.ratify.time.time", lambda at=now: at
        )
        if i == 0:
            create(catalog)
        else:
            commit(catalog, add(f"f{i}"))

    first = clock[0] * 1000
    stamps = [catalog.snapshot("t", v).table.timestamp_ms for v in range(3)]
    assert stamps == [first, first + 1, first + 2]


def test_two_versions_of_one_commit_have_two_timestamps(catalog: Catalog) -> None:
    create(catalog)
    one, two = catalog.commit(
        staged(catalog, add("a")), staged(catalog, add("b"), version=0)
    )

    assert one.timestamp_ms < two.timestamp_ms
