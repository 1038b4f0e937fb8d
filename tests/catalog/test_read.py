"""Snapshots and history: what a version says, it says forever."""

import getpass
import json

import pytest

import delkalakedb as dk
from delkalakedb import Catalog, Commit, File
from delkalakedb.catalog.read.action_rows import FILES_SCHEMA, add_from_row
from delkalakedb.errors import VersionNotFoundError
from delkalakedb.model.actions import Add, CommitInfo
from tests.support.actions import (
    DV,
    add,
    check_totals,
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
    vector,
)

A, B = add("a", size=10), add("b", size=20)


def operation(name: str, **fields: object) -> CommitInfo:
    return CommitInfo({"operation": name, **fields})


def test_old_snapshot_still_answers_after_later_commits(catalog: Catalog) -> None:
    features = ("domainMetadata",)
    create(catalog, "t", A, txn("app", 1), domain("d", "1"), features=features)
    commit(catalog, B)
    old = catalog.snapshot("t")
    before = (old.files().read_all(), old.table, old.history(), old.domains())

    commit(catalog, txn("app", 2), domain("d", "2"), remove_all=True)
    commit(catalog, metadata(schema(y="date")))

    assert (old.files().read_all(), old.table, old.history(), old.domains()) == before
    assert old.txn_version("app") == 1
    assert (old.version, old.metadata) == (1, metadata())
    assert sorted(before[0]["path"].to_pylist()) == ["a", "b"]
    assert old.files("x = 1").read_all().num_rows == 2


def test_reader_opened_before_a_commit_gives_its_version(catalog: Catalog) -> None:
    create(catalog, "t", A, B)
    reader = catalog.snapshot("t").files()
    commit(catalog, remove(A))

    assert sorted(reader.read_all()["path"].to_pylist()) == ["a", "b"]


def test_files_are_arrow_with_all_that_their_adds_say(catalog: Catalog) -> None:
    tagged = add("b", tags={"k": None}, stats=None, base_row_id=3, extra={"new": [1]})
    partitioned = metadata(schema(x="long", p="string"), partitions=["p"])
    create(catalog, "plain", A, tagged)
    create(catalog, "t", add("p=1/a", partition={"p": "1"}), meta=partitioned)

    files = catalog.snapshot("plain").files().read_all()
    assert files.schema == FILES_SCHEMA
    rows = files.to_pylist()
    assert {r["path"]: add_from_row(tuple(r.values())) for r in rows} == {
        "a": A,
        "b": tagged,
    }
    assert [(r["num_records"], r["added_version"]) for r in rows] == [(1, 0), (None, 0)]
    (row,) = catalog.snapshot("t").files().read_all().to_pylist()
    assert json.loads(row["partition_values"]) == {"p": "1"}


def test_files_come_one_by_one_as_records(catalog: Catalog) -> None:
    meta = metadata(
        schema(x="long", p="string"), partitions=["p"], configuration={DV: "true"}
    )
    marked = add(
        "p=1/a",
        partition={"p": "1"},
        tags={"k": None},
        stats=stats(3, x=(1, 9, 0)),
        deletion_vector=vector("v"),
    )
    plain = add("b", partition={"p": None}, stats=None)
    create(catalog, "t", marked, meta=meta, features=("deletionVectors",))
    commit(catalog, plain)
    first = File(
        path="p=1/a",
        size_bytes=100,
        partition_values={"p": "1"},
        modification_time_ms=1,
        stats=marked.stats,
        num_records=3,
        tags={"k": None},
        deletion_vector={
            "storageType": "u",
            "pathOrInlineDv": "v",
            "sizeInBytes": 36,
            "cardinality": 1,
        },
        added_version=0,
    )
    second = File(
        path="b",
        size_bytes=100,
        partition_values={"p": None},
        modification_time_ms=1,
        added_version=1,
    )
    snapshot = catalog.snapshot("t")
    commit(catalog, remove(marked))

    assert sorted(snapshot.iter_files(), key=lambda f: f.added_version) == [
        first,
        second,
    ]
    assert list(snapshot.iter_files("p = '1'")) == [first]
    assert list(catalog.snapshot("t").iter_files()) == [second]
    assert File.from_dict(json.loads(json.dumps(first.to_dict()))) == first


def test_files_are_those_of_every_version(catalog: Catalog) -> None:
    model: dict[str, Add] = {}
    create(catalog)
    expected = [set(model)]
    for i in range(12):
        new = add(f"f{i}", size=i)
        gone = [model.pop(p) for p in sorted(model)[: i % 3]]
        model[new.path] = new
        commit(catalog, new, *map(remove, gone))
        expected.append(set(model))

    for version, names in enumerate(expected):
        snapshot = catalog.snapshot("t", version)
        assert set(snapshot.files().read_all()["path"].to_pylist()) == names
        check_totals(catalog, version=version)


def test_tombstones_are_those_whose_file_has_not_come_back(catalog: Catalog) -> None:
    create(catalog, "t", A, B)
    commit(catalog, remove(A, deletion_timestamp=11))
    commit(catalog, remove(B, deletion_timestamp=12))
    commit(catalog, A)

    def tombstones(version: int | None = None) -> list[tuple[str, object]]:
        found = catalog.log("t").removes(version)
        return sorted((r.path, r.deletion_timestamp) for r in found)

    assert [tombstones(v) for v in range(4)] == [
        [],
        [("a", 11)],
        [("a", 11), ("b", 12)],
        [("b", 12)],
    ]
    assert tombstones() == [("b", 12)]


