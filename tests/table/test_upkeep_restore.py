"""Restore: the table as it was, as a new version."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Field, Transaction
from deltalake.schema import PrimitiveType
from deltalake.table import TableFeatures
from hypothesis import given, settings, strategies as st

import delkalakedb as dk
from delkalakedb.deltalake.raw.raw_table import SqlRawTable
from delkalakedb.errors import (
    CommitFailedError,
    DeltaError,
    ProtocolError,
    VersionNotFoundError,
)
from tests.support.actions import DV
from tests.support.catalogs import table_of_three_files
from tests.support.lakes import Lake
from tests.support.twins import Twins, rows

DATA = pa.table({"id": [1, 2, 3, 4], "city": ["a b", "a b", "c", "c"]})


@pytest.fixture
def twins(catalog_uri: str, tmp_path: Path) -> Twins:
    """Two tables of four versions, on each engine in turn."""
    twins = Twins(catalog_uri, tmp_path)
    twins.write(DATA, partition_by="city")
    twins.write(pa.table({"id": [5], "city": ["c"]}), mode="append")
    twins.do(lambda t: t.delete("city = 'a b'"))
    twins.do(lambda t: t.alter.set_table_properties({"delta.appendOnly": "false"}))
    return twins


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table of three files, one of each version."""
    return table_of_three_files(tmp_path)


def test_restored_version_has_the_rows_and_metrics_of_plain_deltalake(
    twins: Twins,
) -> None:
    for target in (1, 0, 2, 4):
        ours, theirs = twins.do(lambda t, target=target: t.restore(target))
        assert ours == theirs
        assert rows(twins.ours) == rows(dk.DeltaTable(twins.uri, version=target))


def test_restore_takes_back_the_metadata(twins: Twins) -> None:
    twins.do(lambda t: t.alter.add_columns(Field("extra", PrimitiveType("string"))))

    twins.do(lambda t: t.restore(2))

    assert [f.name for f in twins.ours.schema().fields] == ["id", "city"]
    assert "delta.appendOnly" not in twins.ours.metadata().configuration


def test_history_tells_of_a_restore_as_deltalake_does(twins: Twins) -> None:
    wanted = {"operation", "operationParameters", "operationMetrics", "readVersion"}

    twins.do(lambda t: t.restore(1))

    ours, theirs = twins.ours.history(1)[0], twins.plain.history(1)[0]
    assert {k: ours[k] for k in wanted} == {k: theirs[k] for k in wanted}


def test_restore_to_a_time_is_that_of_its_version(uri: str) -> None:
    table = dk.DeltaTable(uri)
    first_ms = table.history()[-1]["timestamp"]
    moment = datetime.fromtimestamp(first_ms / 1000, UTC)

    for target in (moment, moment.isoformat(), "1990-01-01T00:00:00Z"):
        dk.write_deltalake(uri, pa.table({"id": [7]}), mode="append")
        table.update_incremental()
        table.restore(target)
        assert rows(table) == ["{'id': 0}"]
    parameters = table.history(1)[0]["operationParameters"]
    assert parameters == {"datetime": str(631_152_000_000)}


def test_restore_to_what_can_not_be_is_refused(uri: str) -> None:
    table = dk.DeltaTable(uri)

    with pytest.raises(DeltaError, match="Version to restore 2 should be less then"):
        table.restore(2)
    with pytest.raises(VersionNotFoundError):
        table.restore(99)
    with pytest.raises(ValueError, match="Failed to parse datetime string"):
        table.restore("yesterday")
    future = datetime.now(UTC) + timedelta(days=1)
    with pytest.raises(DeltaError, match="should be less then"):
        table.restore(future)
    assert table.version() == dk.DeltaTable(uri).version() == 2


def test_missing_file_stops_a_restore_unless_ignored(uri: str) -> None:
    table = dk.DeltaTable(uri)
    lost = Path(dk.DeltaTable(uri, version=0).file_uris()[0])
    table.delete()
    lost.unlink()

    with pytest.raises(DeltaError, match=f"Find missing file {lost.name}"):
        table.restore(0)
    assert table.version() == 3
    assert table.restore(0, ignore_missing_files=True) == {
        "numRemovedFile": 0,
        "numRestoredFile": 1,
    }
    assert table.version() == 4


def test_restore_on_a_stale_handle_conflicts_with_what_it_did_not_see(
    uri: str,
) -> None:
    stale = dk.DeltaTable(uri)
    dk.write_deltalake(uri, pa.table({"id": [9]}), mode="append")

    with pytest.raises(CommitFailedError):
        stale.restore(0)
    assert len(rows(dk.DeltaTable(uri))) == 4


def test_commit_properties_reach_the_commit(uri: str) -> None:
    table = dk.DeltaTable(uri)
    properties = CommitProperties(
        custom_metadata={"userName": "me"}, app_transactions=[Transaction("app", 7)]
    )

    table.restore(0, commit_properties=properties)

    assert table.history(1)[0]["userName"] == "me"
    assert table.transaction_version("app") == 7


@settings(max_examples=15)
@given(st.lists(st.integers(0, 9), min_size=2, max_size=5))
def test_any_sequence_leaves_what_the_restored_version_had(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("lake")
    uri = f"deltasql://sqlite/{folder}/meta.db?table=t"
    expected: list[list[str]] = []
    for step in steps:
        target = step % max(len(expected), 1)
        if target < len(expected) - 1:
            dk.DeltaTable(uri).restore(target)
            assert rows(dk.DeltaTable(uri)) == expected[target]
        else:
            mode = "overwrite" if step % 2 else "append"
            dk.write_deltalake(uri, pa.table({"id": [len(expected)]}), mode=mode)
        expected.append(rows(dk.DeltaTable(uri)))
    assert dk.verify(uri, deep=True).ok


def test_metrics_are_json(uri: str) -> None:
    raw = dk.DeltaTable(uri)._table

    assert json.loads(raw.restore(0)) == {"numRemovedFile": 2, "numRestoredFile": 0}


def test_deletion_vector_comes_and_goes_with_its_version(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    lake = Lake(catalog, tmp_path)
    features, on = ["deletionVectors"], {DV: "true"}
    lake.create(pa.schema([("x", pa.int64())]), features=features, configuration=on)
    file = lake.file({"x": [1, 2, 3]})
    lake.commit(file)
    lake.commit(*lake.without(file, 0, 2))
    raw = SqlRawTable(catalog, lake.name, None)

    for target in (1, 2, 1):
        raw.restore(target)
        assert lake.rows(raw.version()) == lake.rows(target)
    assert raw.version() == 5


def test_restored_table_keeps_features_and_its_fence(uri: str) -> None:
    table = dk.DeltaTable(uri)
    fence = {"delta.feature.catalogManaged": "supported"}
    table.alter.set_table_properties(fence)

    for downgrade in (False, True):
        table.restore(0, protocol_downgrade_allowed=downgrade)
        assert "catalogManaged" in (table.protocol().reader_features or ())
    assert rows(table) == ["{'id': 0}"]
    assert dk.verify(uri, deep=True).ok


def test_protocol_goes_back_to_no_less_than_the_catalog_allows(uri: str) -> None:
    table = dk.DeltaTable(uri)
    feature = TableFeatures.DeletionVectors
    table.alter.add_feature(feature, allow_protocol_versions_increase=True)

    with pytest.raises(ProtocolError, match="protocol would go down"):
        table.restore(0, protocol_downgrade_allowed=True)
    table.restore(0)

    assert table.protocol().reader_features == ["deletionVectors"]
