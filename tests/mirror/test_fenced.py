"""Fenced tables: only the catalog's own clients can write to them."""

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.catalog.commit.outcome import Committed
from delkalakedb.errors import ProtocolError, TableNotFoundError
from delkalakedb.mirror.fences import fence
from delkalakedb.mirror.publisher.publication import publish
from delkalakedb.model.actions import Protocol, known
from delkalakedb.model.log import Staged
from delkalakedb.model.rules.features import FEATURES
from delkalakedb.model.rules.protocol import (
    FENCE_PROPERTY,
    check_transition,
    check_writable,
    fenced,
    is_fenced,
    supported_features,
)
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.actions import (
    add,
    attempt,
    commit,
    create,
    domain,
    metadata,
    protocol,
)

FENCED = {"catalogManaged", "inCommitTimestamp", "vacuumProtocolCheck"}
ICT = "delta.enableInCommitTimestamps"
SINCE = "delta.inCommitTimestampEnablement"


def entry(location: str, version: int) -> list[dict[str, Any]]:
    """The lines of a log entry."""
    path = Path(location.removeprefix("file://")) / "_delta_log" / f"{version:020}.json"
    return [json.loads(line) for line in path.read_text().splitlines()]


def one(lines: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (body,) = [line[kind] for line in lines if kind in line]
    return dict(body)


def rows(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def check_stamps(location: str, versions: range) -> None:
    """Each entry starts with a commitInfo that has a time of its own and an id."""
    stamps = []
    for version in versions:
        info = entry(location, version)[0]["commitInfo"]
        assert info["txnId"]
        stamps.append(info["inCommitTimestamp"])
    assert sorted(set(stamps)) == stamps


@pytest.fixture
def uri(catalog_uri: str) -> str:
    return format_uri(parse_uri(catalog_uri).with_table("t"))


@pytest.fixture
def fenced_uri(uri: str) -> str:
    """A fenced table of three versions."""
    dk.write_deltalake(uri, rows(1), configuration={FENCE_PROPERTY: "supported"})
    dk.write_deltalake(uri, rows(2), mode="append")
    dk.write_deltalake(uri, rows(3), mode="append")
    return uri


def test_table_created_with_the_property_is_fenced(fenced_uri: str) -> None:
    location = dk.DeltaTable(fenced_uri).table_uri.rstrip("/")
    first = entry(location, 0)

    listed = one(first, "protocol")
    assert (listed["minReaderVersion"], listed["minWriterVersion"]) == (3, 7)
    assert set(listed["writerFeatures"]) >= FENCED
    assert set(listed["readerFeatures"]) == FENCED - {"inCommitTimestamp"}
    assert one(first, "metaData")["configuration"] == {ICT: "true"}
    check_stamps(location, range(3))


def test_our_own_clients_read_and_write_it(fenced_uri: str) -> None:
    table = dk.DeltaTable(fenced_uri)

    assert table.version() == 2
    assert sorted(table.to_pyarrow_table()["n"].to_pylist()) == [1, 2, 3]
    assert dk.DeltaTable(fenced_uri, version=0).to_pyarrow_table() == rows(1)


def test_schema_can_be_merged_into_it(fenced_uri: str) -> None:
    """delta-rs writes a new protocol for the type, without what it doesn't know."""
    wider = rows(4).append_column("at", pa.array([0], pa.timestamp("us")))
    dk.write_deltalake(fenced_uri, wider, mode="append", schema_mode="merge")

    listed = dk.DeltaTable(fenced_uri).protocol()
    assert set(listed.writer_features or ()) >= {*FENCED, "timestampNtz"}
    assert dk.DeltaTable(fenced_uri).metadata().configuration == {ICT: "true"}


def test_deltalake_neither_reads_nor_writes_it(fenced_uri: str) -> None:
    location = dk.DeltaTable(fenced_uri).table_uri

    with pytest.raises(deltalake.exceptions.DeltaError, match="catalog-managed"):
        deltalake.DeltaTable(location)
    with pytest.raises(deltalake.exceptions.DeltaError, match="catalog-managed"):
        deltalake.write_deltalake(location, rows(9), mode="append")
    assert dk.DeltaTable(fenced_uri).to_pyarrow_table().num_rows == 3


def test_plain_table_is_as_deltalake_makes_it(uri: str, tmp_path: Path) -> None:
    dk.write_deltalake(uri, rows(1))
    deltalake.write_deltalake(tmp_path / "theirs", rows(1))

    ours = dk.DeltaTable(uri).table_uri
    theirs = str(tmp_path / "theirs")
    assert deltalake.DeltaTable(ours).protocol() == (
        deltalake.DeltaTable(theirs).protocol()
    )
    assert one(entry(ours.rstrip("/"), 0), "metaData")["configuration"] == {}
    assert "inCommitTimestamp" not in one(entry(ours.rstrip("/"), 0), "commitInfo")


def test_table_that_is_there_can_be_fenced(uri: str) -> None:
    dk.write_deltalake(uri, rows(1))
    location = dk.DeltaTable(uri).table_uri.rstrip("/")
    with dk.connect(uri) as catalog:
        assert fence(catalog, table="t") == 1
        assert fence(catalog, table="t") == 1
    dk.write_deltalake(uri, rows(2), mode="append")

    upgrade = entry(location, 1)
    info = one(upgrade, "commitInfo")
    assert info["operation"] == "UPGRADE PROTOCOL"
    assert json.loads(info["operationParameters"]["newProtocol"]) == one(
        upgrade, "protocol"
    )
    assert one(upgrade, "metaData")["configuration"] == {
        ICT: "true",
        f"{SINCE}Version": "1",
        f"{SINCE}Timestamp": str(info["inCommitTimestamp"]),
    }
    # What its version 2 implied is said now.
    assert {"appendOnly", "invariants"} < set(
        one(upgrade, "protocol")["writerFeatures"]
    )
    check_stamps(location, range(1, 3))
    with pytest.raises(deltalake.exceptions.DeltaError, match="catalog-managed"):
        deltalake.write_deltalake(location, rows(9), mode="append")
    assert dk.DeltaTable(uri).to_pyarrow_table().num_rows == 2


def test_unknown_table_cannot_be_fenced(catalog: Catalog) -> None:
    with pytest.raises(TableNotFoundError):
        fence(catalog, table="nowhere")


def test_staged_creation_may_bring_the_fenced_protocol(
    catalog: Catalog, tmp_path: Path
) -> None:
    location = f"file://{tmp_path}/staged"
    actions = (*fenced(protocol(), metadata()), add("f"))
    catalog.commit(Staged("t", actions, location=location))

    publish(catalog, "t")

    assert one(entry(location, 0), "protocol")["minReaderVersion"] == 3
    check_stamps(location, range(1))


def test_property_set_later_fences_the_table(catalog: Catalog) -> None:
    create(catalog, "t", add("f"))

    commit(catalog, metadata(configuration={FENCE_PROPERTY: "supported", "a": "b"}))

    state = catalog.log("t").state()
    configuration = known(state.metadata.configuration) or {}
    assert is_fenced(state.protocol)
    assert configuration.keys() == {"a", ICT, f"{SINCE}Version", f"{SINCE}Timestamp"}
    assert configuration[f"{SINCE}Version"] == "1"


def test_table_with_row_ids_can_be_fenced_by_property(catalog: Catalog) -> None:
    features = ("rowTracking", "domainMetadata")
    create(catalog, "t", add("f"), domain("d"), features=features)

    commit(catalog, metadata(configuration={FENCE_PROPERTY: "supported"}))

    (written,) = [a for a in catalog.log("t").commit(1) if isinstance(a, Protocol)]
    assert is_fenced(written)


def test_append_that_was_prepared_before_the_fence_follows_it(
    catalog: Catalog, tmp_path: Path
) -> None:
    create(catalog, "t", add("f"), location=f"file://{tmp_path}/t")
    fence(catalog, table="t")

    assert isinstance(attempt(catalog, add("g"), version=0), Committed)


def test_fence_stands_and_falls_with_in_commit_timestamps(catalog: Catalog) -> None:
    meta = metadata(configuration={FENCE_PROPERTY: "supported"})
    create(catalog, "t", meta=meta)

    with pytest.raises(ProtocolError, match=r"needs delta\.enableInCommit"):
        commit(catalog, metadata())


def test_fence_that_is_asked_for_in_other_words_is_refused(catalog: Catalog) -> None:
    with pytest.raises(ProtocolError, match="can be 'supported', not 'true'"):
        create(catalog, "t", meta=metadata(configuration={FENCE_PROPERTY: "true"}))


# ---- the rule itself

LISTABLE = sorted(name for name, feature in FEATURES.items() if feature.write)


def legacy(versions: tuple[int, int]) -> Protocol:
    reader, writer = versions
    return Protocol(min_reader_version=reader, min_writer_version=writer)


protocols = st.one_of(
    st.sampled_from([(1, 1), (1, 2), (1, 4), (2, 5)]).map(legacy),
    st.sets(st.sampled_from(LISTABLE), min_size=1).map(
        lambda names: protocol(
            *sorted({*names, *(n for f in names for n in FEATURES[f].needs)})
        )
    ),
)


@given(protocols)
def test_any_table_that_can_be_written_can_be_fenced(before: Protocol) -> None:
    after, described = fenced(before, metadata(configuration={ICT: "false", "a": "b"}))

    check_transition(before, after)
    check_writable(after, described)
    assert supported_features(after) == supported_features(before) | FENCED
    assert known(described.configuration) == {ICT: "true", "a": "b"}
    assert fenced(after, described) == (after, described)
