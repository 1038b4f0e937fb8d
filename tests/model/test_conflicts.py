"""The conflict matrix: every cell of docs/conflicts.md, and the rules around it."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    Remove,
    Txn,
)
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.rules.conflicts import (
    Attempt,
    IsolationLevel,
    Rule,
    Winner,
    check,
    check_liveness,
    first_conflict,
    is_blind_append,
    isolation_of,
)
from tests.support.examples import examples

PAGE = Path(__file__).parents[2] / "docs" / "conflicts.md"
LEVEL = "delta.isolationLevel"


def schema(*names: str, **metadata: object) -> str:
    field = {"type": "long", "nullable": True, "metadata": metadata}
    fields = [{"name": name, **field} for name in names]
    return msgspec.json.encode({"type": "struct", "fields": fields}).decode()


def features(*names: str) -> Protocol:
    return Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=[n for n in names if n in ("deletionVectors", "v2Checkpoint")],
        writer_features=list(names),
    )


FEATURES = ("appendOnly", "deletionVectors", "domainMetadata", "rowTracking")
PROTOCOL = features(*FEATURES)
METADATA = Metadata(
    id="t",
    format=Format(provider="parquet"),
    schema_string=schema("p", "x"),
    partition_columns=["p"],
    configuration={},
)


def configured(**values: str) -> Metadata:
    configuration = {f"delta.{key}": value for key, value in values.items()}
    return msgspec.structs.replace(METADATA, configuration=configuration)


def add(name: str, data_change: bool = True, dv: str | None = None) -> Add:
    """A file; `1/f` lies in partition p=1."""
    p, _, _ = name.partition("/")
    return Add(
        path=f"p={name}.parquet",
        partition_values={"p": p},
        size=1,
        modification_time=0,
        data_change=data_change,
        deletion_vector=vector(dv),
    )


def remove(name: str, data_change: bool = True, dv: str | None = None) -> Remove:
    return Remove(
        path=f"p={name}.parquet", data_change=data_change, deletion_vector=vector(dv)
    )


def vector(name: str | None) -> DeletionVector | None:
    if name is None:
        return None
    return DeletionVector(
        storage_type="u", path_or_inline_dv=name, size_in_bytes=1, cardinality=1
    )


def matches(predicate: object, file: Add) -> bool:
    return file.partition_values["p"] == predicate


def staged(*actions: Action, remove_all: bool = False, **reads: object) -> Staged:
    return Staged("t", actions, Reads(version=0, **reads), remove_all)


def domain(name: str) -> DomainMetadata:
    return DomainMetadata(domain=name, configuration="{}", removed=False)


LIVE = ("1/f", "1/g", "2/h")
P1 = {"predicates": ("1",)}
OPERATIONS = {
    "append": staged(add("1/new")),
    "insert from self": staged(add("1/copy"), **P1),
    "delete p=1": staged(remove("1/f"), remove("1/g"), **P1),
    "delete p=2": staged(remove("2/h"), predicates=("2",)),
    "delete file": staged(remove("1/f")),
    "update": staged(remove("1/f"), add("1/f2"), **P1),
    "overwrite": staged(add("1/o"), add("2/o"), remove_all=True),
    "compaction": staged(
        remove("1/f", data_change=False),
        remove("1/g", data_change=False),
        add("1/fg", data_change=False),
        paths=frozenset({"p=1/f.parquet", "p=1/g.parquet"}),
    ),
    "set property": staged(configured(appendOnly="true")),
    "add constraint": staged(
        configured(**{"constraints.positive": "x > 0"}), whole_table=True
    ),
    "schema change": staged(
        msgspec.structs.replace(METADATA, schema_string=schema("p", "x", "y"))
    ),
    "deletion vectors on": staged(configured(enableDeletionVectors="true")),
    "v2Checkpoint": staged(features(*FEATURES, "v2Checkpoint")),
    "checkConstraints": staged(features(*FEATURES, "checkConstraints")),
    "drop feature": staged(features(*FEATURES[1:])),
    "txn of app a": staged(Txn(app_id="a", version=1)),
    "txn of app b": staged(Txn(app_id="b", version=1)),
    "domain x": staged(domain("x")),
    "domain y": staged(domain("y")),
    "row ids": staged(domain("delta.rowTracking")),
}


def attempt(commit: Staged, level: str = "Serializable") -> Attempt:
    """The commit as a loser; a metadata of its own keeps the table's level."""
    found = Attempt.of(commit, PROTOCOL, configured(isolationLevel=level))
    changes_data = found.isolation is not IsolationLevel.SNAPSHOT
    at = IsolationLevel(level) if changes_data else found.isolation
    return replace(found, metadata=METADATA, isolation=at)


