"""Tables are renamed; a concurrent operation commits first or fails with an error."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.catalog.admin.names import rename_table
from delkalakedb.errors import DeltaError, TableExistsError, TableNotFoundError
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.actions import create, paths
from tests.support.engines import shared
from tests.support.processes import Crew
from tests.support.workers import append_until_gone

COMMITS_FIRST = 3


def table_uri(catalog_uri: str, name: str) -> str:
    return format_uri(parse_uri(catalog_uri).with_table(name))


def ids(uri: str) -> list[int]:
    return sorted(dk.DeltaTable(uri).to_pyarrow_table()["id"].to_pylist())


@pytest.fixture
def uri(catalog_uri: str) -> Callable[[str], str]:
    return lambda name: table_uri(catalog_uri, name)


def test_renamed_table_keeps_its_place_and_its_history(
    catalog: dk.Catalog, uri: Callable[[str], str]
) -> None:
    dk.write_deltalake(uri("a"), pa.table({"id": [1]}))
    before = catalog.table("a")

    catalog.rename_table("a", "b")

    assert catalog.table("b").location == before.location
    assert [c.version for c in catalog.snapshot("b").history()] == [0]
    with pytest.raises(TableNotFoundError):
        catalog.table("a")
    dk.write_deltalake(uri("b"), pa.table({"id": [2]}), mode="append")
    assert ids(uri("b")) == [1, 2]
    assert deltalake.DeltaTable(before.location).version() == 1


def test_versions_that_wait_are_published_under_the_new_name(
    catalog: dk.Catalog, uri: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_MIRROR__MODE", "external")
    dk.write_deltalake(uri("a"), pa.table({"id": [1]}))

    catalog.rename_table("a", "b")
    dk.mirror.run(uri("b"), once=True)

    assert deltalake.DeltaTable(catalog.table("b").location).version() == 0


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("a", "b", TableExistsError),
        ("a", "a", TableExistsError),
        ("nope", "c", TableNotFoundError),
        ("a", "", DeltaError),
        ("a", "x\x1fy", DeltaError),
        ("a", "x" * 256, DeltaError),
    ],
)
def test_rename_that_cannot_be_changes_nothing(
    catalog: dk.Catalog, old: str, new: str, error: type[Exception]
) -> None:
    for name in ("a", "b"):
        create(catalog, name)

    with pytest.raises(error):
        catalog.rename_table(old, new)

    assert [table.name for table in catalog.tables()] == ["a", "b"]


def test_handle_on_a_table_that_another_one_has_the_name_of_writes_to_neither(
    catalog: dk.Catalog, uri: Callable[[str], str]
) -> None:
    for name, number in (("a", 1), ("b", 2)):
        dk.write_deltalake(uri(name), pa.table({"id": [number]}))
    old = dk.DeltaTable(uri("a"))
    folder = Path(catalog.table("a").location.removeprefix("file://"))

    for names in (("a", "other"), ("b", "a"), ("other", "b")):
        catalog.rename_table(*names)

    for write in (
        lambda: dk.write_deltalake(old, pa.table({"id": [3]}), mode="append"),
        lambda: old.delete("id = 1"),
        lambda: old.vacuum(
            0, dry_run=False, enforce_retention_duration=False, full=True
        ),
        lambda: old.alter.set_table_description("x"),
    ):
        with pytest.raises(TableNotFoundError, match="another one has its name"):
            write()
    assert (ids(uri("a")), ids(uri("b"))) == ([2], [1])
    assert [catalog.table(name).version for name in "ab"] == [0, 0]
    assert len(list(folder.glob("*.parquet"))) == 1


def test_handle_that_has_just_written_does_not_go_over_to_another_table(
    catalog: dk.Catalog, uri: Callable[[str], str]
) -> None:
    for name, value in (("a", 1), ("b", 100)):
        dk.write_deltalake(uri(name), pa.table({"id": [value]}))
    handle = dk.DeltaTable(uri("a"))
    # The version that this makes isn't loaded yet.
    dk.write_deltalake(handle, pa.table({"id": [2]}), mode="append")
    catalog.rename_table("a", "old")
    catalog.rename_table("b", "a")
    location = Path(catalog.table("old").location.removeprefix("file://"))
    before = sorted(location.rglob("*"))

    for use in (
        handle.delete,
        handle.version,
        handle.create_checkpoint,
        handle.vacuum,
        handle.update_incremental,
        lambda: handle.compact_logs(0, 1),
        lambda: handle.restore(0),
        lambda: handle.load_as_version(0),
    ):
        with pytest.raises(TableNotFoundError, match="another one has its name"):
            use()

    assert (ids(uri("old")), ids(uri("a"))) == ([1, 2], [100])
    assert sorted(location.rglob("*")) == before


def test_handle_on_a_table_that_lost_its_place_does_not_scan_another(
    catalog: dk.Catalog, uri: Callable[[str], str]
) -> None:
    dk.write_deltalake(uri("a"), pa.table({"id": [1]}))
    handle = dk.DeltaTable(uri("a"))
    catalog.drop_table("a", with_data=True)
    dk.write_deltalake(uri("a"), pa.table({"id": [100]}))

    for read in (handle.scan, handle.__datafusion_table_provider__, handle.load_cdf):
        with pytest.raises(TableNotFoundError, match="another one has its name"):
            read()


def test_transaction_reads_the_tables_that_had_the_names_when_it_began(
    catalog: dk.Catalog, uri: Callable[[str], str]
) -> None:
    for name, value in (("a", 1), ("b", 100)):
        dk.write_deltalake(uri(name), pa.table({"id": [value]}))

    with dk.transaction(catalog) as tx:
        catalog.rename_table("a", "old")
        catalog.rename_table("b", "a")
        for use in (tx.table, tx.delete):
            with pytest.raises(TableNotFoundError, match="another one has its name"):
                use("a")

    assert (ids(uri("old")), ids(uri("a"))) == ([1], [100])


def test_table_made_anew_is_not_the_one_that_was_read(
    catalog: dk.Catalog, uri: Callable[[str], str]
) -> None:
    dk.write_deltalake(uri("a"), pa.table({"id": [1]}))
    old = dk.DeltaTable(uri("a"))
    catalog.drop_table("a", with_data=True)
    dk.write_deltalake(uri("a"), pa.table({"id": [2]}))

    with pytest.raises(TableNotFoundError, match="another one has its name"):
        dk.write_deltalake(old, pa.table({"id": [3]}), mode="append")
    assert ids(uri("a")) == [2]


# ---- races


def test_commits_come_before_the_rename_or_find_no_table(
    catalog: dk.Catalog, catalog_uri: str
) -> None:
    create(catalog, "t")
    some = threading.Semaphore(0)

    def append() -> int:
        return append_until_gone(catalog_uri, some.release)

    with ThreadPoolExecutor(1) as writer:
        appended = writer.submit(append)
        for _ in range(COMMITS_FIRST):
            some.acquire()
        catalog.rename_table("t", "u")
        count = appended.result()

    assert count >= COMMITS_FIRST
    assert catalog.table("u").version == count
    assert len(paths(catalog, "u")) == count


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    crew = Crew(4)
    yield crew
    crew.close()


def rename_or_append(uri: str, i: int) -> int:
    """The last process renames while the others append; the commits of each."""
    if i < 3:
        return append_until_gone(uri)
    with dk.connect(uri) as catalog:
        while catalog.table("t").version < COMMITS_FIRST:
            pass
        catalog.rename_table("t", "u")
    return 0


@shared
def test_commits_of_other_processes_are_all_in_the_renamed_table(
    crew: Crew, catalog: dk.Catalog, catalog_uri: str
) -> None:
    create(catalog, "t")

    counts = crew.run(rename_or_append, catalog_uri, count=4)

    assert catalog.table("u").version == sum(counts)
    assert len(paths(catalog, "u")) == sum(counts)


def test_one_of_two_tables_gets_the_name(catalog: Catalog) -> None:
    for name in ("a", "b"):
        create(catalog, name)
    barrier = threading.Barrier(2)

    def rename(old: str) -> bool:
        barrier.wait()
        try:
            rename_table(catalog, old, "c")
        except TableExistsError:
            return False
        return True

    with ThreadPoolExecutor(2) as both:
        done = list(both.map(rename, ("a", "b")))

    assert sorted(done) == [False, True]
    assert [table.name for table in catalog.tables()] == ["a" if done[1] else "b", "c"]
