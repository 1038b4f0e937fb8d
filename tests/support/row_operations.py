"""Random operations on a table of rows (id, v), each with what it does to the rows.

A model's state is the sorted rows. An operation is a value, so that several handles can
run it, each on the version that the handle sees.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import deltalake
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field
from deltalake.schema import PrimitiveType

Row = tuple[int, int]
State = tuple[Row, ...]
ONCE = CommitProperties(max_commit_retries=0)
SCHEMA = pa.schema([("id", pa.int64()), ("part", pa.string()), ("v", pa.int64())])


@dataclass(frozen=True)
class Operation:
    """A change of a table, and of the model's rows.

    Args:
        name: what it is, in failures.
        run: does it, with these commit properties.
        model: the rows that it leaves, if nothing else happens meanwhile.
        marks: deletion vectors may be its only change of old files.
        metadata: it changes more than rows.
    """

    name: str
    run: Callable[[DeltaTable, CommitProperties | None], Any]
    model: Callable[[State], State]
    marks: bool = False
    metadata: bool = False


def part(number: int) -> str:
    """The partition of a row."""
    return ("a b", "x=1/%")[number % 2]


def data(rows: Iterable[Row]) -> pa.Table:
    """Rows to write."""
    given = [{"id": i, "part": part(i), "v": v} for i, v in rows]
    return pa.Table.from_pylist(given, SCHEMA)


def state_of(table: DeltaTable) -> State:
    """The rows of a table, as delta-rs finds them."""
    found = pa.table(table.scan()).to_pylist()
    assert all(row["part"] == part(row["id"] % 1000) for row in found)
    return ordered((row["id"], row["v"]) for row in found)


def ordered(rows: Iterable[Row]) -> State:
    """The rows in the model's order."""
    return tuple(sorted(rows))


def random_operation(chance: random.Random, ids: Sequence[int], new: int) -> Operation:
    """An operation on some of the ids; `new` is the first id of rows that it adds."""
    kind = chance.choice([_delete, _delete, _update, _update, _merge, _merge, _other])
    return kind(chance, ids, new)


def _delete(chance: random.Random, ids: Sequence[int], new: int) -> Operation:
    some = sorted(chance.sample(ids, chance.randint(1, 4)))
    value = chance.randrange(3)
    where, gone = chance.choice(
        [
            (_listed("id", some), lambda i, v: i in some),
            (f"id >= {some[0]} AND id < {some[0] + 3}", _between(some[0])),
            (f"v = {value}", lambda i, v: v == value),
            (
                f"{_listed('id', some)} AND v % 2 = 0",
                lambda i, v: i in some and v % 2 == 0,
            ),
        ]
    )
    return Operation(
        f"delete {where}",
        lambda t, p: t.delete(where, commit_properties=p),
        lambda state: ordered(row for row in state if not gone(*row)),
        marks=True,
    )


def _between(low: int) -> Callable[[int, int], bool]:
    return lambda i, _: low <= i < low + 3


def _update(chance: random.Random, ids: Sequence[int], new: int) -> Operation:
    some = sorted(chance.sample(ids, chance.randint(1, 3)))
    value, more = chance.randrange(3), chance.choice([1, 100])
    where, chosen = chance.choice(
        [
            (_listed("id", some), lambda i, v: i in some),
            (
                f"v = {value} AND id < {some[-1]}",
                lambda i, v: v == value and i < some[-1],
            ),
        ]
    )
    column, changed = chance.choice(
        [("v", lambda i, v: (i, v + more)), ("id", lambda i, v: (i + 1000, v))]
    )
    by = more if column == "v" else 1000
    return Operation(
        f"update {column} + {by} where {where}",
        lambda t, p: t.update(
            {column: f"{column} + {by}"}, predicate=where, commit_properties=p
        ),
        lambda state: ordered(changed(*r) if chosen(*r) else r for r in state),
        marks=True,
    )


def _merge(chance: random.Random, ids: Sequence[int], new: int) -> Operation:
    some = chance.sample(ids, chance.randint(1, 3))
    some += chance.sample([new, new + 1, new + 2], chance.randint(0, 1))
    source = {i: chance.randrange(5) for i in some}
    clauses = chance.sample(["update", "delete", "insert"], chance.randint(1, 3))

    def run(table: DeltaTable, properties: CommitProperties | None) -> Any:
        merger = table.merge(
            data(source.items()), "t.id = s.id", "s", "t", commit_properties=properties
        )
        for clause in clauses:
            if clause == "update":
                merger.when_matched_update({"v": "s.v + 10"}, predicate="s.v > t.v")
            elif clause == "delete":
                merger.when_matched_delete(predicate="s.v = 0")
            else:
                merger.when_not_matched_insert_all(predicate="s.v < 4")
        return merger.execute()

    def matched(number: int, value: int) -> list[Row]:
        for clause in clauses:
            if clause == "update" and source[number] > value:
                return [(number, source[number] + 10)]
            if clause == "delete" and source[number] == 0:
                return []
        return [(number, value)]

    def model(state: State) -> State:
        there = {i for i, _ in state}
        kept = [row for row in state if row[0] not in source]
        kept += [r for row in state if row[0] in source for r in matched(*row)]
        if "insert" in clauses:
            kept += [(i, v) for i, v in source.items() if i not in there and v < 4]
        return ordered(kept)

    return Operation(f"merge {source} {clauses}", run, model, marks=True)


def _other(chance: random.Random, ids: Sequence[int], new: int) -> Operation:
    few = ordered((new + n, chance.randrange(3)) for n in range(2))
    low = chance.choice(ids)
    fresh = chance.choice(["c1", "c2"])
    return chance.choice(
        [
            Operation(
                f"append {few}",
                lambda t, p: deltalake.write_deltalake(
                    t, data(few), mode="append", commit_properties=p
                ),
                lambda state: ordered((*state, *few)),
            ),
            Operation(
                f"overwrite {few}",
                lambda t, p: deltalake.write_deltalake(
                    t, data(few), mode="overwrite", commit_properties=p
                ),
                lambda _: few,
            ),
            Operation(
                f"replace id = {low}",
                lambda t, p: deltalake.write_deltalake(
                    t,
                    data([(low, 7)]),
                    mode="overwrite",
                    predicate=f"id = {low}",
                    commit_properties=p,
                ),
                lambda s: ordered([*(r for r in s if r[0] != low), (low, 7)]),
            ),
            Operation(
                "compact",
                lambda t, p: t.optimize.compact(commit_properties=p),
                lambda state: state,
            ),
            Operation(
                "z_order",
                lambda t, p: t.optimize.z_order(["v"], commit_properties=p),
                lambda state: state,
            ),
            Operation(
                f"add column {fresh}",
                lambda t, p: t.alter.add_columns(
                    [Field(fresh, PrimitiveType("long"))], commit_properties=p
                ),
                lambda state: state,
                metadata=True,
            ),
        ]
    )


def restoring(version: int, state: State) -> Operation:
    """The operation that restores a version with these rows."""
    return Operation(
        f"restore {version}",
        lambda t, p: t.restore(version, commit_properties=p),
        lambda _: state,
        metadata=True,
    )


def _listed(column: str, values: Sequence[int]) -> str:
    return f"{column} IN ({', '.join(map(str, values))})"
