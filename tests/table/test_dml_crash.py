"""A process killed in the middle of an operation leaves all of it, or nothing.

What else it leaves behind goes with the next operation, or with vacuum.
"""

import random
import re
import signal
import time
from collections.abc import Callable, Set as AbstractSet

import pytest

import delkalakedb as dk
from delkalakedb.model.paths import files_inside
from delkalakedb.model.predicate.predicate import EVERY_FILE
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.write.engines.deltars import candidates
from tests.support.dml_workers import (
    IN_PLACE,
    IN_WORKSPACE,
    MARKING,
    RATIFIED,
    RATIFYING,
    UNITING,
    beside,
    run_until_killed,
    transact,
    unite_until_killed,
    visiting,
)
from tests.support.operations import (
    BASE,
    State,
    after,
    check_table,
    data,
    folder_of,
    make_table,
    state_of,
)
from tests.support.processes import CHILDREN

NAMES = [
    "append",
    "overwrite",
    "replace",
    "delete",
    "update",
    "merge",
    "compact",
    "z_order",
    "transaction",
    "restore",
]
# Operations that mark rows as deleted, on a table that takes deletion vectors.
MARKS = ["delete", "update", "merge", "transaction"]
VECTORS = {"delta.enableDeletionVectors": "true"}
LONGEST_S = 0.15
OF_LOG = re.compile(r"[0-9]{20}\.(json|crc)|\.dk-[0-9a-f]{32}\.tmp")


def steps_of(name: str) -> list[str]:
    """The moments at which an operation can be killed."""
    written = {"restore": [], "append": IN_PLACE}.get(name, IN_WORKSPACE)
    return written + RATIFYING + RATIFIED


def marking_steps_of(name: str) -> list[str]:
    """The moments at which an operation that marks rows can be killed."""
    moved = ["before rename", "after rename"] if name in ("update", "merge") else []
    here = ["before _commits", *moved, "before rmtree", "after rmtree", *IN_PLACE]
    return here + RATIFYING + RATIFIED


EVERYWHERE = [(name, step) for name in NAMES for step in steps_of(name)]
MARKED = [(name, step) for name in MARKS for step in marking_steps_of(name)]


def test_operation_killed_at_a_named_step_is_done_or_not(
    catalog_uri: str, engine: str
) -> None:
    rng = random.Random(engine)
    for name in rng.sample(NAMES, 8):
        check_kill(catalog_uri, name, rng.choice(steps_of(name)))


def test_operation_killed_at_any_moment_is_done_or_not(
    catalog_uri: str, engine: str
) -> None:
    rng = random.Random(engine)
    for name in rng.sample(NAMES, 2):
        check_kill(catalog_uri, name, rng.uniform(0, LONGEST_S))


def test_rows_are_marked_or_not_if_the_operation_is_killed(
    catalog_uri: str, engine: str
) -> None:
    rng = random.Random(engine)
    for name, step in rng.sample(MARKED, 4):
        check_kill(catalog_uri, name, step, marking=True)
    check_kill(catalog_uri, rng.choice(MARKS), rng.uniform(0, LONGEST_S), marking=True)


@pytest.mark.parametrize(("step", "earlier"), UNITING)
def test_delete_that_is_killed_while_it_is_united_is_not_done(
    catalog_uri: str, step: str, earlier: int
) -> None:
    uri = format_uri(parse_uri(catalog_uri).with_table("united"))
    with visiting(uri):
        make_table(uri, VECTORS)
    run_killed(unite_until_killed, (uri, step, earlier), None)
    with visiting(uri):
        check_survivors(
            uri, "delete", {BASE.holding(r for r in BASE.rows if r[0] != 2)}
        )


