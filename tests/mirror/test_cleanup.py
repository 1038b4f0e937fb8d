"""Log retention: what has expired goes, and what is kept can be read as before."""

import json
import uuid
from contextlib import suppress

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings, strategies as st

from delkalakedb.errors import DeltaError, VersionNotFoundError
from delkalakedb.mirror.checkpoint.log_retention import clean_log
from delkalakedb.model.actions import CommitInfo, Protocol
from delkalakedb.storage import ObjectMeta, open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader
from tests.support.examples import examples
from tests.support.logs import (
    FORMS,
    PROTOCOL,
    add,
    lines_at,
    log_path,
    metadata,
    remove,
    view,
    write_log,
    write_v1,
)

DAY_MS = 86_400_000
RETENTION = "delta.logRetentionDuration"
# Long after the stores' own clocks, so that every file they have has expired.
LATER_MS = 4_000 * 366 * DAY_MS
SIDECARS = "_delta_log/_sidecars/"


class TimedStore:
    """A store whose files have the times that a test says, day by day."""

    def __init__(self):
        self._inner = open_store(f"memory:///{uuid.uuid4().hex}")
        self.days = {}
        self.gets = []

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def get(self, path):
        self.gets.append(path)
        return self._inner.get(path)

    def list(self, prefix="", start_after=None):
        for meta in self._inner.list(prefix, start_after):
            day = self.days.get(meta.path, 0)
            yield ObjectMeta(meta.path, meta.size_bytes, int(day * DAY_MS))


def commits(count, **configuration):
    """Commits that each add a file and remove the one before."""
    yield [PROTOCOL, metadata(**configuration), add("f0")]
    for version in range(1, count):
        yield [remove(f"f{version - 1}"), add(f"f{version}")]


def make_log(count, checkpoints, form="v1", **configuration):
    """A log with one commit a day, by its files' times."""
    store = TimedStore()
    write_log(store, *commits(count, **configuration))
    for version in range(count):
        store.days[log_path(version, "json")] = version
    for version in checkpoints:
        FORMS[form](store, version, *lines_at(FileTxnLogReader(store), version))
    return store


def names(store):
    return sorted(m.path.removeprefix("_delta_log/") for m in store.list("_delta_log"))


def versions(store):
    return FileTxnLogReader(store).versions()


def clean(store, now_day, published=10**6, **configuration):
    given = {RETENTION: "interval 10 days", **configuration}
    return clean_log(store, metadata(**given), published, now_day * DAY_MS)


@pytest.mark.parametrize("form", FORMS)
def test_versions_before_the_cut_go_and_the_rest_reads_as_before(form):
    store = make_log(10, [2, 5, 8], form)
    reader = FileTxnLogReader(store)
    before = {version: view(reader, version) for version in range(10)}

    clean(store, now_day=16)

    assert versions(store) == [5, 6, 7, 8, 9]
    assert {v: view(reader, v) for v in range(5, 10)} == {
        v: before[v] for v in range(5, 10)
    }
    for version in range(5):
        with pytest.raises(VersionNotFoundError, match="the log has 5 to 9"):
            reader.state(version)


def test_cut_is_the_newest_checkpoint_at_or_before_the_cutoff():
    store = make_log(10, [3, 6, 9])

    assert clean(store, now_day=12) == []
    assert clean(store, now_day=13)[-1] == log_path(2, "json")
    assert clean(store, now_day=15.9) == []
    assert clean(store, now_day=16)[-1] == log_path(5, "json")
    assert clean(store, now_day=10_000)[-1] == log_path(8, "json")
    assert versions(store) == [9]


def test_cutoff_is_at_midnight():
    """A table that keeps 10.5 days keeps the whole day in which they began."""
    store = make_log(3, [1])
    store.days[log_path(1, "json")] = 1.25

    assert clean(store, now_day=11.99, **{RETENTION: "interval 252 hours"}) == []
    assert clean(store, now_day=12.4, **{RETENTION: "interval 252 hours"}) == []
    assert clean(store, now_day=12.5, **{RETENTION: "interval 252 hours"}) != []


def test_default_retention_is_thirty_days():
    store = make_log(5, [2])

    for day in (31.9, 32):
        done = clean_log(store, metadata(), 4, int(day * DAY_MS))
        assert bool(done) == (day == 32)


