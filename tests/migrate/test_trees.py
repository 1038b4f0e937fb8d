"""Trees of tables: found by their logs, named after their folders."""

from pathlib import Path

import deltalake
import pytest
from hypothesis import given, strategies as st

import delkalakedb as dk
from delkalakedb.errors import StorageError
from delkalakedb.migrate.trees import (
    find_places,
    find_tables,
    import_place,
    name_of,
    name_tables,
)
from delkalakedb.storage import open_store
from tests.support.logs import rows
from tests.support.servers.stores import Place

PARTS = st.text("ab.", min_size=1, max_size=2)
PATHS = st.lists(PARTS, min_size=1, max_size=3).map("/".join)


@given(st.sets(PATHS))
def test_names_tell_where_a_table_is_and_are_folders_where_they_can(
    paths: set[str],
) -> None:
    names = name_tables(paths)

    assert names.keys() == paths
    for path, name in names.items():
        folder = path.rsplit("/", 1)[-1]
        shared = sum(other.rsplit("/", 1)[-1] == folder for other in paths) > 1
        assert name == (path.replace("/", ".") if shared else folder)


@pytest.mark.parametrize(
    ("location", "name"),
    [
        ("/lake/sales", "sales"),
        ("lake/sales/", "sales"),
        ("file:///lake/a%20table", "a table"),
        ("s3://bucket/lake/sales", "sales"),
        ("s3://bucket", "bucket"),
    ],
)
def test_table_is_named_after_its_folder(location: str, name: str) -> None:
    assert name_of(location) == name


def test_tables_are_found_below_folders_but_not_below_tables(tmp_path: Path) -> None:
    for path in ("b", "a/t 1", "a/é ü", "_hidden/t", ".git/t"):
        deltalake.write_deltalake(tmp_path / path, rows(0), partition_by=["part"])
    deltalake.write_deltalake(tmp_path / "b/inside", rows(0))
    (tmp_path / "empty/x").mkdir(parents=True)
    (tmp_path / "circle").symlink_to(tmp_path)

    found = list(find_tables(open_store(str(tmp_path))))

    assert found == ["a/t 1", "a/é ü", "b"]
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        places = find_places(catalog, str(tmp_path), prefix="raw_")
        assert [p.name for p in places] == ["raw_t 1", "raw_é ü", "raw_b"]
        for place in places:
            assert import_place(catalog, place).state == "imported"
            assert import_place(catalog, place).state == "already there"


def test_location_may_be_a_table_itself(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "sales", rows(0))

    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        (place,) = find_places(catalog, str(tmp_path / "sales"))
        assert place.name == "sales"


def test_imported_table_keeps_its_name_when_another_comes(tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    deltalake.write_deltalake(lake / "a/t", rows(0))
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        (place,) = find_places(catalog, str(lake))
        import_place(catalog, place)
        deltalake.write_deltalake(lake / "b/t", rows(0))

        assert [p.name for p in find_places(catalog, str(lake))] == ["t", "b.t"]


def test_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="no such"):
        list(find_tables(open_store(str(tmp_path / "nowhere"))))


def test_tree_in_an_object_store_is_imported(s3: Place, tmp_path: Path) -> None:
    for path in ("a/t", "b/t", "c"):
        deltalake.write_deltalake(
            f"{s3.location}/{path}", rows(0), storage_options=s3.storage_options
        )

    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        places = find_places(catalog, s3.location, s3.storage_options)
        done = [import_place(catalog, place) for place in places]

    assert [(o.name, o.state) for o in done] == [
        ("a.t", "imported"),
        ("b.t", "imported"),
        ("c", "imported"),
    ]
