"""Changes of rows of one file as several connections: as if one came after the other.

Two or three handles see one version, and change it one after the other or at once. What
is committed must be what the operations come to in an order: under Serializable in the
order of their versions, else in any order. An operation that loses changes nothing.
"""

import random
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from itertools import permutations
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import CommitFailedError
from delkalakedb.model.actions import Cdc, decode_commit
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.row_operations import (
    ONCE,
    Operation,
    State,
    data,
    ordered,
    random_operation,
    restoring,
    state_of,
)

LEVELS = ("Serializable", "WriteSerializable")
IDS = range(16)
ROUNDS = 5
Outcome = tuple[int, Operation]


def table_of(uri: str, chance: random.Random) -> tuple[str, list[State]]:
    """A new table of a few files with deletion vectors; its rows at each version."""
    name = f"t{chance.getrandbits(40)}"
    uri = format_uri(parse_uri(uri).with_table(name))
    properties = {
        "delta.enableDeletionVectors": "true",
        "delta.isolationLevel": chance.choice(LEVELS),
        "delta.enableChangeDataFeed": chance.choice(["true", "false"]),
    }
    # delta-rs finds no changes in partitions of odd names.
    fed = properties["delta.enableChangeDataFeed"] == "true"
    partition_by = None if fed else chance.choice([None, ["part"]])
    first = [ordered((i, i % 3) for i in ids) for ids in (IDS[:10], IDS[10:])]
    for rows in first:
        dk.write_deltalake(
            uri,
            data(rows),
            mode="append",
            configuration=properties,
            partition_by=partition_by,
        )
    states = [first[0], ordered(first[0] + first[1])]
    for gone in chance.sample(IDS, chance.randint(0, 2)):
        dk.DeltaTable(uri).delete(f"id = {gone}")
        states.append(tuple(row for row in states[-1] if row[0] != gone))
    return uri, states


def serial(state: State, operations: Sequence[Operation]) -> State:
    """What operations come to, one after the other."""
    return reduce(lambda found, operation: operation.model(found), operations, state)


def attempt(handle: dk.DeltaTable, operation: Operation, once: bool) -> Outcome | None:
    """Run an operation; the version that it made, or None if it lost."""
    try:
        operation.run(handle, ONCE if once else None)
    except CommitFailedError:
        return None
    return handle.version(), operation


@pytest.mark.every_engine
@pytest.mark.parametrize(
    "seed",
    [*range(3), *(pytest.param(n, marks=pytest.mark.soak) for n in range(3, 120))],
)
def test_operations_of_several_handles_are_serializable(
    catalog_uri: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setenv("DELKALAKEDB_VECTORS__MODE", "always")
    limit = chance.choice(["4096", "4096", "40", "0"])
    monkeypatch.setenv("DELKALAKEDB_VECTORS__INLINE_BYTES", limit)
    for _ in range(ROUNDS):
        check_round(catalog_uri, chance)


def check_round(catalog_uri: str, chance: random.Random) -> None:
    uri, states = table_of(catalog_uri, chance)
    count, once = chance.choice([2, 2, 2, 3]), chance.random() < 0.5
    operations = [random_operation(chance, IDS, 100 * (n + 1)) for n in range(count)]
    if chance.random() < 0.1:
        version = chance.randrange(len(states) - 1)
        operations[-1] = restoring(version, states[version])
    handles = [dk.DeltaTable(uri) for _ in operations]
    if chance.random() < 0.25:
        with ThreadPoolExecutor(count) as pool:
            made = list(pool.map(attempt, handles, operations, [once] * count))
    else:
        made = [attempt(*pair, once) for pair in zip(handles, operations, strict=True)]
    check(uri, states, operations, made)
    if not once and not any(operation.metadata for operation in operations):
        assert None not in made, operations


def check(
    uri: str,
    states: list[State],
    operations: Sequence[Operation],
    made: Sequence[Outcome | None],
) -> None:
    """Compare a table with what the operations come to that were committed."""
    told = [operation.name for operation in operations], made
    table = dk.DeltaTable(uri)
    found = state_of(table)
    level = table.metadata().configuration["delta.isolationLevel"]
    orders = [
        order
        for order in permutations(one for one in made if one is not None)
        if level != "Serializable" or is_ordered(order, len(states) - 1)
    ]
    assert found in {serial(states[-1], [o for _, o in order]) for order in orders}, (
        told
    )
    mirror = deltalake.DeltaTable(table.table_uri)
    assert (mirror.version(), state_of(mirror)) == (table.version(), found), told
    assert table.count() == len(found), told
    assert dk.verify(uri, deep=True).ok, told
    if table.metadata().configuration["delta.enableChangeDataFeed"] == "true":
        check_feed(uri, len(states) - 1)


def is_ordered(made: Sequence[Outcome], since: int) -> bool:
    """Whether the versions rise; what had nothing to commit may be anywhere."""
    versions = [version for version, _ in made if version > since]
    return versions == sorted(versions)


def check_feed(uri: str, since: int) -> None:
    """Compare the change data of versions with their rows and those before."""
    table = dk.DeltaTable(uri)
    log = Path(table.table_uri.removeprefix("file://")) / "_delta_log"
    for version in range(since + 1, table.version() + 1):
        actions = decode_commit((log / f"{version:020}.json").read_bytes())
        if not any(isinstance(action, Cdc) for action in actions):
            continue
        rows = Counter(state_of(dk.DeltaTable(uri, version - 1)))
        changes = table.load_cdf(starting_version=version, ending_version=version)
        for row in pa.table(changes).to_pylist():
            gone = row["_change_type"] in ("delete", "update_preimage")
            rows[row["id"], row["v"]] += -1 if gone else 1
        assert rows == Counter(state_of(dk.DeltaTable(uri, version))), version


def test_merge_inserts_what_another_deletes_of_its_matches(
    catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__MODE", "always")
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    properties = {"delta.enableDeletionVectors": "true"}
    for rows in ([(5, 0), (7, 0)], [(6, 0), (8, 0)]):
        dk.write_deltalake(uri, data(rows), mode="append", configuration=properties)
    stale = dk.DeltaTable(uri)
    dk.DeltaTable(uri).delete("id = 5 OR v = 99")

    # Of the source's rows, one matches a row that stays as it is, in another file.
    merger = stale.merge(data([(5, 1), (6, 99)]), "t.id = s.id", "s", "t")
    merger.when_matched_update({"v": "s.v"}, predicate="s.v > 50")
    merger.when_not_matched_insert_all().execute()

    assert state_of(dk.DeltaTable(uri)) == ((5, 1), (6, 99), (7, 0), (8, 0))
