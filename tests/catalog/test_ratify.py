"""Which files a commit may add and remove, and what becomes of the totals."""

import msgspec
import pytest

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.catalog.commit.outcome import Conflicted
from delkalakedb.catalog.read.head import find_head
from delkalakedb.catalog.read.stat_index import COLUMNS_PER_TABLE, revise
from delkalakedb.errors import CommitFailedError, DeltalakeDBError, ProtocolError
from delkalakedb.model.actions import Action, Add, CommitInfo, DeletionVector, Remove
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.rules.conflicts import Rule
from tests.support.actions import (
    DV,
    add,
    attempt,
    cdc,
    check_totals,
    commit,
    create,
    creation,
    live,
    metadata,
    paths,
    remove,
    schema,
    stats,
    vector,
)
from tests.support.integrity import check_integrity

A, B = add("a"), add("b", size=20)


def with_vectors(catalog: Catalog, *files: Add) -> None:
    meta = metadata(configuration={DV: "true"})
    create(catalog, "t", *files, meta=meta, features=("deletionVectors",))


def lost(catalog: Catalog, *actions: Add | Remove, **options: object) -> Conflicted:
    """The conflict of a commit that leaves the table as it was."""
    before = catalog.table("t")
    outcome = attempt(catalog, *actions, **options)
    assert isinstance(outcome, Conflicted)
    assert catalog.table("t") == before
    return outcome


def test_append_adds_a_version_and_its_files(catalog: Catalog) -> None:
    create(catalog, "t", A)

    committed = commit(catalog, B)

    assert (committed.table, committed.version) == ("t", 1)
    assert (committed.num_added_files, committed.added_bytes) == (1, 20)
    assert (committed.num_removed_files, committed.operation) == (0, "WRITE")
    assert paths(catalog) == ["a", "b"]
    check_totals(catalog)


def test_commit_without_actions_is_a_version(catalog: Catalog) -> None:
    create(catalog, "t", A)

    assert commit(catalog).version == 1
    assert paths(catalog) == ["a"]


def test_removed_file_is_gone_from_this_version_on(catalog: Catalog) -> None:
    create(catalog, "t", A, B)

    committed = commit(catalog, remove(A))

    assert committed.num_removed_files == 1
    assert paths(catalog) == ["b"]
    assert paths(catalog, version=0) == ["a", "b"]
    check_totals(catalog)


def test_removed_path_may_come_back(catalog: Catalog) -> None:
    create(catalog, "t", A)
    commit(catalog, remove(A))
    again = add("a", size=55)
    commit(catalog, again)

    assert [paths(catalog, version=v) for v in range(3)] == [["a"], [], ["a"]]
    assert live(catalog)["a", ""] == again
    assert list(catalog.log("t").removes()) == []
    assert list(catalog.log("t").removes(1)) == [remove(A)]
    check_totals(catalog)


