"""JSON texts as Arrow columns: the quick way and the slow one agree."""

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delkalakedb.model import typed
from delkalakedb.model.typed import parse_texts

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
    monkeypatch.setattr(typed, "_FEW_TEXTS", request.param)


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
