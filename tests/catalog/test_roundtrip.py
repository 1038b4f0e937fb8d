"""Every field of every action survives its way through SQL, known or not."""

import uuid
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from delkalakedb import Catalog
from delkalakedb.errors import DeltalakeDBError
from delkalakedb.model.actions import (
    KINDS,
    UNSET,
    Action,
    Add,
    CommitInfo,
    DeletionVector,
    Remove,
    UnknownAction,
    action_from_dict,
    decode_commit,
    encode_commit,
)
from delkalakedb.model.log import Reads, Staged
from tests.model.test_codec import bodies, file_paths, text, values
from tests.support.actions import (
    DV,
    add,
    cdc,
    commit,
    create,
    creation,
    domain,
    live,
    metadata,
    paths,
    remove,
    schema,
    stats,
    txn,
)
from tests.support.examples import examples

FEATURES = ("deletionVectors", "domainMetadata", "appendOnly", "invariants")
META = metadata(
    schema(x="long", p="string", q="integer"),
    partitions=["p", "q"],
    configuration={DV: "true"},
)
many = settings(
    max_examples=examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
partitions = st.fixed_dictionaries({"p": st.none() | text, "q": st.none() | text})
positive = st.integers(0, 2**63 - 1)


def without_nul(value: Any) -> Any:
    """The value without NUL in what Postgres has as text."""
    if isinstance(value, str):
        return value.replace("\0", "0")
    if isinstance(value, dict):
        return {k: without_nul(v) for k, v in value.items()}
    return value


@st.composite
def added(draw: st.DrawFn, number: int) -> Add:
    body = draw(bodies["add"])
    body["path"] = f"{number}{without_nul(body['path'])}"
    body["partitionValues"] = draw(partitions)
    body["size"] = draw(st.integers(0, 2**40))
    body["modificationTime"] = draw(positive)
    for name in ("deletionVector", "clusteringProvider"):
        if name in body:
            body[name] = without_nul(body[name])
    return action_from_dict({"add": body})


@st.composite
def removed(draw: st.DrawFn, file: Add) -> Remove:
    action = action_from_dict({"remove": draw(bodies["remove"])})
    absent = st.sampled_from([None, UNSET])
    vector = file.deletion_vector or draw(absent)
    return msgspec.structs.replace(action, path=file.path, deletion_vector=vector)


def written(
    catalog: Catalog, *actions: Action, before: tuple[Action, ...] = ()
) -> tuple[Action, ...]:
    """A commit's actions as the catalog gives them back, but for its commitInfo."""
    name = uuid.uuid4().hex
    catalog.commit(
        creation(name, *before, meta=META, features=FEATURES),
        Staged(name, actions, Reads(version=0)),
    )
    found = catalog.log(name).commit(1)
    assert tuple(decode_commit(encode_commit(found))) == found
    return found[1:]


@many
@given(st.data())
def test_any_adds_and_removes_come_back_as_they_were(
    catalog: Catalog, data: st.DataObject
) -> None:
    old = [data.draw(added(i)) for i in range(data.draw(st.integers(0, 3)))]
    new = [data.draw(added(i)) for i in range(5, 5 + data.draw(st.integers(0, 3)))]
    removes = [data.draw(removed(file)) for file in old]

    found = written(catalog, *new, *removes, before=tuple(old))

    assert found == (*removes, *new)


@many
@given(st.data())
def test_any_small_action_comes_back_as_it_was(
    catalog: Catalog, data: st.DataObject
) -> None:
    body = data.draw
    actions: list[Action] = [
        action_from_dict(
            {"txn": body(bodies["txn"]) | {"appId": body(text).replace("\0", "")}}
        ),
        action_from_dict(
            {
                "domainMetadata": body(bodies["domainMetadata"])
                | {"domain": "my." + body(text).replace("\0", "")}
            }
        ),
        action_from_dict(
            {
                "cdc": body(bodies["cdc"])
                | {"path": body(file_paths), "dataChange": False}
            }
        ),
        action_from_dict(
            {
                "metaData": body(bodies["metaData"])
                | {
                    "schemaString": META.schema_string,
                    "partitionColumns": META.partition_columns,
                    "format": {"provider": "parquet", "new": body(values)},
                    "configuration": {DV: "true", "k": body(st.none() | text)},
                }
            }
        ),
        UnknownAction(body(text.filter(lambda kind: kind not in KINDS)), body(values)),
    ]

    assert set(map(repr, written(catalog, *actions))) == set(map(repr, actions))


@many
@given(st.dictionaries(text, values, max_size=4))
def test_any_commit_info_keeps_its_fields(
    catalog: Catalog, fields: dict[str, Any]
) -> None:
    given = {**fields, "operationParameters": fields, "userMetadata": "a\0b"}
    name = uuid.uuid4().hex
    create(catalog, name, CommitInfo(given))

    (info, *_) = catalog.log(name).commit(0)
    assert isinstance(info, CommitInfo)
    assert {key: info.fields[key] for key in given} == given
    (entry,) = catalog.snapshot(name).history()
    assert entry.operation_parameters == fields


def test_absent_and_null_are_told_apart(catalog: Catalog) -> None:
    names = ("stats", "tags", "deletion_vector", "base_row_id")
    names += ("default_row_commit_version", "clustering_provider")
    null = add("null", **dict.fromkeys(names))
    absent = add("absent", stats=UNSET)
    create(catalog, "t", null, absent)

    assert live(catalog) == {("null", ""): null, ("absent", ""): absent}
    tombstones = [remove(null, deletion_timestamp=None), remove(absent, size=None)]
    commit(catalog, *tombstones)
    assert list(catalog.log("t").removes()) == tombstones


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
def test_values_that_few_files_have_come_back_as_they_were(
    catalog: Catalog, files: list[dict[str, Any]]
) -> None:
    adds = [add(f"f{i}", **fields) for i, fields in enumerate(files)]
    create(catalog, "t", *adds, features=("deletionVectors",))

    assert sorted(catalog.log("t").adds(), key=lambda file: file.path) == adds


@pytest.mark.parametrize("name", ["tags", "base_row_id", "clustering_provider"])
def test_column_that_few_files_have_comes_alone(catalog: Catalog, name: str) -> None:
    files = [{k: v for k, v in f.items() if k != "deletion_vector"} for f in RARE]
    create(catalog, "t", *(add(f"f{i}", **f) for i, f in enumerate(files)))

    found = catalog.snapshot("t").files(columns=["path", name]).read_all()

    present = [value is not None for value in found.sort_by("path")[name].to_pylist()]
    assert present == [name in fields for fields in files]


def test_very_long_path_is_a_path_like_any_other(catalog: Catalog) -> None:
    long = add("p/" + "x" * 5000)
    other = add("p/" + "x" * 4999 + "y")
    create(catalog, "t", long, other)
    commit(catalog, remove(long))

    assert paths(catalog) == [other.path]
    commit(catalog, long)
    assert set(paths(catalog)) == {long.path, other.path}


@pytest.mark.parametrize(
    "path",
    [
        "ü/日本.parquet",
        "a%20b",
        "a b'c\"d",
        pytest.param("😀" * 300, id="long"),
        "\u2028",
        "%s:x$1?",
        "\x01",
    ],
)
def test_path_of_any_characters_is_kept(catalog: Catalog, path: str) -> None:
    file = add(path)
    create(catalog, "t", file, add("other"))

    assert live(catalog)[path, ""] == file
    commit(catalog, remove(file))
    assert paths(catalog) == ["other"]


def test_paths_that_differ_in_normal_form_are_two(catalog: Catalog) -> None:
    create(catalog, "t", add("é"), add("e\u0301"), add("É"))
    commit(catalog, remove(add("é")))

    assert set(paths(catalog)) == {"e\u0301", "É"}


@pytest.mark.parametrize(
    "text",
    [
        stats(1, s=("a\0b", "a\0c", 0)),
        '{"numRecords":1,"minValues":{"s":"\0"}}',
        "\0",
        "not JSON",
        "",
        pytest.param("x" * 1_000_000, id="long"),
    ],
)
def test_statistics_are_kept_as_the_writers_own_text(
    catalog: Catalog, text: str
) -> None:
    file = add("a", stats=text, extra={"more": "\0"})
    create(catalog, "t", file)

    assert live(catalog) == {("a", ""): file}
    assert catalog.snapshot("t").files("s = 'a'").read_all().num_rows in (0, 1)


def test_huge_inline_deletion_vector_is_kept(catalog: Catalog) -> None:
    meta = metadata(configuration={DV: "true"})
    inline = DeletionVector(
        storage_type="i",
        path_or_inline_dv="0r5*" * 50_000,
        size_in_bytes=160_000,
        cardinality=6,
    )
    old, new = add("a"), add("a", deletion_vector=inline)
    create(catalog, "t", old, meta=meta, features=("deletionVectors",))
    commit(catalog, remove(old), new)

    assert list(live(catalog).values()) == [new]
    commit(catalog, remove(new), old)
    assert list(catalog.log("t").removes()) == [remove(new)]


@pytest.mark.parametrize(
    "action",
    [
        add("a\0b"),
        add("a", clustering_provider="\0"),
        txn("\0", 1),
        domain("\0"),
        cdc("\0"),
    ],
)
def test_name_with_nul_is_kept_or_refused_as_a_whole(
    catalog: Catalog, action: Action
) -> None:
    create(catalog, features=("domainMetadata",))

    try:
        commit(catalog, action)
    except DeltalakeDBError:
        assert catalog.table("t").version == 0
    else:
        assert action in catalog.log("t").commit(1)


def test_commit_lists_its_actions_in_the_order_of_publishing(catalog: Catalog) -> None:
    old = [add(f"old{i}") for i in range(3)]
    create(catalog, "t", *old, features=FEATURES)
    new = [add(f"new{i}") for i in (2, 0, 1)]
    actions = [
        UnknownAction("novel", {"k": 1}),
        cdc("c"),
        *new,
        remove(old[1]),
        remove(old[0]),
        domain("d"),
        txn("a", 1),
        metadata(description="new"),
    ]

    commit(catalog, *actions)

    info, *found = catalog.log("t").commit(1)
    assert isinstance(info, CommitInfo)
    assert found == [
        metadata(description="new"),
        txn("a", 1),
        domain("d"),
        remove(old[0]),
        remove(old[1]),
        *new,
        cdc("c"),
        UnknownAction("novel", {"k": 1}),
    ]
