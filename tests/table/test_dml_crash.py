"""A process killed in the middle of an operation leaves all of it, or nothing.

What else it leaves behind goes with the next operation, or with vacuum.
"""

import random
import re
import signal
import time
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

import delkalakedb as dk
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.dml_workers import (
    IN_PLACE,
    IN_WORKSPACE,
    RATIFIED,
    RATIFYING,
    beside,
    run_until_killed,
    transact,
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
LONGEST_S = 0.15
OF_LOG = re.compile(r"[0-9]{20}\.(json|crc)|\.dk-[0-9a-f]{32}\.tmp")


def steps_of(name: str) -> list[str]:
    """The moments at which an operation can be killed."""
    written = {"restore": [], "append": IN_PLACE}.get(name, IN_WORKSPACE)
    return written + RATIFYING + RATIFIED


EVERYWHERE = [(name, step) for name in NAMES for step in steps_of(name)]


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


@pytest.mark.soak
def test_operations_killed_at_every_step_are_done_or_not(catalog_uri: str) -> None:
    for name, step in EVERYWHERE:
        check_kill(catalog_uri, name, step)


@pytest.mark.soak
def test_operations_killed_often_are_done_or_not(catalog_uri: str) -> None:
    rng = random.Random(2)
    for _ in range(40):
        check_kill(catalog_uri, rng.choice(NAMES), rng.uniform(0, LONGEST_S))


def check_kill(catalog_uri: str, name: str, when: str | float) -> None:
    table = f"{name} {when}".replace(" ", "-")
    uri = format_uri(parse_uri(catalog_uri).with_table(table))
    with visiting(uri):
        make_table(uri)
    kill(uri, name, when)
    with visiting(uri):
        check_survivors(uri, name, allowed(name, when))


def allowed(name: str, when: str | float) -> set[State]:
    """What a table may be after a process that changed it was killed."""
    if isinstance(when, float):
        return {BASE, after(name)}
    return {after(name) if when in RATIFIED else BASE}


def kill(uri: str, name: str, when: str | float) -> None:
    """Have a process run an operation, and kill it at a step or after some time."""
    ready, told = CHILDREN.Pipe(duplex=False)
    step = when if isinstance(when, str) else None
    child = CHILDREN.Process(target=run_until_killed, args=(uri, name, step, told))
    child.start()
    told.close()
    with ready:
        ready.recv()
    if isinstance(when, float):
        time.sleep(when)
        child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL, (name, when)


def check_survivors(uri: str, name: str, states: AbstractSet[State]) -> None:
    """Somebody else goes on with the table, and finds it whole."""
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
    files = {path for path in folder_of(table).rglob("*") if path.is_file()}
    log = {path for path in files if path.parent.name == "_delta_log"}
    assert files - log == {Path(uri) for uri in table.file_uris()}
    assert all(OF_LOG.fullmatch(path.name) for path in log)
