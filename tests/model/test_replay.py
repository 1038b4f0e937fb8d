"""Replay: from log entries to the state of a table."""

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Transaction, write_deltalake
from deltalake.transaction import CommitProperties
from hypothesis import given, settings, strategies as st

from delkalakedb.errors import VersionNotFoundError
from delkalakedb.model.actions import (
    UNSET,
    Action,
    Add,
    Cdc,
    CheckpointMetadata,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    Remove,
    Txn,
    UnknownAction,
    decode_commit,
    dv_id,
)
from delkalakedb.model.log import Replay
from tests.support.examples import examples


def vector(name: str) -> DeletionVector:
    return DeletionVector(
        storage_type="u", path_or_inline_dv=name, size_in_bytes=1, cardinality=1
    )


def add(path: str, dv: str = "", size: int = 1) -> Add:
    return Add(
        path=path,
        partition_values={},
        size=size,
        modification_time=0,
        data_change=True,
        deletion_vector=vector(dv) if dv else UNSET,
    )


def remove(path: str, dv: str = "") -> Remove:
    return Remove(
        path=path, data_change=True, deletion_vector=vector(dv) if dv else UNSET
    )


def domain(name: str, configuration: str = "", *, removed: bool = False) -> Action:
    return DomainMetadata(domain=name, configuration=configuration, removed=removed)


def replay(*commits: list[Action]) -> Replay:
    state = Replay()
    for version, actions in enumerate(commits):
        state.apply(version, actions)
    return state


def test_an_empty_log_has_no_version() -> None:
    assert Replay().version == -1


def test_newest_protocol_metadata_and_commit_info_win() -> None:
    old, new = (Protocol(min_reader_version=1, min_writer_version=v) for v in (2, 4))
    first, second = (
        Metadata(
            id=i,
            format=Format(provider="parquet"),
            schema_string="{}",
            partition_columns=[],
        )
        for i in "ab"
    )
    infos = [CommitInfo({"operation": "A"}), CommitInfo({"operation": "B"})]
    state = replay([infos[0], old, first], [infos[1], new, second])
    assert (state.protocol, state.metadata) == (new, second)
    assert state.commit_info == infos[1]
    assert state.version == 1
    state.apply(2, [add("x")])
    assert (state.protocol, state.metadata) == (new, second)
    assert state.commit_info is None


def test_an_application_version_may_go_down() -> None:
    newest = Txn(app_id="a", version=1)
    state = replay([Txn(app_id="a", version=9), Txn(app_id="b", version=3)], [newest])
    assert state.txns == {"a": newest, "b": Txn(app_id="b", version=3)}


def test_a_removed_domain_is_gone_until_it_comes_back() -> None:
    state = replay([domain("d", "1"), domain("e")], [domain("d", removed=True)])
    assert list(state.domains) == ["e"]
    state.apply(2, [domain("d", "2")])
    assert state.domains["d"].configuration == "2"


def test_a_file_with_another_vector_is_another_file() -> None:
    state = replay([add("x")], [remove("x"), add("x", "v1")])
    assert list(state.adds) == [("x", "uv1")]
    assert list(state.removes) == [("x", "")]
    state.apply(2, [add("x", "v2"), remove("x", "v1")])
    assert list(state.adds) == [("x", "uv2")]
    assert set(state.removes) == {("x", ""), ("x", "uv1")}


def test_a_file_added_again_replaces_itself_and_its_tombstone() -> None:
    state = replay([add("x", size=1)], [add("x", size=2)])
    assert state.adds["x", ""].size == 2
    state.apply(2, [remove("x")])
    state.apply(3, [add("x", size=3)])
    assert state.adds["x", ""].size == 3
    assert not state.removes


def test_a_tombstone_without_a_file_is_kept() -> None:
    assert list(replay([remove("x")]).removes) == [("x", "")]


def test_other_actions_leave_no_trace() -> None:
    cdc = Cdc(path="c", partition_values={}, size=1, data_change=False)
    noise = [cdc, UnknownAction("new", 1), CheckpointMetadata(version=3)]
    assert replay([*noise]) == replay([])


