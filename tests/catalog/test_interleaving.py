"""Two handles, step by step: A reads, B commits, A commits what it prepared.

Every cell of the matrices in docs/conflicts.md, on every engine.
"""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import msgspec
import pytest

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.catalog.commit.outcome import Committed, Conflicted, Skipped
from delkalakedb.errors import ProtocolError
from delkalakedb.model.actions import Action, Add, Metadata, Remove, known
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.predicate.predicate import parse_predicate
from delkalakedb.model.rules.conflicts import IsolationLevel, Rule
from delkalakedb.model.schema.schema import parse_schema
from tests.model.test_conflicts import LIVE, METADATA, OPERATIONS, PROTOCOL, add, cells
from tests.support.actions import (
    add as file,
    attempt,
    commit,
    create,
    only,
    paths,
    protocol,
    remove,
    stats,
    txn,
)
from tests.support.catalogs import held
from tests.support.integrity import check_integrity

LEVEL = "delta.isolationLevel"
# No commit may drop a feature here but a fence's, so none can have won with it.
IMPOSSIBLE = "drop feature"
LEVELS = tuple(IsolationLevel)
CELLS = list(cells())
ROWS = sorted({(level, lost) for level, lost, _, _ in CELLS})


class Pair(NamedTuple):
    """Two handles on one catalog."""

    a: Catalog
    b: Catalog


@pytest.fixture
def pair(catalog_uri: str) -> Iterator[Pair]:
    with dk.connect(catalog_uri) as a, dk.connect(catalog_uri) as b:
        yield Pair(a, b)


def on(table: str, operation: str, level: str) -> Staged:
    """An operation of the page, prepared on version 0 of a table."""
    page = OPERATIONS[operation]
    schema = parse_schema(METADATA.schema_string)
    read = [f"p = {p}" for p in page.reads.predicates]
    predicates = tuple(parse_predicate(text, schema, ["p"]) for text in read)
    actions = [fitted(action, level) for action in page.actions]
    return replace(
        page,
        table=table,
        actions=actions,
        reads=replace(page.reads, predicates=predicates),
    )


def fitted(action: Action, level: str) -> Action:
    """The action with statistics, or keeping the table's isolation level."""
    if isinstance(action, Add):
        return msgspec.structs.replace(action, stats=stats(x=(1, 9, 0)))
    if isinstance(action, Metadata):
        configuration = {**(known(action.configuration) or {}), LEVEL: level}
        return msgspec.structs.replace(action, configuration=configuration)
    return action


def after(live: set[str], commit: Staged, seen: set[str]) -> set[str]:
    """The paths that a commit leaves; without names it removes what it had seen."""
    removed = {a.path for a in commit.actions if isinstance(a, Remove)}
    added = {a.path for a in commit.actions if isinstance(a, Add)}
    return live - (seen if commit.remove_all else removed) | added


@pytest.mark.parametrize(("level", "lost"), ROWS)
def test_every_cell_of_the_page_holds_in_the_catalog(
    pair: Pair, level: str, lost: str
) -> None:
    row = [(won, rule) for at, lo, won, rule in CELLS if (at, lo) == (level, lost)]
    for i, (won, rule) in enumerate(row):
        # Where the page makes no difference between levels, they take turns.
        at = level or LEVELS[i % len(LEVELS)]
        if won != IMPOSSIBLE:
            check_cell(pair, at, lost, won, rule)
    check_integrity(pair.a)


def check_cell(pair: Pair, level: str, lost: str, won: str, rule: str) -> None:
    table = won
    files = [fitted(add(name), level) for name in LIVE]
    first = Staged(
        table, (PROTOCOL, fitted(METADATA, level), *files), location=f"/x/{table}"
    )
    only(pair.a.commit(first))
    seen = {f.path for f in files if isinstance(f, Add)}

    reader = pair.a.snapshot(table).files()
    batch = reader.read_next_batch()  # A's connection is in use from here on
    winner = on(table, won, level)
    assert only(pair.b.commit(winner)).version == 1
    taken = after(seen, winner, seen)
    loser = on(table, lost, level)
    outcome = pair.a._try_commit(loser)
    assert set(batch.column("path").to_pylist()) == seen
    del reader

    if rule == "·":
        assert isinstance(outcome, tuple), (outcome, table)
        assert only(outcome).version == 2
        assert set(paths(pair.b, table)) == after(taken, loser, seen)
    else:
        assert isinstance(outcome, Conflicted), table
        assert outcome.rule.removeprefix("concurrent_") == rule, table
        assert outcome.winner_version == 1
        assert pair.b.table(table).version == 1
        assert set(paths(pair.b, table)) == taken


def test_feature_is_not_dropped_by_a_commit(pair: Pair) -> None:
    create(pair.a, features=("appendOnly", "domainMetadata"))

    with pytest.raises(ProtocolError, match="appendOnly"):
        attempt(pair.b, protocol("domainMetadata"))

    assert pair.a.table("t").version == 0


def test_second_commit_of_an_application_is_told_what_the_first_did(
    pair: Pair,
) -> None:
    create(pair.a)
    reads = {"version": 0, "app_ids": frozenset({"stream"})}
    first = attempt(pair.b, file("b"), txn("stream", 7), **reads)
    again = attempt(pair.a, file("a"), txn("stream", 7), **reads)
    later = attempt(pair.a, file("a"), txn("stream", 8), **reads)

    assert isinstance(first, Committed)
    assert again == Skipped("t", 1, "stream")
    assert isinstance(later, Conflicted)
    assert later.rule == Rule.CONCURRENT_TRANSACTION
    assert paths(pair.a) == ["b"]


def test_one_lost_table_takes_the_others_of_its_transaction_with_it(
    pair: Pair,
) -> None:
    for table in ("left", "right"):
        create(pair.a, table, file("f"))
    commit(pair.b, remove(file("f")), table="right")

    outcome = pair.a._try_commit(
        Staged("left", [file("g")], Reads(version=0)),
        Staged("right", [remove(file("f"))], Reads(version=0)),
    )

    assert isinstance(outcome, Conflicted)
    assert (outcome.table, outcome.winner_version) == ("right", 1)
    assert pair.b.table("left").version == 0
    assert paths(pair.b, "left") == ["f"]
    check_integrity(pair.b)


def test_rival_waits_for_the_head_and_is_rebased_on_the_winner(pair: Pair) -> None:
    create(pair.a)
    done = threading.Event()

    def rival() -> None:
        commit(pair.b, file("late"), version=0)
        done.set()

    thread = threading.Thread(target=rival)
    with held(pair.a, "t"):
        thread.start()
        assert not done.wait(0.3)
        assert paths(pair.a) == []  # readers don't wait
    thread.join(10)

    assert done.is_set()
    assert paths(pair.a) == ["late"]
