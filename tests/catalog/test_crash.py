"""A process that is killed in the middle leaves each commit whole, or nothing of it."""

import random
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

import pytest

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.model.log import Reads, Staged
from tests.support.actions import add, creation, paths, remove
from tests.support.integrity import check_integrity
from tests.support.processes import CHILDREN
from tests.support.workers import PAIR, commit_and_die, commit_forever, replace_file

LONGEST_S = 0.1
MOMENTS = ("locked", "write 0", "write 3", "write 8", "all written")


@pytest.fixture
def pair_uri(catalog_uri: str) -> str:
    """A catalog with two empty tables that no process has open."""
    with dk.connect(catalog_uri) as catalog:
        catalog.commit(*map(creation, PAIR))
    return catalog_uri


@pytest.mark.parametrize("moment", MOMENTS)
def test_commit_that_is_killed_before_its_end_did_not_happen(
    pair_uri: str, moment: str
) -> None:
    die(pair_uri, PAIR, moment)

    assert survivors(pair_uri, PAIR, "run") == [-1, -1]


@pytest.mark.parametrize("tables", [PAIR, PAIR[:1]])
def test_commit_that_is_killed_after_its_end_did_happen(
    pair_uri: str, tables: Sequence[str]
) -> None:
    die(pair_uri, tables, "committed")

    assert survivors(pair_uri, tables, "run") == [0] * len(tables)


def test_writer_killed_at_any_moment_leaves_whole_commits(pair_uri: str) -> None:
    check_kills(pair_uri, kills=4, seed=1)


@pytest.mark.soak
def test_writer_killed_two_hundred_times_leaves_whole_commits(pair_uri: str) -> None:
    check_kills(pair_uri, kills=200, seed=2)


def check_kills(uri: str, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    for i in range(kills):
        tables = PAIR if i % 4 else PAIR[1:]
        run = f"run {i}"
        told = commit_until_killed(uri, tables, run, rng.uniform(0, LONGEST_S))
        made = survivors(uri, tables, run)
        assert made[0] in (told, told + 1)
        assert made == made[:1] * len(tables)


def commit_until_killed(
    uri: str, tables: Sequence[str], run: str, after_s: float
) -> int:
    """Kill a writer some time after its first commit; the last one that it told of."""
    told, ours = CHILDREN.Pipe(duplex=False)
    child = CHILDREN.Process(target=commit_forever, args=(uri, tables, run, ours))
    child.start()
    ours.close()
    with told:
        last = told.recv()
        time.sleep(after_s)
        child.kill()
        child.join()
        last = max([last, *_rest(told)])
    assert child.exitcode == -signal.SIGKILL
    return int(last)


def die(uri: str, tables: Sequence[str], moment: str) -> None:
    child = CHILDREN.Process(target=commit_and_die, args=(uri, tables, "run", moment))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL


def survivors(uri: str, tables: Sequence[str], run: str) -> list[int]:
    """The last commit of a dead writer in each table, once others have gone on."""
    with dk.connect(uri) as catalog:
        go_on(catalog, run)
        check_integrity(catalog)
        return [last_commit(catalog, table, run) for table in tables]


def go_on(catalog: Catalog, run: str) -> None:
    """Commit to both tables; on Postgres this waits for what the dead one had sent."""
    file = add(f"after {run}")
    catalog.commit(*(Staged(table, [file], Reads()) for table in PAIR))
    catalog.commit(*(Staged(table, [remove(file)], Reads()) for table in PAIR))


def last_commit(catalog: Catalog, table: str, run: str) -> int:
    """Told by the application's version, and the same by the files."""
    version = catalog.snapshot(table).txn_version(run)
    files = [path for path in paths(catalog, table) if path.startswith(f"{run}-")]
    assert files == ([] if version is None else [f"{run}-{version}"])
    return -1 if version is None else version


def _rest(told: Connection) -> Iterator[int]:
    while True:
        try:
            yield told.recv()
        except EOFError:
            return


# --- the check itself -------------------------------------------------------------


@pytest.mark.parametrize("engine", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("DELETE FROM dl_table_versions WHERE version = 1", "the head is 2"),
        ("DELETE FROM dl_files WHERE path = 'run-1'", "its files say"),
        ("UPDATE dl_files SET removed_version = NULL", "its files say"),
        ("UPDATE dl_tables SET current_version = 3", "the head is 3"),
        ("DELETE FROM dl_number_stats WHERE file_id % 2 = 1", "lacks"),
        ("UPDATE dl_text_stats SET removed_version = 99", "dl_text_stats has"),
        ("UPDATE dl_txns SET version = 9 WHERE version = 2", "dl_txns has"),
        ("DELETE FROM dl_metadata", "has state"),
        ("DELETE FROM dl_mirrors", "mirror rows"),
    ],
)
def test_damage_is_found_by_the_check(catalog: Catalog, damage: str, told: str) -> None:
    catalog.commit(*map(creation, PAIR))
    for n in range(2):
        replace_file(catalog, PAIR, "run", n)
    check_integrity(catalog)
    with catalog._backend.writing() as session:
        session.script([damage])

    with pytest.raises(AssertionError, match=told):
        check_integrity(catalog)
