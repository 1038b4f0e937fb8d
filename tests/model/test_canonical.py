"""The canonical form of JSON is the protocol's."""

import json
from typing import Any

from hypothesis import given, strategies as st

from delkalakedb.model.actions import canonical_form, checksum

SAMPLE = (
    '{"k0":"\'v 0\'", "checksum": "adsaskfljadfkjadfkj", "k1":{"k2": 2, '
    '"k3": ["v3", [1, 2], {"k4": "v4", "k5": ["v5", "v6", "v7"]}]}}'
)
SAMPLE_FORM = (
    '"k0"="%27v%200%27","k1"+"k2"=2,"k1"+"k3"+0="v3","k1"+"k3"+1+0=1,'
    '"k1"+"k3"+1+1=2,"k1"+"k3"+2+"k4"="v4","k1"+"k3"+2+"k5"+0="v5",'
    '"k1"+"k3"+2+"k5"+1="v6","k1"+"k3"+2+"k5"+2="v7"'
)
scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, min_size=1, max_size=3)
    ),
    max_leaves=12,
)
documents = st.dictionaries(st.text(max_size=4), values, max_size=4)


def reversed_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: reversed_keys(v) for name, v in reversed(value.items())}
    return [reversed_keys(v) for v in value] if isinstance(value, list) else value


def test_sample_of_the_protocol_gives_its_form_and_checksum() -> None:
    document = json.loads(SAMPLE)
    assert canonical_form(document) == SAMPLE_FORM
    assert checksum(document) == "6a92d155a59bf2eecbd4b4ec7fd1f875"


def test_literals_and_reserved_characters_have_one_form() -> None:
    document = {"b": {"y": None, "x": "https://delta.io"}, "a": [True, "ü~-._", 2.71]}
    assert canonical_form(document) == (
        '"a"+0=true,"a"+1="%C3%BC~-._",'
        '"a"+2=2.71,"b"+"x"="https%3A%2F%2Fdelta.io","b"+"y"=null'
    )


@given(documents)
def test_order_of_keys_and_the_checksum_itself_do_not_matter(
    document: dict[str, Any],
) -> None:
    changed = reversed_keys(document) | {"checksum": "anything"}
    assert canonical_form(changed) == canonical_form(
        {name: value for name, value in document.items() if name != "checksum"}
    )


@given(documents, documents)
def test_different_documents_have_different_forms(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    for document in (one, other):
        document.pop("checksum", None)
    # In JSON: there `1` and `true` differ.
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (canonical_form(one) == canonical_form(other)) == same
