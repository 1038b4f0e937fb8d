"""What is kept in memory: heads that only this process can move, and lists of files."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import delkalakedb as dk
from delkalakedb.catalog.engine.cache import LISTS, Cache
from delkalakedb.catalog.read import version_files as listing
from delkalakedb.catalog.read.retention import expire_versions
from delkalakedb.errors import VersionNotFoundError
from tests.support.actions import (
    add,
    commit,
    create,
    live,
    metadata,
    mirrored,
    paths,
    remove,
    schema,
)
from tests.support.examples import examples

LATER_MS = 100_000 * 86_400_000


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    LISTS._reset()


def test_loaded_value_is_kept_until_a_write() -> None:
    cache: Cache[int] = Cache(2)
    loads = iter(range(10))

    first = [cache.get("a", lambda: next(loads)) for _ in range(2)]
    cache.forget()

    assert first == [0, 0]
    assert cache.get("a", lambda: next(loads)) == 1


def test_oldest_value_makes_room() -> None:
    cache: Cache[str] = Cache(2)
    for key in "abac":
        cache.get(key, lambda key=key: key)

    assert cache.get("a", lambda: "again") == "a"
    assert cache.get("b", lambda: "again") == "again"


def test_value_that_a_write_overtook_is_not_kept() -> None:
    cache: Cache[str] = Cache(2)

    def overtaken() -> str:
        cache.forget()
        return "old"

    assert cache.get("a", overtaken) == "old"
    assert cache.get("a", lambda: "new") == "new"


def test_cache_of_size_zero_keeps_nothing() -> None:
    cache: Cache[str] = Cache(0)
    cache.get("a", lambda: "old")

    assert cache.get("a", lambda: "new") == "new"


@pytest.mark.parametrize("engine", ["duckdb"])
def test_readers_see_each_commit_as_soon_as_it_returns(catalog: dk.Catalog) -> None:
    create(catalog)
    seen: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append(catalog.snapshot("t").version)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for version in range(1, 30):
            commit(catalog, add(f"f{version}"))
            assert catalog.snapshot("t").version == version
    finally:
        stop.set()
        reader.join()
    assert seen == sorted(seen)


def names(snapshot: dk.Snapshot) -> list[str]:
    """The paths of a snapshot's files, sorted."""
    return sorted(snapshot.files(columns=["path"]).read_all()["path"].to_pylist())


def expire(catalog: dk.Catalog, before: int) -> None:
    """Expire the versions before one."""
    mirrored(catalog, before, before)
    now_ms = LATER_MS
    expire_versions(catalog._backend, "t", before_version=before, now_ms=now_ms)


def counted() -> tuple[int, int]:
    info = dk.cache_info()
    return info.hits, info.misses


def test_list_is_loaded_once_for_every_handle_and_catalog(
    catalog: dk.Catalog, catalog_uri: str
) -> None:
    create(catalog, "t", add("a"), add("b"))

    assert names(catalog.snapshot("t")) == ["a", "b"]
    with dk.connect(catalog_uri) as other:
        assert names(other.snapshot("t", 0)) == ["a", "b"]

    assert counted() == (1, 1)
    assert dk.cache_info().entries == 1
    assert dk.cache_info().bytes > 0


def test_list_with_more_columns_serves_those_who_want_fewer(
    catalog: dk.Catalog,
) -> None:
    create(catalog, "t", add("a"))
    snapshot = catalog.snapshot("t")

    for columns in (["num_records"], ["path"], ["path", "num_records"], ["file_id"]):
        assert snapshot.files(columns=columns).read_all().column_names == columns

    # The second one was loaded with what the first had asked for.
    assert counted() == (2, 2)


def test_each_version_has_its_own_list(catalog: dk.Catalog) -> None:
    create(catalog, "t", add("a"))
    first = catalog.snapshot("t")
    assert names(first) == ["a"]
    commit(catalog, add("b"))

    assert names(catalog.snapshot("t")) == ["a", "b"]
    assert names(first) == ["a"]


def test_list_that_nobody_read_to_the_end_is_not_kept(catalog: dk.Catalog) -> None:
    create(catalog, "t", add("a"))

    catalog.snapshot("t").files()

    assert dk.cache_info().entries == 0


@pytest.mark.parametrize("bounds", [{"snapshots": 2}, {"max_bytes": 1_500}])
def test_oldest_lists_make_room(tmp_path: Path, bounds: dict[str, int]) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db"
    with dk.connect(uri, cache=bounds) as catalog:
        create(catalog, "t", *(add(f"{i}" * 50) for i in range(5)))
        for version in range(5):
            commit(catalog, add(f"more-{version}"))
            names(catalog.snapshot("t"))

    info = dk.cache_info()
    assert info.entries + info.evictions == 5
    assert 0 < info.entries <= bounds.get("snapshots", 5)
    assert 0 < info.bytes <= bounds.get("max_bytes", 10_000)
    kept = LISTS._lists.values()
    assert info.bytes == sum(files.get_total_buffer_size() for files in kept)
    assert {key.version for key in LISTS._lists} <= {3, 4, 5}


