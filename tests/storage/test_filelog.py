import uuid
from datetime import UTC, datetime

import pytest
from deltalake import DeltaTable

from delkalakedb.errors import (
    CodecError,
    DeltaError,
    ProtocolError,
    TableNotFoundError,
    VersionNotFoundError,
)
from delkalakedb.model.actions import CommitInfo, Protocol
from delkalakedb.storage import open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader
from tests.support.logs import (
    LAST,
    PROTOCOL,
    add,
    assert_as_deltalake,
    drop_commits,
    log_path,
    metadata,
    plain,
    view,
    write_log,
    write_v1,
)


@pytest.mark.parametrize("version", range(LAST + 1))
def test_every_version_is_as_deltalake_sees_it(history, version):
    assert_as_deltalake(history, version)


def test_latest_version_and_commits_are_those_of_the_log(history):
    reader = FileTxnLogReader(open_store(history))
    assert reader.latest_version() == DeltaTable(history).version() == LAST
    assert list(reader.versions()) == list(range(LAST + 1))
    infos = [a for a in reader.commit(2) if isinstance(a, CommitInfo)]
    assert infos[0].fields["operation"] == "DELETE"


@pytest.mark.parametrize("checkpoint", [0, 3, LAST])
def test_log_with_a_checkpoint_and_without_its_commits_reads_the_same(
    location, checkpoint
):
    store = open_store(location)
    reader = FileTxnLogReader(store)
    before = {v: view(reader, v) for v in range(checkpoint, LAST + 1)}
    DeltaTable(location, version=checkpoint).create_checkpoint()
    drop_commits(store, range(checkpoint + 1))
    assert reader.latest_version() == LAST
    for version, expected in before.items():
        # deltalake leaves expired tombstones and statistics of removes out.
        seen = view(reader, version)
        assert seen[:4] == expected[:4]
        assert seen[5:] == expected[5:]
        assert_as_deltalake(location, version)
    with pytest.raises(VersionNotFoundError, match=f"the log has {checkpoint} to"):
        list(reader.adds(checkpoint - 1))


def test_gap_is_an_error_naming_the_missing_version(copy):
    drop_commits(copy, [5])
    reader = FileTxnLogReader(copy)
    for ask in (reader.latest_version, reader.state, reader.adds, reader.txns):
        with pytest.raises(DeltaError, match="version 5 is missing"):
            ask()
    assert reader.state(4).version == 4


def test_log_without_its_beginning_is_an_error_naming_version_0(copy):
    drop_commits(copy, range(3))
    reader = FileTxnLogReader(copy)
    with pytest.raises(DeltaError, match="version 0 is missing"):
        reader.state()
    assert list(reader.versions()) == list(range(3, LAST + 1))
    assert reader.commit(3)


def test_no_log_is_a_missing_table(tmp_path):
    reader = FileTxnLogReader(open_store(str(tmp_path / "nowhere")))
    for ask in (reader.latest_version, reader.versions, reader.state, reader.adds):
        with pytest.raises(TableNotFoundError, match="nowhere"):
            ask()


@pytest.mark.parametrize("version", [-1, LAST + 1])
def test_version_outside_the_log_is_not_found(copy, version):
    reader = FileTxnLogReader(copy)
    for ask in (reader.state, reader.adds, reader.removes, reader.domains):
        with pytest.raises(VersionNotFoundError, match=f"no version {version}"):
            ask(version)
    with pytest.raises(VersionNotFoundError, match=f"version {version}"):
        reader.commit(version)


def test_broken_commit_is_an_error_naming_the_file(copy):
    copy.put(log_path(4, "json"), b'{"add":{"path":1}}\n')
    reader = FileTxnLogReader(copy)
    with pytest.raises(CodecError, match=r"0004\.json: line 1"):
        reader.adds()
    # Nothing of a file is looked at for the rest.
    assert reader.state().version == LAST


