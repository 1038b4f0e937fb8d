"""What a checkpoint holds, from the catalog's rows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, given, settings, strategies as st

from delkalakedb import Catalog, connect
from delkalakedb.catalog.commit.outbox import Outbox
from delkalakedb.errors import VersionNotFoundError
from delkalakedb.mirror.checkpoint import checkpoint, checkpoint as checkpoint_state
from delkalakedb.mirror.checkpoint.checkpoint import (
    checkpoint_due,
    due_checkpoint,
    write_checkpoint,
)
from delkalakedb.model.actions import (
    UNSET,
    Action,
    Add,
    DeletionVector,
    Format,
    Metadata,
    Protocol,
)
from delkalakedb.model.log import Replay, Staged
from delkalakedb.storage import open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader
from tests.support.actions import (
    DV,
    add,
    commit,
    create,
    domain,
    metadata,
    protocol,
    remove,
    stats,
    txn,
    vector,
)
from tests.support.checkpoints import (
    STRUCT,
    TEXTLESS,
    V2,
    read_kind,
    read_rows,
    write_alone,
)
from tests.support.histories import Model, Writers, outcomes_of
from tests.support.logs import view

DAY_MS = 86_400_000
WEEK_MS = 7 * DAY_MS
POLICIES = ({}, STRUCT | TEXTLESS, V2 | STRUCT)
checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def reader(folder: Path) -> FileTxnLogReader:
    return FileTxnLogReader(open_store(str(folder)))


def asking(staged: Staged, configuration: dict[str, str]) -> Staged:
    """A table's creation with more properties, and the feature that V2 needs."""

    def changed(action: Action) -> Action:
        if isinstance(action, Metadata):
            more = {**(action.configuration or {}), **configuration}
            return msgspec.structs.replace(action, configuration=more)
        if isinstance(action, Protocol):
            return protocol(*(action.writer_features or ()), "v2Checkpoint")
        return action

    return replace(staged, actions=tuple(map(changed, staged.actions)))


def bare(value: Any) -> Any:
    """A value without what is null or empty, and statistics as what they say."""
    if isinstance(value, dict):
        forms = {name: bare(v) for name, v in value.items()}
        if isinstance(forms.get("stats"), str):
            forms["stats"] = bare(json.loads(forms["stats"]))
        return {name: form for name, form in forms.items() if form not in (None, {})}
    return [bare(v) for v in value] if isinstance(value, list | tuple) else value


def check_delta_rs(folder: Path, state: Replay) -> None:
    """delta-rs finds the same files and transactions."""
    table = DeltaTable(folder, version=state.version)
    found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    sizes = sorted((f["path"], f["size_bytes"], f.get("min.x")) for f in found)
    assert sizes == sorted((f.path, f.size, low(f)) for f in state.adds.values())
    for app_id in ("app1", "app2"):
        txn = state.txns.get(app_id)
        assert table.transaction_version(app_id) == (txn.version if txn else None)


def low(file: Add) -> int | None:
    return json.loads(file.stats)["minValues"]["x"] if file.stats else None


# ---- content


@pytest.mark.parametrize("policy", POLICIES, ids=["v1", "struct", "v2"])
@settings(max_examples=3, suppress_health_check=checks)
@given(data=st.data())
def test_history_behind_a_checkpoint_reads_as_the_catalog_has_it(
    catalog: Catalog,
    tmp_path_factory: pytest.TempPathFactory,
    policy: dict[str, str],
    data: st.DataObject,
) -> None:
    model = Model()
    writers = Writers(model, data.draw)
    first = asking(writers.create(), policy)
    assert outcomes_of(catalog._try_commit(first)) == model.ratify(first)
    for _ in range(6):
        staged = writers.transaction()
        assert outcomes_of(catalog._try_commit(*staged)) == model.ratify(*staged)
    (name,) = model.tables
    latest = model.tables[name].version
    version = data.draw(st.integers(0, latest))
    folder = tmp_path_factory.mktemp("t")
    written = write_alone(catalog, folder, version, name=name)
    state = model.tables[name].states[version]
    kept = [*state.adds, *state.removes]
    others = 2 + len(state.txns) + len(state.domains)
    if "delta.checkpointPolicy" in policy:
        others += 1 + len(written.sidecars)
    assert (written.size, written.num_adds) == (others + len(kept), len(state.adds))
    for at in range(version, latest + 1):
        assert bare(view(reader(folder), at)) == bare(view(catalog.log(name), at))
        check_delta_rs(folder, model.tables[name].states[at])