def winner(commit: Staged, version: int = 1) -> Winner:
    """The commit as a winner, with what the catalog knows of it."""
    taken = Attempt.of(commit, PROTOCOL, METADATA)
    removed = LIVE if taken.remove_all else [_name(r) for r in taken.removes]
    return Winner(
        version=version,
        operation="ANY",
        is_blind_append=taken.is_blind_append,
        protocol=taken.new_protocol,
        metadata=taken.new_metadata,
        app_ids=taken.app_ids,
        domains=taken.domains,
        added=taken.adds,
        removed=tuple(add(name) for name in removed),
    )


def _name(action: Remove) -> str:
    return action.path.removeprefix("p=").removesuffix(".parquet")


def cells() -> Iterator[tuple[str, str, str, str]]:
    """(level or "", lost, won, expected) for every cell of the page's matrices."""
    heading, winners = "", list[str]()
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            heading, winners = line.lstrip("# "), []
        elif line.startswith("| lost"):
            winners = _row(line)[1:]
        elif winners and line.startswith("|") and not line.startswith("|--"):
            lost, *expected = _row(line)
            level = heading if heading in list(IsolationLevel) else ""
            for won, rule in zip(winners, expected, strict=True):
                yield level, lost, won, rule


def _row(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("| ").split("|")]


@pytest.mark.parametrize(("level", "lost", "won", "expected"), list(cells()))
def test_every_cell_of_the_page_is_what_check_says(
    level: str, lost: str, won: str, expected: str
) -> None:
    for name in [level] if level else list(IsolationLevel):
        found = check(attempt(OPERATIONS[lost], name), winner(OPERATIONS[won]), matches)
        rule = found.rule.removeprefix("concurrent_") if found else "·"
        assert rule == expected, name


def test_the_page_covers_every_operation_rule_and_level() -> None:
    table = list(cells())
    assert {lost for _, lost, _, _ in table} | {won for _, _, won, _ in table} == set(
        OPERATIONS
    )
    assert {level for level, *_ in table} == {"", *IsolationLevel}
    assert len(table) == 3 * 10 * 8 + 11 * 10
    text = PAGE.read_text()
    documented = re.findall(r"^\| (\w+) \| .*$", text, re.MULTILINE)
    assert {rule.removeprefix("concurrent_") for rule in Rule} <= set(documented)


def levels() -> st.SearchStrategy[str]:
    return st.sampled_from([str(level) for level in IsolationLevel])


operations = st.sampled_from(sorted(OPERATIONS))


@settings(max_examples=examples(150), deadline=None)
@given(operations, st.lists(operations, max_size=4), levels())
def test_same_question_gets_the_same_answer(
    lost: str, won: list[str], level: str
) -> None:
    winners = [winner(OPERATIONS[name], v) for v, name in enumerate(won, start=1)]
    loser = attempt(OPERATIONS[lost], level)
    first = first_conflict(loser, winners, matches)
    assert first == first_conflict(loser, winners, matches)
    if first is None:
        assert all(check(loser, w, matches) is None for w in winners)


@settings(max_examples=examples(150), deadline=None)
@given(operations, levels(), st.lists(st.sampled_from(["a", "b"]), max_size=2))
def test_blind_append_never_conflicts_over_files(
    won: str, level: str, app_ids: list[str]
) -> None:
    txns = [Txn(app_id=app_id, version=1) for app_id in app_ids]
    loser = attempt(staged(add("1/new"), *txns), level)
    assert not loser.looks_at_added
    assert not loser.looks_at_removed
    found = check(loser, winner(OPERATIONS[won]), matches)
    assert found is None or found.rule in {
        Rule.PROTOCOL_CHANGED,
        Rule.METADATA_CHANGED,
        Rule.CONCURRENT_TRANSACTION,
        Rule.CONCURRENT_DOMAIN,
    }


