import json
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from delkalakedb.errors import DeltaError, StorageError
from delkalakedb.model.actions import (
    Add,
    DomainMetadata,
    Remove,
    Txn,
    dv_id,
    encode_commit,
)
from delkalakedb.storage import open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader
from tests.support.logs import (
    COLUMNS,
    FORMS,
    LAST,
    PROTOCOL,
    VECTORS,
    add,
    assert_as_deltalake,
    drop_commits,
    lines_at,
    log_path,
    metadata,
    plain,
    remove,
    view,
    write_log,
    write_multipart,
    write_v1,
    write_v2,
)


@pytest.mark.parametrize("form", FORMS)
def test_checkpoint_of_any_form_stands_for_the_commits_before_it(copy, form):
    write_log(
        copy,
        [
            DomainMetadata(domain="d", configuration='{"a": 1}', removed=False),
            DomainMetadata(domain="gone", configuration="", removed=False),
            add("dv", deletion_vector=VECTORS[0], tags={"k": "v", "n": None}),
        ],
        [
            DomainMetadata(domain="gone", configuration="", removed=True),
            remove("dv", deletion_vector=VECTORS[0]),
            add("dv", deletion_vector=VECTORS[1]),
        ],
        first=LAST + 1,
    )
    reader = FileTxnLogReader(copy)
    at = LAST + 1
    before = {v: view(reader, v) for v in (at, at + 1)}
    FORMS[form](copy, at, *lines_at(reader, at))
    drop_commits(copy, range(at + 1))
    assert {v: view(reader, v) for v in (at, at + 1)} == before
    assert reader.latest_version() == at + 1


@pytest.mark.parametrize("form", FORMS)
def test_hand_made_checkpoint_is_read_by_deltalake_too(location, form):
    store = open_store(location)
    reader = FileTxnLogReader(store)
    FORMS[form](store, LAST, *lines_at(reader, LAST))
    drop_commits(store, range(LAST))
    assert_as_deltalake(location, LAST)


@pytest.mark.parametrize(
    "hint", [b"", b"{not json", b'{"version":4,"size":1}', b'{"version":99,"size":1}']
)
def test_wrong_last_checkpoint_changes_nothing(copy, hint):
    reader = FileTxnLogReader(copy)
    before = view(reader)
    write_v1(copy, 5, *lines_at(reader, 5))
    drop_commits(copy, range(5))
    copy.put("_delta_log/_last_checkpoint", hint)
    assert view(reader) == before


def test_incomplete_multipart_checkpoint_is_ignored(copy):
    reader = FileTxnLogReader(copy)
    before = view(reader)
    write_v1(copy, 3, *lines_at(reader, 3))
    write_multipart(copy, 6, *lines_at(reader, 6))
    copy.delete(log_path(6, "checkpoint.0000000002.0000000003.parquet"))
    drop_commits(copy, range(4))
    assert view(reader) == before


def test_empty_checkpoint_is_ignored(copy):
    reader = FileTxnLogReader(copy)
    before = view(reader)
    write_v1(copy, 3, *lines_at(reader, 3))
    copy.put(log_path(6, "checkpoint.parquet"), b"")
    drop_commits(copy, range(4))
    assert view(reader) == before


def test_checkpoint_newer_than_the_wanted_version_is_ignored(copy):
    reader = FileTxnLogReader(copy)
    before = [view(reader, v) for v in range(LAST + 1)]
    write_v1(copy, 6, *lines_at(reader, 6))
    assert [view(reader, v) for v in range(LAST + 1)] == before


def test_compacted_and_other_files_do_not_disturb(copy):
    reader = FileTxnLogReader(copy)
    before = view(reader)
    compacted = encode_commit([add("compacted")])
    copy.put(log_path(0, f"{LAST:020}.compacted.json"), compacted)
    copy.put(log_path(LAST, "crc"), b"{}")
    copy.put(log_path(LAST + 1, "json.tmp"), b"half")
    copy.put(f"_delta_log/_staged_commits/{LAST + 1:020}.{uuid.uuid4()}.json", b"{}")
    copy.put("_delta_log/_sidecars/orphan.parquet", b"")
    assert view(reader) == before


def test_state_of_a_checkpointed_version_does_not_open_its_sidecars(copy):
    reader = FileTxnLogReader(copy)
    write_v2(copy, LAST, *lines_at(reader, LAST), form="parquet", sidecars=1)
    for meta in list(copy.list("_delta_log/_sidecars")):
        copy.delete(meta.path)
    assert reader.state().version == LAST
    assert reader.txns()["app"].version == 3
    with pytest.raises(StorageError):
        list(reader.adds())


def test_broken_checkpoint_is_an_error_naming_the_file(copy):
    copy.put(log_path(LAST, "checkpoint.parquet"), b"PAR1 not really")
    with pytest.raises(DeltaError, match=r"0009\.checkpoint\.parquet"):
        FileTxnLogReader(copy).state()