@pytest.mark.parametrize(("version", "first"), [(2, None), (0, None), (3, 2), (1, 2)])
def test_a_gap_is_refused(version: int, first: int | None) -> None:
    state = replay([add("x")])
    with pytest.raises(VersionNotFoundError, match="gap"):
        state.apply(version, [], first=first)
    assert state == replay([add("x")])


def test_a_checkpoint_replaces_what_was_there() -> None:
    state = replay([add("x"), domain("d")])
    state.load_checkpoint(7, [add("y"), remove("z"), CommitInfo({})])
    assert (state.version, set(state.adds), set(state.removes)) == (
        7,
        {("y", "")},
        {("z", "")},
    )
    assert not state.domains
    with pytest.raises(VersionNotFoundError):
        state.apply(9, [])
    state.apply(8, [add("w")])
    assert set(state.adds) == {("y", ""), ("w", "")}


keys = st.tuples(st.sampled_from("abc"), st.sampled_from(["", "v1", "v2"]))
actions = st.one_of(
    st.tuples(keys, st.integers(0, 9)).map(lambda t: add(*t[0], size=t[1])),
    keys.map(lambda key: remove(*key)),
    st.builds(Txn, app_id=st.sampled_from("pq"), version=st.integers(0, 3)),
    st.builds(
        DomainMetadata,
        domain=st.sampled_from("de"),
        configuration=st.sampled_from("xy"),
        removed=st.booleans(),
    ),
)
histories = st.lists(st.lists(actions, max_size=4), max_size=6)


def slot(action: Action) -> tuple[str, ...]:
    match action:
        case Add() | Remove():
            return ("file", action.path, dv_id(action))
        case Txn():
            return ("txn", action.app_id)
        case DomainMetadata():
            return ("domain", action.domain)
    raise AssertionError(action)


@settings(max_examples=examples(200), deadline=None)
@given(histories)
def test_the_newest_action_of_each_key_is_what_remains(
    commits: list[list[Action]],
) -> None:
    state = replay(*commits)
    newest = {slot(action): action for commit in commits for action in commit}
    kept = [*state.adds.values(), *state.removes.values()]
    kept += [*state.txns.values(), *state.domains.values()]
    assert {slot(action): action for action in kept} == {
        key: action
        for key, action in newest.items()
        if not (isinstance(action, DomainMetadata) and action.removed)
    }
    assert not state.adds.keys() & state.removes.keys()


@settings(max_examples=examples(150), deadline=None)
@given(histories, st.integers(0, 6), st.integers(0, 6))
def test_checkpoints_and_compacted_entries_change_nothing(
    commits: list[list[Action]], cut: int, end: int
) -> None:
    whole = replay(*commits)
    cut, end = min(cut, len(commits)), min(max(cut, end), len(commits))
    before = replay(*commits[:cut])
    state = Replay()
    if cut:
        kept = [*before.adds.values(), *before.removes.values()]
        kept += [*before.txns.values(), *before.domains.values()]
        state.load_checkpoint(cut - 1, kept)
    if end > cut:
        compacted = {slot(a): a for commit in commits[cut:end] for a in commit}
        state.apply(end - 1, compacted.values(), first=cut)
    for version in range(end, len(commits)):
        state.apply(version, commits[version])
    assert state == whole


def test_a_log_of_delta_rs_gives_its_own_snapshot(tmp_path: Path) -> None:
    for i in range(3):
        write_deltalake(
            tmp_path,
            pa.table({"a": [i, i + 1]}),
            mode="append",
            commit_properties=CommitProperties(app_transactions=[Transaction("t", i)]),
        )
    table = DeltaTable(tmp_path)
    table.delete("a = 1")
    table.optimize.compact()
    state = Replay()
    for entry in sorted((tmp_path / "_delta_log").glob("*.json")):
        state.apply(int(entry.stem), decode_commit(entry.read_bytes()))
    table = DeltaTable(tmp_path)
    assert state.version == table.version()
    assert {path for path, _ in state.adds} == {
        Path(uri).name for uri in table.file_uris()
    }
    assert state.txns["t"].version == table.transaction_version("t") == 2
    assert state.metadata is not None
    assert json.loads(state.metadata.schema_string) == json.loads(
        table.schema().to_json()
    )
