"""Which files hold the changes of a commit, and which schemas hold their rows."""

import json

import pytest

from delkalakedb.model.actions import Action, CommitInfo, DeletionVector
from delkalakedb.model.changes import can_read, changed_files
from delkalakedb.model.schema.schema import parse_schema
from tests.support.actions import add, cdc, remove, schema, vector

Said = list[tuple[str, str | None, str | None, str | None]]
WHOLE = {"size": 100, "partition_values": {}}
ONE, TWO = vector("one"), vector("two")


def name(vector: DeletionVector | None) -> str | None:
    return None if vector is None else vector.path_or_inline_dv


def merge(**metrics: str) -> CommitInfo:
    return CommitInfo({"operation": "MERGE", "operationMetrics": metrics})


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ([add("a"), remove(add("b"), **WHOLE), cdc("c")], [("c", None, None, None)]),
        (
            [remove(add("b"), **WHOLE), add("a", deletion_vector=ONE)],
            [("a", "insert", "one", None), ("b", "delete", None, None)],
        ),
        ([add("a", data_change=False)], []),
        (
            [remove(add("a"), **WHOLE), add("a", deletion_vector=ONE)],
            [("a", "delete", None, "one")],
        ),
        (
            [remove(add("a", deletion_vector=ONE), **WHOLE), add("a")],
            [("a", "insert", None, "one")],
        ),
        (
            [
                add("a", deletion_vector=TWO),
                remove(add("a", deletion_vector=ONE), **WHOLE),
            ],
            [("a", "delete", "one", "two"), ("a", "insert", "two", "one")],
        ),
        ([add("a"), remove(add("a"), **WHOLE)], []),
        (
            [
                merge(
                    numTargetRowsInserted="0",
                    numTargetRowsUpdated="0",
                    numTargetRowsDeleted="0",
                ),
                add("a"),
            ],
            [],
        ),
        ([merge(numTargetRowsInserted="0"), add("a")], [("a", "insert", None, None)]),
    ],
)
def test_changes_are_in_change_data_files_or_in_whole_files_or_between_two_vectors(
    actions: list[Action], expected: Said
) -> None:
    found = changed_files(actions)

    assert [
        (f.path, f.change_type, name(f.deletion_vector), name(f.only_rows))
        for f in found
    ] == expected


ROW = {
    "type": "struct",
    "fields": [{"name": "x", "type": "long", "nullable": True, "metadata": {}}],
}
PHYSICAL = {"delta.columnMapping.physicalName": "col-1"}


def one(**field: object) -> str:
    given = {"name": "a", "type": "long", "nullable": True, "metadata": {}, **field}
    return json.dumps({"type": "struct", "fields": [given]})


@pytest.mark.parametrize(
    ("old", "holds"),
    [
        (schema(a="long"), True),
        (schema(), True),
        (schema(a="integer"), False),
        (schema(b="long"), False),
        (schema(a="long", b="long"), False),
        (one(nullable=False), True),
        (one(metadata=PHYSICAL), False),
        (one(type=ROW), False),
    ],
)
def test_schema_holds_rows_of_fewer_columns_but_no_others(
    old: str, holds: bool
) -> None:
    fields = [parse_schema(text).fields for text in (one(), old)]

    assert can_read(*fields) is holds
