"""Any two operations at the same time: both are done, or one raises a conflict.

Each pair races as two processes (threads on DuckDB, which serves one process) whose
handles were opened on the same version, so the second commit must be rebased or fail.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from itertools import combinations_with_replacement, permutations, product

import pytest

from delkalakedb.errors import CommitFailedError
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.operations import OPERATIONS, after, begun, check_table, make_table
from tests.support.processes import CHILDREN

Pair = tuple[str, str]
Properties = dict[str, str] | None
# What matters only to tables that take deletion vectors.
MARKED = {"purge", "changes"}
PLAIN = [name for name in OPERATIONS if name not in MARKED]
RACES: list[Pair] = [*combinations_with_replacement(PLAIN, 2)]
ORDERED: list[Pair] = [*product(PLAIN, repeat=2)]
MARKED_RACES: list[Pair] = [*combinations_with_replacement(OPERATIONS, 2)]
MARKED_ORDERED: list[Pair] = [*product(OPERATIONS, repeat=2)]
VECTORS = {"delta.enableDeletionVectors": "true"}
# Shared out: each pair races once in a run of all engines, some twice.
SHARES = {"sqlite": RACES[::2], "postgres": RACES[1::2], "duckdb": RACES[::6]}
# After one of these another commit is for its caller to look at.
CHANGE_METADATA = {"append_wider", "add_column", "set_property", "restore"}
# These aren't run again: what they are to do was decided on what they saw.
RUN_ONCE = {"restore", "transaction", "changes"}
_meet: threading.Barrier


@pytest.fixture(scope="module", autouse=True)
def always() -> Iterator[None]:
    """Tables that take deletion vectors get them, however many rows change."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELKALAKEDB_VECTORS__MODE", "always")
        yield


@pytest.fixture(scope="module")
def processes(always: None) -> Iterator[Executor]:
    """Two processes that set out together."""
    barrier = CHILDREN.Barrier(2)
    with ProcessPoolExecutor(2, CHILDREN, meet_at, (barrier,)) as pool:
        yield pool


@pytest.fixture
def racers(engine: str, request: pytest.FixtureRequest) -> Iterator[Executor]:
    """What two operations race in on an engine."""
    if engine != "duckdb":
        yield request.getfixturevalue("processes")
        return
    with ThreadPoolExecutor(2, "racer", meet_at, (threading.Barrier(2),)) as pool:
        yield pool


def meet_at(barrier: threading.Barrier) -> None:
    """Where the operations of this process wait for each other."""
    global _meet
    _meet = barrier


def race(uri: str, name: str) -> str | None:
    """Run an operation when the other is ready, too; why it lost."""
    try:
        with begun(uri, name) as run:
            _meet.wait(60)
            run()
    except CommitFailedError as error:
        return str(error)
    return None


def test_two_at_once_come_to_what_one_after_the_other_would(
    catalog_uri: str, engine: str, racers: Executor
) -> None:
    for pair in SHARES[engine]:
        check_race(catalog_uri, racers, pair)


def test_second_of_two_follows_a_version_that_it_has_not_seen(
    catalog_uri: str, engine: str
) -> None:
    for pair in ORDERED[len(engine) :: 23]:
        check_in_order(catalog_uri, pair)


def test_two_at_once_mark_rows_as_one_after_the_other_would(
    catalog_uri: str, engine: str, racers: Executor
) -> None:
    shares = {"sqlite": 0, "postgres": 1, "duckdb": 2}
    for pair in MARKED_RACES[shares[engine] :: 6]:
        check_race(catalog_uri, racers, pair, VECTORS)


def test_second_of_two_marks_rows_of_a_version_that_it_has_not_seen(
    catalog_uri: str, engine: str
) -> None:
    for pair in MARKED_ORDERED[len(engine) :: 23]:
        check_in_order(catalog_uri, pair, VECTORS)


@pytest.mark.soak
@pytest.mark.parametrize("attempt", range(3))
def test_every_pair_at_once_marks_rows_on_every_engine(
    catalog_uri: str, racers: Executor, attempt: int
) -> None:
    for pair in MARKED_RACES:
        check_race(catalog_uri, racers, pair, VECTORS)


@pytest.mark.soak
def test_every_pair_marks_rows_in_both_orders_on_every_engine(
    catalog_uri: str,
) -> None:
    for pair in MARKED_ORDERED:
        check_in_order(catalog_uri, pair, VECTORS)


@pytest.mark.soak
@pytest.mark.parametrize("attempt", range(3))
def test_every_pair_at_once_on_every_engine(
    catalog_uri: str, racers: Executor, attempt: int
) -> None:
    for pair in RACES:
        check_race(catalog_uri, racers, pair)


@pytest.mark.soak
def test_every_pair_in_both_orders_on_every_engine(catalog_uri: str) -> None:
    for pair in ORDERED:
        check_in_order(catalog_uri, pair)


def check_race(
    catalog_uri: str, racers: Executor, pair: Pair, configuration: Properties = None
) -> None:
    uri = new_table(catalog_uri, "-".join(pair), configuration)
    racing = [racers.submit(race, uri, name) for name in pair]
    lost = [done.result() for done in racing]
    assert sum(map(bool, lost)) <= may_lose(pair), (pair, lost)
    won = [name for name, why in zip(pair, lost, strict=True) if not why]
    check_table(uri, {after(*order) for order in permutations(won)})


def check_in_order(
    catalog_uri: str, pair: Pair, configuration: Properties = None
) -> None:
    first, second = pair
    uri = new_table(catalog_uri, f"{first}-then-{second}", configuration)
    lost = None
    try:
        with begun(uri, second) as run_second:
            with begun(uri, first) as run_first:
                run_first()
            run_second()
    except CommitFailedError as error:
        lost = str(error)
    assert not lost or may_lose(pair), (pair, lost)
    check_table(uri, {after(first) if lost else after(first, second)})


def may_lose(pair: Pair) -> bool:
    """Whether the rules let one of the two fail."""
    return not CHANGE_METADATA.isdisjoint(pair) or not RUN_ONCE.isdisjoint(pair)


def new_table(catalog_uri: str, name: str, configuration: Properties) -> str:
    uri = format_uri(parse_uri(catalog_uri).with_table(name))
    make_table(uri, configuration)
    return uri