def test_checkpoint_written_twice_has_the_same_content(
    catalog: Catalog, tmp_path: Path
) -> None:
    create(catalog, "t", *(add(f"f{n}") for n in range(5)))
    first = write_alone(catalog, tmp_path)
    rows = read_rows(tmp_path, first.path).to_pylist()
    assert write_alone(catalog, tmp_path) == first
    again = read_rows(tmp_path, first.path).to_pylist()
    assert sorted(again, key=str) == sorted(rows, key=str)


def test_checkpoint_of_an_older_version_ignores_what_came_after(
    catalog: Catalog, tmp_path: Path
) -> None:
    file = add("a")
    create(catalog, "t", file, txn("app", 1))
    commit(catalog, remove(file), add("b"), txn("app", 2))
    path = write_alone(catalog, tmp_path, 0).path
    assert [f["path"] for f in read_kind(tmp_path, path, "add")] == ["a"]
    assert [t["version"] for t in read_kind(tmp_path, path, "txn")] == [1]
    assert read_kind(tmp_path, path, "remove") == []


def test_version_that_is_not_there_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    create(catalog)
    folder = tmp_path / "t"
    with pytest.raises(VersionNotFoundError):
        write_checkpoint(catalog, "t", 1, open_store(str(folder)), 0)
    assert not folder.exists()


def test_optional_fields_of_files_are_kept(catalog: Catalog, tmp_path: Path) -> None:
    marks = [
        DeletionVector(
            storage_type=kind,
            path_or_inline_dv=text,
            offset=offset,
            size_in_bytes=36,
            cardinality=2**40,
            max_row_index=rows,
        )
        for kind, text, offset, rows in (
            ("u", "ab^-aqEH.-t@S}K{vb[*k^", 4, None),
            ("i", "wi5b=000010000siXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L", None, 7),
            ("p", "s3://bucket/ü.bin", 0, None),
        )
    ]
    files = [
        add("plain"),
        add("a", deletion_vector=marks[0], tags={"k": "v", "n": None, "": ""}),
        add("b", deletion_vector=marks[1], clustering_provider="liquid", tags={}),
        add("c", deletion_vector=marks[2], stats=None, data_change=False),
        add("e", stats="no JSON at all \0"),
    ]
    asked = metadata(configuration={DV: "true"})
    create(catalog, "t", *files, meta=asked, features=["deletionVectors"])
    write_alone(catalog, tmp_path)
    found = {file.path: file for file in reader(tmp_path).adds()}
    expected = {file.path: file for file in catalog.log("t").adds()}
    assert found.keys() == expected.keys()
    assert view(reader(tmp_path)) == view(catalog.log("t"))
    assert found["a"].tags == {"k": "v", "n": None, "": ""}
    assert found["e"].stats == "no JSON at all \0"


def test_row_ids_are_kept(catalog: Catalog, tmp_path: Path) -> None:
    features = ["rowTracking", "domainMetadata"]
    create(catalog, "t", add("a"), add("b"), features=features)
    commit(catalog, add("c"))
    path = write_alone(catalog, tmp_path).path
    found = read_kind(tmp_path, path, "add")
    ids = {f["path"]: (f["baseRowId"], f["defaultRowCommitVersion"]) for f in found}
    assert ids == {"a": (0, 0), "b": (1, 0), "c": (2, 1)}


def test_fields_of_removes_are_kept_but_for_statistics_and_tags(
    catalog: Catalog, tmp_path: Path
) -> None:
    columns = metadata(partitions=["s"], configuration={DV: "true"})
    marked = add("b", partition={"s": None}, deletion_vector=vector("v"), base_row_id=3)
    files = [add("a", partition={"s": "x"}), marked, add("c", partition={"s": ""})]
    create(catalog, "t", *files, meta=columns, features=["deletionVectors"])
    explicit = remove(
        files[0],
        extended_file_metadata=True,
        partition_values={"s": "x"},
        size=100,
        stats=stats(),
        tags={"k": "v"},
        deletion_timestamp=8,
    )
    commit(catalog, explicit)
    commit(catalog, remove_all=True)
    path = write_alone(catalog, tmp_path).path
    removed = {r["path"]: r for r in read_kind(tmp_path, path, "remove")}
    assert removed["a"] == {
        "path": "a",
        "deletionTimestamp": 8,
        "dataChange": True,
        "extendedFileMetadata": True,
        "partitionValues": [("s", "x")],
        "size": 100,
        "deletionVector": None,
        "baseRowId": None,
        "defaultRowCommitVersion": None,
    }
    assert removed["b"]["partitionValues"] == [("s", None)]
    assert removed["b"]["baseRowId"] == 3
    assert removed["b"]["deletionVector"]["pathOrInlineDv"] == "v"
    assert removed["c"]["partitionValues"] == [("s", "")]


