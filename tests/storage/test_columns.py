"""A checkpoint's files by column say what its actions say."""

import uuid

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from delkalakedb.catalog.load.log_rows import adds_of
from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import Add, action_to_dict, dv_id
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.log.checkpoint import Part, read_checkpoint, read_files
from tests.support.logs import (
    COLUMNS,
    FORMS,
    PROTOCOL,
    STRINGS,
    VECTORS,
    add,
    log_path,
    metadata,
    parquet,
    plain,
    remove,
)

KINDS = frozenset({"add", "remove"})
PATH = log_path(0, "checkpoint.parquet")
FIELDS = {field.name: field.type for field in COLUMNS["add"]} | {
    "baseRowId": pa.int64(),
    "defaultRowCommitVersion": pa.int32(),
    "clusteringProvider": pa.string(),
}
TEXT = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=6
) | st.sampled_from(['"', "\\", "a b", "\n", "é%", "{}", "\x1f"])
MAPS = st.dictionaries(TEXT, st.none() | TEXT, max_size=3)
ADDS = st.builds(
    add,
    TEXT.filter(bool),
    partition_values=MAPS,
    size=st.integers(0, 2**62),
    stats=st.none() | TEXT,
    tags=st.none() | MAPS,
    deletion_vector=st.sampled_from([None, *VECTORS]),
    base_row_id=st.none() | st.integers(0, 2**62),
    default_row_commit_version=st.none() | st.integers(0, 2**31 - 1),
    clustering_provider=st.none() | TEXT,
)


def stored(lines: list[dict], **fields: pa.DataType) -> Store:
    store = open_store(f"memory:///{uuid.uuid4()}")
    columns = {**COLUMNS, "add": pa.struct(FIELDS | fields)}
    store.put(PATH, parquet(lines, columns))
    return store


def line(action: Add) -> dict:
    body = action_to_dict(action)["add"]
    return {"add": {name: value for name, value in body.items() if value is not None}}


def actions(parts: list[Part]) -> list:
    found = []
    for part in parts:
        found += adds_of(part) if isinstance(part, pa.RecordBatch) else part
    return found


@settings(max_examples=60, deadline=None)
@given(st.lists(ADDS, min_size=1, max_size=6), st.integers(0, 3))
def test_columns_of_any_files_say_what_the_actions_say(adds, left_out):
    store = stored([line(a) for a in adds])
    without = {(a.path, dv_id(a)) for a in adds[:left_out]}

    parts = list(read_files(store, [PATH], KINDS, without))

    kept = [
        a
        for a in read_checkpoint(store, [PATH], KINDS)
        if (a.path, dv_id(a)) not in without
    ]
    assert actions(parts) == kept


@pytest.mark.parametrize("form", FORMS)
def test_checkpoint_of_any_form_gives_the_same_files(form):
    store = open_store(f"memory:///{uuid.uuid4()}")
    files = [add(f"f{n}", partition_values={"p": f"é {n}"}) for n in range(9)]
    files += [remove("gone"), add("v", deletion_vector=VECTORS[0])]
    others = [plain(PROTOCOL), plain(metadata())]
    FORMS[form](store, 0, others, [plain(file) for file in files])
    paths = sorted(m.path for m in store.list("_delta_log") if ".checkpoint." in m.path)

    parts = list(read_files(store, paths, KINDS, frozenset()))

    found = actions(parts)
    assert found == list(read_checkpoint(store, paths, KINDS))
    assert sorted(map(str, map(plain, found))) == sorted(map(str, map(plain, files)))
    assert any(isinstance(part, pa.RecordBatch) for part in parts) == (
        form != "v2 json inline"
    )


def test_unknown_field_is_kept_by_the_action():
    known, odd = line(add("a")), line(add("b"))
    odd["add"]["later"] = "x"
    store = stored([known, odd], later=pa.string())

    parts = list(read_files(store, [PATH], KINDS, frozenset()))

    assert [a.extra for a in actions(parts)] == [{}, {"later": "x"}]


def test_unknown_field_that_nobody_uses_is_no_hindrance():
    store = stored([line(add("a"))], later=STRINGS)

    (part,) = read_files(store, [PATH], KINDS, frozenset())

    assert isinstance(part, pa.RecordBatch)


def test_statistics_only_in_typed_form_are_columns_too():
    body = line(add("a"))["add"] | {"stats_parsed": {"numRecords": 3}}
    own = line(add("b", stats='{ "numRecords": 4 }'))["add"]
    kind = pa.struct({"numRecords": pa.int64()})
    store = stored([{"add": body}, {"add": own}], stats_parsed=kind)

    (part,) = read_files(store, [PATH], KINDS, frozenset())

    assert part["stats"].to_pylist() == ['{"numRecords":3}', '{ "numRecords": 4 }']


@pytest.mark.parametrize("name", ["path", "size", "partitionValues"])
def test_file_without_a_required_field_is_refused(name):
    body = line(add("a"))["add"]
    del body[name]
    store = stored([{"add": body}])

    with pytest.raises(DeltaError, match=name):
        list(read_files(store, [PATH], KINDS, frozenset()))
