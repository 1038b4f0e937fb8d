"""Texts of one shape: cut apart, they are what Arrow's JSON reader makes of them."""

from decimal import Decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delkalakedb.model import typed
from delkalakedb.model.shapes import Cut, shape_of
from delkalakedb.model.typed import parse_texts, read_texts

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
KIND = pa.struct({"minValues": BOUNDS, "nullCount": pa.struct({"long": pa.int64()})})
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


def stats(values: st.SearchStrategy[Any]) -> st.SearchStrategy[str]:
    parts = {"numRecords": st.just(7), "minValues": values, "nullCount": counts}
    return st.fixed_dictionaries(parts).map(lambda v: msgspec.json.encode(v).decode())


alike = st.sets(st.sampled_from(sorted(scalars))).flatmap(
    lambda names: st.lists(
        stats(st.fixed_dictionaries({name: scalars[name] for name in sorted(names)})),
        min_size=1,
        max_size=6,
    )
)
mixed = st.lists(
    stats(
        st.fixed_dictionaries(
            {}, optional={name: scalars[name] | ODD for name in scalars}
        )
    ),
    min_size=1,
    max_size=6,
)


@pytest.fixture(autouse=True)
def no_few_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed, "_FEW_TEXTS", 0)


@given(alike | mixed)
def test_texts_cut_apart_are_what_the_reader_gives(texts: list[str]) -> None:
    array = pa.array(texts)

    found = parse_texts(array, KIND)

    assert leaves(found) == leaves(read_texts(array, KIND))


@pytest.mark.parametrize(
    "value",
    ["1.0", "1e3", "NaN", "-Infinity", "1e400", "nul", " 5", "007x", "[1]", '{"a":1}'],
)
@pytest.mark.parametrize("name", ["long", "float", "decimal", "flag"])
def test_value_of_another_kind_is_what_the_reader_gives(name: str, value: str) -> None:
    plain = "true" if name == "flag" else "1"
    array = pa.array([f'{{"minValues":{{"{name}":{v}}}}}' for v in (plain, value) * 2])

    assert leaves(parse_texts(array, KIND)) == leaves(read_texts(array, KIND))


@pytest.mark.parametrize("odd", [None, '{"minValues":{"long":"x"}}'])
def test_decimal_in_quotes_is_one_whatever_is_beside_it(odd: str | None) -> None:
    quoted = '{"minValues":{"decimal":"5"}}'
    for texts in ([quoted], [quoted] * 2, ['{"minValues":{"byte":0}}', quoted]):
        given = pa.array([*texts, *([] if odd is None else [odd])])
        for found in (parse_texts(given, KIND), read_texts(given, KIND)):
            bound = found.field("minValues").field("decimal")[len(texts) - 1]
            assert bound.as_py() == Decimal("5.000")


def test_large_whole_number_is_a_float_whatever_is_beside_it() -> None:
    text = '{"minValues":{"float":9223372036854775808}}'
    for beside in ('{"minValues":{"float":1}}', '{"minValues":{"long":"x"}}'):
        given = pa.array([text, beside])
        for found in (parse_texts(given, KIND), read_texts(given, KIND)):
            assert found.field("minValues").field("float")[0].as_py() == 2.0**63


@pytest.mark.parametrize("beside", ['{"minValues":{}}', '{"minValues":{"long":"x"}}'])
def test_decimal_that_is_too_large_is_none_whatever_is_beside_it(beside: str) -> None:
    given = pa.array(['{"minValues":{"decimal":9223372036854775808}}', beside])
    for found in (parse_texts(given, KIND), read_texts(given, KIND)):
        assert found.field("minValues").field("decimal").null_count == 2


def test_digits_of_a_decimal_stay() -> None:
    texts = [f'{{"minValues":{{"decimal":{n}2345678901234567.891}}}}' for n in (1, 2)]

    found = parse_texts(pa.array(texts), KIND).field("minValues").field("decimal")

    assert found[1].as_py() == Decimal("22345678901234567.891")


@pytest.mark.parametrize("city", ["Oslo", "Oslo, Norway"])
def test_texts_with_commas_are_still_cut(city: str) -> None:
    text = msgspec.json.encode({"id": 1, "city": city, "n": 0}).decode()
    shape = shape_of(text)

    assert shape is not None
    cut = shape.cut(pa.array([text, text.replace("Oslo", "Rome")]))
    assert isinstance(cut, Cut)
    found = cut.parse(pa.struct({"city": pa.string()}))
    assert found is not None
    assert found.field("city").to_pylist() == [city, city.replace("Oslo", "Rome")]


def test_text_of_another_shape_is_told_apart() -> None:
    first = '{"a":1,"b":"x"}'
    others = ['{"b":"x","a":1}', '{"a":1}', '{"a":1,"b":null}', '{"a":1,"b":"\\""}']
    shape = shape_of(first)

    assert shape is not None
    found = shape.cut(pa.array([first, *others]))
    assert not isinstance(found, Cut)
    assert found.true_count < 5


@pytest.mark.parametrize("text", ["", "[1]", "{}", '{"a":[1]}', '{"a":1,"a":2}'])
def test_text_that_none_can_share_has_no_shape(text: str) -> None:
    assert shape_of(text) is None


def leaves(array: pa.Array) -> list[list[Any]]:
    """The values by column; a struct that is missing has none, like an empty one."""
    if not pa.types.is_struct(array.type):
        return [[repr(value) for value in array.to_pylist()]]
    return [column for child in array.flatten() for column in leaves(child)]