def test_newest_tombstone_of_a_path_counts(catalog: Catalog) -> None:
    create(catalog, "t", A)
    commit(catalog, remove(A, deletion_timestamp=11))
    commit(catalog, A)
    commit(catalog, remove(A, deletion_timestamp=13))

    assert [r.deletion_timestamp for r in catalog.log("t").removes()] == [13]
    assert [r.deletion_timestamp for r in catalog.log("t").removes(1)] == [11]


@pytest.mark.parametrize("version", [-1, 2, 10**9, 2**62])
def test_version_that_does_not_exist_is_refused(catalog: Catalog, version: int) -> None:
    create(catalog, "t", A)
    commit(catalog, B)

    expected = rf"t: there is no version {version}; the catalog holds 0 to 1"
    with pytest.raises(VersionNotFoundError, match=expected):
        catalog.snapshot("t", version)
    for ask in ("state", "adds", "removes", "txns", "domains", "commit"):
        with pytest.raises(VersionNotFoundError):
            list(getattr(catalog.log("t"), ask)(version))


def test_second_connection_sees_the_commit(catalog: Catalog, catalog_uri: str) -> None:
    create(catalog, "t", A)

    with dk.connect(catalog_uri) as other:
        commit(catalog, B)
        assert paths(other) == ["a", "b"]
        commit(other, remove(A))
    assert paths(catalog) == ["b"]


def test_catalog_keeps_its_tables_when_it_is_closed(catalog_uri: str) -> None:
    with dk.connect(catalog_uri) as first:
        create(first, "t", A)
        before = (first.table("t"), live(first))

    with dk.connect(catalog_uri) as second:
        assert (second.table("t"), live(second)) == before


# History


@pytest.fixture
def audited(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """Four versions, a second apart."""
    steps = [
        (operation("CREATE TABLE"), A),
        (operation("WRITE", operationMetrics={"numFiles": "1"}), B),
        (operation("DELETE", operationParameters={"p": '["x"]'}), remove(A)),
        (operation("WRITE", userMetadata="nightly", engineInfo="me 1"), add("c")),
    ]
    for second, actions in enumerate(steps, start=1):
        monkeypatch.setattr(
            "delkalakedb.catalog.commit.ratify.time.time", lambda at=second: at
        )
        if second == 1:
            catalog.commit(creation("t", *actions))
        else:
            commit(catalog, *actions)
    return catalog


def history(catalog: Catalog, **filters: object) -> list[int]:
    return [c.version for c in catalog.snapshot("t").history(**filters)]


def test_history_is_newest_first_and_ends_at_the_snapshot(audited: Catalog) -> None:
    assert history(audited) == [3, 2, 1, 0]
    assert [c.version for c in audited.snapshot("t", 1).history()] == [1, 0]


@pytest.mark.parametrize(
    ("filters", "versions"),
    [
        ({"limit": 2}, [3, 2]),
        ({"limit": 0}, []),
        ({"limit": 99}, [3, 2, 1, 0]),
        ({"since_ms": 2000}, [3, 2, 1]),
        ({"since_ms": 2001}, [3, 2]),
        ({"until_ms": 2000}, [1, 0]),
        ({"since_ms": 2000, "until_ms": 3000}, [2, 1]),
        ({"since_ms": 5000}, []),
        ({"operation": "WRITE"}, [3, 1]),
        ({"operation": "WRITE", "limit": 1}, [3]),
        ({"operation": "MERGE"}, []),
        ({"operation": "WRITE", "until_ms": 3000}, [1]),
        ({"actor": "nobody at all"}, []),
        ({"actor": "' OR 1=1 --"}, []),
    ],
)
def test_history_is_filtered(
    audited: Catalog, filters: dict[str, object], versions: list[int]
) -> None:
    assert history(audited, **filters) == versions


def test_history_is_filtered_by_any_name_of_the_actor(audited: Catalog) -> None:
    (entry,) = audited.snapshot("t").history(1)
    names = [entry.db_user, entry.os_user, entry.host, entry.client]

    assert entry.os_user == getpass.getuser()
    assert entry.client is not None
    assert entry.client.startswith("delkalakedb/")
    for name in filter(None, names):
        assert history(audited, actor=name) == [3, 2, 1, 0]


def test_history_says_what_was_done_and_how_much(audited: Catalog) -> None:
    write, delete, second, first = audited.snapshot("t").history()

    assert (write.user_metadata, write.engine_info) == ("nightly", "me 1")
    assert delete.operation_parameters == {"p": '["x"]'}
    assert (delete.num_removed_files, delete.removed_bytes) == (1, 10)
    assert (delete.is_blind_append, second.is_blind_append) == (False, True)
    assert second.operation_metrics == {"numFiles": "1"}
    assert (second.num_added_files, second.added_bytes) == (1, 20)
    assert (first.operation, first.read_version) == ("CREATE TABLE", None)
    assert (write.read_version, write.isolation_level) == (2, "Serializable")
    assert [c.timestamp_ms for c in (first, second, delete, write)] == [
        1000,
        2000,
        3000,
        4000,
    ]
    assert write.commit_info["txnId"] == write.transaction_id
    assert Commit.from_dict(json.loads(json.dumps(write.to_dict()))) == write