FILES = st.builds(
    lambda make, path, vector: make(path, deletion_vector=vector),
    st.sampled_from([add, remove]),
    st.sampled_from("abc"),
    st.sampled_from([None, *VECTORS]),
)
OTHERS = st.one_of(
    st.builds(Txn, app_id=st.sampled_from("pq"), version=st.integers(0, 5)),
    st.builds(
        DomainMetadata,
        domain=st.sampled_from("de"),
        configuration=st.sampled_from(["1", "2"]),
        removed=st.booleans(),
    ),
)
COMMITS = st.lists(
    st.lists(FILES | OTHERS, max_size=4, unique_by=lambda a: repr(action_key(a))),
    min_size=1,
    max_size=6,
)


def action_key(action):
    match action:
        case Add() | Remove():
            return action.path, dv_id(action)
        case Txn():
            return action.app_id
        case _:
            return action.domain


@settings(max_examples=40, deadline=None)
@given(COMMITS, st.sampled_from(sorted(FORMS)), st.data())
def test_checkpoint_anywhere_in_any_history_changes_no_answer(commits, form, data):
    store = open_store(f"memory:///{uuid.uuid4().hex}")
    commits[0] = [PROTOCOL, metadata(), *commits[0]]
    write_log(store, *commits)
    reader = FileTxnLogReader(store)
    at = data.draw(st.integers(0, len(commits) - 1))
    before = [view(reader, v) for v in range(at, len(commits))]
    FORMS[form](store, at, *lines_at(reader, at))
    drop_commits(store, range(at + 1))
    assert [view(reader, v) for v in range(at, len(commits))] == before


def values_struct(stamps):
    return pa.struct(
        {
            "n": pa.int64(),
            "f": pa.float64(),
            "dec": pa.decimal128(5, 2),
            "d": pa.date32(),
            "ts": stamps,
            "ntz": pa.timestamp("us"),
            "s": pa.struct({"t": pa.string()}),
            "none": pa.string(),
        }
    )


VALUES = {
    "n": 1,
    "f": float("nan"),
    "dec": Decimal("-1.50"),
    "d": date(2020, 2, 3),
    "ts": datetime(2020, 2, 3, 4, 5, 6, 789_999, UTC),
    "ntz": datetime(2020, 2, 3, 4, 5, 6, 789_999),
    "s": {"t": "é"},
    "none": None,
}
IN_JSON = {
    "n": 1,
    "dec": -1.5,
    "d": "2020-02-03",
    "ts": "2020-02-03T04:05:06.789Z",
    "ntz": "2020-02-03T04:05:06.789",
    "s": {"t": "é"},
}


def checkpoint_with_parsed_stats(lines, **options):
    stats = pa.struct(
        {
            "numRecords": pa.int64(),
            "minValues": values_struct(pa.timestamp("us", "UTC")),
            "tightBounds": pa.bool_(),
        }
    )
    fields = {f.name: f.type for f in COLUMNS["add"]} | {"stats_parsed": stats}
    columns = COLUMNS | {"add": pa.struct(fields)}
    sink = pa.BufferOutputStream()
    table = pa.Table.from_pylist(lines, schema=pa.schema(columns))
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def stats_at_checkpoint(*adds, **options):
    store = open_store(f"memory:///{uuid.uuid4().hex}")
    lines = [plain(PROTOCOL), plain(metadata()), *({"add": a} for a in adds)]
    data = checkpoint_with_parsed_stats(lines, **options)
    store.put(log_path(0, "checkpoint.parquet"), data)
    return [a.stats for a in FileTxnLogReader(store).adds()]


def test_statistics_only_in_typed_form_are_written_as_json():
    parsed = {"numRecords": 3, "minValues": VALUES, "tightBounds": False}
    body = plain(add("a"))["add"]
    own, rebuilt = stats_at_checkpoint(
        body | {"stats": '{ "numRecords": 9 }', "stats_parsed": parsed},
        body | {"path": "b", "stats_parsed": parsed},
    )
    assert own == '{ "numRecords": 9 }'
    assert json.loads(rebuilt) == {
        "numRecords": 3,
        "minValues": IN_JSON,
        "tightBounds": False,
    }


def test_int96_statistics_are_in_utc():
    parsed = {"minValues": {"ts": VALUES["ts"]}}
    body = plain(add("a"))["add"] | {"stats_parsed": parsed}
    (rebuilt,) = stats_at_checkpoint(body, use_deprecated_int96_timestamps=True)
    assert json.loads(rebuilt)["minValues"] == {"ts": IN_JSON["ts"]}


def test_statistics_that_have_no_json_form_are_left_out():
    far = 300_000_000_000_000_000
    body = plain(add("a"))["add"] | {"stats_parsed": {"minValues": {"ntz": far}}}
    (stats,) = stats_at_checkpoint(body)
    assert not stats
