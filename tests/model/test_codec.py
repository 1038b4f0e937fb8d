"""What is read from a log can be written again without loss."""

import contextlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings, strategies as st

from delkalakedb.errors import CodecError
from delkalakedb.model.actions import (
    KINDS,
    UNSET,
    Add,
    CommitInfo,
    DeletionVector,
    Format,
    Metadata,
    Protocol,
    Txn,
    UnknownAction,
    action_from_dict,
    action_to_dict,
    decode_commit,
    decode_struct,
    dv_id,
    encode_commit,
    encode_struct,
    known,
)
from delkalakedb.model.paths import Inside, resolve_path
from delkalakedb.model.schema.schema import parse_schema
from tests.support.examples import examples

text = st.text(max_size=8) | st.sampled_from(['"\\/', "\u2028", "\x00", "\x7f", "é😀"])
# what a log may call a file: not the location itself, and not outside of it
file_paths = text.map(lambda path: path.replace("\0", "")).filter(
    lambda path: isinstance(resolve_path(path, "/lake/t"), Inside)
)
longs = st.integers(-(2**63), 2**63 - 1)
strings = st.dictionaries(text, st.none() | text, max_size=3)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | text,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3)
    ),
    max_leaves=6,
)

vector = {"storageType": text, "pathOrInlineDv": text}
vector |= {"sizeInBytes": longs, "cardinality": longs}
file = {"path": text, "partitionValues": strings, "size": longs}
row_ids = {"baseRowId": longs, "defaultRowCommitVersion": longs}


def extended(required: dict[str, Any], optional: dict[str, Any]) -> Any:
    """Bodies with optional fields absent, null or there, and with unknown ones."""
    names = {*required, *optional}
    weird = st.sampled_from(["$extra", "extra", "", " ", "ADD", "1", "data_change"])
    unknown = st.dictionaries(
        (weird | text).filter(lambda name: name not in names), values, max_size=2
    )
    bodies = st.fixed_dictionaries(
        required, optional={k: st.none() | v for k, v in optional.items()}
    )
    return st.tuples(bodies, unknown).map(lambda pair: {**pair[0], **pair[1]})


vectors = extended(vector, {"offset": longs, "maxRowIndex": longs})
bodies: dict[str, Any] = {
    "add": extended(
        {**file, "modificationTime": longs, "dataChange": st.booleans()},
        {"stats": text, "tags": strings, "deletionVector": vectors, **row_ids}
        | {"clusteringProvider": text},
    ),
    "remove": extended(
        {"path": text, "dataChange": st.booleans()},
        {"deletionTimestamp": longs, "extendedFileMetadata": st.booleans()}
        | {"partitionValues": strings, "size": longs, "stats": text}
        | {"tags": strings, "deletionVector": vectors, **row_ids},
    ),
    "cdc": extended({**file, "dataChange": st.booleans()}, {"tags": strings}),
    "metaData": extended(
        {"id": text, "schemaString": text, "partitionColumns": st.lists(text)}
        | {"format": extended({"provider": text}, {"options": strings})},
        {"name": text, "description": text, "createdTime": longs}
        | {"configuration": strings},
    ),
    "protocol": extended(
        {"minReaderVersion": longs, "minWriterVersion": longs},
        {"readerFeatures": st.lists(text), "writerFeatures": st.lists(text)},
    ),
    "txn": extended({"appId": text, "version": longs}, {"lastUpdated": longs}),
    "domainMetadata": extended(
        {"domain": text, "configuration": text, "removed": st.booleans()}, {}
    ),
    "checkpointMetadata": extended({"version": longs}, {"tags": strings}),
    "sidecar": extended(
        {"path": text, "sizeInBytes": longs, "modificationTime": longs},
        {"tags": strings},
    ),
    "commitInfo": st.dictionaries(text, values, max_size=4),
    "a kind of its own": values,
}
lines = st.one_of(
    [body.map(lambda b, kind=kind: {kind: b}) for kind, body in bodies.items()]
)


def test_every_kind_of_action_is_generated() -> None:
    assert bodies.keys() >= KINDS.keys()


