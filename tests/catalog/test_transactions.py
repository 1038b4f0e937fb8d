"""Several commits in one transaction: all of them or none."""

import pytest

from delkalakedb import Catalog
from delkalakedb.catalog.commit.outcome import Committed, Conflicted, Skipped
from delkalakedb.errors import ProtocolError, TableExistsError, TableNotFoundError
from delkalakedb.model.log import Staged
from delkalakedb.model.rules.conflicts import Rule
from tests.support.actions import (
    add,
    check_totals,
    commit,
    create,
    creation,
    metadata,
    paths,
    remove,
    schema,
    staged,
    stats,
    txn,
)

A, B = add("a"), add("b")


def versions(catalog: Catalog) -> dict[str, int]:
    return {table.name: table.version for table in catalog.tables()}


def test_commits_to_several_tables_are_one_transaction(catalog: Catalog) -> None:
    catalog.commit(creation("t", A), creation("u", A))

    outcome = catalog.commit(
        staged(catalog, B, table="u"), staged(catalog, remove(A), table="t")
    )

    assert [(o.table, o.version) for o in outcome] == [("u", 1), ("t", 1)]
    (transaction,) = {o.transaction_id for o in outcome if isinstance(o, Committed)}
    assert {c.transaction_id for n in "tu" for c in catalog.snapshot(n).history(1)} == {
        transaction
    }
    assert (paths(catalog, "t"), paths(catalog, "u")) == ([], ["a", "b"])


def test_each_commit_names_all_participants(catalog: Catalog) -> None:
    catalog.commit(creation("t", A), creation("u", A))

    catalog.commit(
        staged(catalog, B, table="u"),
        staged(catalog, remove(A), table="t"),
        staged(catalog, add("c"), table="u"),
    )

    id_ = metadata().id
    expected = [
        {"tableId": id_, "version": 1},
        {"tableId": id_, "version": 1},
        {"tableId": id_, "version": 2},
    ]
    for name, version in (("t", 1), ("u", 1), ("u", 2)):
        (info,) = catalog.snapshot(name, version).history(1)
        assert info.commit_info["participants"] == expected


def test_commit_to_one_table_names_no_participants(catalog: Catalog) -> None:
    create(catalog)
    commit(catalog, A)

    assert "participants" not in catalog.snapshot("t").history(1)[0].commit_info


def test_conflict_of_one_table_leaves_nothing_of_the_others(catalog: Catalog) -> None:
    catalog.commit(creation("t", A), creation("u", A))
    commit(catalog, remove(A), table="u")

    outcome = catalog._try_commit(
        staged(catalog, B, metadata(schema(y="long")), txn("app", 1), table="t"),
        creation("new", A),
        staged(catalog, remove(A), table="u", version=0),
    )

    assert isinstance(outcome, Conflicted)
    assert (outcome.table, outcome.rule) == ("u", Rule.CONCURRENT_DELETE_DELETE)
    assert versions(catalog) == {"t": 0, "u": 1}
    assert paths(catalog, "t") == ["a"]
    assert catalog.snapshot("t").metadata == metadata()
    assert catalog.snapshot("t").txn_version("app") is None


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (Staged("nope", [A]), TableNotFoundError),
        (creation("u"), TableExistsError),
        (creation("v", location="/nowhere/u"), TableExistsError),
        (Staged("u", [add("")]), ProtocolError),
    ],
)
def test_error_of_one_table_leaves_nothing_of_the_others(
    catalog: Catalog, broken: Staged, error: type[Exception]
) -> None:
    catalog.commit(creation("t", A), creation("u", A))

    with pytest.raises(error):
        catalog.commit(staged(catalog, B, table="t"), broken)
    assert versions(catalog) == {"t": 0, "u": 0}
    assert paths(catalog, "t") == ["a"]


def test_commits_to_one_table_become_consecutive_versions(catalog: Catalog) -> None:
    create(catalog, "t", A)

    outcome = catalog.commit(
        staged(catalog, B),
        staged(catalog, remove(A)),
        staged(catalog, remove(B), add("c", size=1)),
    )

    assert [o.version for o in outcome] == [1, 2, 3]
    found = [paths(catalog, version=v) for v in range(4)]
    assert found == [["a"], ["a", "b"], ["b"], ["c"]]
    for version in range(4):
        check_totals(catalog, version=version)


