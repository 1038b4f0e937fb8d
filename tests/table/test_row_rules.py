"""Generated columns and NOT NULL hold where changes write deletion vectors."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

import delkalakedb as dk
from tests.support.twins import Twins

COUNT = 100
GENERATED = {"delta.generationExpression": "id * 2"}
LONG = PrimitiveType("long")
SCHEMA = Schema(
    [
        Field("id", LONG, nullable=False),
        Field("twice", LONG, metadata=GENERATED),
        Field("text", PrimitiveType("string")),
    ]
)
Change = Callable[[DeltaTable], Any]


@pytest.fixture
def twins(catalog_uri: str, tmp_path: Path) -> Twins:
    """Our table, which takes vectors, and plain deltalake's."""
    twins = Twins(catalog_uri, tmp_path)
    on = {"delta.enableDeletionVectors": "true"}
    dk.DeltaTable.create(twins.uri, SCHEMA, configuration=on)
    DeltaTable.create(twins.path, SCHEMA)
    for table in (twins.ours, twins.plain):
        deltalake.write_deltalake(table, data(range(COUNT)), mode="append")
    return twins


def data(ids: Any) -> pa.Table:
    columns = {"id": list(ids), "twice": [2 * i for i in ids], "text": ["t"] * len(ids)}
    schema = pa.schema([("id", pa.int64()), ("twice", pa.int64()), ("text", "string")])
    return pa.table(columns, schema)


def merging(source: pa.Table) -> Change:
    return lambda t: (
        t.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_update({"text": "s.text"})
        .when_not_matched_insert_all()
        .execute()
    )


def rows(table: DeltaTable) -> list[str]:
    return sorted(map(repr, pa.table(table.scan()).to_pylist()))


def test_changes_compute_and_keep_generated_columns(twins: Twins) -> None:
    fresh = data([7, 500]).drop_columns(["twice"])
    named = {"id": "s.id", "text": "s.text"}
    changes: list[Change] = [
        lambda t: t.delete("twice = 8"),
        lambda t: t.update({"text": "'new'"}, predicate="id = 5"),
        lambda t: t.update(
            {"id": "id + 1000", "twice": "2 * id + 2000"}, predicate="id = 6"
        ),
        merging(data([3, 300])),
        lambda t: (
            t.merge(fresh, "t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_update({"text": "'again'"})
            .when_not_matched_insert(named)
            .execute()
        ),
    ]
    for change in changes:
        told = []
        for table in (twins.ours, twins.plain):
            try:
                told.append(bool(change(table)))
            except deltalake.exceptions.DeltaError as error:
                told.append(str(error)[-30:])
        assert told[0] == told[1]
        assert rows(twins.ours) == rows(twins.plain)
    assert len(pa.table(twins.ours.deletion_vectors())) == 1
    assert dk.verify(twins.uri, deep=True).ok


BROKEN: dict[str, tuple[Change, str]] = {
    "a generated column by an update": (
        lambda t: t.update({"twice": "1"}, predicate="id = 5"),
        "validation",
    ),
    "a generated column by its source": (
        lambda t: t.update({"id": "id + 1"}, predicate="id = 5"),
        "validation",
    ),
    "a generated column by a merge": (
        merging(data([500]).set_column(1, "twice", [pa.array([1], pa.int64())])),
        "validation",
    ),
    "not null by an update": (
        lambda t: t.update({"id": "NULL", "twice": "NULL"}, predicate="id = 5"),
        "null|validation",
    ),
    "not null by a merge": (
        merging(
            pa.table({"id": [None], "twice": [None], "text": ["t"]}, data([1]).schema)
        ),
        "null|validation",
    ),
}


@pytest.mark.parametrize("rule", BROKEN)
def test_changes_that_break_a_rule_are_refused(twins: Twins, rule: str) -> None:
    change, words = BROKEN[rule]
    before = twins.ours.version()
    for table in (twins.ours, twins.plain):
        with pytest.raises(Exception, match=f"(?i){words}"):
            change(table)
    assert twins.ours.version() == before
    assert rows(twins.ours) == rows(twins.plain)