@pytest.mark.parametrize("bounds", [{"snapshots": 0}, {"max_bytes": 0}])
def test_bound_of_zero_keeps_nothing(catalog_uri: str, bounds: dict[str, int]) -> None:
    with dk.connect(catalog_uri, cache=bounds) as catalog:
        create(catalog, "t", add("a"))
        assert [names(catalog.snapshot("t")) for _ in range(2)] == [["a"]] * 2

    assert dk.cache_info().entries == 0


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"], indirect=True)
def test_database_made_anew_is_not_mistaken_for_the_old_one(
    new_catalog_uri: str, tmp_path: Path
) -> None:
    for name in ("old", "new"):
        with dk.connect(new_catalog_uri) as catalog:
            create(catalog, "t", add(name))
            assert names(catalog.snapshot("t", 0)) == [name]
        for file in tmp_path.glob("meta.*"):
            file.unlink()

    assert counted() == (0, 2)


def test_table_made_anew_under_its_name_is_not_mistaken(catalog: dk.Catalog) -> None:
    create(catalog, "t", add("old"))
    assert names(catalog.snapshot("t")) == ["old"]
    tables = ("dl_files", "dl_table_versions", "dl_metadata", "dl_protocols")
    with catalog._backend.writing() as session:
        session.script(
            f"DELETE FROM {table}"
            for table in ("dl_number_stats", "dl_text_stats", *tables, "dl_mirrors")
        )
    with catalog._backend.writing() as session:
        session.script(["DELETE FROM dl_tables"])
    create(catalog, "t", add("new"))

    assert catalog.snapshot("t").version == 0
    assert names(catalog.snapshot("t")) == ["new"]


def test_expired_version_is_refused_though_its_list_is_kept(
    catalog: dk.Catalog,
) -> None:
    create(catalog, "t", add("a"))
    commit(catalog, remove(add("a")))
    commit(catalog, add("b"))
    first = catalog.snapshot("t", 0)
    assert names(first) == ["a"]
    expire(catalog, 2)

    with pytest.raises(VersionNotFoundError, match="there is no version 0"):
        catalog.snapshot("t", 0)
    with pytest.raises(VersionNotFoundError, match="version 0 has expired"):
        names(first)


def test_version_that_was_the_latest_when_opened_and_expired_is_refused(
    catalog: dk.Catalog,
) -> None:
    create(catalog, "t", add("a"))
    first = catalog.snapshot("t")
    commit(catalog, remove(add("a")))
    commit(catalog, add("b"))
    expire(catalog, 2)

    with pytest.raises(VersionNotFoundError, match="version 0 has expired"):
        names(first)
    assert dk.cache_info().entries == 0


def test_threads_share_lists_without_mistaking_them(catalog: dk.Catalog) -> None:
    create(catalog, "t", add("f0"))
    for version in range(1, 6):
        commit(catalog, add(f"f{version}"))
    wrong: list[object] = []

    def read(start: int) -> None:
        for n in range(30):
            version = (start + n) % 6
            found = names(catalog.snapshot("t", version))
            if found != [f"f{i}" for i in range(version + 1)]:
                wrong.append((version, found))

    threads = [threading.Thread(target=read, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    info = dk.cache_info()
    assert info.hits + info.misses == 120
    assert info.entries == 6


@pytest.fixture
def comparing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Lists are made from earlier ones, however short they are."""
    monkeypatch.setattr(listing, "_WORTH_COMPARING", 0)
    return None


@pytest.mark.usefixtures("comparing")
@given(steps=st.lists(st.integers(0, 7), min_size=1, max_size=12), data=st.data())
@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
def test_list_made_from_an_earlier_one_is_the_one_in_sql(
    catalog: dk.Catalog, steps: list[int], data: st.DataObject
) -> None:
    name = f"t{len(catalog.tables())}"
    create(catalog, name, add("f0"), add("f1"), meta=metadata(schema(x="long")))
    for step in steps:
        files = live(catalog, name)
        old = files.get((f"f{step}", ""))
        action = add(f"f{step}") if old is None else remove(old)
        commit(catalog, action, table=name)
    versions = data.draw(st.permutations(range(len(steps) + 1)))
    for version in versions:
        found = names(catalog.snapshot(name, version))
        assert found == paths(catalog, name, version)


@pytest.mark.usefixtures("comparing")
def test_changes_that_expired_are_not_missed(catalog: dk.Catalog) -> None:
    create(catalog, "t", add("a"), add("b"))
    names(catalog.snapshot("t"))
    commit(catalog, remove(add("a")))
    commit(catalog, add("c"))
    commit(catalog, add("d"))
    expire(catalog, 2)

    assert names(catalog.snapshot("t")) == ["b", "c", "d"]


@pytest.mark.usefixtures("comparing")
def test_list_that_grew_by_many_commits_stays_in_few_pieces(
    catalog: dk.Catalog,
) -> None:
    create(catalog, "t", add("f"))
    for version in range(40):
        commit(catalog, add(f"f{version}"))
        names(catalog.snapshot("t"))

    (newest,) = (f for key, f in LISTS._lists.items() if key.version == 40)
    assert newest.num_rows == 41
    assert newest.column(0).num_chunks <= 33