def test_table_is_created_and_written_in_one_transaction(catalog: Catalog) -> None:
    outcome = catalog.commit(
        creation("t", A), Staged("t", [B]), Staged("t", [remove(A)])
    )

    assert [o.version for o in outcome] == [0, 1, 2]
    assert paths(catalog) == ["b"]
    check_totals(catalog)


def test_own_earlier_commit_is_no_conflict(catalog: Catalog) -> None:
    create(catalog, "t", A)

    outcome = catalog.commit(
        staged(catalog, metadata(schema(y="long"))),
        staged(catalog, B, whole_table=True),
    )

    assert [o.version for o in outcome] == [1, 2]


def test_overwrite_after_an_own_append_removes_that_too(catalog: Catalog) -> None:
    create(catalog, "t", A)

    *_, last = catalog.commit(
        staged(catalog, B), staged(catalog, add("c"), remove_all=True)
    )

    assert isinstance(last, Committed)
    assert last.num_removed_files == 2
    assert paths(catalog) == ["c"]
    check_totals(catalog)


def test_overwrite_after_an_own_append_leaves_an_append_it_may_come_before(
    catalog: Catalog,
) -> None:
    level = {"delta.isolationLevel": "WriteSerializable"}
    create(catalog, "t", A, meta=metadata(configuration=level))
    commit(catalog, add("unseen"))

    catalog.commit(
        staged(catalog, B, version=0),
        staged(catalog, add("c"), version=0, remove_all=True),
    )

    assert paths(catalog) == ["c", "unseen"]
    check_totals(catalog)


def test_file_that_an_own_commit_removed_may_come_back(catalog: Catalog) -> None:
    create(catalog, "t", A)

    catalog.commit(staged(catalog, remove(A)), staged(catalog, A))

    assert [paths(catalog, version=v) for v in range(3)] == [["a"], [], ["a"]]


def test_remove_of_what_an_own_commit_removed_is_refused(catalog: Catalog) -> None:
    create(catalog, "t", A)

    outcome = catalog._try_commit(
        staged(catalog, remove(A)), staged(catalog, remove(A))
    )

    assert isinstance(outcome, Conflicted)
    assert outcome.rule == Rule.REMOVE_NOT_LIVE
    assert versions(catalog) == {"t": 0}


def test_column_of_an_own_earlier_commit_is_planned_by(catalog: Catalog) -> None:
    create(catalog, "t", meta=metadata(schema(x="long")))

    catalog.commit(
        staged(catalog, metadata(schema(x="long", y="long"))),
        staged(catalog, add("low", stats=stats(1, y=(1, 1, 0)))),
        staged(catalog, add("high", stats=stats(1, y=(9, 9, 0)))),
    )

    found = catalog.snapshot("t").files("y > 5").read_all()
    assert found["path"].to_pylist() == ["high"]


def test_replay_of_a_whole_transaction_is_skipped(catalog: Catalog) -> None:
    catalog.commit(creation("t"), creation("u"))
    apps = frozenset({"app"})
    both = [
        staged(catalog, A, txn("app", 1), table=name, app_ids=apps) for name in "tu"
    ]
    catalog.commit(*both)

    assert catalog.commit(*both) == (Skipped("t", 1, "app"), Skipped("u", 1, "app"))
    assert versions(catalog) == {"t": 1, "u": 1}


def test_replay_of_a_part_of_a_transaction_is_written_nowhere(catalog: Catalog) -> None:
    catalog.commit(creation("t"), creation("u"))
    apps = frozenset({"app"})
    both = [
        staged(catalog, A, txn("app", 1), table=name, app_ids=apps) for name in "tu"
    ]
    catalog.commit(both[0])

    outcome = catalog._try_commit(*both)

    assert isinstance(outcome, Conflicted)
    assert (outcome.table, outcome.winner_version) == ("t", 1)
    assert versions(catalog) == {"t": 1, "u": 0}


def test_nothing_staged_is_nothing_committed(catalog: Catalog) -> None:
    create(catalog)

    assert catalog.commit() == ()
    assert versions(catalog) == {"t": 0}