@settings(max_examples=examples(200), deadline=None)
@given(operations, operations, levels())
def test_file_lists_that_are_not_looked_at_make_no_difference(
    lost: str, won: str, level: str
) -> None:
    loser, full = attempt(OPERATIONS[lost], level), winner(OPERATIONS[won])
    lean = replace(
        full,
        added=full.added if loser.looks_at_added else (),
        removed=full.removed if loser.looks_at_removed else (),
    )
    assert check(loser, lean, matches) == check(loser, full, matches)


@settings(max_examples=examples(200), deadline=None)
@given(operations, operations)
def test_weaker_level_allows_all_that_a_stronger_one_does(lost: str, won: str) -> None:
    found = [
        check(attempt(OPERATIONS[lost], level), winner(OPERATIONS[won]), matches)
        for level in IsolationLevel
    ]
    allowed = [conflict is None for conflict in found]
    assert allowed == sorted(allowed)


def test_read_application_that_a_winner_moved_conflicts() -> None:
    loser = attempt(staged(add("1/new"), app_ids=frozenset({"a"})))
    found = check(loser, winner(OPERATIONS["txn of app a"]), matches)
    assert found is not None
    assert found.rule is Rule.CONCURRENT_TRANSACTION


def test_winner_conflict_names_the_file() -> None:
    found = check(attempt(OPERATIONS["update"]), winner(OPERATIONS["append"]), matches)
    assert found is not None
    assert found.detail == (
        "it added p=1/new.parquet, which this commit would have read"
    )


# --- protocol and metadata ------------------------------------------------------


def legacy(reader: int, writer: int) -> Protocol:
    return Protocol(min_reader_version=reader, min_writer_version=writer)


@pytest.mark.parametrize(
    ("before", "after", "conflicts"),
    [
        (legacy(1, 2), features("appendOnly", "invariants", "deletionVectors"), False),
        (legacy(1, 2), features("deletionVectors"), True),
        (legacy(1, 2), legacy(1, 2), False),
        (legacy(1, 2), legacy(1, 3), True),
        (legacy(1, 4), legacy(2, 5), False),
        (features(), features("someNewFeature"), True),
    ],
)
def test_protocol_upgrade_conflicts_unless_all_new_features_are_safe(
    before: Protocol, after: Protocol, conflicts: bool
) -> None:
    loser = Attempt.of(OPERATIONS["append"], before, METADATA)
    found = check(loser, Winner(1, "UPGRADE", protocol=after), matches)
    assert (found is not None) is conflicts


def test_property_needing_a_feature_of_the_same_winner_is_allowed() -> None:
    protocol = features(*FEATURES, "v2Checkpoint")
    both = Winner(
        1, "SET", protocol=protocol, metadata=configured(checkpointPolicy="v2")
    )
    assert check(attempt(OPERATIONS["delete p=1"]), both, matches) is None


def test_property_needing_a_feature_of_an_earlier_winner_is_allowed() -> None:
    upgraded = Winner(1, "UPGRADE", protocol=features(*FEATURES, "v2Checkpoint"))
    switched = Winner(2, "SET", metadata=configured(checkpointPolicy="v2"))
    loser = attempt(OPERATIONS["delete p=1"])
    assert first_conflict(loser, [upgraded, switched], matches) is None
    assert first_conflict(loser, [switched], matches) is not None


def test_first_conflict_names_the_winner_that_broke_the_rule() -> None:
    winners = [winner(OPERATIONS["append"], 1), winner(OPERATIONS["update"], 2)]
    found = first_conflict(attempt(OPERATIONS["delete file"]), winners, matches)
    assert found is not None
    assert found[0].version == 2
    assert found[1].rule is Rule.CONCURRENT_DELETE_DELETE


# --- isolation level and blind appends ------------------------------------------


@pytest.mark.parametrize("value", ["Serializable", "WriteSerializable"])
def test_table_level_is_taken_in_any_case(value: str) -> None:
    commit = OPERATIONS["append"]
    assert isolation_of({LEVEL: value.lower()}, commit) == value


def test_table_without_the_property_is_serializable() -> None:
    assert isolation_of({}, OPERATIONS["append"]) is IsolationLevel.SERIALIZABLE


