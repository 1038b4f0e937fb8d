"""Operations on a small table, each with what it does to the rows.

`begun` opens the table and gives the operation, still to be run: of what is ratified in
between it doesn't know.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import deltalake
import pyarrow as pa
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

import delkalakedb as dk
from delkalakedb.settings.uri import parse_uri

SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("value", pa.int64())])
PROPERTY = {"delta.logRetentionDuration": "interval 60 days"}
FIRST = [(number, 0) for number in range(4)]
LATER = [(number, 1) for number in range(4, 8)]


@dataclass(frozen=True)
class State:
    """A table's rows (id, value) in order, its added columns and properties."""

    rows: tuple[tuple[int, int], ...]
    marks: frozenset[str] = frozenset()

    def holding(self, rows: Iterable[tuple[int, int]]) -> "State":
        """The same table with other rows."""
        return replace(self, rows=tuple(sorted(rows)))

    def marked(self, mark: str) -> "State":
        """The table with one more column or property."""
        return replace(self, marks=self.marks | {mark})


AT_FIRST = State(tuple(FIRST))
BASE = State(tuple(FIRST + LATER))


@dataclass(frozen=True)
class Operation:
    """What is done to a table, and what it comes to."""

    run: Callable[[DeltaTable], Any]
    model: Callable[[State], State]


def make_table(uri: str, configuration: dict[str, str] | None = None) -> None:
    """A table in the state `BASE`, of two files in each of two partitions."""
    dk.write_deltalake(
        uri, data(FIRST), partition_by="part", configuration=configuration
    )
    dk.write_deltalake(uri, data(LATER), mode="append")


@contextmanager
def begun(uri: str, name: str) -> Iterator[Callable[[], None]]:
    """Open a table for an operation that is run later, and true when this ends."""
    if name in IN_TRANSACTION:
        parsed = parse_uri(uri)
        with dk.transaction(parsed.catalog) as tx:
            yield lambda: IN_TRANSACTION[name](tx, parsed.table or "")
    else:
        table = dk.DeltaTable(uri)
        yield lambda: OPERATIONS[name].run(table)


def write_and_delete(tx: dk.Transaction, name: str) -> None:
    """What a transaction does to a table."""
    tx.write(name, data([(400, 50)]), mode="append")
    tx.delete(name, "id = 5")


def delete_and_update(tx: dk.Transaction, name: str) -> None:
    """What another transaction does to a table."""
    tx.delete(name, "id = 6")
    tx.update(name, updates={"value": "value + 500"}, predicate="id = 1 OR id = 7")


IN_TRANSACTION = {"transaction": write_and_delete, "changes": delete_and_update}


def state_of(table: DeltaTable) -> State:
    """The state of a table, with each row in its partition."""
    found = pa.table(table.scan()).to_pylist()
    assert all(row["part"] == _part(row["id"]) for row in found)
    columns = {field.name for field in table.schema().fields} - {*SCHEMA.names}
    properties = PROPERTY.keys() & table.metadata().configuration.keys()
    rows = ((row["id"], row["value"]) for row in found)
    return State((), frozenset(columns | properties)).holding(rows)


def after(*names: str, state: State = BASE) -> State:
    """What operations come to, one after the other."""
    for name in names:
        state = OPERATIONS[name].model(state)
    return state


def check_table(uri: str, allowed: Container[State]) -> None:
    """A table is in one of the states, by SQL and by the log; nobody works at it."""
    table = dk.DeltaTable(uri)
    mirror = deltalake.DeltaTable(table.table_uri)
    state = state_of(table)
    assert state in allowed, uri
    assert (mirror.version(), state_of(mirror)) == (table.version(), state), uri
    report = dk.verify(uri, deep=True)
    assert report.ok, str(report)
    assert not list((folder_of(table) / "_delta_work").iterdir()), uri


def folder_of(table: DeltaTable) -> Path:
    """Where a table is."""
    return Path(unquote(table.table_uri.removeprefix("file://")))