def test_nothing_goes_where_cleanup_is_turned_off():
    store = make_log(5, [2, 4])

    off = {"delta.enableExpiredLogCleanup": "false"}
    assert clean(store, now_day=10_000, **off) == []
    assert versions(store) == [0, 1, 2, 3, 4]


def test_nothing_goes_without_a_checkpoint():
    store = make_log(5, [])

    assert clean(store, now_day=10_000) == []


@pytest.mark.parametrize(("published", "oldest"), [(-1, 0), (1, 0), (2, 2), (3, 2)])
def test_checkpoint_above_the_published_version_is_no_cut(published, oldest):
    store = make_log(6, [2, 4])

    clean(store, now_day=10_000, published=published)

    assert min(versions(store)) == oldest


def test_incomplete_checkpoint_is_no_cut_and_goes_with_its_version():
    store = make_log(6, [2], "multi-part")
    part = log_path(4, f"checkpoint.{1:010}.{2:010}.parquet")
    store.put(part, b"half")

    clean(store, now_day=10_000)
    assert versions(store) == [2, 3, 4, 5]
    assert store.exists(part)

    FORMS["v1"](store, 5, *lines_at(FileTxnLogReader(store), 5))
    assert part in clean(store, now_day=10_000)
    assert versions(store) == [5]


def test_every_kind_of_file_goes_by_its_version():
    store = make_log(8, [2, 5])
    gone = [
        log_path(1, "crc"),
        log_path(4, "crc"),
        log_path(0, f"{3:020}.compacted.json"),
        log_path(5, f"{6:020}.compacted.json"),
        f"_delta_log/_staged_commits/{4:020}.{uuid.uuid4()}.json",
        f"_delta_log/_staged_commits/{5:020}.{uuid.uuid4()}.json",
    ]
    kept = [
        "_delta_log/_last_checkpoint",
        "_delta_log/_commit_x.tmp",
        "_delta_log/00000000000000000001.json.tmp",
        "_delta_log/0.json",
        log_path(5, "crc"),
        log_path(7, "crc"),
        log_path(6, f"{7:020}.compacted.json"),
        f"_delta_log/_staged_commits/{6:020}.{uuid.uuid4()}.json",
    ]
    for path in (*gone, *kept):
        store.put(path, b"{}")

    done = clean(store, now_day=10_000)

    assert {*gone, log_path(2, "checkpoint.parquet")} < set(done)
    assert [p for p in (*gone, *done) if store.exists(p)] == []
    assert [p for p in kept if not store.exists(p)] == []
    assert store.exists(log_path(5, "json"))


def test_compaction_over_unpublished_versions_stays():
    store = make_log(8, [5])
    path = log_path(5, f"{7:020}.compacted.json")
    store.put(path, b"{}")

    clean(store, now_day=10_000, published=6)

    assert store.exists(path)
    assert versions(store) == [5, 6, 7]


@pytest.mark.parametrize("form", ["v2 json sidecars", "v2 parquet sidecars"])
def test_old_sidecars_of_no_kept_checkpoint_go(form):
    store = make_log(8, [2, 5, 7], form)
    new, old = (f"{SIDECARS}{uuid.uuid4()}.parquet" for _ in range(2))
    for path in (new, old):
        store.put(path, b"")
    store.days[new] = 9_999
    before = [path for path in names(store) if path.startswith("_sidecars")]

    clean(store, now_day=10_000.5, published=6)

    after = [path for path in names(store) if path.startswith("_sidecars")]
    per_checkpoint = (len(before) - 2) // 3
    assert len(after) == 2 * per_checkpoint + 1
    assert store.exists(new)
    assert not store.exists(old)
    for version in (5, 6, 7):
        assert view(FileTxnLogReader(store), version)


def test_sidecars_stay_where_a_kept_checkpoint_cannot_be_read():
    store = make_log(8, [2], "v2 json sidecars")
    FORMS["v1"](store, 5, *lines_at(FileTxnLogReader(store), 5))
    store.put(log_path(7, "checkpoint.parquet"), b"broken")
    before = names(store)

    with pytest.raises(DeltaError, match="isn't a valid checkpoint"):
        clean(store, now_day=10_000, published=6)
    assert names(store) == before


def test_checkpoints_before_a_protected_version_go_at_once_or_not_at_all():
    protected = {"delta.requireCheckpointProtectionBeforeVersion": "5"}
    store = make_log(10, [2, 4, 8])

    assert clean(store, now_day=14.5, **protected) == []
    assert clean(store, now_day=18, **protected) != []
    assert versions(store) == [8, 9]


