"""Tables come to be: names, locations, and what the first commit must hold."""

import pytest

from delkalakedb import Catalog
from delkalakedb.errors import (
    DeltaError,
    ProtocolError,
    TableExistsError,
    TableNotFoundError,
)
from delkalakedb.model.actions import Action
from delkalakedb.model.log import Staged
from tests.support.actions import (
    add,
    commit,
    create,
    creation,
    metadata,
    paths,
    protocol,
)


def test_first_commit_creates_the_table_as_version_0(catalog: Catalog) -> None:
    committed = create(catalog, "sales", add("a", size=7), location="/data/sales")

    table = catalog.table("sales")
    assert (committed.version, committed.num_added_files) == (0, 1)
    assert (table.name, table.version, table.location) == ("sales", 0, "/data/sales")
    assert (table.num_files, table.size_bytes) == (1, 7)
    assert table.timestamp_ms == committed.timestamp_ms
    assert catalog.snapshot("sales").protocol == protocol()
    assert catalog.snapshot("sales").metadata == metadata()


def test_table_without_files_is_empty(catalog: Catalog) -> None:
    create(catalog)

    assert paths(catalog) == []
    assert catalog.snapshot("t").files().read_all().num_rows == 0


@pytest.mark.parametrize(
    "name",
    ["a b", "ünï.cödé", "x'; DROP TABLE dl_files; --", '"q"', "%s", ":name", "€"],
)
def test_name_of_any_characters_is_kept(catalog: Catalog, name: str) -> None:
    create(catalog, name, add("a"))
    commit(catalog, add("b"), table=name)

    assert [table.name for table in catalog.tables()] == [name]
    assert paths(catalog, name) == ["a", "b"]


def test_names_that_differ_in_case_are_two_tables(catalog: Catalog) -> None:
    create(catalog, "t", add("a"))
    create(catalog, "T", add("b"))

    assert (paths(catalog, "t"), paths(catalog, "T")) == (["a"], ["b"])


def test_name_that_is_taken_is_refused(catalog: Catalog) -> None:
    create(catalog, "t")

    with pytest.raises(TableExistsError, match="t: the table exists already"):
        create(catalog, "t", location="/elsewhere")
    assert catalog.table("t").location == "/nowhere/t"


def test_location_that_is_taken_is_refused_naming_its_table(catalog: Catalog) -> None:
    create(catalog, "t", location="/same")

    with pytest.raises(
        TableExistsError, match="location /same is already used by table t"
    ):
        create(catalog, "u", location="/same")
    assert [table.name for table in catalog.tables()] == ["t"]


def test_commit_to_an_unknown_table_is_refused(catalog: Catalog) -> None:
    with pytest.raises(TableNotFoundError, match="nope"):
        catalog.commit(Staged("nope", [add("a")]))
    assert catalog.tables() == []


@pytest.mark.parametrize("ask", ["table", "snapshot", "_mirror_state"])
def test_question_about_an_unknown_table_is_refused(catalog: Catalog, ask: str) -> None:
    with pytest.raises(TableNotFoundError, match="nope"):
        getattr(catalog, ask)("nope")


@pytest.mark.parametrize("actions", [[protocol()], [metadata()], [add("a")], []])
def test_first_commit_without_protocol_and_metadata_is_refused(
    catalog: Catalog, actions: list[Action]
) -> None:
    with pytest.raises(ProtocolError, match="version 0 needs"):
        catalog.commit(Staged("t", actions, location="/t"))
    assert catalog.tables() == []


def test_name_or_location_too_long_for_an_index_is_refused(catalog: Catalog) -> None:
    with pytest.raises(DeltaError, match="name can't be longer than 255"):
        create(catalog, "n" * 256)
    with pytest.raises(DeltaError, match="location can't be longer than 2000"):
        create(catalog, location="/" + "l" * 2000)
    create(catalog, "é" * 127, location="/" + "l" * 1999)
    assert len(catalog.tables()) == 1


def test_table_created_after_a_failed_creation_is_whole(catalog: Catalog) -> None:
    with pytest.raises(ProtocolError):
        catalog.commit(creation("t"), creation("u", add("")))
    create(catalog, "u", add("a"))

    assert [table.name for table in catalog.tables()] == ["u"]
    assert paths(catalog, "u") == ["a"]


def test_tables_are_listed_by_name_at_their_latest_version(catalog: Catalog) -> None:
    for name in ("b", "a_", "B", "a", "é", "z"):
        create(catalog, name)
    commit(catalog, add("f"), table="a")

    names = [table.name for table in catalog.tables()]
    assert names == sorted(names) == ["B", "a", "a_", "b", "z", "é"]
    assert [table.version for table in catalog.tables()] == [0, 1, 0, 0, 0, 0]