def test_unknown_level_is_refused() -> None:
    with pytest.raises(DeltaError, match="isolationLevel"):
        isolation_of({LEVEL: "ReadUncommitted"}, OPERATIONS["append"])


def test_commit_that_repairs_the_level_uses_the_new_one() -> None:
    repair = staged(configured(isolationLevel="Serializable"))
    broken = configured(isolationLevel="nonsense")
    found = Attempt.of(repair, PROTOCOL, broken)
    assert found.isolation is IsolationLevel.SERIALIZABLE


@pytest.mark.parametrize(
    ("commit", "downgraded"),
    [
        (staged(add("1/a", data_change=False), CommitInfo({})), True),
        (staged(remove("1/a", data_change=False), domain("delta.rowTracking")), True),
        (staged(), True),
        (staged(add("1/a")), False),
        (staged(remove("1/a")), False),
        (staged(add("1/a", data_change=False), domain("x")), False),
        (staged(add("1/a", data_change=False), Txn(app_id="a", version=1)), False),
        (staged(METADATA), False),
        (staged(remove_all=True), False),
    ],
)
def test_only_a_commit_without_data_change_is_downgraded(
    commit: Staged, downgraded: bool
) -> None:
    for level in ("Serializable", "WriteSerializable"):
        found = isolation_of({LEVEL: level}, commit)
        assert found == ("SnapshotIsolation" if downgraded else level)


def test_blind_append_reads_nothing_and_only_adds() -> None:
    cdc = Cdc(path="c", partition_values={}, size=1, data_change=False)
    assert is_blind_append(staged(CommitInfo({}), add("1/a")))
    assert is_blind_append(staged(METADATA))
    assert not is_blind_append(staged(add("1/a"), cdc))
    assert not is_blind_append(staged(add("1/a"), remove_all=True))
    assert not is_blind_append(staged(add("1/a"), paths=frozenset({"x"})))
    assert not is_blind_append(staged(add("1/a"), **P1))


# --- liveness and txns -------------------------------------------------------------

F = "p=1/f.parquet"


@pytest.mark.parametrize(
    ("actions", "live", "rule"),
    [
        ([remove("1/f")], {F: {""}}, None),
        ([remove("1/f")], {}, Rule.REMOVE_NOT_LIVE),
        ([remove("1/f")], {F: {"uv1"}}, Rule.REMOVE_NOT_LIVE),
        ([remove("1/f", dv="v1")], {F: {"uv1"}}, None),
        ([add("1/f")], {}, None),
        ([add("1/f")], {F: {""}}, None),
        ([add("1/f", dv="v1")], {F: {""}}, Rule.ADD_ALREADY_LIVE),
        ([add("1/f", dv="v1"), remove("1/f")], {F: {""}}, None),
        ([add("1/f", dv="v2"), remove("1/f", dv="v1")], {F: {"uv1"}}, None),
        ([add("1/f", dv="v2"), remove("1/f")], {F: {"uv1"}}, Rule.REMOVE_NOT_LIVE),
    ],
)
def test_liveness_holds_or_names_the_rule(
    actions: list[Add | Remove], live: dict[str, set[str]], rule: Rule | None
) -> None:
    found = liveness(actions, live)
    assert (found.rule if found else None) == rule


def liveness(actions: list[Add | Remove], live: dict[str, set[str]], *gone: str):
    removes = [a for a in actions if isinstance(a, Remove)]
    adds = [a for a in actions if isinstance(a, Add)]
    frozen = {path: frozenset(ids) for path, ids in live.items()}
    return check_liveness(removes, adds, frozen, gone)


def test_statistics_of_a_file_that_a_winner_removed_are_not_added() -> None:
    found = liveness([add("1/f", data_change=False)], {}, F)
    assert found.rule is Rule.ADD_RESURRECTS


def test_path_that_a_winner_replaced_may_be_updated_again() -> None:
    actions = [remove("1/f", dv="v1"), add("1/f", dv="v2")]
    assert liveness(actions, {F: {"uv1"}}, F) is None


def test_second_of_two_compactions_is_stopped_whatever_it_says_it_read() -> None:
    careless = replace(OPERATIONS["compaction"], reads=Reads())
    found = liveness(list(careless.actions), {"p=1/fg.parquet": {""}})
    assert found.rule is Rule.REMOVE_NOT_LIVE