def test_purge_that_is_killed_changes_no_row(
    catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in MARKING.items():
        monkeypatch.setenv(key, value)
    left = BASE.holding(row for row in BASE.rows if row[0] != 2)
    for step in ["before rename", "after rename", *RATIFYING, *RATIFIED]:
        name = f"purge {step}".replace(" ", "-")
        uri = format_uri(parse_uri(catalog_uri).with_table(name))
        with visiting(uri):
            make_table(uri, VECTORS)
            dk.DeltaTable(uri).delete("id = 2")
        kill(uri, "purge", step, MARKING)
        with visiting(uri):
            check_survivors(uri, "purge", {left})


@pytest.mark.soak
def test_operations_killed_at_every_step_are_done_or_not(catalog_uri: str) -> None:
    for name, step in EVERYWHERE:
        check_kill(catalog_uri, name, step)


@pytest.mark.soak
def test_rows_are_marked_or_not_wherever_the_operation_is_killed(
    catalog_uri: str,
) -> None:
    for name, step in MARKED:
        check_kill(catalog_uri, name, step, marking=True)


@pytest.mark.soak
def test_operations_killed_often_are_done_or_not(catalog_uri: str) -> None:
    rng = random.Random(2)
    for _ in range(40):
        check_kill(catalog_uri, rng.choice(NAMES), rng.uniform(0, LONGEST_S))


def check_kill(
    catalog_uri: str, name: str, when: str | float, marking: bool = False
) -> None:
    table = f"{name} {when} {marking}".replace(" ", "-")
    uri = format_uri(parse_uri(catalog_uri).with_table(table))
    with visiting(uri):
        make_table(uri, VECTORS if marking else None)
    kill(uri, name, when, MARKING if marking else {})
    with visiting(uri):
        check_survivors(uri, name, allowed(name, when))


def allowed(name: str, when: str | float) -> set[State]:
    """What a table may be after a process that changed it was killed."""
    if isinstance(when, float):
        return {BASE, after(name)}
    return {after(name) if when in RATIFIED else BASE}


def kill(uri: str, name: str, when: str | float, settings: dict[str, str]) -> None:
    """Have a process run an operation, and kill it at a step or after some time."""
    step = when if isinstance(when, str) else None
    after_s = when if isinstance(when, float) else None
    run_killed(run_until_killed, (uri, name, step, settings), after_s)


def run_killed(
    job: Callable[..., None], given: tuple[object, ...], after_s: float | None
) -> None:
    """Run a job in a process that kills itself, or kill it after some time."""
    ready, told = CHILDREN.Pipe(duplex=False)
    child = CHILDREN.Process(target=job, args=(told, *given))
    child.start()
    told.close()
    with ready:
        ready.recv()
    if after_s is not None:
        time.sleep(after_s)
        child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL, given


def check_survivors(uri: str, name: str, states: AbstractSet[State]) -> None:
    """Another process goes on with the table, and finds it whole."""
    dk.write_deltalake(uri, data([(100, 10)]), mode="append")
    check_table(uri, {after("append", state=state) for state in states})
    if name == "transaction":
        check_both(uri)
    check_leftovers(uri)


def check_both(uri: str) -> None:
    """The other table of a transaction is there if the first was changed."""
    changed = (400, 50) in state_of(dk.DeltaTable(uri)).rows
    other = format_uri(beside(parse_uri(uri)))
    assert dk.DeltaTable.is_deltatable(other) == changed
    if not changed:
        transact(uri)
    dk.write_deltalake(other, data([(1, 1)]), mode="append")
    check_table(other, {State(((0, 0), (1, 1)))})
    check_leftovers(other)


def check_leftovers(uri: str) -> None:
    """Vacuum leaves the live files, and the log has nothing but commits."""
    table = dk.DeltaTable(uri)
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    folder = folder_of(table)
    files = {path for path in folder.rglob("*") if path.is_file()}
    log = {path for path in files if path.parent.name == "_delta_log"}
    live = candidates(table._table.snapshot, EVERY_FILE)
    assert files - log == {
        folder / path for add in live for path in files_inside(add, str(folder))
    }
    assert all(OF_LOG.fullmatch(path.name) for path in log)
