"""Files come newest commit first, however they are stored."""

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from delkalakedb.catalog import file_list as files

commits = st.lists(st.integers(1, 40), max_size=8)


@pytest.fixture(autouse=True, params=[1, 10, 1_000], ids="runs of {}".format)
def run_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_RUN_ROWS", request.param)


@given(commits, st.randoms(use_true_random=False), st.booleans())
def test_any_rows_are_ordered_by_commit_and_file(
    commits: list[int], random, mixed: bool
) -> None:
    keys = [version for version, size in enumerate(commits) for _ in range(size)]
    rows = list(zip(keys, range(len(keys)), strict=True))
    if mixed:
        random.shuffle(rows)
    pieces = [rows[start : start + 7] for start in range(0, len(rows), 7)]
    names = ["added_version", "file_id"]
    batches = [
        pa.RecordBatch.from_pydict(dict(zip(names, zip(*p, strict=True), strict=True)))
        for p in pieces
    ]
    schema = pa.schema([(name, pa.int64()) for name in names])

    found = files._in_order(pa.Table.from_batches(batches, schema))

    ordered = sorted(rows, key=lambda row: (-row[0], row[1]))
    assert [tuple(row.values()) for row in found.to_pylist()] == ordered
