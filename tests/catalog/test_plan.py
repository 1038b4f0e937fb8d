"""Planning through SQL: what the rules keep, never less, at every version."""

import json
from typing import Any

import pytest

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.errors import PredicateError
from delkalakedb.model.actions import Add, Metadata
from tests.support.actions import add, commit, create, metadata, remove, schema, stats


def planned(catalog: Catalog, where: Any, version: int | None = None) -> list[str]:
    """The paths of the files that may match, sorted."""
    snapshot = catalog.snapshot("t", version)
    first, again = (snapshot.files(where).read_all() for _ in range(2))
    assert again == first
    return sorted(first["path"].to_pylist())


def ranged(path: str, lo: object, hi: object, nulls: int = 0, name: str = "x") -> Add:
    """A file of ten rows between two values."""
    return add(path, stats=stats(10, **{name: (lo, hi, nulls)}))


@pytest.fixture
def numbered(catalog: Catalog) -> Catalog:
    """Files of ten numbers each: f0 has 0 to 9, f1 has 10 to 19, ..."""
    files = [ranged(f"f{i}", 10 * i, 10 * i + 9) for i in range(10)]
    create(catalog, "t", *files, meta=metadata(schema(x="long")))
    return catalog


@pytest.mark.parametrize(
    ("where", "files"),
    [
        ("x = 35", ["f3"]),
        ("35 = x", ["f3"]),
        ("x < 10", ["f0"]),
        ("x <= 10", ["f0", "f1"]),
        ("x > 89", ["f9"]),
        ("x BETWEEN 18 AND 31", ["f1", "f2", "f3"]),
        ("x IN (5, 95, 1000)", ["f0", "f9"]),
        ("x = 5 OR x > 93", ["f0", "f9"]),
        ("NOT (x > 9)", ["f0"]),
        ("x != 5", [f"f{i}" for i in range(10)]),
        ("x IS NULL", []),
        ("x IS NOT NULL", [f"f{i}" for i in range(10)]),
        ("x = 5.5", ["f0"]),
        ("x > 1e300", []),
        ("x < 5 AND x > 20", []),
        ("x = 5 AND x = 6", []),
        ("x = NULL", []),
        ("FALSE", []),
        ("TRUE", [f"f{i}" for i in range(10)]),
        ("abs(x) = 5", [f"f{i}" for i in range(10)]),
        ([("x", "=", 35)], ["f3"]),
        ([("x", ">", 15), ("x", "<", 25)], ["f1", "f2"]),
        ([[("x", "=", 5)], [("x", "=", 95)]], ["f0", "f9"]),
        ([("x", "in", [5, 15])], ["f0", "f1"]),
        ([("x", "not in", [5])], [f"f{i}" for i in range(10)]),
        ([], [f"f{i}" for i in range(10)]),
    ],
)
def test_files_that_may_match_are_planned(
    numbered: Catalog, where: object, files: list[str]
) -> None:
    assert planned(numbered, where) == files


@pytest.mark.parametrize("where", ["y = 1", "x = 1 AND t.y < 2", [("y", "=", 1)]])
def test_unknown_column_is_refused(numbered: Catalog, where: object) -> None:
    with pytest.raises(PredicateError, match="no column"):
        planned(numbered, where)


@pytest.mark.parametrize("where", ["x =", "SELECT 1", "x = 1; DROP TABLE dl_files"])
def test_predicate_that_is_none_is_refused(numbered: Catalog, where: str) -> None:
    with pytest.raises(PredicateError):
        planned(numbered, where)
    assert planned(numbered, "x = 1") == ["f0"]


def test_planned_files_are_whole(numbered: Catalog) -> None:
    found = numbered.snapshot("t").files("x = 35").read_all()
    everything = numbered.snapshot("t").files().read_all()

    assert found.schema == everything.schema
    assert found.to_pylist() == [
        row for row in everything.to_pylist() if row["path"] == "f3"
    ]


def test_many_values_are_planned_by_their_range(numbered: Catalog) -> None:
    values = [10 * i + 5 for i in range(2, 4)] + list(range(1000, 1500))

    assert planned(numbered, f"x IN ({', '.join(map(str, values))})") == ["f2", "f3"]
    assert planned(numbered, [("x", "in", values)]) == ["f2", "f3"]


def test_plan_of_an_old_version_finds_files_removed_since(numbered: Catalog) -> None:
    commit(numbered, remove(ranged("f3", 0, 0)), ranged("g", 33, 36))
    commit(numbered, remove(ranged("g", 0, 0)), remove(ranged("f4", 0, 0)))
    commit(numbered, ranged("f3", 34, 35))

    found = [planned(numbered, "x BETWEEN 35 AND 40", v) for v in range(4)]
    assert found == [["f3", "f4"], ["f4", "g"], [], ["f3"]]


