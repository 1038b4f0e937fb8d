"""Many processes on one catalog."""

import threading
from collections.abc import Iterator

import pytest

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.catalog.commit.outcome import Conflicted
from delkalakedb.catalog.engine.migrations import latest_schema_version
from delkalakedb.errors import CatalogBusyError
from delkalakedb.model.actions import Add
from delkalakedb.model.rules.conflicts import Rule
from tests.support.actions import add, commit, create, creation, paths
from tests.support.engines import shared
from tests.support.integrity import check_integrity
from tests.support.processes import Crew
from tests.support.workers import (
    PAIR,
    append,
    append_to_both,
    compact,
    count_tables,
    create_table,
)

WRITERS = 8
alone = pytest.mark.parametrize("engine", ["duckdb"], indirect=True)


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew(20)
    yield crew
    crew.close()


@shared
def test_twenty_processes_that_start_at_once_make_one_catalog(
    crew: Crew, new_catalog_uri: str
) -> None:
    assert crew.run(count_tables, new_catalog_uri, count=20) == [0] * 20

    with dk.connect(new_catalog_uri) as catalog, catalog._backend.reading() as session:
        versions = session.query_sql("SELECT version FROM dl_schema_versions", {})
        latest = latest_schema_version(catalog._backend.engine)
    assert versions == [(version,) for version in range(1, latest + 1)]


def test_twenty_processes_that_start_at_once_make_one_postgres_schema(
    crew: Crew, postgres_uri: str
) -> None:
    uri = postgres_uri.removesuffix("public") + "lake"

    assert crew.run(count_tables, uri, count=20) == [0] * 20


@shared
def test_appends_of_many_processes_all_become_versions_once(
    crew: Crew, catalog: Catalog, catalog_uri: str
) -> None:
    create(catalog)

    told = crew.run(append, catalog_uri, 12, count=WRITERS)

    made = {version: name for versions in told for version, name in versions.items()}
    assert sorted(made) == list(range(1, WRITERS * 12 + 1))
    log = catalog.log("t")
    for version, name in made.items():
        files = [a.path for a in log.commit(version) if isinstance(a, Add)]
        assert files == [name]
    assert paths(catalog) == sorted(made.values())
    check_integrity(catalog)


@shared
def test_one_of_several_compactions_of_the_same_files_wins(
    crew: Crew, catalog: Catalog, catalog_uri: str
) -> None:
    files = [f"small-{i}" for i in range(10)]
    create(catalog, "t", *map(add, files))

    outcomes = crew.run(compact, catalog_uri, files, count=WRITERS)

    lost = [outcome for outcome in outcomes if isinstance(outcome, Conflicted)]
    assert len(lost) == WRITERS - 1
    assert {outcome.rule for outcome in lost} == {Rule.CONCURRENT_DELETE_READ}
    assert {outcome.winner_version for outcome in lost} == {1}
    winner = next(i for i, o in enumerate(outcomes) if not isinstance(o, Conflicted))
    assert paths(catalog) == [f"compacted-{winner}"]
    assert catalog.table("t").version == 1
    check_integrity(catalog)


@shared
def test_transactions_that_name_tables_in_opposite_order_do_not_deadlock(
    crew: Crew, catalog: Catalog, catalog_uri: str
) -> None:
    catalog.commit(*map(creation, PAIR))

    crew.run(append_to_both, catalog_uri, 15, count=4)

    left, right = (catalog.snapshot(table) for table in PAIR)
    assert (left.version, right.version) == (60, 60)
    assert [c.transaction_id for c in left.history()] == [
        c.transaction_id for c in right.history()
    ]
    check_integrity(catalog)


@shared
def test_tables_created_at_once_get_ids_of_their_own(
    crew: Crew, catalog: Catalog, catalog_uri: str
) -> None:
    crew.run(create_table, catalog_uri, count=WRITERS)

    assert [t.name for t in catalog.tables()] == [f"t{i}" for i in range(WRITERS)]
    check_integrity(catalog)


@alone
def test_second_process_on_a_duckdb_file_is_told_that_it_is_taken(
    crew: Crew, catalog_uri: str
) -> None:
    with dk.connect(catalog_uri) as catalog:
        create(catalog)
        with pytest.raises(
            CatalogBusyError, match="another process has this DuckDB file open"
        ):
            crew.run(count_tables, catalog_uri, count=1)
        commit(catalog, add("a"))
        assert paths(catalog) == ["a"]

    assert crew.run(count_tables, catalog_uri, count=1) == [1]


def test_threads_on_one_catalog_commit_without_failure(catalog: Catalog) -> None:
    create(catalog)
    failures: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for n in range(10):
                commit(catalog, add(f"{name}-{n}"))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failures == []
    assert catalog.table("t").version == 40
    assert len(paths(catalog)) == 40
    check_integrity(catalog)
