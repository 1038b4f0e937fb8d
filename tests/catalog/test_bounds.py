"""Bounds in memory, where an engine has no index for them."""

import math
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from actions import add, commit, create, metadata, mirrored, remove, schema, stats

import delkalakedb as dk
from delkalakedb.catalog import bounds
from delkalakedb.catalog.cache import LISTS, Listed
from delkalakedb.catalog.duckdb import DuckDBBackend, _DuckDBSession
from delkalakedb.catalog.retention import expire_versions
from delkalakedb.errors import (
    CatalogUnavailableError,
    TableNotFoundError,
    VersionNotFoundError,
)

on_duckdb = pytest.mark.parametrize("engine", ["duckdb"], indirect=True)


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    LISTS._reset()
    monkeypatch.setattr(bounds, "_missed", {})


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that reads, as it comes."""
    seen: list[str] = []

    def watch(owner: type, name: str) -> None:
        asked = getattr(owner, name)

        def watched(self: Any, sql: str, *given: Any) -> Any:
            seen.append(sql)
            return asked(self, sql, *given)

        monkeypatch.setattr(owner, name, watched)

    watch(_DuckDBSession, "query_sql")
    watch(DuckDBBackend, "batches")
    return seen


def scans(statements: list[str]) -> int:
    """How many of them look for candidates."""
    return sum("_stats" in sql and "ORDER BY" not in sql for sql in statements)


def numbered(catalog: dk.Catalog, count: int) -> None:
    files = [add(f"f{i}", stats=stats(1, x=(i, i, 0))) for i in range(count)]
    create(catalog, "t", *files, meta=metadata(schema(x="long", y="string")))


def days(catalog: dk.Catalog, count: int, **options: Any) -> None:
    files = [
        add(f"f{i}", partition={"d": f"d{i}"}, stats=stats(1, x=(i, i, 0)))
        for i in reversed(range(count))
    ]
    meta = metadata(schema(d="string", x="long"), partitions=["d"])
    create(catalog, "t", *files, meta=meta, **options)


def kept_in_memory(catalog: dk.Catalog) -> dk.Snapshot:
    """The latest version, planned so often by `d` that it needs no statement."""
    snapshot = catalog.snapshot("t")
    for _ in range(5):
        snapshot.files("d = 'd1'", columns=["path"]).read_all()
    return snapshot


def planned(catalog: dk.Catalog, where: str) -> list[str]:
    files = catalog.snapshot("t").files(where, columns=["path"]).read_all()
    return sorted(files["path"].to_pylist())


@on_duckdb
def test_version_that_is_planned_again_is_planned_from_memory(
    catalog: dk.Catalog, statements: list[str]
) -> None:
    numbered(catalog, 10)

    assert [planned(catalog, f"x = {i}") for i in range(5)] == [
        [f"f{i}"] for i in range(5)
    ]
    assert scans(statements) == 1


@on_duckdb
def test_large_table_is_planned_more_often_before_its_bounds_are_loaded(
    catalog: dk.Catalog, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "_FILES_PER_PLAN", 3)
    numbered(catalog, 10)

    for i in range(8):
        assert planned(catalog, f"x = {i}") == [f"f{i}"]
    assert scans(statements) == 4


@on_duckdb
def test_partition_that_is_planned_again_is_found_in_memory(
    catalog: dk.Catalog, statements: list[str]
) -> None:
    days(catalog, 10)
    for i in range(3):
        assert planned(catalog, f"d = 'd{i}'") == [f"f{i}"]
    statements.clear()

    assert planned(catalog, "d = 'd7'") == ["f7"]
    assert planned(catalog, "d > 'd7'") == ["f8", "f9"]
    assert planned(catalog, "d IN ('d1', 'd4', 'd1')") == ["f1", "f4"]
    assert statements == []
    assert planned(catalog, "d = 'other'") == []


@on_duckdb
def test_files_in_memory_are_those_of_sql_in_the_same_order(
    catalog: dk.Catalog, statements: list[str]
) -> None:
    days(catalog, 10)
    wheres = ["d >= 'd3' AND d <> 'd5'", "d < 'd2' OR d = 'd9'", "d LIKE 'd%'"]
    columns = ["size_bytes", "path", "deletion_vector", "added_version", "file_id"]

    def found() -> list[pa.Table]:
        snapshot = catalog.snapshot("t")
        return [snapshot.files(w, columns=columns).read_all() for w in wheres]

    first = found()
    found(), found()
    statements.clear()

    assert found() == first
    assert statements == []


@on_duckdb
def test_statistics_are_asked_for_in_sql(
    catalog: dk.Catalog, statements: list[str]
) -> None:
    days(catalog, 10)
    for _ in range(4):
        statements.clear()
        files = catalog.snapshot("t").files("d = 'd3'", columns=["stats"]).read_all()
        assert files["stats"].to_pylist() == [stats(1, x=(3, 3, 0))]

    assert len(statements) == 1


def test_what_is_always_missed_is_loaded_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounds, "_FILES_PER_PLAN", 10)
    key = Listed("t", 0, 0, num_files=30, size_bytes=0)

    due = [i for i in range(50) if bounds._is_due(key)]

    assert due == [3, 10, 23, 48]


@on_duckdb
def test_files_without_room_are_asked_for_in_sql(
    catalog_uri: str, statements: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "_BYTES_PER_FILE", 1)
    with dk.connect(catalog_uri, cache={"max_bytes": 400}) as catalog:
        days(catalog, 10)
        for i in range(8):
            statements.clear()
            assert planned(catalog, f"d = 'd{i}'") == [f"f{i}"]

    assert scans(statements) == 0
    assert len(statements) == 1
    assert 0 < dk.cache_info().bytes <= 400


@on_duckdb
def test_bounds_that_were_driven_out_come_back(
    catalog: dk.Catalog, statements: list[str]
) -> None:
    days(catalog, 10)
    for _ in range(3):
        for _ in range(8):
            assert planned(catalog, "d = 'd5'") == ["f5"]
        statements.clear()
        assert planned(catalog, "d = 'd6'") == ["f6"]
        assert statements == []
        LISTS._reset()


@on_duckdb
def test_old_version_in_memory_is_refused_once_it_has_expired(
    catalog: dk.Catalog, statements: list[str]
) -> None:
    days(catalog, 10)
    commit(catalog, remove(add("f1")))
    commit(catalog, add("g", partition={"d": "d1"}))
    first = catalog.snapshot("t", 0)

    def found() -> list[str]:
        files = first.files("d = 'd1'", columns=["path"]).read_all()
        return [str(path) for path in files["path"]]

    for _ in range(4):
        statements.clear()
        assert found() == ["f1"]
    assert statements == []

    mirrored(catalog, 2, 2)
    expire_versions(catalog.backend, "t", now_ms=100_000 * 86_400_000)

    with pytest.raises(VersionNotFoundError, match="version 0 has expired"):
        found()


@on_duckdb
def test_latest_version_in_memory_is_refused_once_it_has_expired(
    catalog: dk.Catalog,
) -> None:
    days(catalog, 2)
    first = kept_in_memory(catalog)
    commit(catalog, remove(add("f1")))
    commit(catalog, add("g", partition={"d": "d1"}))
    mirrored(catalog, 2, 2)
    expire_versions(catalog.backend, "t", now_ms=100_000 * 86_400_000)

    with pytest.raises(VersionNotFoundError, match="version 0 has expired"):
        first.files("d = 'd1'", columns=["path"]).read_all()


@on_duckdb
def test_files_in_memory_of_a_table_that_was_dropped_are_refused(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    days(catalog, 2, location=str(tmp_path / "t"))
    first = kept_in_memory(catalog)
    catalog.drop_table("t")

    with pytest.raises(TableNotFoundError, match="dropped since it was opened"):
        first.files("d = 'd1'", columns=["path"]).read_all()


@on_duckdb
def test_files_in_memory_of_a_database_that_was_removed_are_refused(
    catalog: dk.Catalog,
) -> None:
    days(catalog, 2)
    first = kept_in_memory(catalog)
    Path(catalog.uri.database).unlink()

    with pytest.raises(CatalogUnavailableError, match="the file was removed"):
        first.files("d = 'd1'", columns=["path"]).read_all()


@on_duckdb
def test_new_version_is_planned_by_what_it_holds(catalog: dk.Catalog) -> None:
    numbered(catalog, 3)
    for _ in range(3):
        assert planned(catalog, "x = 1") == ["f1"]

    commit(catalog, remove(add("f1")), add("g", stats=stats(1, x=(0, 1, 0))))

    for _ in range(3):
        assert planned(catalog, "x = 1") == ["g"]


@on_duckdb
def test_fewest_candidates_of_several_columns_are_looked_at(
    catalog: dk.Catalog, statements: list[str]
) -> None:
    files = [
        add(f"f{i}", stats=stats(1, x=(0, 9, 0), y=(f"{i}", f"{i}", 0)))
        for i in range(9)
    ]
    create(catalog, "t", *files, meta=metadata(schema(x="long", y="string")))

    for _ in range(3):
        assert planned(catalog, "x = 5 AND y = '7'") == ["f7"]
    # Two were counted and one looked up, once.
    assert scans(statements) == 3


@on_duckdb
def test_files_from_before_a_column_are_never_left_out(catalog: dk.Catalog) -> None:
    create(catalog, "t", add("old"), meta=metadata(schema(x="long")))
    wider = metadata(schema(x="long", z="long"))
    commit(catalog, wider, add("new", stats=stats(1, z=(5, 5, 0))))

    for _ in range(3):
        assert planned(catalog, "z = 5") == ["new", "old"]
        assert planned(catalog, "z = 6") == ["old"]


@on_duckdb
@pytest.mark.parametrize("bounds", [{"snapshots": 0}, {"max_bytes": 0}])
def test_nothing_is_kept_without_room(
    catalog_uri: str, statements: list[str], bounds: dict[str, int]
) -> None:
    with dk.connect(catalog_uri, cache=bounds) as catalog:
        numbered(catalog, 10)
        for _ in range(4):
            assert planned(catalog, "x = 5") == ["f5"]

    assert scans(statements) == 4
    assert dk.cache_info().entries == 0


@pytest.mark.parametrize("seed", range(20))
def test_overlaps_are_those_that_a_look_at_each_file_finds(seed: int) -> None:
    rng = random.Random(seed)
    values: list[Any] = [-math.inf, *range(10), math.inf]
    if seed % 2:
        values = ["", *"abcdefgh", "ä", "\U0001f600"]
    pairs = [sorted(rng.choices(values, k=2)) for _ in range(rng.randrange(20))]
    pairs.sort(key=lambda pair: pair[0])
    kind = pa.string() if seed % 2 else pa.float64()
    lo, hi = (pa.array([pair[at] for pair in pairs], kind) for at in range(2))
    table = pa.table(
        {
            "file_id": pa.array(range(len(pairs)), pa.int64()),
            "lo": lo,
            "hi": hi,
            "bounded": pa.array([rng.random() < 0.9 for _ in pairs], pa.bool_()),
            "reach": bounds._greatest_so_far(hi),
        }
    )

    for _ in range(20):
        low, high = sorted(rng.choices(values, k=2))
        assert bounds.overlapping(table, low, high).to_pylist() == [
            i
            for i, (lo, hi) in enumerate(pairs)
            if lo <= high and hi >= low and table["bounded"][i].as_py()
        ]
