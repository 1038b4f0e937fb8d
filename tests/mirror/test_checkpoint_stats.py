"""Statistics and partition values in typed columns."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from delkalakedb import Catalog
from delkalakedb.errors import CodecError
from delkalakedb.model.actions import Add, Metadata
from tests.support.actions import add, create, metadata, schema
from tests.support.checkpoints import STRUCT, TEXTLESS, read_kind, write_alone

# What is asked here is the same whichever engine the texts come from.
pytestmark = pytest.mark.parametrize("engine", ["sqlite"])
MAPPED = "delta.columnMapping.physicalName"


def written(catalog: Catalog, folder: Path, meta: Metadata, *files: Add) -> Any:
    """The adds of a table's checkpoint, by path."""
    create(catalog, "t", *files, meta=meta, features=["columnMapping", "timestampNtz"])
    path = write_alone(catalog, folder).path
    return {f["path"]: f for f in read_kind(folder, path, "add")}


def asked(columns: str, *partitions: str, **more: str) -> Metadata:
    return metadata(columns, partitions=partitions, configuration=STRUCT | more)


def test_statistics_are_text_unless_structs_are_asked_for(
    catalog: Catalog, tmp_path: Path
) -> None:
    found = written(catalog, tmp_path, metadata(), add("a", stats="{}"))["a"]
    assert found["stats"] == "{}"
    assert not {"stats_parsed", "partitionValues_parsed"} & found.keys()


def test_statistics_as_text_can_be_left_out(catalog: Catalog, tmp_path: Path) -> None:
    columns = asked(schema(x="long"), **TEXTLESS)
    text = '{"numRecords": 3, "tightBounds": false}'
    found = written(catalog, tmp_path, columns, add("a", stats=text))["a"]
    assert "stats" not in found
    assert found["stats_parsed"]["numRecords"] == 3
    assert found["stats_parsed"]["tightBounds"] is False


def test_bounds_have_the_types_of_their_columns(
    catalog: Catalog, tmp_path: Path
) -> None:
    inner = {
        "type": "struct",
        "fields": [{"name": "y", "type": "short", "nullable": True, "metadata": {}}],
    }
    columns = schema(
        i="long",
        f="double",
        s="string",
        d="date",
        ts="timestamp",
        ntz="timestamp_ntz",
        dec="decimal(38,2)",
        b="boolean",
        arr={"type": "array", "elementType": "long", "containsNull": True},
        st=inner,
    )
    low = {
        "i": 2**62 + 1,
        "f": 1,
        "s": "",
        "d": "2024-01-31",
        "ts": "2024-01-31T01:02:03.456Z",
        "ntz": "2024-01-31T01:02:03.456",
        "dec": 12345678901234567890123.45,
        "b": False,
        "st": {"y": -3},
    }
    text = json.dumps({"numRecords": 1, "minValues": low, "nullCount": {"arr": 4}})
    text = text.replace("1.2345678901234568e+22", "12345678901234567890123.45")
    found = written(catalog, tmp_path, asked(columns), add("a", stats=text))["a"]
    assert found["stats_parsed"]["minValues"] == {
        "i": 2**62 + 1,
        "f": 1.0,
        "s": "",
        "d": date(2024, 1, 31),
        "ts": datetime(2024, 1, 31, 1, 2, 3, 456_000, tzinfo=UTC),
        "ntz": datetime(2024, 1, 31, 1, 2, 3, 456_000),
        "dec": Decimal("12345678901234567890123.45"),
        "st": {"y": -3},
    }
    counts = found["stats_parsed"]["nullCount"]
    assert list(counts) == ["i", "f", "s", "d", "ts", "ntz", "dec", "b", "arr", "st"]
    assert (counts["arr"], counts["st"]) == (4, {"y": None})


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        '{"numRecords": "three"}',
        '{"minValues": {"x": "three"}}',
        '{"minValues": {"x": 0.5}}',
        '{"minValues": {"d": 7.125}}',
        '{"minValues": 5}',
        "[]",
        "",
    ],
)
def test_statistics_that_do_not_fit_are_null_and_harm_no_other_file(
    catalog: Catalog, tmp_path: Path, text: str
) -> None:
    columns = asked(schema(x="long", d="decimal(4,2)"))
    good = '{"numRecords": 2,\n "minValues": {"x": 5, "d": 7.12}}'
    files = [add("odd", stats=text), add("good", stats=good), add("none", stats=None)]
    found = written(catalog, tmp_path, columns, *files)
    nothing = {"x": None, "d": None}
    bounds = (found["odd"]["stats_parsed"] or {}).get("minValues") or nothing
    assert bounds == nothing
    assert found["odd"]["stats"] == text
    assert found["good"]["stats_parsed"]["minValues"] == {"x": 5, "d": Decimal("7.12")}
    assert found["none"]["stats_parsed"] is None