def test_path_may_live_many_lives(catalog: Catalog) -> None:
    create(catalog, "t", add("a", size=0))
    for size in range(1, 5):
        commit(catalog, remove(A, deletion_timestamp=size))
        commit(catalog, add("a", size=size))

    for version in range(9):
        alive = version % 2 == 0
        assert [f.size for f in live(catalog, version=version).values()] == (
            [version // 2] if alive else []
        )
        check_totals(catalog, version=version)


def test_identical_file_added_again_updates_its_statistics(catalog: Catalog) -> None:
    create(catalog, "t", A, B)
    better = add("a", stats=stats(1, x=(1, 1, 0)), data_change=False)

    committed = commit(catalog, better)

    assert (committed.num_added_files, committed.num_removed_files) == (1, 0)
    assert live(catalog)["a", ""] == better
    assert live(catalog, version=0)["a", ""] == A
    assert not any(isinstance(a, Remove) for a in catalog.log("t").commit(1))
    assert list(catalog.log("t").removes()) == []
    check_totals(catalog)


def test_deletion_vector_is_changed_by_remove_and_add(catalog: Catalog) -> None:
    with_vectors(catalog, A)
    marked = add("a", deletion_vector=vector("v1"))
    more = add("a", deletion_vector=vector("v2"))

    commit(catalog, remove(A), marked)
    commit(catalog, remove(marked), more)

    assert [set(live(catalog, version=v)) for v in range(3)] == [
        {("a", "")},
        {("a", "uv1")},
        {("a", "uv2")},
    ]
    tombstones = {r.path: r.deletion_vector for r in catalog.log("t").removes(1)}
    assert tombstones == {"a": A.deletion_vector}
    assert len(list(catalog.log("t").removes())) == 2
    check_totals(catalog)


def test_vector_file_added_again_without_its_vector_restores_it(
    catalog: Catalog,
) -> None:
    marked = add("a", deletion_vector=vector("v1"))
    with_vectors(catalog, marked)

    commit(catalog, remove(marked), A)

    assert set(live(catalog)) == {("a", "")}
    assert list(catalog.log("t").removes()) == [remove(marked)]


def test_second_vector_of_a_live_path_is_refused(catalog: Catalog) -> None:
    with_vectors(catalog, add("a", deletion_vector=vector("v1")))

    conflict = lost(catalog, add("a", deletion_vector=vector("v2")))
    assert conflict.rule == Rule.ADD_ALREADY_LIVE
    assert lost(catalog, A).rule == Rule.ADD_ALREADY_LIVE


def test_remove_of_the_wrong_vector_is_refused(catalog: Catalog) -> None:
    marked = add("a", deletion_vector=vector("v1"))
    with_vectors(catalog, marked)

    assert lost(catalog, remove(A)).rule == Rule.REMOVE_NOT_LIVE
    other = add("a", deletion_vector=vector("v2"))
    assert lost(catalog, remove(other)).rule == Rule.REMOVE_NOT_LIVE
    assert set(live(catalog)) == {("a", "uv1")}


def test_vectors_that_differ_in_their_offset_are_two(catalog: Catalog) -> None:
    def at(offset: int) -> Add:
        stored = DeletionVector(
            storage_type="u",
            path_or_inline_dv="v",
            offset=offset,
            size_in_bytes=1,
            cardinality=1,
        )
        return add("a", deletion_vector=stored)

    with_vectors(catalog, at(0))

    assert lost(catalog, remove(at(1))).rule == Rule.REMOVE_NOT_LIVE
    commit(catalog, remove(at(0)), at(1))
    assert set(live(catalog)) == {("a", "uv@1")}


def test_remove_of_a_file_that_never_was_is_refused(catalog: Catalog) -> None:
    create(catalog, "t", A)

    conflict = lost(catalog, remove(B))

    assert (conflict.table, conflict.rule) == ("t", Rule.REMOVE_NOT_LIVE)
    assert conflict.winner_version == 0
    assert "b is no longer live" in conflict.detail


def test_remove_of_a_removed_file_is_refused(catalog: Catalog) -> None:
    create(catalog, "t", A)
    commit(catalog, remove(A))

    assert lost(catalog, remove(A)).rule == Rule.REMOVE_NOT_LIVE


def test_conflict_is_raised_by_commit_naming_winner_and_rule(catalog: Catalog) -> None:
    create(catalog, "t", A)
    commit(catalog, remove(A))

    with pytest.raises(
        CommitFailedError,
        match=r"t: version 1 was taken by WRITE: .*\ba\b.*delete_delete",
    ):
        commit(catalog, remove(A), version=0)


def test_add_that_brings_back_what_a_winner_removed_is_refused(
    catalog: Catalog,
) -> None:
    create(catalog, "t", A)
    commit(catalog, remove(A))

    conflict = lost(catalog, add("a", data_change=False), version=0)

    assert (conflict.rule, conflict.winner_version) == (Rule.ADD_RESURRECTS, 1)


def test_own_commits_of_a_transaction_are_never_the_winner(catalog: Catalog) -> None:
    create(catalog, "t", A)
    commit(catalog, remove(A))
    reads = Reads(version=0)

    conflict = catalog._try_commit(
        Staged("t", [B], reads), Staged("t", [add("a")], reads)
    )

    assert isinstance(conflict, Conflicted)
    assert (conflict.rule, conflict.winner_version) == (Rule.ADD_RESURRECTS, 1)


def test_overwrite_removes_every_file_without_naming_them(catalog: Catalog) -> None:
    create(catalog, "t", A, B)
    new = add("c", size=3)

    committed = commit(catalog, new, remove_all=True)

    assert (committed.num_removed_files, committed.num_added_files) == (2, 1)
    assert paths(catalog) == ["c"]
    check_totals(catalog)
    (entry,) = catalog.snapshot("t").history(1)
    assert (entry.num_removed_files, entry.removed_bytes) == (2, 120)


def test_overwrite_is_written_to_the_log_as_removes(catalog: Catalog) -> None:
    marked = add("a", deletion_vector=vector("v1"), size=20)
    with_vectors(catalog, marked, B)

    committed = commit(catalog, remove_all=True)

    removes = [a for a in catalog.log("t").commit(1) if isinstance(a, Remove)]
    assert [(r.path, r.size, r.partition_values) for r in removes] == [
        ("a", 20, {}),
        ("b", 20, {}),
    ]
    assert removes[0].deletion_vector == vector("v1")
    assert all(r.deletion_timestamp == committed.timestamp_ms for r in removes)
    assert all(r.extended_file_metadata and r.data_change for r in removes)


def test_overwrite_of_an_empty_table_removes_nothing(catalog: Catalog) -> None:
    create(catalog)

    assert commit(catalog, A, remove_all=True).num_removed_files == 0
    assert paths(catalog) == ["a"]


def test_overwrite_by_a_path_that_is_live_is_refused(catalog: Catalog) -> None:
    create(catalog, "t", A)

    with pytest.raises(ProtocolError, match="a can't be added and removed at once"):
        commit(catalog, A, remove_all=True)
    assert paths(catalog) == ["a"]


def test_overwrite_leaves_an_append_it_may_come_before(catalog: Catalog) -> None:
    level = {"delta.isolationLevel": "WriteSerializable"}
    create(catalog, "t", A, meta=metadata(configuration=level))
    commit(catalog, B)

    committed = commit(catalog, add("c"), version=0, remove_all=True)

    assert (committed.version, committed.num_removed_files) == (2, 1)
    assert paths(catalog) == ["b", "c"]
    check_totals(catalog)


def test_blind_append_is_rebased_on_whatever_came_first(catalog: Catalog) -> None:
    create(catalog, "t", A)
    commit(catalog, remove_all=True)

    assert commit(catalog, B, version=0).version == 2
    assert paths(catalog) == ["b"]


def test_appends_to_an_append_only_table_pass_and_removes_are_refused(
    catalog: Catalog,
) -> None:
    meta = metadata(configuration={"delta.appendOnly": "true"})
    create(catalog, "t", A, meta=meta)
    commit(catalog, B)

    with pytest.raises(ProtocolError, match="appendOnly"):
        commit(catalog, remove(A))
    with pytest.raises(ProtocolError, match="appendOnly"):
        commit(catalog, remove_all=True)
    commit(catalog, remove(A, data_change=False), add("c", data_change=False))
    assert paths(catalog) == ["b", "c"]


def test_change_data_files_are_kept_in_order_and_are_no_table_files(
    catalog: Catalog,
) -> None:
    create(catalog, "t", A)
    changes = [cdc("_change_data/2"), cdc("_change_data/1")]

    commit(catalog, remove(A), *changes)

    assert list(catalog.log("t").commit(1)[-2:]) == changes
    assert paths(catalog) == []
    check_totals(catalog)


@pytest.mark.parametrize(
    ("actions", "problem"),
    [
        ([A, A], "2 add actions for 'a'"),
        ([remove(A), remove(A)], "2 remove actions for 'a'"),
        ([A, remove(A)], "same deletion vector"),
        ([add("b", partition={"x": "1"})], "partitionValues"),
        ([add("b", size=-1)], "negative size"),
        ([add("b", deletion_vector=vector("v"))], "needs feature deletionVectors"),
    ],
)
def test_commit_that_breaks_the_protocol_is_refused_and_leaves_nothing(
    catalog: Catalog, actions: list[Action], problem: str
) -> None:
    create(catalog, "t", A)

    with pytest.raises(ProtocolError, match=problem):
        commit(catalog, *actions)
    assert (catalog.table("t").version, paths(catalog)) == (0, ["a"])


def test_many_files_go_in_and_out_at_once(catalog: Catalog) -> None:
    files = [add(f"f{i}", size=i) for i in range(1500)]
    create(catalog, "t", *files)
    commit(catalog, *(remove(f) for f in files[::2]), add("new"))

    assert paths(catalog, version=0) == sorted(f.path for f in files)
    assert paths(catalog) == sorted(["new", *(f.path for f in files[1::2])])
    check_totals(catalog)


def test_two_tables_may_hold_the_same_paths(catalog: Catalog) -> None:
    catalog.commit(creation("t", A), creation("u", A))
    commit(catalog, remove(A), table="t")

    assert (paths(catalog, "t"), paths(catalog, "u")) == ([], ["a"])


def test_text_that_no_database_holds_is_refused_by_the_catalog(
    catalog: Catalog,
) -> None:
    create(catalog)

    with pytest.raises(DeltalakeDBError):
        commit(catalog, add("a"), CommitInfo({"userMetadata": "\ud800"}))

    assert catalog.table("t").version == 0
    commit(catalog, add("a"))


def test_commit_that_read_a_version_that_is_not_there_yet_is_refused(
    catalog: Catalog,
) -> None:
    create(catalog, "t", A)

    outcome = lost(catalog, B, version=99, whole_table=True)

    assert outcome.rule == Rule.READ_EXPIRED
    assert (
        "this commit read version 99, but the catalog has versions 0 to 0"
        in outcome.detail
    )


def test_append_that_read_nothing_follows_a_changed_schema(catalog: Catalog) -> None:
    create(catalog, "t", A)
    commit(catalog, metadata(schema(id="long", more="string")))

    assert commit(catalog, B, version=-1).version == 2


def test_what_is_a_blind_append_is_not_for_the_caller_to_say(catalog: Catalog) -> None:
    create(catalog, "t", A)
    commit(catalog, remove(A), CommitInfo({"isBlindAppend": True}))

    (told, _) = catalog.snapshot("t").history()
    assert told.is_blind_append is False
    assert told.commit_info["isBlindAppend"] is False


def test_columns_beyond_those_that_have_a_number_are_not_indexed() -> None:
    names = [f"c{i}" for i in range(COLUMNS_PER_TABLE + 10)]
    meta = metadata(schema(**dict.fromkeys(names, "long")))
    wide = msgspec.structs.replace(
        meta, configuration={"delta.dataSkippingNumIndexedCols": "-1"}
    )

    columns = revise((), wide, table_id=1, version=0, limit=10**6)

    assert len(columns) == COLUMNS_PER_TABLE
    assert columns[-1].column_id == 2 * COLUMNS_PER_TABLE - 1


# --- what a writer made before it locked the table ----------------------------------


def test_commit_follows_the_columns_that_another_writer_has_added(
    catalog: Catalog, catalog_uri: str
) -> None:
    create(catalog, "t", A)
    commit(catalog, B)
    with dk.connect(catalog_uri) as other:
        commit(other, metadata(schema(x="long", s="string", y="long")))

    commit(catalog, add("c", stats=stats(x=(1, 2, 0), y=(5, 6, 0))))

    # The older files have no bounds of `y`, and may hold any value.
    assert planned(catalog, "y = 5") == ["a", "b", "c"]
    assert planned(catalog, "y = 7") == ["a", "b"]
    indexed = find_head(catalog._backend, "t").stat_columns
    assert [column.physical for column in indexed] == [("x",), ("s",), ("y",)]
    check_integrity(catalog)


def test_commit_follows_the_partitions_that_another_writer_has_set(
    catalog: Catalog, catalog_uri: str
) -> None:
    create(catalog, "t", A)
    commit(catalog, B)
    with dk.connect(catalog_uri) as other:
        commit(other, metadata(partitions=["s"]), remove(A), remove(B))

    with pytest.raises(ProtocolError, match="partitioned by \\['s'\\]"):
        commit(catalog, add("c"))
    commit(catalog, add("s=v/c", partition={"s": "v"}))

    assert planned(catalog, "s = 'v'") == ["s=v/c"]
    assert planned(catalog, "s = 'w'") == []
    check_integrity(catalog)


def planned(catalog: Catalog, where: str) -> list[str]:
    files = catalog.snapshot("t").files(where, columns=["path"]).read_all()
    return sorted(files["path"].to_pylist())
