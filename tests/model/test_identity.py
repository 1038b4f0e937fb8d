"""Identity columns: the values they get next, and the marks of values given."""

import json
from typing import Any

import pytest

from delkalakedb.errors import DeltaError, ProtocolError
from delkalakedb.model.actions import Metadata
from delkalakedb.model.rules.conflicts import harmful_changes
from delkalakedb.model.schema.identity import (
    IdentityColumn,
    identity_columns,
    identity_properties,
    same_but_marks,
    with_marks,
    with_newest_marks,
)
from tests.support.actions import metadata, protocol


def table(kind: str = "long", *, partitions: tuple[str, ...] = (), **said: Any) -> Any:
    given = identity_properties(10, 5, by_default=True) | {
        f"delta.identity.{key}": value for key, value in said.items()
    }
    fields = [
        {"name": "id", "type": kind, "nullable": True, "metadata": given},
        {"name": "v", "type": "long", "nullable": True, "metadata": {}},
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    return metadata(schema, partitions=partitions)


def marks(found: Metadata) -> list[int | None]:
    return [column.mark for column in identity_columns(found)]


@pytest.mark.parametrize(
    ("step", "mark", "first"),
    [
        (5, None, 10),
        (5, 10, 15),
        (5, 12, 15),
        (5, -7, 10),
        (5, 9, 10),
        (-5, None, 10),
        (-5, 10, 5),
        (-5, 8, 5),
        (-5, 11, 10),
        (-5, 40, 10),
    ],
)
def test_next_value_is_a_multiple_of_the_step_beyond_the_mark(
    step: int, mark: int | None, first: int
) -> None:
    column = IdentityColumn("id", "id", 10, step, mark, by_default=False)

    assert column.first == first
    assert column.last(3) == first + 2 * step


def test_values_beyond_a_bigint_are_refused() -> None:
    column = IdentityColumn("id", "id", 0, 2**62, 2**62, by_default=False)

    with pytest.raises(DeltaError, match="identity column id has no values left"):
        column.last(1)


def test_marks_are_all_that_new_values_change() -> None:
    before = table()
    after = with_marks(before, {"id": 20})

    assert marks(before) == [None]
    assert marks(after) == [20]
    assert with_marks(before, {}) is before
    assert same_but_marks(before, after)
    assert same_but_marks(after, with_marks(before, {"id": 25}))
    assert not same_but_marks(before, table(step=6))
    assert harmful_changes(before, after, protocol()) == []
    assert harmful_changes(before, table(step=6), protocol()) == ["the schema"]


def test_restored_metadata_keeps_the_newest_marks() -> None:
    old, new = with_marks(table(), {"id": 20}), with_marks(table(), {"id": 45})

    assert marks(with_newest_marks(old, new)) == [45]
    assert marks(with_newest_marks(table(), new)) == [45]
    assert marks(with_newest_marks(new, old)) == [45]
    assert with_newest_marks(metadata(), new) == metadata()
    assert with_newest_marks(old, metadata()) == old


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (table("integer"), "of type integer, not BIGINT"),
        (table(step=0), "a step of 0"),
        (table(step="1"), "lacks its start, its step"),
        (table(allowExplicitInsert=None), "lacks its start, its step"),
        (table(highWaterMark="9"), "the high-water mark '9'"),
        (table(partitions=("id",)), "partitions the table"),
    ],
)
def test_columns_that_contradict_themselves_are_refused(
    given: Metadata, message: str
) -> None:
    with pytest.raises(ProtocolError, match=message):
        identity_columns(given)