def test_in_commit_timestamps_count_where_the_table_has_them():
    """Published late, or copied: the files' times say nothing of the commits'."""
    feature = Protocol(
        min_reader_version=1, min_writer_version=7, writer_features=["x"]
    )
    stamps = {"delta.enableInCommitTimestamps": "true"}
    store = TimedStore()
    infos = [CommitInfo({"inCommitTimestamp": v * DAY_MS}) for v in range(10)]
    first, *rest = commits(10, **stamps)
    write_log(
        store,
        [infos[0], feature, *first[1:]],
        *([i, *actions] for i, actions in zip(infos[1:], rest, strict=True)),
    )
    for version in (2, 5, 8):
        write_v1(store, version, *lines_at(FileTxnLogReader(store), version))
    for name in names(store):
        store.days[f"_delta_log/{name}"] = 500

    store.gets.clear()
    assert clean(store, now_day=16, **stamps)[-1] == log_path(4, "json")
    assert len(store.gets) <= 2


def test_file_times_count_before_in_commit_timestamps_were_turned_on():
    store = make_log(10, [2, 5, 8])
    stamps = {
        "delta.enableInCommitTimestamps": "true",
        "delta.inCommitTimestampEnablementVersion": "7",
        "delta.inCommitTimestampEnablementTimestamp": str(7 * DAY_MS),
    }

    store.gets.clear()
    assert clean(store, now_day=16, **stamps)[-1] == log_path(4, "json")
    assert set(store.gets) <= {log_path(8, "json")}


def test_file_times_that_go_back_are_made_to_increase():
    store = make_log(6, [1, 4])
    for version in (0, 1):
        store.days[log_path(version, "json")] = 50

    assert clean(store, now_day=59) == []
    assert clean(store, now_day=62)[-1] == log_path(3, "json")


@settings(max_examples=examples(60))
@given(st.integers(1, 12), st.data())
def test_log_is_whole_after_any_cleanups_however_far_they_came(count, data):
    checkpoints = data.draw(st.sets(st.integers(0, count - 1)))
    store = make_log(count, checkpoints, data.draw(st.sampled_from(list(FORMS))))
    reader = FileTxnLogReader(store)
    before = [view(reader, version) for version in range(count)]
    published = data.draw(st.integers(-1, count - 1))
    floor = 0
    for day in sorted(data.draw(st.lists(st.integers(0, 30), max_size=3))):
        floor = max([floor, *(v for v in checkpoints if v <= min(published, day - 10))])
        interrupted(store, data.draw(st.integers(0, 30)), day, published)
        assert [view(reader, v) for v in range(floor, count)] == before[floor:]
        clean(store, day, published)
        assert versions(store) == list(range(floor, count))
    assert [view(reader, v) for v in range(floor, count)] == before[floor:]
    for version in range(floor):
        with pytest.raises(VersionNotFoundError):
            reader.state(version)


def interrupted(store, patience, day, published):
    """A cleanup whose store fails after some deletes."""

    def delete_many(paths):
        for path in paths[:patience]:
            store.delete(path)
        raise InterruptedError

    store.delete_many = delete_many
    with suppress(InterruptedError):
        clean(store, day, published)
    del store.delete_many


def test_deltalake_reads_a_cleaned_log(tmp_path):
    location = str(tmp_path / "table")
    for n in range(8):
        write_deltalake(location, pa.table({"n": [n]}), mode="append")
        if n in (2, 5):
            DeltaTable(location).create_checkpoint()
    store = open_store(location)
    theirs = metadata(**{RETENTION: "interval 0 days"})

    assert clean_log(store, theirs, 7, LATER_MS)

    for version in (5, 6, 7, None):
        table = DeltaTable(location, version=version)
        last = 7 if version is None else version
        found = table.to_pyarrow_table()["n"].to_pylist()
        assert sorted(found) == list(range(last + 1))
    with pytest.raises(Exception, match=r"version|log"):
        DeltaTable(location, version=4)
    write_deltalake(location, pa.table({"n": [8]}), mode="append")
    assert DeltaTable(location).to_pyarrow_table().num_rows == 9
    assert json.loads(store.get("_delta_log/_last_checkpoint"))["version"] == 5
