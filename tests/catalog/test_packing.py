"""Rare columns that travel as one come back as they are."""

from typing import Any

import pytest
from actions import add, create

from delkalakedb import Catalog
from delkalakedb.model.actions import DeletionVector

VECTOR = DeletionVector(
    storage_type="p", path_or_inline_dv="s3://b/v", size_in_bytes=4, cardinality=1
)
ROW_IDS = {"base_row_id": 0, "default_row_commit_version": 2**62}
RARE: list[dict[str, Any]] = [
    {},
    {"tags": {"a": "\x1d", "\x1f": ""}},
    {"tags": {}},
    {"deletion_vector": VECTOR},
    ROW_IDS,
    {"clustering_provider": ""},
    {"clustering_provider": "\x1d=\x1d", "base_row_id": 7},
    {"clustering_provider": "='é", "tags": {"a": "b"}, **ROW_IDS},
]


@pytest.mark.parametrize("files", [RARE, RARE[:1] * 3, RARE[4:5] * 3])
def test_rare_values_come_back_as_they_are(
    catalog: Catalog, files: list[dict[str, Any]]
) -> None:
    adds = [add(f"f{i}", **fields) for i, fields in enumerate(files)]
    create(catalog, "t", *adds, features=("deletionVectors",))

    assert sorted(catalog.log("t").adds(), key=lambda file: file.path) == adds


@pytest.mark.parametrize("name", ["tags", "base_row_id", "clustering_provider"])
def test_rare_column_comes_alone(catalog: Catalog, name: str) -> None:
    files = [{k: v for k, v in f.items() if k != "deletion_vector"} for f in RARE]
    create(catalog, "t", *(add(f"f{i}", **f) for i, f in enumerate(files)))

    found = catalog.snapshot("t").files(columns=["path", name]).read_all()

    present = [value is not None for value in found.sort_by("path")[name].to_pylist()]
    assert present == [name in fields for fields in files]
