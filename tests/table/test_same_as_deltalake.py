"""Whatever is done to a table, ours holds what plain deltalake's holds, ever."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType
from hypothesis import HealthCheck, given, settings, strategies as st

import delkalakedb as dk
from tests.support.twins import Twins, rows

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("value", pa.float64())])
PARTS = ["a", "a b", "x=1/%", "%20", "ü:*?'", "", None]
_DELTALAKE = DeltaError.__module__
NEW_COLUMNS = ["c1", "c2"]
Row = dict[str, Any]
Run = Callable[[DeltaTable], Any]

numbers = st.integers(0, 6)
values = st.sampled_from([None, 0.5, -2.0, 1e300])
some_rows = st.lists(
    st.fixed_dictionaries(
        {"id": numbers | st.none(), "part": st.sampled_from(PARTS), "value": values}
    ),
    min_size=1,
    max_size=5,
)
distinct_rows = st.lists(
    st.fixed_dictionaries(
        {"id": numbers, "part": st.sampled_from(PARTS), "value": values}
    ),
    max_size=4,
    unique_by=lambda row: row["id"],
)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def conditions(prefix: str = "") -> st.SearchStrategy[str]:
    """SQL that holds for some rows, of the table or of one side of a merge."""
    whole = [p for p in PARTS if p]
    return st.one_of(
        numbers.map(lambda n: f"{prefix}id > {n}"),
        numbers.map(lambda n: f"{prefix}id = {n} OR {prefix}value IS NULL"),
        st.sampled_from(whole).map(lambda p: f"{prefix}part = {quoted(p)}"),
        st.just(f"{prefix}part IS NULL"),
        st.just(f"{prefix}value < 0 AND {prefix}id IS NOT NULL"),
    )


@st.composite
def writes(draw: st.DrawFn) -> Run:
    """An append or an overwrite, perhaps with a new column."""
    options: dict[str, Any] = {"mode": draw(st.sampled_from(["append", "overwrite"]))}
    data = table_of(draw(some_rows))
    if draw(st.booleans()):
        name = draw(st.sampled_from(NEW_COLUMNS))
        data = data.append_column(name, pa.array([7] * len(data), pa.int32()))
        options["schema_mode"] = "merge"
    return lambda table: deltalake.write_deltalake(table, data, **options)


@st.composite
def replacements(draw: st.DrawFn) -> Run:
    """An overwrite of the rows for which a predicate holds."""
    number, given = draw(numbers), draw(some_rows)
    data = table_of([{**row, "id": number} for row in given])
    options: dict[str, Any] = {"mode": "overwrite", "predicate": f"id = {number}"}
    return lambda table: deltalake.write_deltalake(table, data, **options)


@st.composite
def merges(draw: st.DrawFn) -> Run:
    """A merge with some of the clauses there are."""
    source = table_of(draw(distinct_rows))
    on = draw(st.sampled_from(["s.id = t.id", "s.id = t.id AND s.part = t.part"]))
    clauses = [
        ("when_matched_update", {"value": "s.value"}, conditions("t.")),
        ("when_matched_update_all", None, conditions("s.")),
        ("when_matched_delete", None, conditions("t.")),
        ("when_not_matched_insert_all", None, conditions("s.")),
        ("when_not_matched_by_source_update", {"value": "1.0"}, conditions("t.")),
        ("when_not_matched_by_source_delete", None, conditions("t.")),
    ]
    chosen = draw(st.lists(st.sampled_from(clauses), min_size=1, max_size=4))
    calls = [
        (name, (updates,) if updates else (), draw(st.none() | conditions))
        for name, updates, conditions in chosen
    ]

    def run(table: DeltaTable) -> Any:
        merger = table.merge(source, on, source_alias="s", target_alias="t")
        for name, updates, predicate in calls:
            getattr(merger, name)(*updates, predicate=predicate)
        return merger.execute()

    return run


def restore(fraction: float) -> Run:
    return lambda table: table.restore(int(fraction * table.version()))


def add_column(name: str) -> Run:
    field = Field(name, PrimitiveType("integer"))
    return lambda table: table.alter.add_columns([field])


operations = st.one_of(
    writes(),
    writes(),
    replacements(),
    merges(),
    (st.none() | conditions()).map(lambda p: lambda t: t.delete(p)),
    conditions().map(lambda p: lambda t: t.update({"value": "value + 1"}, predicate=p)),
    st.just(lambda t: t.update({"id": "id + 1"}, predicate="part <> 'a'")),
    st.just(lambda t: t.optimize.compact()),
    st.just(lambda t: t.optimize.z_order(["id", "value"])),
    st.floats(0, 1).map(restore),
    st.sampled_from(NEW_COLUMNS).map(add_column),
    # deltalake names a file twice that was removed, restored and removed again.
    st.just(lambda t: len({*t.vacuum(0, enforce_retention_duration=False)})),
)
histories = st.lists(operations, min_size=1, max_size=8)
partitionings = st.sampled_from([None, ["part"], ["part", "id"]])
by_fixture = {"suppress_health_check": [HealthCheck.function_scoped_fixture]}


def table_of(given: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(given, SCHEMA)


@settings(max_examples=8, **by_fixture)
@given(first=some_rows, partition_by=partitionings, history=histories)
def test_random_operations_give_the_rows_of_plain_deltalake_at_every_version(
    catalog_uri: str,
    tmp_path: Path,
    first: list[Row],
    partition_by: list[str] | None,
    history: list[Run],
) -> None:
    check_same(catalog_uri, tmp_path, first, partition_by, history)


@pytest.mark.soak
@settings(max_examples=400, **by_fixture)
@given(first=some_rows, partition_by=partitionings, history=histories)
def test_many_random_operations_give_the_rows_of_plain_deltalake(
    catalog_uri: str,
    tmp_path: Path,
    first: list[Row],
    partition_by: list[str] | None,
    history: list[Run],
) -> None:
    check_same(catalog_uri, tmp_path, first, partition_by, history)


def check_same(
    catalog_uri: str,
    folder: Path,
    first: list[Row],
    partition_by: list[str] | None,
    history: list[Run],
) -> None:
    name = uuid.uuid4().hex
    twins = Twins(catalog_uri, folder / name, name)
    for target in (twins.uri, twins.path):
        dk.write_deltalake(target, table_of(first), partition_by=partition_by)
    for run in history:
        ours, plain = (outcome(run, table) for table in (twins.ours, twins.plain))
        assert ours == plain
        assert twins.ours.version() == twins.plain.version()
    check_every_version(twins)


def outcome(run: Run, table: DeltaTable) -> Any:
    """The error, in deltalake's terms, or what came back if that says the same."""
    try:
        result = run(table)
    except DeltaError as error:
        return next(k for k in type(error).__mro__ if k.__module__ == _DELTALAKE)
    return result if isinstance(result, int) else "done"


def check_every_version(twins: Twins) -> None:
    twins.check()
    location = twins.ours.table_uri
    for version in range(twins.plain.version() + 1):
        ours = dk.DeltaTable(twins.uri, version)
        mirror = DeltaTable(location, version)
        plain = DeltaTable(twins.path, version)
        assert ours.schema() == mirror.schema() == plain.schema()
        assert rows(ours) == rows(mirror) == rows(plain)