def data(rows: Iterable[tuple[int, int]], **more: pa.Array) -> pa.Table:
    """Rows (id, value) to write."""
    given = [{"id": i, "part": _part(i), "value": v} for i, v in rows]
    table = pa.Table.from_pylist(given, SCHEMA)
    for name, column in more.items():
        table = table.append_column(name, column)
    return table


def _part(number: int) -> str:
    return "odd" if number % 2 else "e v/n%"


def _append(table: DeltaTable) -> None:
    deltalake.write_deltalake(table, data([(100, 10)]), mode="append")


def _append_wider(table: DeltaTable) -> None:
    wider = data([(110, 11)], wider=pa.array([None], pa.string()))
    deltalake.write_deltalake(table, wider, mode="append", schema_mode="merge")


def _overwrite(table: DeltaTable) -> None:
    deltalake.write_deltalake(table, data([(200, 20), (3, 23)]), mode="overwrite")


def _replace(table: DeltaTable) -> None:
    rows = data([(1, 31)])
    deltalake.write_deltalake(table, rows, mode="overwrite", predicate="id < 3")


def _merge(table: DeltaTable) -> None:
    names = {"source_alias": "s", "target_alias": "t"}
    source = data([(3, 43), (4, 44), (300, 40)])
    merger = table.merge(source, "s.id = t.id", **names)
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def _merged(state: State) -> State:
    source = {3: 43, 4: 44, 300: 40}
    updated = [(i, source.get(i, v)) for i, v in state.rows]
    new = source.keys() - {i for i, _ in state.rows}
    return state.holding([*updated, *((i, source[i]) for i in new)])


def _without(state: State, gone: Callable[[int], bool]) -> list[tuple[int, int]]:
    return [(i, v) for i, v in state.rows if not gone(i)]


def _same(state: State) -> State:
    return state


OPERATIONS = {
    "append": Operation(_append, lambda s: s.holding([*s.rows, (100, 10)])),
    "append_wider": Operation(
        _append_wider, lambda s: s.holding([*s.rows, (110, 11)]).marked("wider")
    ),
    "overwrite": Operation(_overwrite, lambda s: s.holding([(200, 20), (3, 23)])),
    "replace": Operation(
        _replace, lambda s: s.holding([*_without(s, lambda i: i < 3), (1, 31)])
    ),
    "delete": Operation(
        lambda t: t.delete("id >= 2 AND id < 6"),
        lambda s: s.holding(_without(s, lambda i: 2 <= i < 6)),
    ),
    "update": Operation(
        lambda t: t.update({"value": "value + 1000"}, predicate="id > 2"),
        lambda s: s.holding((i, v + 1000 if i > 2 else v) for i, v in s.rows),
    ),
    "merge": Operation(_merge, _merged),
    "compact": Operation(lambda t: t.optimize.compact(), _same),
    "z_order": Operation(lambda t: t.optimize.z_order(["id"]), _same),
    "add_column": Operation(
        lambda t: t.alter.add_columns([Field("added", PrimitiveType("string"))]),
        lambda s: s.marked("added"),
    ),
    "set_property": Operation(
        lambda t: t.alter.set_table_properties(PROPERTY),
        lambda s: s.marked(*PROPERTY),
    ),
    "restore": Operation(lambda t: t.restore(0), lambda _: AT_FIRST),
    "vacuum": Operation(
        # What a restore may need stays.
        lambda t: t.vacuum(
            0, dry_run=False, enforce_retention_duration=False, keep_versions=[0]
        ),
        _same,
    ),
    "purge": Operation(lambda t: t.optimize.purge(), _same),
    "changes": Operation(
        _same,
        lambda s: s.holding(
            (i, v + 500 if i in (1, 7) else v) for i, v in _without(s, lambda i: i == 6)
        ),
    ),
    "transaction": Operation(
        # Only its model: it begins before it is given a table.
        _same,
        lambda s: s.holding([*_without(s, lambda i: i == 5), (400, 50)]),
    ),
}
