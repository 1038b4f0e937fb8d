"""The mirror on real S3 servers: one that refuses to overwrite, one that doesn't."""

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from delkalakedb import Catalog, mirror
from delkalakedb.model.log import Reads, Staged
from delkalakedb.storage import open_store
from delkalakedb.write import committer as commits
from tests.support.actions import add, creation, stats
from tests.support.engines import shared
from tests.support.mirror_workers import (
    WRITERS,
    brief,
    check_log,
    check_mirror,
    create_lake,
    grow,
    grow_inline,
)
from tests.support.processes import Crew
from tests.support.servers.http_proxy import Proxy, proxy
from tests.support.servers.stores import Place

EACH = 2
sqlite = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)


def test_mirror_on_s3_is_read_by_deltalake(catalog: Catalog, s3: Place) -> None:
    create_lake(catalog, s3.location)
    for n in range(4):
        grow(catalog, "w", n, options=s3.storage_options)

    check_mirror(catalog, options=s3.storage_options, checkpoint=2)


@sqlite
def test_rows_on_s3_are_read_by_deltalake(catalog: Catalog, s3: Place) -> None:
    store = open_store(s3.location, s3.storage_options)
    catalog.commit(creation("t", location=s3.location))
    for number in range(3):
        data = parquet(number)
        store.put(f"{number}.parquet", data)
        file = add(f"{number}.parquet", size=len(data), stats=stats(1))
        staged = Staged("t", [file], Reads(0))
        commits.commit(catalog, staged, storage_options=s3.storage_options)

    rows = DeltaTable(s3.location, storage_options=s3.storage_options)
    assert sorted(rows.to_pyarrow_table()["x"].to_pylist()) == [0, 1, 2]


def parquet(number: int) -> bytes:
    target = io.BytesIO()
    pq.write_table(pa.table({"x": [number], "s": [f"{number}"]}), target)
    return target.getvalue()


@contextmanager
def watched(place: Place) -> Iterator[tuple[dict[str, str], Proxy]]:
    """Options that lead through a proxy, and what passes there."""
    with proxy(place.storage_options["AWS_ENDPOINT_URL"]) as passed:
        yield place.storage_options | {"AWS_ENDPOINT_URL": passed.endpoint}, passed


def commit(catalog: Catalog, path: str, options: dict[str, str]) -> None:
    staged = Staged("t", [add(path)], Reads(0))
    commits.commit(catalog, staged, storage_options=options)


def test_commit_takes_two_requests_to_publish(catalog: Catalog, s3: Place) -> None:
    with watched(s3) as (options, passed):
        create_lake(catalog, s3.location, interval=100)
        commit(catalog, "first", options)
        for number in range(3):
            passed.requests.clear()
            commit(catalog, f"{number}", options)
            assert passed.requests == ["PUT", "PUT"]
        assert catalog._mirror_state("t")[:2] == (4, 4)


@sqlite
def test_backlog_takes_two_requests_a_version(catalog_uri: str, s3: Place) -> None:
    with brief(catalog_uri, mode="external") as catalog, watched(s3) as (options, sent):
        create_lake(catalog, s3.location, interval=100)
        mirror.publish(catalog, "t", options)
        for number in range(40):
            commit(catalog, f"{number}", options)
        sent.requests.clear()
        mirror.publish(catalog, "t", options)
        assert sent.requests == ["PUT"] * 80


@sqlite
def test_publisher_that_died_unheard_costs_reads_and_no_writes(
    catalog_uri: str, s3: Place
) -> None:
    with brief(catalog_uri, mode="external") as catalog, watched(s3) as (options, sent):
        create_lake(catalog, s3.location, interval=100)
        commit(catalog, "a", options)
        mirror.publish(catalog, "t", options)
        before = {m.path: m for m in open_store(s3.location, options).list()}
        with catalog._backend.writing() as session:
            session.script(["UPDATE dl_mirrors SET published_version = -1"])
        sent.requests.clear()
        mirror.publish(catalog, "t", options)
        # The server refuses both PUTs of a version.
        assert sorted(sent.requests) == ["GET"] * 2 + ["PUT"] * 4
        assert {m.path: m for m in open_store(s3.location, options).list()} == before


@shared
def test_eight_processes_on_a_store_that_overwrites_publish_once(
    crew: Crew, catalog: Catalog, catalog_uri: str, careless_s3: Place
) -> None:
    options = careless_s3.storage_options
    create_lake(catalog, careless_s3.location, interval=100)

    told = crew.run(grow_inline, catalog_uri, EACH, options, count=WRITERS)

    outcomes = {version: how for part in told for version, how in part.items()}
    assert sorted(outcomes) == [*range(1, WRITERS * EACH + 1)]
    assert "lost" not in outcomes.values()
    mirror.publish(catalog, "t", options)
    check_mirror(catalog, options=options)


@sqlite
def test_checkpoints_on_a_store_that_overwrites_hold_what_they_must(
    catalog: Catalog, careless_s3: Place
) -> None:
    options = careless_s3.storage_options
    create_lake(catalog, careless_s3.location)
    for n in range(4):
        grow(catalog, "w", n, options=options)

    # deltalake can't read them there: this server answers ranges with the whole.
    check_log(catalog, options=options, checkpoint=2)


@sqlite
def test_publishers_at_once_on_a_store_that_overwrites_publish_once(
    catalog_uri: str, careless_s3: Place
) -> None:
    location, options = careless_s3.location, careless_s3.storage_options
    with brief(catalog_uri, mode="external", lease=30) as catalog:
        create_lake(catalog, location, interval=5)
        for n in range(8):
            grow(catalog, "w", n, options=options)
        with watched(careless_s3) as (through, passed):
            with ThreadPoolExecutor(4) as pool:
                work = [
                    pool.submit(mirror.publish, catalog, "t", through) for _ in range(4)
                ]
                assert {done.result() for done in work} == {8}
            # A HEAD and a PUT of each file; the first is put twice, to learn.
            assert passed.requests.count("PUT") == 2 * 9 + 1
        check_mirror(catalog, options=options)
