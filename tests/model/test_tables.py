"""The public records are real dataclasses that JSON can carry."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from delkalakedb.errors import CodecError
from delkalakedb.model.records import Commit, File, Table
from delkalakedb.model.schema.schema import parse_schema
from tests.support.examples import examples

SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}],
    }
)
TABLE = Table(
    name="t",
    id="i",
    location="file:///t",
    version=3,
    timestamp_ms=5,
    schema_string=SCHEMA,
    partition_columns=("a",),
    configuration={"delta.appendOnly": "true"},
    writer_features=("appendOnly",),
)
FILE = File(
    path="x",
    size_bytes=1,
    modification_time_ms=2,
    added_version=0,
    partition_values={"a": None},
    deletion_vector={"storageType": "u", "offset": None},
)
COMMIT = Commit(
    version=1,
    timestamp_ms=2,
    operation="WRITE",
    operation_parameters={"mode": "Append", "partitionBy": ["a"]},
    commit_info={"operation": "WRITE", "nested": {"x": [1, None, 2.5]}},
)
RECORDS = [TABLE, FILE, COMMIT]

words = st.text(max_size=5)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | words,
    lambda inner: st.lists(inner) | st.dictionaries(words, inner),
    max_leaves=4,
)
json_objects = st.dictionaries(words, json_values, max_size=3)
strings = st.dictionaries(words, st.none() | words, max_size=3)
longs = st.integers(-(2**63), 2**63 - 1)
records: Any = st.one_of(
    st.builds(Table, version=longs, configuration=strings),
    st.builds(File, partition_values=strings, deletion_vector=json_objects),
    st.builds(
        Commit,
        operation_parameters=json_objects,
        operation_metrics=json_objects,
        commit_info=json_objects,
    ),
)


@settings(max_examples=examples(150), deadline=None)
@given(records)
def test_any_record_survives_json(record: Any) -> None:
    text = json.dumps(record.to_dict())
    assert type(record).from_dict(json.loads(text)) == record


@pytest.mark.parametrize("record", RECORDS)
def test_records_are_frozen_comparable_dataclasses(record: Any) -> None:
    names = [field.name for field in dataclasses.fields(record)]
    assert list(record.to_dict()) == names == list(dataclasses.asdict(record))
    assert dataclasses.replace(record, **{names[0]: 99}) != record
    assert dataclasses.replace(record) == record
    assert hash(record) == hash(dataclasses.replace(record))
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(record, names[0], 1)


@pytest.mark.parametrize("record", RECORDS)
def test_unknown_missing_and_wrong_keys_are_refused_by_name(record: Any) -> None:
    cls, values = type(record), record.to_dict()
    with pytest.raises(CodecError, match=f"not a {cls.__name__}.*surprise"):
        cls.from_dict({**values, "surprise": 1})
    first = dataclasses.fields(record)[0].name
    with pytest.raises(CodecError, match=first):
        cls.from_dict({k: v for k, v in values.items() if k != first})
    with pytest.raises(CodecError, match=first):
        cls.from_dict({**values, first: []})


def test_fields_with_defaults_may_be_left_out() -> None:
    assert Commit.from_dict({"version": 1, "timestamp_ms": 2}) == Commit(
        version=1, timestamp_ms=2
    )


def test_dictionaries_hold_json_values_only() -> None:
    for record in RECORDS:
        assert json.loads(json.dumps(record.to_dict())) == record.to_dict()


def test_a_table_gives_its_schema() -> None:
    assert TABLE.schema == parse_schema(SCHEMA)
