"""Properties that delta-rs doesn't take turn on the features that they name."""

import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import ProtocolError
from delkalakedb.settings.uri import format_uri, parse_uri

TIMESTAMPS = {"delta.enableInCommitTimestamps": "true"}
ROW_IDS = {"delta.enableRowTracking": "true"}
ROWS = pa.table({"x": [1, 2, 3]})


@pytest.fixture
def uri(catalog_uri: str) -> str:
    return format_uri(parse_uri(catalog_uri).with_table("t"))


def features(uri: str) -> set[str]:
    return set(dk.DeltaTable(uri).protocol().writer_features or ())


def commit_infos(catalog: dk.Catalog) -> list[dict[str, object]]:
    newest_first = catalog.snapshot("t").history()
    return [commit.commit_info for commit in reversed(newest_first)]


def test_table_created_with_timestamps_has_them_in_every_commit(
    catalog: dk.Catalog, uri: str
) -> None:
    dk.write_deltalake(uri, ROWS, configuration=TIMESTAMPS)
    dk.write_deltalake(uri, ROWS, mode="append")

    assert "inCommitTimestamp" in features(uri)
    assert all("inCommitTimestamp" in info for info in commit_infos(catalog))
    assert dk.verify(uri, deep=True).ok


def test_timestamps_turned_on_later_say_since_when(
    catalog: dk.Catalog, uri: str
) -> None:
    dk.write_deltalake(uri, ROWS)
    dk.DeltaTable(uri).alter.set_table_properties(TIMESTAMPS)
    dk.write_deltalake(uri, ROWS, mode="append")

    first, *later = commit_infos(catalog)
    assert "inCommitTimestamp" not in first
    assert all("inCommitTimestamp" in info for info in later)
    configuration = dk.DeltaTable(uri).metadata().configuration
    assert configuration["delta.inCommitTimestampEnablementVersion"] == "1"
    assert {"appendOnly", "invariants", "inCommitTimestamp"} <= features(uri)
    assert dk.verify(uri, deep=True).ok


def test_table_created_with_row_tracking_gives_row_ids(
    catalog: dk.Catalog, uri: str
) -> None:
    dk.write_deltalake(uri, ROWS, configuration=ROW_IDS)
    dk.write_deltalake(uri, ROWS, mode="append")

    assert {"rowTracking", "domainMetadata"} <= features(uri)
    files = catalog.snapshot("t").files().read_all()
    assert sorted(files["base_row_id"].to_pylist()) == [0, 3]
    assert dk.verify(uri, deep=True).ok


def test_row_tracking_on_a_table_with_files_is_refused(uri: str) -> None:
    dk.write_deltalake(uri, ROWS)

    with pytest.raises(ProtocolError, match="only when a table is created"):
        dk.DeltaTable(uri).alter.set_table_properties(ROW_IDS)

    assert dk.DeltaTable(uri).version() == 0


def test_every_feature_that_a_property_turns_on_is_in_the_protocol(uri: str) -> None:
    both = {"delta.columnMapping.mode": "name", "delta.enableDeletionVectors": "true"}

    dk.DeltaTable.create(uri, pa.schema([("x", pa.int64())]), configuration=both)

    protocol = dk.DeltaTable(uri).protocol()
    assert {"columnMapping", "deletionVectors"} <= set(protocol.reader_features or ())
    assert {"columnMapping", "deletionVectors"} <= features(uri)