def test_log_without_metadata_is_an_error():
    store = open_store(f"memory:///{uuid.uuid4().hex}")
    write_log(store, [PROTOCOL, add("a")])
    with pytest.raises(DeltaError, match="has no metaData"):
        FileTxnLogReader(store).state()


def test_file_times_are_made_to_increase(tmp_path):
    store = open_store(str(tmp_path))
    write_log(store, [PROTOCOL, metadata()], [], [], [])
    for version, time_ms in enumerate([1000, 900, 1001, 5000]):
        store.set_modified(log_path(version, "json"), time_ms)
    reader = FileTxnLogReader(store)
    times = [reader.state(v).timestamp_ms for v in range(4)]
    assert times == [1000, 1001, 1002, 5000]
    for time_ms, version in [(1000, 0), (1001, 1), (4999, 2), (5000, 3), (10**13, 3)]:
        assert reader.version_at(time_ms) == version
    with pytest.raises(VersionNotFoundError, match="999 ms"):
        reader.version_at(999)


def test_travel_by_file_time_goes_where_deltalake_goes(location):
    store = open_store(location)
    hour = 3_600_000
    start = 1_700_000_000_000
    for version in range(LAST + 1):
        store.set_modified(log_path(version, "json"), start + version * hour)
    reader = FileTxnLogReader(store)
    for time_ms in range(start, start + (LAST + 1) * hour, hour // 2):
        table = DeltaTable(location)
        table.load_as_version(datetime.fromtimestamp(time_ms / 1000, UTC))
        assert reader.version_at(time_ms) == table.version()


def test_version_left_only_in_a_checkpoint_is_older_than_the_next(tmp_path):
    store = open_store(str(tmp_path))
    write_log(store, [PROTOCOL, metadata()], [])
    write_v1(store, 0, [plain(PROTOCOL), plain(metadata())], [])
    drop_commits(store, [0])
    store.set_modified(log_path(0, "checkpoint.parquet"), 9000)
    store.set_modified(log_path(1, "json"), 5000)
    reader = FileTxnLogReader(store)
    assert [reader.state(v).timestamp_ms for v in (0, 1)] == [4999, 5000]
    assert reader.version_at(4999) == 0
    assert reader.version_at(9000) == 1


STAMPED = Protocol(
    min_reader_version=1, min_writer_version=7, writer_features=["inCommitTimestamp"]
)


def stamp(time_ms):
    return CommitInfo({"inCommitTimestamp": time_ms})


def test_in_commit_timestamps_count_from_where_they_were_enabled(tmp_path):
    store = open_store(str(tmp_path))
    enabled = {
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "2",
        "delta.inCommitTimestampEnablementTimestamp": "3000",
    }
    write_log(
        store,
        [PROTOCOL, metadata()],
        [stamp(1)],
        [stamp(3000), STAMPED, metadata(**enabled)],
        [stamp(4000)],
    )
    for version in range(4):
        store.set_modified(log_path(version, "json"), 1000 * (version + 1) + 500)
    reader = FileTxnLogReader(store)
    times = [reader.state(v).timestamp_ms for v in range(4)]
    assert times == [1500, 2500, 3000, 4000]
    for time_ms, version in [(1500, 0), (2999, 1), (3000, 2), (3999, 2), (4000, 3)]:
        assert reader.version_at(time_ms) == version
    with pytest.raises(VersionNotFoundError):
        reader.version_at(1499)


def test_feature_without_its_property_leaves_the_file_times(tmp_path):
    store = open_store(str(tmp_path))
    write_log(store, [stamp(1), STAMPED, metadata()])
    store.set_modified(log_path(0, "json"), 7000)
    assert FileTxnLogReader(store).state().timestamp_ms == 7000


def test_missing_in_commit_timestamp_breaks_the_protocol():
    store = open_store(f"memory:///{uuid.uuid4().hex}")
    enabled = metadata(**{"delta.enableInCommitTimestamps": "true"})
    write_log(store, [CommitInfo({}), STAMPED, enabled])
    with pytest.raises(ProtocolError, match="version 0"):
        FileTxnLogReader(store).state()
