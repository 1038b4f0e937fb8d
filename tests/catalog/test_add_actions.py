"""Files with typed statistics are what deltalake's `get_add_actions` gives."""

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import deltalake
import msgspec
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.model.actions import Add
from delkalakedb.model.log import Staged
from delkalakedb.storage import open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader


def sample(part: str | None, number: int) -> pa.Table:
    """A row of every type that has statistics, and some that don't."""
    moment = datetime(2024, 1, number, 3, 4, 5, 678_000, tzinfo=UTC)
    columns = {
        "i": [number, None],
        "f": [1.5, float(number)],
        "s": ["ü", "b" * number],
        "d": [date(2024, 1, number)] * 2,
        "ts": pa.array([moment] * 2, pa.timestamp("us", "UTC")),
        "ntz": pa.array([moment.replace(tzinfo=None)] * 2, pa.timestamp("us")),
        "b": [True, False],
        "dec": [Decimal("1.23"), Decimal(number)],
        "st": [{"x": 1, "y": "q"}, {"x": number, "y": None}],
        "arr": [[1], [2]],
        "bin": [b"x", b"y"],
        "small": pa.array([1, number], pa.int8()),
        "single": pa.array([1.25, number], pa.float32()),
        "p": pa.array([part] * 2, pa.string()),
        "q": pa.array([date(2024, 2, number)] * 2),
    }
    return pa.table(columns)


@pytest.mark.parametrize("flatten", [False, True])
def test_add_actions_equal_those_of_deltalake(
    catalog: dk.Catalog, tmp_path: Path, flatten: bool
) -> None:
    folder = tmp_path / "plain"
    for part, number in (("k", 1), (None, 2), ("l m%", 3)):
        data = sample(part, number)
        deltalake.write_deltalake(folder, data, mode="append", partition_by=["p", "q"])
    plain = deltalake.DeltaTable(folder)
    expected = pa.table(plain.get_add_actions(flatten=flatten)).sort_by("path")

    log = FileTxnLogReader(open_store(str(folder)))
    for version in range(3):
        catalog.commit(
            Staged("t", log.commit(version), location=str(folder))
            if version == 0
            else Staged("t", log.commit(version))
        )
    ours = catalog.snapshot("t").add_actions(flatten=flatten).read_all()

    assert ours.sort_by("path").to_pylist() == expected.to_pylist()
    assert ours.schema.names == expected.schema.names


MOMENTS = [datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1, 1, 2, 3, 5, UTC)]
SHAPES = {
    "unpartitioned": (pa.table({"i": [1], "s": ["a"]}), {}),
    "no bounds": (pa.table({"bin": [b"x"], "list": [[1]]}), {}),
    "no bounds in a struct": (pa.table({"st": [{"x": 1, "in": {"b": b"y"}}]}), {}),
    "no statistics": (
        pa.table({"i": [1]}),
        {"configuration": {"delta.dataSkippingNumIndexedCols": "0"}},
    ),
    "times": (
        pa.table(
            {
                "i": [1, 2, 3],
                "at": pa.array([*MOMENTS, None], pa.timestamp("us", "UTC")),
                "ntz": pa.array([*MOMENTS, None]).cast(pa.timestamp("us")),
            }
        ),
        {"partition_by": ["at", "ntz"]},
    ),
    "texts": (
        pa.table({"i": [1, 2, 3], "p": ["", None, "a"]}),
        {"partition_by": ["p"]},
    ),
    "bytes": (
        pa.table({"i": [1, 2], "p": pa.array([b"a", None])}),
        {"partition_by": ["p"]},
    ),
}


@pytest.mark.parametrize("flatten", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_add_actions_have_the_columns_and_partitions_of_deltalake(
    tmp_path: Path, shape: str, flatten: bool
) -> None:
    data, options = SHAPES[shape]
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    dk.write_deltalake(uri, data, **options)
    table = dk.DeltaTable(uri)
    plain = deltalake.DeltaTable(table.table_uri).get_add_actions(flatten=flatten)

    ours = pa.table(table.get_add_actions(flatten=flatten)).sort_by("path")

    expected = pa.table(plain).sort_by("path")
    assert ours.schema == expected.schema
    # A struct of nothing but nulls may be one, or null itself.
    assert not flatten or ours.to_pylist() == expected.to_pylist()
    assert table.to_pyarrow_table().num_rows == data.num_rows


def test_statistics_that_do_not_fit_are_null(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    deltalake.write_deltalake(folder, pa.table({"i": [1], "f": [1.5]}))
    actions = FileTxnLogReader(open_store(str(folder))).commit(0)
    odd = '{"numRecords":1,"minValues":{"i":"x","f":"NaN"},\n"maxValues":{"i":7}}'
    texts = [odd, "not json", None]
    (add,) = [action for action in actions if isinstance(action, Add)]
    adds = [
        msgspec.structs.replace(add, path=f"{i}.parquet", stats=text)
        for i, text in enumerate(texts)
    ]
    rest = [action for action in actions if not isinstance(action, Add)]
    catalog.commit(Staged("t", [*rest, *adds], location=str(folder)))

    rows = catalog.snapshot("t").add_actions().read_all().to_pylist()

    found = [(row["num_records"], row["min"], row["max"]) for row in rows]
    nothing = {"i": None, "f": None}
    assert found == [
        (1, nothing, {"i": 7, "f": None}),
        (None, nothing, nothing),
        (None, nothing, nothing),
    ]


def test_empty_table_has_the_columns_and_no_rows(
    catalog: dk.Catalog, tmp_path: Path
) -> None:
    folder = tmp_path / "plain"
    deltalake.write_deltalake(folder, pa.table({"i": [1]}))
    actions = FileTxnLogReader(open_store(str(folder))).commit(0)
    rest = [action for action in actions if not isinstance(action, Add)]
    catalog.commit(Staged("t", rest, location=str(folder)))

    found = catalog.snapshot("t").add_actions(flatten=True).read_all()

    assert found.num_rows == 0
    assert "min.i" in found.schema.names