def test_table_without_files_has_a_checkpoint(catalog: Catalog, tmp_path: Path) -> None:
    create(catalog, "t", meta=metadata(configuration=V2), features=["v2Checkpoint"])
    written = write_alone(catalog, tmp_path)
    assert (written.size, written.num_adds, written.sidecars) == (3, 0, ())
    assert view(reader(tmp_path)) == view(catalog.log("t"))


# ---- what expires


def test_expired_tombstones_are_left_out(catalog: Catalog, tmp_path: Path) -> None:
    files = [add(f"f{n}") for n in range(4)]
    create(catalog, "t", *files)
    times = (9, 10, 11, UNSET)
    gone = [
        remove(file, deletion_timestamp=time)
        for file, time in zip(files, times, strict=True)
    ]
    commit(catalog, *gone)
    path = write_alone(catalog, tmp_path, now_ms=WEEK_MS + 10).path
    assert [r["path"] for r in read_kind(tmp_path, path, "remove")] == ["f2"]


def test_retention_of_deleted_files_is_the_tables_own(
    catalog: Catalog, tmp_path: Path
) -> None:
    retention = {"delta.deletedFileRetentionDuration": "interval 1 day"}
    file = add("a")
    create(catalog, "t", file, meta=metadata(configuration=retention))
    commit(catalog, remove(file, deletion_timestamp=5))
    for now_ms, kept in ((DAY_MS + 4, 1), (DAY_MS + 5, 0)):
        path = write_alone(catalog, tmp_path, now_ms=now_ms).path
        assert len(read_kind(tmp_path, path, "remove")) == kept


def test_file_that_came_back_has_no_tombstone(catalog: Catalog, tmp_path: Path) -> None:
    file = add("a")
    create(catalog, "t", file)
    commit(catalog, remove(file))
    commit(catalog, add("a", size=7))
    path = write_alone(catalog, tmp_path).path
    assert [f["size"] for f in read_kind(tmp_path, path, "add")] == [7]
    assert read_kind(tmp_path, path, "remove") == []


def test_txns_expire_only_where_the_table_asks(
    catalog: Catalog, tmp_path: Path
) -> None:
    timeless = msgspec.structs.replace(txn("c", 1), last_updated=UNSET)
    txns = [
        msgspec.structs.replace(txn("a", 1), last_updated=10),
        msgspec.structs.replace(txn("b", 1), last_updated=11),
        timeless,
    ]
    create(catalog, "t", *txns)
    path = write_alone(catalog, tmp_path, now_ms=DAY_MS + 10).path
    assert [t["appId"] for t in read_kind(tmp_path, path, "txn")] == ["a", "b", "c"]
    asked = {"delta.setTransactionRetentionDuration": "interval 1 day"}
    commit(catalog, metadata(configuration=asked), whole_table=True)
    path = write_alone(catalog, tmp_path, now_ms=DAY_MS + 10).path
    assert [t["appId"] for t in read_kind(tmp_path, path, "txn")] == ["b"]


def test_removed_domains_are_left_out(catalog: Catalog, tmp_path: Path) -> None:
    create(catalog, "t", domain("a"), domain("b"), features=["domainMetadata"])
    commit(catalog, domain("a", removed=True))
    path = write_alone(catalog, tmp_path).path
    (found,) = read_kind(tmp_path, path, "domainMetadata")
    assert found == {"domain": "b", "configuration": "{}", "removed": False}


# ---- protocol and metadata


@pytest.mark.parametrize(
    ("given", "lists"),
    [
        (protocol(), (None, None)),
        (
            Protocol(
                min_reader_version=1,
                min_writer_version=4,
                reader_features=[],
                writer_features=[],
            ),
            (None, None),
        ),
        (protocol("appendOnly"), (None, ["appendOnly"])),
        (protocol("deletionVectors"), (["deletionVectors"], ["deletionVectors"])),
    ],
)
def test_features_are_listed_where_the_versions_have_them(
    catalog: Catalog, tmp_path: Path, given: Protocol, lists: tuple[Any, Any]
) -> None:
    catalog.commit(Staged("t", (given, metadata()), location=str(tmp_path)))
    path = write_alone(catalog, tmp_path).path
    (found,) = read_kind(tmp_path, path, "protocol")
    assert (found["readerFeatures"], found["writerFeatures"]) == lists


