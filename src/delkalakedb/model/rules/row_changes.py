"""Changes of rows of one file by two commits, and when both can be kept.

A commit that marks rows as deleted removes a file and adds it again with a larger
deletion vector. If another commit has marked other rows of the file meanwhile, the
union of both vectors keeps both changes.

No file is read or written under the lock of a commit. So the lock unites only vectors
inside the log, and otherwise tells which vectors to unite before the commit is tried
again. Then the lock only compares the ids of vectors.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from delkalakedb.errors import CodecError
from delkalakedb.model.actions import (
    Action,
    Add,
    DeletionVector,
    Remove,
    known,
)
from delkalakedb.model.log import Staged
from delkalakedb.model.stats.stats import parse_stats
from delkalakedb.model.vectors import (
    InlineBounds,
    deleted_rows,
    inline_vector,
    stored_vectors,
)

if TYPE_CHECKING:
    from pyroaring import BitMap64

ReadVector = Callable[[DeletionVector], "BitMap64"]


class InFileError(Exception):
    """A vector is in a file, which can't be read here."""


@dataclass(frozen=True, slots=True)
class Marks:
    """A file's vector when a commit read the file, and its vector now."""

    before: DeletionVector | None
    now: DeletionVector | None


@dataclass(frozen=True, slots=True)
class Union:
    """A commit that keeps the rows which other commits have deleted since it read.

    Args:
        staged: the commit.
        kept: the files of which the others have deleted only other rows.
        unread: the files of which only vectors in files can tell.
        file: the name and the bytes of the file of those new vectors that aren't
            inline.
    """

    staged: Staged
    kept: frozenset[str] = frozenset()
    unread: frozenset[str] = frozenset()
    file: Mapping[str, bytes] = field(default_factory=dict)


def marks_since(
    changes: Iterable[tuple[Iterable[Add], Iterable[Add]]],
) -> dict[str, Marks]:
    """Return the files that commits have changed and not removed, by path.

    Args:
        changes: the files that each commit removed, and those that it added, in the
            order of the versions.
    """
    before: dict[str, DeletionVector | None] = {}
    now: dict[str, DeletionVector | None] = {}
    for removed, added in changes:
        for old in removed:
            before.setdefault(old.path, known(old.deletion_vector))
            now.pop(old.path, None)
        for new in added:
            now[new.path] = known(new.deletion_vector)
    return {path: Marks(before[path], now[path]) for path in before if path in now}


def vector_id(vector: DeletionVector | None) -> str:
    """Return the id of a vector, which is empty for a file without one."""
    return "" if vector is None else vector.unique_id


def inline_rows(vector: DeletionVector) -> "BitMap64":
    """Return the rows of an inline vector; raise `InFileError` for another one."""
    if vector.storage_type != "i":
        raise InFileError
    return deleted_rows(vector, inline_vector(vector))


def united(
    staged: Staged,
    marks: Mapping[str, Marks],
    bounds: InlineBounds,
    identity: UUID,
    read: ReadVector = inline_rows,
) -> Union:
    """Return `staged` with the rows that other commits have deleted since it read.

    A file of which both deleted a row stays as it was staged.

    Args:
        staged: a commit whose `reads.rows_only` is true.
        marks: the files that other commits have changed since.
        bounds: how large inline vectors may be.
        identity: a new UUID for a file of vectors.
        read: returns the rows of a vector.
    """
    removes = {a.path: a for a in staged.actions if isinstance(a, Remove)}
    adds = {a.path: a for a in staged.actions if isinstance(a, Add)}
    kept, unread = set[str](), set[str]()
    unions: dict[str, BitMap64] = {}
    for path, mark in marks.items():
        remove, add = removes.get(path), adds.get(path)
        before = mark.before if remove is None else known(remove.deletion_vector)
        seen = None if remove else staged.reads.vectors.get(path)
        if vector_id(mark.now) in (seen, vector_id(before)):
            kept.add(path)
            continue
        if remove is not None and add is None:
            # It deletes all rows of the file, and another has deleted one of them.
            continue
        after = before if add is None else known(add.deletion_vector)
        try:
            rows = _union(*(_rows(v, read) for v in (before, mark.now, after)))
        except InFileError:
            unread.add(path)
        except CodecError:
            continue
        else:
            kept |= set() if rows is None else {path}
            unions |= {} if rows is None or add is None else {path: rows}
    again, file = _adds(adds, unions, bounds, identity)
    actions = [
        changed
        for action in staged.actions
        if (changed := _changed(action, marks, unions, again)) is not None
    ]
    staged = replace(staged, actions=actions)
    return Union(staged, frozenset(kept), frozenset(unread), file)


def _adds(
    adds: Mapping[str, Add],
    unions: "Mapping[str, BitMap64]",
    bounds: InlineBounds,
    identity: UUID,
) -> tuple[dict[str, Add], dict[str, bytes]]:
    """Return the files that keep rows with their new vectors, and a file of vectors."""
    rows = {p: found for p, found in unions.items() if not _is_all(adds[p], found)}
    others = (add for path, add in adds.items() if path not in unions)
    left = bounds.commit_bytes - sum(map(_inline_bytes, others))
    bounds = bounds._replace(commit_bytes=left)
    vectors, file = stored_vectors(rows.values(), bounds, identity)
    again = zip(rows, vectors, strict=True)
    return {
        p: msgspec.structs.replace(adds[p], deletion_vector=v) for p, v in again
    }, file


def _changed(
    action: Action,
    marks: Mapping[str, Marks],
    unions: "Mapping[str, BitMap64]",
    again: Mapping[str, Add],
) -> Action | None:
    """Return an action of a commit after the union; None if it goes."""
    if not isinstance(action, Add | Remove) or action.path not in unions:
        return action
    if isinstance(action, Remove):
        return msgspec.structs.replace(action, deletion_vector=marks[action.path].now)
    return again.get(action.path)


def _union(before: "BitMap64", now: "BitMap64", after: "BitMap64") -> "BitMap64 | None":
    """Return the rows that two commits have deleted; None if they conflict."""
    ours = after - before
    return None if ours & now or not before <= now else now | ours


def _rows(vector: DeletionVector | None, read: ReadVector) -> "BitMap64":
    from pyroaring import BitMap64

    return BitMap64() if vector is None else read(vector)


def _is_all(add: Add, rows: "BitMap64") -> bool:
    """Return whether no row of a file is left."""
    stats = parse_stats(known(add.stats))
    count = None if stats is None else stats.num_records
    # A foreign vector may have rows that the file doesn't have.
    return count is not None and rows.range_cardinality(0, count) == count


def _inline_bytes(add: Add) -> int:
    vector = known(add.deletion_vector)
    inline = vector is not None and vector.storage_type == "i"
    return vector.size_in_bytes if vector is not None and inline else 0