def test_plan_follows_new_statistics_and_an_overwrite(numbered: Catalog) -> None:
    commit(numbered, ranged("f0", 500, 509))
    assert planned(numbered, "x = 505") == ["f0"]
    assert planned(numbered, "x = 5") == []
    assert planned(numbered, "x = 5", 0) == ["f0"]

    commit(numbered, ranged("new", 5, 5), remove_all=True)
    assert planned(numbered, "x = 5 OR x = 505") == ["new"]
    assert planned(numbered, "x = 505", 1) == ["f0"]


@pytest.mark.parametrize(
    "text", [None, "", "{}", "nonsense", '{"minValues":{"x":"a"}}', '{"numRecords":1}']
)
def test_file_without_usable_statistics_is_always_planned(
    catalog: Catalog, text: str | None
) -> None:
    create(catalog, "t", ranged("known", 1, 2), add("unknown", stats=text))

    assert planned(catalog, "x = 1") == ["known", "unknown"]
    assert planned(catalog, "x = 99") == ["unknown"]
    assert planned(catalog, "x IS NULL") == ["unknown"]


def test_empty_file_is_never_planned(catalog: Catalog) -> None:
    create(catalog, "t", add("empty", stats=stats(0)), ranged("full", 1, 2))

    assert planned(catalog, "x = 1") == ["full"]
    assert planned(catalog, "x IS NOT NULL") == ["full"]


def test_plan_of_an_empty_table_is_empty(catalog: Catalog) -> None:
    create(catalog)

    for where in ("x = 1", "x IS NULL", "s > 'a' OR x = 1", "abs(x) = 1"):
        assert planned(catalog, where) == []


def test_column_of_only_nulls_is_planned_for_nulls_alone(catalog: Catalog) -> None:
    nulls = add("a", stats='{"numRecords":2,"nullCount":{"x":2}}')
    create(catalog, "t", nulls)

    assert planned(catalog, "x = 1") == []
    assert planned(catalog, "x IS NULL") == ["a"]


def test_nulls_are_planned_by_their_count(catalog: Catalog) -> None:
    create(
        catalog,
        "t",
        ranged("none", 1, 2),
        ranged("some", 1, 2, nulls=3),
        add("only", stats='{"numRecords":10,"nullCount":{"x":10}}'),
    )

    assert planned(catalog, "x IS NULL") == ["only", "some"]
    assert planned(catalog, "x IS NOT NULL") == ["none", "some"]
    assert planned(catalog, "x = 1") == ["none", "some"]
    assert planned(catalog, "x IS NULL OR x = 1") == ["none", "only", "some"]


def test_or_over_two_columns_finds_either(catalog: Catalog) -> None:
    files = [
        add(f"{x}{s}", stats=stats(1, x=(x, x, 0), s=(s, s, 0)))
        for x in (1, 2)
        for s in "ab"
    ]
    create(catalog, "t", *files)

    assert planned(catalog, "x = 1 OR s = 'b'") == ["1a", "1b", "2b"]
    assert planned(catalog, "x = 1 AND s = 'b'") == ["1b"]
    assert planned(catalog, "(x = 1 AND s = 'a') OR (x = 2 AND s = 'b')") == [
        "1a",
        "2b",
    ]
    assert planned(catalog, "x = 7 OR s = 'z'") == []


def test_texts_are_compared_by_code_point(catalog: Catalog) -> None:
    words = ["", "A", "Z", "a", "z", "É", "é", "\ue000", "😀"]
    files = [ranged(f"{i}", word, word, name="s") for i, word in enumerate(words)]
    create(catalog, "t", *files)

    for i, word in enumerate(words):
        assert planned(catalog, f"s = '{word}'") == [str(i)]
        assert planned(catalog, f"s < '{word}'") == [str(j) for j in range(i)]
    assert planned(catalog, "s LIKE 'é%'") == ["6"]


def test_partitions_are_planned_exactly(catalog: Catalog) -> None:
    values = ["2026-01-01", "2026-01-02", None]
    files = [add(f"{i}", partition={"day": v}) for i, v in enumerate(values)]
    meta = metadata(schema(x="long", day="date"), partitions=["day"])
    create(catalog, "t", *files, meta=meta)

    assert planned(catalog, "day = '2026-01-02'") == ["1"]
    assert planned(catalog, "day < DATE '2026-01-02'") == ["0"]
    assert planned(catalog, "day IS NULL") == ["2"]
    assert planned(catalog, "day != '2026-01-02'") == ["0"]
    assert planned(catalog, [("day", "=", "")]) == ["2"]


