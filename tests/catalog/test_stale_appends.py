"""Appends to a table that has changed since they were staged."""

from collections.abc import Callable

import pytest

import delkalakedb as dk
from delkalakedb.catalog.commit.outcome import Committed, Conflicted, Skipped
from delkalakedb.catalog.engine.postgres import _PostgresSession
from delkalakedb.catalog.load.staged_table import forget_table, locked_mirror, set_hold
from delkalakedb.errors import CatalogBusyError, ReadOnlyError, TableNotFoundError
from tests.support.actions import add, commit, create, metadata, paths, remove, staged

Outcome = tuple[Committed | Skipped, ...] | Conflicted


def staged_now(catalog: dk.Catalog, path: str = "b") -> Callable[[], Outcome]:
    """Stage an append to the table as it is now; return what commits it."""
    seen = catalog.snapshot("t")
    append = staged(catalog, add(path), identity=seen.identity)
    return lambda: catalog._try_commit(append)


def version_of(outcome: Outcome) -> int:
    assert not isinstance(outcome, Conflicted)
    return outcome[0].version


def test_appends_follow_each_other(catalog: dk.Catalog) -> None:
    create(catalog, "t", add("a"))

    versions = [version_of(staged_now(catalog, f"f{n}")()) for n in range(3)]

    assert versions == [1, 2, 3]
    assert paths(catalog) == ["a", "f0", "f1", "f2"]
    assert [c.version for c in catalog.snapshot("t").history()] == [3, 2, 1, 0]


def test_commit_of_another_in_between_comes_first(catalog: dk.Catalog) -> None:
    create(catalog, "t", add("a"))
    append = staged_now(catalog)
    commit(catalog, remove(add("a")), add("c"))

    assert version_of(append()) == 2
    assert paths(catalog) == ["b", "c"]


def test_schema_that_another_changed_in_between_is_a_conflict(
    catalog: dk.Catalog,
) -> None:
    create(catalog, "t", add("a"))
    append = staged_now(catalog)
    commit(catalog, metadata(description="another"))

    assert isinstance(append(), Conflicted)
    assert paths(catalog) == ["a"]


def test_path_that_is_there_already_is_a_conflict(catalog: dk.Catalog) -> None:
    create(catalog, "t", add("a"))
    plain = catalog._try_commit(staged(catalog, add("a", size=77)))

    outcome = staged_now(catalog, "a")()

    assert type(outcome) is type(plain)
    assert paths(catalog) == ["a"]


def test_table_that_another_has_the_name_of_is_not_written(
    catalog: dk.Catalog,
) -> None:
    create(catalog, "t", add("a"))
    append = staged_now(catalog)
    assert forget_table(catalog, "t", 0, what="drop", published=False)
    create(catalog, "t", add("c"))

    with pytest.raises(TableNotFoundError):
        append()
    assert paths(catalog) == ["c"]


def test_table_that_is_held_since_is_not_written(catalog: dk.Catalog) -> None:
    create(catalog, "t", add("a"))
    append = staged_now(catalog)
    assert set_hold(catalog, "t", "following", before=None)

    with pytest.raises(ReadOnlyError):
        append()
    assert paths(catalog) == ["a"]


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_writer_that_waits_too_long_is_told_so(catalog_uri: str) -> None:
    with dk.connect(catalog_uri, pool={"lock_timeout": 0.2}) as catalog:
        create(catalog, "t", add("a"))
        append = staged_now(catalog)
        with locked_mirror(catalog, "t"), pytest.raises(CatalogBusyError):
            append()
        assert version_of(append()) == 1


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_append_is_two_messages_whatever_others_write(
    catalog: dk.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(catalog, "t", add("a"))
    sent = 0
    send = _PostgresSession._together

    def count(*args: object) -> list[list[tuple[object, ...]]]:
        nonlocal sent
        sent += 1
        return send(*args)  # type: ignore[arg-type]

    def messages(append: Callable[[], Outcome]) -> int:
        nonlocal sent
        sent = 0
        append()
        return sent

    monkeypatch.setattr(_PostgresSession, "_together", count)
    assert messages(staged_now(catalog, "b")) == 2
    append = staged_now(catalog, "c")
    commit(catalog, add("d"))
    assert messages(append) == 2
