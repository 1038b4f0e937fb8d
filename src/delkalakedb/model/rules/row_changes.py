"""Changes of rows of one file by two commits, and when both can be kept.

A commit that marks rows as deleted removes a file and adds it again with a larger
deletion vector. If another commit has marked other rows of the file meanwhile, the
union of both vectors keeps both changes. Only vectors inside the log can be united
here, because no file is read under the lock of a commit.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from delkalakedb.errors import CodecError
from delkalakedb.model.actions import Action, Add, DeletionVector, Remove, known
from delkalakedb.model.log import Staged
from delkalakedb.model.stats.stats import parse_stats
from delkalakedb.model.vectors import (
    deleted_rows,
    encode_vector,
    inline_vector,
    inlined_vector,
)

if TYPE_CHECKING:
    from pyroaring import BitMap64


def united(
    staged: Staged, present: Mapping[str, DeletionVector | None]
) -> tuple[Staged, frozenset[str]]:
    """Return `staged` with the rows that other commits have deleted since it read.

    Return the paths of the files that this concerns, too. A file of which both deleted
    a row, or whose vectors can't be united, stays as it was staged.

    Args:
        staged: a commit whose `reads.rows_only` is true.
        present: the vectors that other commits have given to files since, by path.
    """
    removes = {a.path: a for a in staged.actions if isinstance(a, Remove)}
    changes: dict[str, tuple[Remove, Add | None]] = {}
    for add in (a for a in staged.actions if isinstance(a, Add)):
        if add.path not in removes or add.path not in present:
            continue
        change = _united(removes[add.path], add, present[add.path])
        if change is not None:
            changes[add.path] = change
    actions: list[Action] = []
    for action in staged.actions:
        changed: Action | None = action
        if isinstance(action, Add | Remove) and action.path in changes:
            remove, again = changes[action.path]
            changed = remove if isinstance(action, Remove) else again
        actions += [] if changed is None else [changed]
    return replace(staged, actions=actions), frozenset(changes)


def marked(removed: Iterable[Add], added: Iterable[Add]) -> frozenset[str]:
    """Return the paths of the files of which a commit has only marked rows as deleted.

    Args:
        removed: the files that the commit removed.
        added: the files that the commit added.
    """
    again = {add.path: add for add in added}
    return frozenset(
        old.path
        for old in removed
        if old.path in again and _grows(old, again[old.path])
    )


def _grows(old: Add, new: Add) -> bool:
    before, after = _rows(known(old.deletion_vector)), _rows(known(new.deletion_vector))
    return before is not None and after is not None and before <= after


def _united(
    remove: Remove, add: Add, present: DeletionVector | None
) -> tuple[Remove, Add | None] | None:
    """Return the remove and the add on the present vector; None if they conflict.

    The add is None if no row is left.
    """
    before, now = _rows(known(remove.deletion_vector)), _rows(present)
    after = _rows(known(add.deletion_vector))
    if before is None or after is None or now is None or not before <= now:
        return None
    ours = after - before
    if ours & now:
        return None
    rows = now | ours
    again = msgspec.structs.replace(remove, deletion_vector=present)
    stats = parse_stats(known(add.stats))
    count = None if stats is None else stats.num_records
    # A foreign vector may have rows that the file doesn't have.
    if count is not None and rows.range_cardinality(0, count) == count:
        return again, None
    vector = inlined_vector(encode_vector(rows), len(rows))
    return again, msgspec.structs.replace(add, deletion_vector=vector)


def _rows(vector: DeletionVector | None) -> "BitMap64 | None":
    """Return the rows of an inline vector; None if they are in a file."""
    from pyroaring import BitMap64

    if vector is None:
        return BitMap64()
    if vector.storage_type != "i":
        return None
    try:
        return deleted_rows(vector, inline_vector(vector))
    except CodecError:
        return None
