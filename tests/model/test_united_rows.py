"""Two commits that delete rows of one file: the vectors' union, or a conflict."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, strategies as st
from pyroaring import BitMap64

from delkalakedb.model.actions import Add, DeletionVector, Remove, known
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.rules.row_changes import (
    Marks,
    Union,
    inline_rows,
    marks_since,
    united,
)
from delkalakedb.model.vectors import (
    InlineBounds,
    encode_vector,
    inline_vector,
    inlined_vector,
    parse_vector,
    unframed,
    vector_path,
)
from tests.support.actions import add, remove, vector as named

PHYSICAL = 40
AMPLE = InlineBounds(4096, 4096)
IDENTITY = UUID(int=7)
some_rows = st.sets(st.integers(0, PHYSICAL - 1))


def vector(rows: set[int]) -> DeletionVector | None:
    encoded = encode_vector(BitMap64(rows))
    return inlined_vector(encoded, len(rows)) if rows else None


def file(rows: set[int]) -> Add:
    made = add("f", stats=f'{{"numRecords":{PHYSICAL}}}')
    return msgspec.structs.replace(made, deletion_vector=vector(rows))


def staged(before: set[int], after: set[int]) -> Staged:
    gone = remove(file(before))
    reads = Reads(version=1, rows_only=True)
    return Staged("t", [gone, add("other"), file(after)], reads)


def tried(
    commit: Staged,
    before: DeletionVector | None,
    now: DeletionVector | None,
    bounds: InlineBounds = AMPLE,
) -> Union:
    """The union with a commit that gave a vector to the file."""
    return united(commit, {"f": Marks(before, now)}, bounds, IDENTITY)


def rows_of(found: DeletionVector | None) -> set[int]:
    return set() if found is None else set(parse_vector(inline_vector(found)))


@given(some_rows, some_rows, some_rows)
def test_rows_of_both_are_deleted_or_nothing_changes(
    before: set[int], ours: set[int], theirs: set[int]
) -> None:
    ours = ours - before
    commit, now = staged(before, before | ours), before | theirs
    found = tried(commit, vector(before), vector(now))

    if ours & now:
        assert found == Union(commit)
        return
    assert found.kept == {"f"}
    actions = found.staged.actions
    (gone,) = (a for a in actions if isinstance(a, Remove))
    again = [a for a in actions if isinstance(a, Add) and a.path == "f"]
    assert known(gone.deletion_vector) == vector(now)
    if len(now | ours) == PHYSICAL and now != before:
        assert again == []
    else:
        assert rows_of(known(again[0].deletion_vector)) == now | ours


def test_rows_that_came_back_are_not_united() -> None:
    commit = staged({1}, {1, 2})

    assert tried(commit, vector({1}), vector({5})) == Union(commit)


def test_file_that_no_other_commit_changed_stays_as_it_is() -> None:
    commit = staged({1}, {1, 2})

    assert united(commit, {}, AMPLE, IDENTITY) == Union(commit)


def test_vectors_in_files_are_left_to_who_reads_them() -> None:
    commit, other = staged({1}, {1, 2}), named("a file's")

    assert tried(commit, vector({1}), other).unread == {"f"}
    marks = {"f": Marks(vector({1}), other), "else": Marks(None, other)}
    told = replace(
        commit, reads=replace(commit.reads, vectors={"else": other.unique_id})
    )
    assert united(told, marks, AMPLE, IDENTITY).kept == {"else"}

    def read(vector: DeletionVector) -> BitMap64:
        return BitMap64({1, 5}) if vector == other else inline_rows(vector)

    found = united(commit, marks, AMPLE, IDENTITY, read)
    assert found.kept == {"f", "else"}
    (again,) = (a for a in found.staged.actions if isinstance(a, Add) and a.path == "f")
    assert rows_of(known(again.deletion_vector)) == {1, 2, 5}


def test_large_union_is_in_a_file() -> None:
    commit = staged(set(), {2})

    found = tried(commit, None, vector({5}), InlineBounds(0, 4096))

    (again,) = (a for a in found.staged.actions if isinstance(a, Add) and a.path == "f")
    stored = known(again.deletion_vector)
    assert stored is not None
    ((name, data),) = found.file.items()
    assert vector_path(stored) == name
    assert stored.offset == 1
    assert set(parse_vector(unframed(stored, data[1:]))) == {2, 5}


def test_bound_of_a_commit_counts_the_vectors_that_stay() -> None:
    commit = staged(set(), {2})
    other = msgspec.structs.replace(add("g"), deletion_vector=vector({1}))
    commit = replace(commit, actions=[*commit.actions, other])

    assert tried(commit, None, vector({5}), InlineBounds(4096, 69)).file
    assert not tried(commit, None, vector({5}), InlineBounds(4096, 70)).file


def test_rows_that_a_file_lacks_dont_make_it_empty() -> None:
    gone = set(range(1, PHYSICAL - 1))
    beyond = {PHYSICAL, 1 << 33}
    commit = staged(beyond, beyond | {0})

    found = tried(commit, vector(beyond), vector(beyond | gone)).staged

    (again,) = (a for a in found.actions if isinstance(a, Add) and a.path == "f")
    assert rows_of(known(again.deletion_vector)) == gone | beyond | {0}


@pytest.mark.parametrize(
    "lie",
    [{"path_or_inline_dv": "\x7f" * 20}, {"cardinality": 3}],
    ids=["text", "count"],
)
def test_damaged_vectors_are_not_united(lie: dict[str, Any]) -> None:
    present = vector({5})
    assert present is not None
    commit = staged(set(), {1})

    damaged = msgspec.structs.replace(present, **lie)
    assert tried(commit, None, damaged) == Union(commit)


@given(some_rows, some_rows)
def test_file_that_isnt_changed_is_kept_if_no_row_came_back(
    before: set[int], after: set[int]
) -> None:
    expected = {"f"} if before <= after else set()
    commit = Staged("t", [add("new")], Reads(version=1, rows_only=True))

    assert tried(commit, vector(before), vector(after)).kept == expected


def test_marks_are_those_of_files_that_are_live_after_all_changes() -> None:
    found = marks_since(
        [
            ([file({1})], [file({1, 2}), add("new")]),
            ([file({1, 2}), add("gone")], [file({1, 2, 3})]),
        ]
    )

    assert found == {"f": Marks(vector({1}), vector({1, 2, 3}))}