# Columns that are indexed later, differently, or not at all


def names(count: int) -> list[str]:
    return [f"c{i}" for i in range(count)]


def test_columns_beyond_the_indexed_ones_are_planned_too(catalog_uri: str) -> None:
    files = [
        add(f"f{i}", stats=stats(1, **dict.fromkeys(names(8), (i, i, 0))))
        for i in range(5)
    ]
    meta = metadata(schema(**dict.fromkeys(names(8), "long")))
    with dk.connect(catalog_uri, stats={"indexed_columns": 2}) as catalog:
        create(catalog, "t", *files, meta=meta)

        for name in names(8):
            assert planned(catalog, f"{name} = 3") == ["f3"]
        assert planned(catalog, "c0 = 3 AND c7 = 3") == ["f3"]
        assert planned(catalog, "c0 = 3 OR c7 = 4") == ["f3", "f4"]
        assert planned(catalog, "c6 < 2 AND c7 > 3") == []


def test_catalog_without_indexed_columns_plans_all_the_same(catalog_uri: str) -> None:
    with dk.connect(catalog_uri, stats={"indexed_columns": 0}) as catalog:
        create(catalog, "t", ranged("a", 1, 2), ranged("b", 3, 4))

        assert planned(catalog, "x = 3") == ["b"]


def test_column_added_later_is_planned_for_older_files_too(catalog: Catalog) -> None:
    narrow, wide = schema(x="long"), schema(x="long", y="long")
    create(catalog, "t", ranged("old", 1, 2), meta=metadata(narrow))
    early = add("early", stats=stats(1, x=(5, 5, 0), y=(1, 1, 0)))
    commit(catalog, early)
    commit(catalog, metadata(wide))
    commit(catalog, ranged("low", 1, 2, name="y"), ranged("high", 8, 9, name="y"))

    assert planned(catalog, "y = 8") == ["high", "old"]
    assert planned(catalog, "y = 1") == ["early", "low", "old"]
    assert planned(catalog, "y IS NULL") == ["old"]
    commit(catalog, remove(add("old")))
    assert planned(catalog, "y = 8") == ["high"]
    assert planned(catalog, "y = 8", 3) == ["high", "old"]


def test_column_that_left_and_came_back_is_planned(catalog: Catalog) -> None:
    both = metadata(schema(x="long", y="long"))
    create(catalog, "t", ranged("a", 1, 1, name="y"), meta=both)
    commit(catalog, metadata(schema(x="long")))
    commit(catalog, ranged("b", 1, 1))
    commit(catalog, both)
    commit(catalog, ranged("c", 1, 1, name="y"), ranged("d", 2, 2, name="y"))

    assert planned(catalog, "y = 1") == ["a", "b", "c"]
    assert planned(catalog, "y = 1", 0) == ["a"]
    with pytest.raises(PredicateError):
        planned(catalog, "y = 1", 2)


def widened(name: str, before: str, after: str) -> Metadata:
    change = {"toType": after, "fromType": before}
    field = {"name": name, "type": after, "nullable": True}
    field["metadata"] = {"delta.typeChanges": [change]}
    return metadata(json.dumps({"type": "struct", "fields": [field]}))


@pytest.mark.parametrize(
    ("before", "after", "old", "new", "where"),
    [
        ("integer", "long", (1, 5), (2**40, 2**40), f"x = {2**40}"),
        ("integer", "double", (1, 5), (7.5, 7.5), "x = 7.5"),
        (
            "date",
            "timestamp_ntz",
            ("2026-01-01", "2026-01-05"),
            ("2026-02-01T10:00:00", "2026-02-01T12:00:00"),
            "x = '2026-02-01 11:00:00'",
        ),
    ],
)
def test_widened_column_is_planned_by_old_and_new_bounds(
    catalog: Catalog,
    before: str,
    after: str,
    old: tuple[Any, Any],
    new: tuple[Any, Any],
    where: str,
) -> None:
    features = ("typeWidening", "timestampNtz")
    meta = metadata(schema(x=before))
    create(catalog, "t", ranged("old", *old), meta=meta, features=features)
    commit(catalog, widened("x", before, after))
    commit(catalog, ranged("new", *new))

    low = f"'{old[0]}'" if isinstance(old[0], str) else old[0]
    assert planned(catalog, where) == ["new"]
    assert planned(catalog, f"x <= {low}") == ["old"]
    assert planned(catalog, f"x >= {low}") == ["new", "old"]
    assert planned(catalog, f"x = {low}", 0) == ["old"]