@settings(max_examples=examples(400), deadline=None)
@given(st.lists(lines, max_size=4), st.booleans())
def test_any_entry_keeps_absent_null_and_unknown_fields(
    entry: list[dict[str, Any]], ascii_only: bool
) -> None:
    data = b"\n".join(json.dumps(x, ensure_ascii=ascii_only).encode() for x in entry)
    actions = list(decode_commit(data))
    written = encode_commit(actions)
    assert [json.loads(x) for x in written.split(b"\n") if x] == entry
    assert list(decode_commit(written)) == actions
    assert encode_commit(decode_commit(written)) == written


@settings(max_examples=examples(200), deadline=None)
@given(lines)
def test_dictionaries_and_bytes_agree(line: dict[str, Any]) -> None:
    action = action_from_dict(line)
    assert action_to_dict(action) == line
    assert [action] == list(decode_commit(encode_commit([action])))


@settings(max_examples=examples(100), deadline=None)
@given(bodies["add"], vectors)
def test_bodies_keep_everything_without_their_kind(
    add: dict[str, Any], vector: dict[str, Any]
) -> None:
    for body, kind in ((add, Add), (vector, DeletionVector)):
        written = encode_struct(decode_struct(json.dumps(body), kind))
        assert json.loads(written) == body


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=30) | text.map(str.encode) | values.map(json.dumps))
def test_garbage_raises_only_codec_errors(data: bytes | str) -> None:
    raw = data.encode() if isinstance(data, str) else data
    with contextlib.suppress(CodecError):
        list(decode_commit(raw))
    with contextlib.suppress(CodecError):
        decode_struct(raw, Txn)


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"3",
        b"null",
        b"[]",
        b"{}",
        b'"add"',
        b"\xff",
        b"\xef\xbb\xbf{}",
        pytest.param(b"[" * 100_000, id="deep"),
        b'{"add":null}',
        b'{"add":{}}',
        b'{"txn":{"appId":"a"}}',
        b'{"txn":{"appId":"a","version":"1"}}',
        b'{"txn":{"appId":"\\ud800","version":1}}',
        b'{"txn":{"appId":"a","version":1},"cdc":{}}',
    ],
)
def test_a_broken_line_is_named_by_its_number(line: bytes) -> None:
    good = b'{"txn":{"appId":"a","version":1}}\n'
    with pytest.raises(CodecError, match="line 2"):
        list(decode_commit(good + line))


@pytest.mark.parametrize("body", [{}, {"a": 1, "b": 2}, {"txn": 3}, {"txn": {}}])
def test_a_dictionary_without_one_action_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(CodecError):
        action_from_dict(body)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\n", b"\r\n \t\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_line_ends_do_not_matter(end: bytes, last: bool) -> None:
    line = b'{"txn":{"appId":"a\xe2\x80\xa8b","version":1}}'
    data = end.join([line, line]) + (end if last else b"")
    assert list(decode_commit(data)) == [Txn(app_id="a\u2028b", version=1)] * 2


def test_an_empty_entry_has_no_actions() -> None:
    assert list(decode_commit(b"")) == []


def test_absent_and_null_stay_apart() -> None:
    head = '{"protocol":{"minReaderVersion":1,"minWriterVersion":2'
    absent, null = decode_commit(
        f'{head}}}}}\n{head},"readerFeatures":null}}}}'.encode()
    )
    assert isinstance(absent, Protocol)
    assert isinstance(null, Protocol)
    assert absent.reader_features is UNSET
    assert null.reader_features is None
    assert known(absent.reader_features) is known(null.reader_features) is None
    assert absent != null


def test_order_on_disk_does_not_depend_on_how_an_action_was_made() -> None:
    add = Add(
        data_change=True,
        size=1,
        modification_time=2,
        partition_values={"b": "1", "a": None},
        path="x",
    )
    assert encode_commit([add]) == (
        b'{"add":{"path":"x","partitionValues":{"b":"1","a":null},"size":1,'
        b'"modificationTime":2,"dataChange":true}}\n'
    )


def test_unknown_fields_are_kept_apart_at_their_own_level() -> None:
    line = (
        b'{"metaData":{"id":"i","format":{"provider":"parquet","new":1},'
        b'"schemaString":"{}","partitionColumns":[],"newer":{"x":[null]}}}\n'
    )
    (action,) = decode_commit(line)
    assert isinstance(action, Metadata)
    assert action.extra == {"newer": {"x": [None]}}
    assert action.format == Format(provider="parquet", extra={"new": 1})
    assert encode_commit([action]) == line


