"""The cache of a database that nobody else can write to."""

import threading

import pytest
from actions import add, commit, create

import delkalakedb as dk
from delkalakedb.catalog.cache import Cache


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
    for version in range(1, 30):
        commit(catalog, add(f"f{version}"))
        assert catalog.snapshot("t").version == version
    stop.set()
    reader.join()
    assert seen == sorted(seen)
