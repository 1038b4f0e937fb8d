"""Two commits that delete rows of one file: the vectors' union, or a conflict."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st
from pyroaring import BitMap64

from delkalakedb.model.actions import Add, DeletionVector, Remove, known
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.rules.row_changes import marked, united
from delkalakedb.model.vectors import (
    encode_vector,
    inline_vector,
    inlined_vector,
    parse_vector,
)
from tests.support.actions import add, remove, vector as named

PHYSICAL = 40
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


def rows_of(found: DeletionVector | None) -> set[int]:
    return set() if found is None else set(parse_vector(inline_vector(found)))


@given(some_rows, some_rows, some_rows)
def test_rows_of_both_are_deleted_or_nothing_changes(
    before: set[int], ours: set[int], theirs: set[int]
) -> None:
    ours = ours - before
    commit, now = staged(before, before | ours), before | theirs
    found, paths = united(commit, {"f": vector(now)})

    if ours & now:
        assert (found, paths) == (commit, frozenset())
        return
    assert paths == {"f"}
    (gone,) = (a for a in found.actions if isinstance(a, Remove))
    again = [a for a in found.actions if isinstance(a, Add) and a.path == "f"]
    assert gone.deletion_vector == vector(now)
    if len(now | ours) == PHYSICAL:
        assert again == []
    else:
        assert rows_of(known(again[0].deletion_vector)) == now | ours


@pytest.mark.parametrize("present", [named("a file's"), vector({5})])
def test_vectors_in_files_and_rows_that_came_back_are_not_united(
    present: DeletionVector,
) -> None:
    commit = staged({1}, {1, 2})

    assert united(commit, {"f": present}) == (commit, frozenset())
    assert united(commit, {}) == (commit, frozenset())


def test_rows_that_a_file_lacks_dont_make_it_empty() -> None:
    gone = set(range(1, PHYSICAL - 1))
    beyond = {PHYSICAL, 1 << 33}
    commit = staged(beyond, beyond | {0})

    found, _ = united(commit, {"f": vector(beyond | gone)})

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
    assert united(commit, {"f": damaged}) == (commit, frozenset())


@given(some_rows, some_rows)
def test_file_counts_as_marked_if_no_row_came_back(
    before: set[int], after: set[int]
) -> None:
    expected = {"f"} if before <= after else set()

    assert marked([file(before), add("g")], [file(after), add("h")]) == expected
