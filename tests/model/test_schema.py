"""Schemas: columns, names, and what a writer must refuse."""

import json
from typing import Any

import pytest
from deltalake import Field as DeltaField, Schema as DeltaSchema
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType

from delkalakedb.errors import CodecError, SchemaMismatchError
from delkalakedb.model.schema.schema import (
    Column,
    Schema,
    check_schema,
    parse_path,
    parse_schema,
)

PHYSICAL = "delta.columnMapping.physicalName"


def column(name: str, kind: Any = "long", **metadata: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array(element: Any) -> dict[str, Any]:
    return {"type": "array", "elementType": element, "containsNull": True}


def schema(*fields: dict[str, Any]) -> Schema:
    return parse_schema(json.dumps(struct(*fields)))


NESTED = schema(
    column("Id", "integer"),
    column("s", struct(column("x", "decimal(10,2)"), column("list", array("date")))),
    column("m", {"type": "map", "keyType": "string", "valueType": "long"}),
    column("last", "timestamp_ntz", **{PHYSICAL: "col-1"}),
)


def test_leaves_go_through_structs_but_not_into_arrays_and_maps() -> None:
    assert [(leaf.path, leaf.type) for leaf in NESTED.leaves()] == [
        (("Id",), "integer"),
        (("s", "x"), "decimal(10,2)"),
        (("s", "list"), "array"),
        (("m",), "map"),
        (("last",), "timestamp_ntz"),
    ]


def test_walk_reaches_items_of_arrays_and_maps() -> None:
    names = [field.name for field in NESTED.walk()]
    assert names == [
        *["Id", "s", "x", "list", "element", "m", "key", "value", "last"],
    ]


def test_physical_names_are_taken_level_by_level() -> None:
    inner = struct(column("x", **{PHYSICAL: "p2"}), column("y"))
    mapped = schema(column("s", inner, **{PHYSICAL: "p1"}))
    assert [leaf.physical for leaf in mapped.leaves()] == [("p1", "p2"), ("p1", "y")]


def test_a_column_says_what_the_schema_says() -> None:
    field = {"name": "a", "type": "string", "nullable": False, "metadata": {"k": 1}}
    assert schema(field).column("a") == Column(
        ("a",), ("a",), "string", False, {"k": 1}
    )


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("id", ("Id",)),
        (["ID"], ("Id",)),
        ("s", ("s",)),
        ("S.X", ("s", "x")),
        (("s", "list"), ("s", "list")),
        ("`s`.`x`", ("s", "x")),
        ("s.list.element", None),
        ("m.key", None),
        ("nothing", None),
        ("Id.x", None),
        ("", None),
        ((), None),
    ],
)
def test_columns_are_found_by_path_and_case(path: Any, found: Any) -> None:
    column = NESTED.column(path)
    assert (column.path if column else None) == found


def test_an_exact_name_wins_over_another_case() -> None:
    both = schema(column("A", "long"), column("a", "string"))
    assert both.column("a") == both.leaves()[1]
    assert both.column("A") == both.leaves()[0]


def test_a_name_with_a_dot_wins_over_a_path() -> None:
    dotted = schema(column("a.b", "string"), column("a", struct(column("b"))))
    assert dotted.column("a.b") == dotted.leaves()[0]
    assert dotted.column(("a", "b")) == dotted.leaves()[1]
    assert dotted.column("`a.b`") == dotted.leaves()[0]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ("a",)),
        ("a.b", ("a", "b")),
        ("`a.b`.c", ("a.b", "c")),
        ("`a``b`", ("a`b",)),
        ("a..b", ("a", "", "b")),
    ],
)
def test_paths_split_at_dots_outside_backticks(
    text: str, names: tuple[str, ...]
) -> None:
    assert parse_path(text) == names


def test_schemas_are_parsed_once_and_can_be_keys() -> None:
    text = json.dumps(struct(column("a")))
    assert parse_schema(text) is parse_schema(text)
    assert len({parse_schema(text), *parse_schema(text).leaves()}) == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "null",
        "3",
        "[]",
        '"long"',
        '{"type":"array","elementType":"long"}',
        '{"type":"struct"}',
        '{"type":"struct","fields":3}',
        '{"type":"struct","fields":["a"]}',
        '{"type":"struct","fields":[{"name":"a"}]}',
        '{"type":"struct","fields":[{"name":3,"type":"long"}]}',
        '{"type":"struct","fields":[{"name":"a","type":7}]}',
        '{"type":"struct","fields":[{"name":"a","type":{"type":"odd"}}]}',
        '{"type":"struct","fields":[{"name":"a","type":"long","metadata":[1]}]}',
        '{"type":"struct","fields":[{"name":"a","type":{"type":"map"}}]}',
        pytest.param("[" * 100_000, id="deep"),
    ],
)
def test_text_that_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(CodecError, match="not a Delta schema"):
        parse_schema(text)


def test_schemas_of_delta_rs_are_understood() -> None:
    kinds = ["string", "long", "integer", "short", "byte", "float", "double"]
    kinds += ["boolean", "binary", "date", "timestamp", "timestamp_ntz"]
    fields = [DeltaField(f"c_{kind}", PrimitiveType(kind)) for kind in kinds]
    inner = StructType([DeltaField("x", PrimitiveType("decimal(38, 10)"))])
    fields.append(DeltaField("s", inner, nullable=False, metadata={"k": "v"}))
    fields.append(DeltaField("l", ArrayType(inner, contains_null=False)))
    fields.append(
        DeltaField("m", MapType(PrimitiveType("string"), PrimitiveType("long")))
    )
    parsed = parse_schema(DeltaSchema(fields).to_json())
    assert [leaf.type for leaf in parsed.leaves()] == [
        *[*kinds, "decimal(38,10)", "array", "map"],
    ]
    s = parsed.column("s")
    assert s == Column(("s",), ("s",), "struct", False, {"k": "v"})


@pytest.mark.parametrize(
    ("fields", "partition_columns", "message"),
    [
        ([column("a"), column("A")], [], "has the column A twice"),
        ([column("s", struct(column("x"), column("X")))], [], r"column s\.X"),
        ([column("l", array(struct(column("x"), column("X"))))], [], "twice"),
        ([column("")], [], "empty name"),
        ([column("s", struct(column("")))], [], "a column in s has an empty name"),
        ([column("a"), column("b")], ["c"], "c is not in the schema"),
        ([column("a"), column("s", struct(column("x")))], ["s.x"], "not in the schema"),
        ([column("a"), column("s", struct(column("x")))], ["s"], "of type struct"),
        ([column("a"), column("l", array("long"))], ["l"], "of type array"),
        ([column("a"), column("b")], ["a", "A"], "named twice"),
        ([column("a"), column("b")], ["b", "a"], "every column"),
    ],
)
def test_schemas_that_no_table_may_have_are_refused(
    fields: list[dict[str, Any]], partition_columns: list[str], message: str
) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        check_schema(schema(*fields), partition_columns)


def test_a_sound_schema_passes() -> None:
    check_schema(NESTED, ["Id", "last"])
    check_schema(NESTED, [])
    check_schema(schema(), [])
    # The same name at different depths is no duplicate.
    check_schema(schema(column("a", struct(column("a")))), [])