def test_absent_maps_of_the_metadata_are_empty(
    catalog: Catalog, tmp_path: Path
) -> None:
    bare_metadata = metadata(configuration=UNSET, name="n", created_time=3)
    sparse = msgspec.structs.replace(bare_metadata, format=Format(provider="parquet"))
    create(catalog, "t", meta=sparse)
    path = write_alone(catalog, tmp_path).path
    (found,) = read_kind(tmp_path, path, "metaData")
    assert (found["configuration"], found["format"]["options"]) == ([], [])
    assert (found["name"], found["description"]) == ("n", None)


# ---- V2


def test_v2_policy_needs_its_feature(catalog: Catalog, tmp_path: Path) -> None:
    create(catalog, "t", add("a"), meta=metadata(configuration=V2))
    assert write_alone(catalog, tmp_path).path.endswith("00.checkpoint.parquet")


def test_v2_checkpoint_has_its_files_in_sidecars(
    catalog: Catalog, tmp_path: Path
) -> None:
    files = [add(f"f{n}") for n in range(3)]
    asked = metadata(configuration=V2)
    create(catalog, "t", *files, txn("a", 1), meta=asked, features=["v2Checkpoint"])
    commit(catalog, remove(files[0]), add("g"))
    written = write_alone(catalog, tmp_path)
    assert len(written.sidecars) == 1
    main = read_rows(tmp_path, written.path)
    (about,) = read_kind(tmp_path, written.path, "checkpointMetadata")
    assert about["version"] == 1
    assert main["add"].null_count == main["remove"].null_count == main.num_rows
    leads = read_kind(tmp_path, written.path, "sidecar")
    named = {f"_delta_log/_sidecars/{s['path']}": s["sizeInBytes"] for s in leads}
    assert named == {p: (tmp_path / p).stat().st_size for p in written.sidecars}
    own_bytes = (tmp_path / written.path).stat().st_size
    assert written.size_bytes == own_bytes + sum(named.values())
    held = [read_rows(tmp_path, path) for path in written.sidecars]
    assert all(rows.column_names == ["add", "remove"] for rows in held)
    assert written.size == main.num_rows + sum(rows.num_rows for rows in held)
    assert view(reader(tmp_path)) == view(catalog.log("t"))


def test_large_v2_checkpoint_has_several_sidecars(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "_SIDECAR_ROWS", 4)
    monkeypatch.setattr(checkpoint_state, "_CHUNK_ROWS", 2)
    files = [add(f"f{n}") for n in range(11)]
    asked = metadata(configuration=V2)
    create(catalog, "t", *files, meta=asked, features=["v2Checkpoint"])
    commit(catalog, remove(files[0]))
    written = write_alone(catalog, tmp_path)
    sizes = [read_rows(tmp_path, path).num_rows for path in written.sidecars]
    # The tombstone is a chunk of its own.
    assert sizes == [5, 4, 2]
    assert view(reader(tmp_path)) == view(catalog.log("t"))


def test_second_v2_checkpoint_of_a_version_leaves_the_first_whole(
    catalog: Catalog, tmp_path: Path
) -> None:
    asked = metadata(configuration=V2)
    create(catalog, "t", add("a"), meta=asked, features=["v2Checkpoint"])
    first, second = (write_alone(catalog, tmp_path) for _ in range(2))
    assert {first.path, *first.sidecars}.isdisjoint({second.path, *second.sidecars})
    for written in (first, second):
        (sidecar,) = written.sidecars
        assert [f["path"] for f in read_kind(tmp_path, sidecar, "add")] == ["a"]


# ---- when


@given(st.integers(0, 500), st.integers(-1, 500), st.integers(1, 60))
def test_due_checkpoint_is_the_newest_end_of_an_interval(
    published: int, last: int, interval: int
) -> None:
    versions = range(max(last, 0) + 1, published + 1)
    ends = [v for v in versions if (v + 1) % interval == 0]
    assert checkpoint_due(published, last, interval) == max(ends, default=None)


def test_interval_is_the_tables_else_the_setting(
    catalog: Catalog, tmp_path: Path
) -> None:
    catalog.commit(Staged("t", (protocol(), metadata()), location=str(tmp_path)))
    mirror = Outbox(catalog._backend).load("t")
    with connect(catalog.uri, mirror={"checkpoint_interval": 7}) as seven:
        assert due_checkpoint(seven, mirror, 20) == 20
        own = metadata(configuration={"delta.checkpointInterval": "3"})
        assert due_checkpoint(seven, replace(mirror, metadata=own), 9) == 8
