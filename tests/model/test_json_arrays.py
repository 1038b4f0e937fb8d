"""JSON texts as Arrow columns: the quick way and the slow one agree."""

from decimal import Decimal
from itertools import chain
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from delkalakedb.model.stats import json_arrays
from delkalakedb.model.stats.json_arrays import parse_texts

KIND = pa.struct(
    {
        "low": pa.struct({"n": pa.int64(), "x": pa.float64(), "s": pa.string()}),
        "flag": pa.bool_(),
    }
)
values = st.fixed_dictionaries(
    {},
    optional={
        "low": st.fixed_dictionaries(
            {},
            optional={
                "n": st.integers(-(2**63), 2**63 - 1) | st.none(),
                "x": st.floats(allow_nan=False, allow_infinity=False) | st.none(),
                "s": st.text(max_size=5) | st.none(),
                "other": st.integers(0, 9),
            },
        ),
        "flag": st.booleans() | st.none(),
    },
)
texts = values.map(lambda value: msgspec.json.encode(value).decode())


def known(value: dict[str, Any]) -> dict[str, Any]:
    low = value.get("low")
    leaves = ("n", "x", "s")
    return {
        "low": None if low is None else {name: low.get(name) for name in leaves},
        "flag": value.get("flag"),
    }


@pytest.fixture(autouse=True, params=[0, 1_000], ids=["by Arrow", "by value"])
def few_texts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_arrays, "_FEW_TEXTS", request.param)


@given(st.lists(texts, min_size=1, max_size=8), st.integers(0, 7))
def test_texts_of_any_slice_are_read_as_they_are(given: list[str], start: int) -> None:
    part = pa.array(given)[start:]

    found = parse_texts(part, KIND).to_pylist()

    expected = [known(msgspec.json.decode(text)) for text in given[start:]]
    assert [_filled(row) for row in found] == [_filled(row) for row in expected]


def test_line_breaks_and_missing_texts_keep_rows_apart() -> None:
    given = ['{"flag":\ntrue}\n', None, '\n{"low": {"n": 1}}', "{}"]

    found = parse_texts(pa.array(given), KIND).to_pylist()

    assert [row["flag"] for row in found] == [True, None, None, None]
    assert [_filled(row)["low"]["n"] for row in found] == [None, None, 1, None]


@pytest.mark.parametrize("odd", ["", "{", "[1]", "nothing", '{"low": 1}'])
def test_text_that_does_not_fit_harms_no_other(odd: str) -> None:
    given = ['{"flag": true}', odd, '{"flag": false}']

    found = parse_texts(pa.array(given), KIND).to_pylist()

    assert [row["flag"] for row in found] == [True, None, False]


def _filled(row: dict[str, Any]) -> dict[str, Any]:
    # A struct that is missing and one whose values are all missing say the same.
    return row | {"low": row["low"] or {"n": None, "x": None, "s": None}}


# ---- bounds of every type

BOUNDS = pa.struct(
    {
        "byte": pa.int8(),
        "long": pa.int64(),
        "float": pa.float64(),
        "decimal": pa.decimal128(20, 3),
        "flag": pa.bool_(),
        "text": pa.string(),
        "inner": pa.struct({"at": pa.string()}),
    }
)
STATS = pa.struct({"minValues": BOUNDS, "nullCount": pa.struct({"long": pa.int64()})})
ODD = st.sampled_from(["NaN", "5", 5, 1.5, True, None, {}, {"at": 5}, [1], 2**63])
scalars: dict[str, st.SearchStrategy[Any]] = {
    "byte": st.integers(-128, 127),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 9),
    "decimal": st.decimals(-(10**6), 10**6, places=3).map(float),
    "flag": st.booleans(),
    "text": st.text(max_size=4) | st.sampled_from(["a,b", 'a,"b', "x,", ":", "\\"]),
    "inner": st.fixed_dictionaries({"at": st.text("ab,\\", max_size=3)}),
    "other": st.integers(0, 9) | st.text(max_size=3),
}
counts = st.fixed_dictionaries({"long": st.integers(0, 1)})
bounds = st.fixed_dictionaries({}, optional={n: scalars[n] | ODD for n in scalars})
stats = st.fixed_dictionaries(
    {"numRecords": st.just(7), "minValues": bounds, "nullCount": counts}
).map(lambda value: msgspec.json.encode(value).decode())


@given(st.lists(stats, min_size=1, max_size=6))
def test_bounds_of_a_text_are_the_same_whatever_is_beside_it(given: list[str]) -> None:
    found = leaves(parse_texts(pa.array(given), STATS))

    alone = [leaves(parse_texts(pa.array([text]), STATS)) for text in given]
    assert found == [list(chain(*column)) for column in zip(*alone, strict=True)]


@pytest.mark.parametrize("odd", [None, '{"minValues":{"long":"x"}}'])
def test_decimal_in_quotes_is_one_whatever_is_beside_it(odd: str | None) -> None:
    quoted = '{"minValues":{"decimal":"5"}}'
    for texts in ([quoted], [quoted] * 2, ['{"minValues":{"byte":0}}', quoted]):
        given = pa.array([*texts, *([] if odd is None else [odd])])
        found = parse_texts(given, STATS).field("minValues").field("decimal")
        assert found[len(texts) - 1].as_py() == Decimal("5.000")


@pytest.mark.parametrize(
    "beside", ['{"minValues":{"float":1}}', '{"minValues":{"long":"x"}}']
)
def test_large_whole_number_is_a_float_whatever_is_beside_it(beside: str) -> None:
    text = '{"minValues":{"float":9223372036854775808}}'

    found = parse_texts(pa.array([text, beside]), STATS)

    assert found.field("minValues").field("float")[0].as_py() == 2.0**63


@pytest.mark.parametrize("beside", ['{"minValues":{}}', '{"minValues":{"long":"x"}}'])
def test_decimal_that_is_too_large_is_none_whatever_is_beside_it(beside: str) -> None:
    given = pa.array(['{"minValues":{"decimal":9223372036854775808}}', beside])

    found = parse_texts(given, STATS)

    assert found.field("minValues").field("decimal").null_count == 2


def test_digits_of_a_decimal_stay() -> None:
    texts = [f'{{"minValues":{{"decimal":{n}2345678901234567.891}}}}' for n in (1, 2)]

    found = parse_texts(pa.array(texts), STATS).field("minValues").field("decimal")

    assert found[1].as_py() == Decimal("22345678901234567.891")


def leaves(array: pa.Array) -> list[list[str]]:
    """The values by column; a struct that is missing has none, like an empty one."""
    if not pa.types.is_struct(array.type):
        return [[repr(value) for value in array.to_pylist()]]
    return [column for child in array.flatten() for column in leaves(child)]