@pytest.mark.parametrize("key", ["$extra", "\\u0024extra", "$e\\u0078tra"])
@pytest.mark.parametrize("value", [{}, {"version": 7}, 3])
def test_a_field_named_like_our_own_is_just_unknown(key: str, value: Any) -> None:
    body = f'{{"appId":"a","version":1,"{key}":{json.dumps(value)}}}'
    (action,) = decode_commit(f'{{"txn":{body}}}'.encode())
    expected = Txn(app_id="a", version=1, extra={"$extra": value})
    assert action == decode_struct(body, Txn) == expected
    assert json.loads(encode_struct(expected))["$extra"] == value


def test_free_actions_are_kept_as_they_came() -> None:
    data = b'{"commitInfo":{"z":1,"a":{"n":123456789012345678901}}}\n{"new":[1]}\n'
    info, new = decode_commit(data)
    assert info == CommitInfo({"z": 1, "a": {"n": 123456789012345678901}})
    assert new == UnknownAction("new", [1])
    assert encode_commit([info, new]) == data


def test_an_absent_offset_is_another_vector_than_offset_zero() -> None:
    ids = []
    for offset in (UNSET, None, 0, 4):
        vector = DeletionVector(
            storage_type="u",
            path_or_inline_dv="ab",
            offset=offset,
            size_in_bytes=1,
            cardinality=1,
        )
        ids.append(
            dv_id(
                Add(
                    path="p",
                    partition_values={},
                    size=1,
                    modification_time=1,
                    data_change=True,
                    deletion_vector=vector,
                )
            )
        )
    assert ids == ["uab", "uab", "uab@0", "uab@4"]


def test_logs_written_by_delta_rs_come_out_byte_for_byte(tmp_path: Path) -> None:
    data = pa.table({"a": [1, 2, 3], "p": ["x", 'é\u2028 /%"\\', None]})
    write_deltalake(
        tmp_path,
        data,
        partition_by="p",
        name="n",
        configuration={"delta.enableChangeDataFeed": "true"},
    )
    write_deltalake(
        tmp_path,
        data.append_column("b", pa.array([0.5, 1e300, None])),
        mode="append",
        schema_mode="merge",
    )
    table = DeltaTable(tmp_path)
    table.update(updates={"a": "a + 1"}, predicate="a > 1")
    table.delete("a = 1")
    table.optimize.compact()
    table.alter.add_constraint({"positive": "a > 0"})
    write_deltalake(table, data, mode="overwrite", schema_mode="overwrite")
    entries = sorted((tmp_path / "_delta_log").glob("*.json"))
    kinds = set()
    for entry in entries:
        raw = entry.read_bytes().rstrip(b"\n") + b"\n"
        assert encode_commit(decode_commit(raw)) == raw
        kinds |= {kind for line in raw.splitlines() for kind in json.loads(line)}
    assert len(entries) >= 6
    assert kinds >= {"add", "remove", "cdc", "metaData", "protocol", "commitInfo"}


def test_unknown_action_in_the_line_of_a_known_one_is_kept() -> None:
    line = b'{"new":{"x":1},"txn":{"appId":"a","version":1},"add":null,"odd":null}'

    actions = list(decode_commit(line))

    txn = Txn(app_id="a", version=1)
    assert actions == [txn, UnknownAction("new", {"x": 1}), UnknownAction("odd", None)]
    assert list(decode_commit(encode_commit(actions))) == actions


@pytest.mark.parametrize("schema", [b"", b'"schemaString":null,'])
def test_metadata_without_a_schema_has_no_columns_and_comes_back(schema: bytes) -> None:
    line = b'{"metaData":{"id":"m","format":{"provider":"a"},%b"partitionColumns":[]}}'

    (metadata,) = decode_commit(line % schema)

    assert isinstance(metadata, Metadata)
    assert parse_schema(metadata.schema_string).fields == ()
    assert json.loads(encode_commit([metadata])) == json.loads(line % schema)
