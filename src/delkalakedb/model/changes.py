"""The change data feed: the files that hold the changed rows of a version."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    CommitInfo,
    DeletionVector,
    Remove,
    Strings,
    dv_id,
    known,
)
from delkalakedb.model.schema.schema import Field

CHANGE_TYPE = "_change_type"
COMMIT_VERSION = "_commit_version"
COMMIT_TIMESTAMP = "_commit_timestamp"
_MERGED = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """A file with rows that a version changed.

    Args:
        path: the path as in the log.
        partition_values: the values of the partition columns.
        size: the size in bytes.
        change_type: the change of all rows, or None if each row has its own.
        deletion_vector: the rows that aren't among the changes.
        only_rows: the rows that may be among the changes, or None for all rows.
    """

    path: str
    partition_values: Strings
    size: int
    change_type: str | None = None
    deletion_vector: DeletionVector | None = None
    only_rows: DeletionVector | None = None


def changed_files(actions: Sequence[Action]) -> list[ChangedFile]:
    """Return the files that hold the changes of a commit.

    The change data files alone hold them, if the commit has any. Otherwise the rows of
    its adds were inserted, and the rows of its removes were deleted.
    """
    if cdc := [a for a in actions if isinstance(a, Cdc)]:
        return [ChangedFile(a.path, a.partition_values, a.size) for a in cdc]
    if _changed_nothing(actions):
        return []
    adds = {a.path: a for a in actions if isinstance(a, Add) and a.data_change}
    removes = {a.path: a for a in actions if isinstance(a, Remove) and a.data_change}
    found: list[ChangedFile] = []
    for path, add in adds.items():
        if path in removes:
            found += _revised(removes[path], add)
        else:
            found.append(_whole(add, "insert"))
    gone = (remove for path, remove in removes.items() if path not in adds)
    return [*found, *(_whole(remove, "delete") for remove in gone)]


def can_read(new: Iterable[Field], old: Iterable[Field]) -> bool:
    """Return whether the columns `new` hold every row of the columns `old`."""
    there = {field.name: field for field in new}
    return all(
        (found := there.get(field.name)) is not None
        and (found.physical_name, found.type) == (field.physical_name, field.type)
        and found.nullable >= field.nullable
        and can_read(found.children, field.children)
        for field in old
    )


def _whole(action: Add | Remove, change_type: str) -> ChangedFile:
    values, vector = known(action.partition_values), known(action.deletion_vector)
    size = known(action.size)
    assert values is not None
    assert size is not None
    return ChangedFile(action.path, values, size, change_type, vector)


def _revised(remove: Remove, add: Add) -> Iterator[ChangedFile]:
    """Yield the changes of a file whose deletion vector was replaced."""
    if dv_id(remove) == dv_id(add):
        return
    old, new = known(remove.deletion_vector), known(add.deletion_vector)
    kinds = (("delete", new, old), ("insert", old, new))
    for kind, rows, others in kinds:
        if rows is not None:
            values = add.partition_values
            yield ChangedFile(add.path, values, add.size, kind, others, rows)


def _changed_nothing(actions: Sequence[Action]) -> bool:
    """Return whether the commit is a merge that rewrote files without a change."""
    infos = (action.fields for action in actions if isinstance(action, CommitInfo))
    info = next(infos, {})
    metrics = info.get("operationMetrics")
    if info.get("operation") != "MERGE" or not isinstance(metrics, dict):
        return False
    return all(str(metrics.get(name)) == "0" for name in _MERGED)