@pytest.mark.parametrize(
    ("property_", "value", "kept"),
    [
        ("delta.dataSkippingNumIndexedCols", "2", {"a": None, "st": {"x": None}}),
        ("delta.dataSkippingNumIndexedCols", "-1", {"a", "st", "c", "m"}),
        ("delta.dataSkippingStatsColumns", "st,`c`", {"c", "st"}),
        ("delta.dataSkippingStatsColumns", "st.y,nowhere", {"st": {"y": None}}),
    ],
)
def test_structs_have_the_columns_that_the_table_indexes(
    catalog: Catalog, tmp_path: Path, property_: str, value: str, kept: Any
) -> None:
    inner = [
        {"name": name, "type": "long", "nullable": True, "metadata": {}}
        for name in "xy"
    ]
    table = {"type": "map", "keyType": "long", "valueType": "long"}
    columns = schema(
        p="long", a="long", st={"type": "struct", "fields": inner}, c="long", m=table
    )
    meta = asked(columns, "p", **{property_: value})
    found = written(catalog, tmp_path, meta, add("f", partition={"p": "1"}))["f"]
    counts = found["stats_parsed"]["nullCount"]
    assert counts == kept if isinstance(kept, dict) else set(counts) == kept


def test_table_that_indexes_nothing_still_counts_its_rows(
    catalog: Catalog, tmp_path: Path
) -> None:
    columns = asked(schema(x="long"), **{"delta.dataSkippingNumIndexedCols": "0"})
    file = add("a", stats='{"numRecords": 3}')
    found = written(catalog, tmp_path, columns, file)["a"]
    assert found["stats_parsed"] == {"numRecords": 3, "tightBounds": None}


def test_partition_values_have_the_types_of_their_columns(
    catalog: Catalog, tmp_path: Path
) -> None:
    kinds = {
        "i": "integer",
        "s": "string",
        "d": "date",
        "ts": "timestamp",
        "dec": "decimal(4,2)",
        "b": "boolean",
        "bin": "binary",
    }
    columns = asked(schema(x="long", **kinds), *kinds)
    texts = ["-1", "ü / %", "2024-02-29", "2024-02-29 01:02:03.5", "1.5", "true", "a"]
    empty = dict.fromkeys(kinds, "")
    files = [
        add("full", partition=dict(zip(kinds, texts, strict=True))),
        add("empty", partition=empty),
        add("null", partition=dict.fromkeys(kinds)),
    ]
    found = written(catalog, tmp_path, columns, *files)
    assert found["full"]["partitionValues_parsed"] == {
        "i": -1,
        "s": "ü / %",
        "d": date(2024, 2, 29),
        "ts": datetime(2024, 2, 29, 1, 2, 3, 500_000, tzinfo=UTC),
        "dec": Decimal("1.50"),
        "b": True,
        "bin": b"a",
    }
    nulls = dict.fromkeys(kinds)
    assert found["empty"]["partitionValues_parsed"] == nulls
    assert dict(found["empty"]["partitionValues"]) == empty
    assert found["null"]["partitionValues_parsed"] == nulls
    assert dict(found["null"]["partitionValues"]) == nulls


def test_partition_value_that_no_reader_understands_is_an_error(
    catalog: Catalog, tmp_path: Path
) -> None:
    columns = asked(schema(x="long", i="integer"), "i")
    with pytest.raises(CodecError, match="'ten' is not a integer"):
        written(catalog, tmp_path, columns, add("a", partition={"i": "ten"}))


def test_mapped_columns_go_by_their_physical_names(
    catalog: Catalog, tmp_path: Path
) -> None:
    fields = [
        {
            "name": name,
            "type": "long",
            "nullable": True,
            "metadata": {"delta.columnMapping.id": number, MAPPED: f"col-{number}"},
        }
        for number, name in enumerate(["x", "p"], start=1)
    ]
    columns = json.dumps({"type": "struct", "fields": fields})
    meta = asked(columns, "p", **{"delta.columnMapping.mode": "name"})
    text = '{"minValues": {"col-1": 5}}'
    file = add("a", partition={"col-2": "7"}, stats=text)
    found = written(catalog, tmp_path, meta, file)["a"]
    assert found["partitionValues"] == [("col-2", "7")]
    assert found["partitionValues_parsed"] == {"col-2": 7}
    assert found["stats_parsed"]["minValues"] == {"col-1": 5}
