"""Commits that bypassed the catalog: noticed, adopted or discarded."""

import hashlib
import shutil
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.catalog.commit.outbox import Outbox
from delkalakedb.errors import (
    CodecError,
    MirrorError,
    ProtocolError,
    StorageError,
    TableNotFoundError,
    UriError,
)
from delkalakedb.mirror.foreign import (
    ForeignCommit,
    adopt,
    find_foreign,
)
from delkalakedb.mirror.publisher.publication import publish
from delkalakedb.model.actions import Action, CommitInfo, UnknownAction, encode_commit
from delkalakedb.model.log import Staged
from delkalakedb.model.paths import commit_path
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader
from delkalakedb.write.engines.deltars.workspace import DeltaRs
from delkalakedb.write.operation import Operation, Target
from tests.support.actions import (
    add,
    commit,
    create,
    metadata,
    paths,
    protocol,
    remove,
    schema,
)
from tests.support.integrity import check_integrity
from tests.support.logs import view, write_history

HINT = "_delta_log/_last_checkpoint"


class Watched:
    """A store that counts its requests, and breaks down at one of them."""

    def __init__(self, store: Store, breaks_at: int | None = None) -> None:
        self.requests: list[str] = []
        self._store = store
        self._breaks_at = breaks_at

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        return partial(self._ask, value) if callable(value) else value

    def _ask(self, request: Callable[..., Any], *arguments: Any) -> Any:
        if len(self.requests) == self._breaks_at:
            raise StorageError("the store broke down")
        self.requests.append(request.__name__)
        return request(*arguments)


@pytest.fixture
def uri(catalog_uri: str) -> str:
    """A table `t` with rows 0 and 1 in two versions, published."""
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    for i in range(2):
        dk.write_deltalake(uri, rows(i), mode="append")
    return uri


@pytest.fixture
def location(catalog: Catalog, uri: str) -> str:
    return catalog.table("t").location


@pytest.fixture
def store(location: str) -> Store:
    return open_store(location)


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64()), "name": [f"n{i}" for i in ids]})


def write_theirs(location: str, *ids: int, **options: Any) -> None:
    deltalake.write_deltalake(location, rows(*ids), **{"mode": "append", **options})


def write_entry(store: Store, version: int, *actions: Action) -> bytes:
    """A commit made by hand; its bytes."""
    data = encode_commit(actions)
    assert store.put_new(commit_path(version), data)
    return data


def ratify_ours(catalog: Catalog, *names: str) -> None:
    """Ratify a commit for each file, and publish none."""
    for name in names:
        commit(catalog, add(name))


def made_by_hand(catalog: Catalog, *actions: Action, **options: Any) -> Store:
    """A table `t` in memory whose first version is published."""
    location = f"memory:///{uuid.uuid4().hex}"
    create(catalog, "t", *actions, location=location, **options)
    publish(catalog, "t")
    return open_store(location)


def state(catalog: Catalog) -> tuple[str, str | None]:
    mirror = Outbox(catalog._backend).load("t")
    return mirror.state, mirror.last_error


def set_diverged(catalog: Catalog) -> None:
    outbox = Outbox(catalog._backend)
    outbox.mark_diverged(outbox.load("t"), "a foreign commit")


def assert_same(catalog: Catalog, location: str, uri: str | None = None) -> None:
    """The catalog, the log and deltalake have the same versions, files and rows."""
    sql, log = catalog.log("t"), FileTxnLogReader(open_store(location))
    assert sql.latest_version() == log.latest_version()
    assert catalog._mirror_state("t")[0] == sql.latest_version()
    for version in range(sql.latest_version() + 1):
        assert view(sql, version) == view(log, version)
        assert same(sql.commit(version), log.commit(version))
        plain = deltalake.DeltaTable(location, version=version)
        sizes = pa.table(plain.get_add_actions()).to_pylist()
        assert {(a.path, a.size) for a in sql.adds(version)} == {
            (file["path"], file["size_bytes"]) for file in sizes
        }
    if uri is not None:
        assert ids(dk.DeltaTable(uri)) == ids(deltalake.DeltaTable(location))
    check_integrity(catalog)


def same(left: Iterable[Action], right: Iterable[Action]) -> bool:
    return sorted(map(repr, left)) == sorted(map(repr, right))


def ids(table: deltalake.DeltaTable) -> list[int]:
    return sorted(table.to_pyarrow_table()["id"].to_pylist())


# ---- noticed


def test_log_without_foreign_commits_costs_one_listing(
    catalog: Catalog, store: Store, uri: str
) -> None:
    watched = Watched(store)

    assert find_foreign(catalog, "t", watched) == ()
    assert watched.requests == ["list"]


def test_foreign_commits_are_found_with_what_they_did(
    catalog: Catalog, store: Store, location: str
) -> None:
    write_theirs(location, 2)
    deltalake.DeltaTable(location).delete("id = 0")

    found = find_foreign(catalog, "t", store)

    assert [(c.version, c.operation) for c in found] == [(2, "WRITE"), (3, "DELETE")]
    meta = store.head(commit_path(2))
    assert meta is not None
    assert found[0] == ForeignCommit(2, meta.path, "WRITE", meta.last_modified_ms)


def test_our_commit_that_was_never_marked_is_not_foreign(catalog: Catalog) -> None:
    store = made_by_hand(catalog)
    ratify_ours(catalog, "a")
    store.put_new(commit_path(1), encode_commit(catalog.log("t").commit(1)))
    write_entry(store, 2, CommitInfo({"operation": "theirs"}), add("b"))

    assert [c.version for c in find_foreign(catalog, "t", store)] == [2]

    assert adopt(catalog, table="t", store=store) == (2,)
    assert paths(catalog) == ["a", "b"]
    assert catalog._mirror_state("t")[:2] == (2, 2)


def test_entry_with_a_transaction_id_of_another_version_is_foreign(
    catalog: Catalog,
) -> None:
    store = made_by_hand(catalog)
    ratify_ours(catalog, "a", "b")
    store.put_new(commit_path(1), encode_commit(catalog.log("t").commit(2)))

    assert [c.version for c in find_foreign(catalog, "t", store)] == [1]


def test_foreign_commits_are_followed_up_to_a_gap(catalog: Catalog) -> None:
    store = made_by_hand(catalog)
    for version in (1, 2, 4):
        write_entry(store, version, add(f"f{version}"))

    assert [c.version for c in find_foreign(catalog, "t", store)] == [1, 2]
    assert adopt(catalog, table="t", store=store) == (1, 2)


# ---- adopted


def test_commits_of_deltalake_are_adopted_and_ours_go_on_top(
    catalog: Catalog, store: Store, location: str, uri: str
) -> None:
    write_theirs(location, 2, 3)
    deltalake.DeltaTable(location).delete("id = 0")
    deltalake.DeltaTable(location).optimize.compact()
    write_theirs(location, 4)
    set_diverged(catalog)

    assert adopt(catalog, table="t", store=store) == (2, 3, 4, 5)

    assert state(catalog) == ("published", None)
    assert_same(catalog, location, uri)
    operations = [c.operation for c in catalog.snapshot("t").history()]
    assert operations == ["WRITE", "OPTIMIZE", "DELETE", "WRITE", "WRITE", "WRITE"]
    dk.write_deltalake(uri, rows(5), mode="append")
    assert ids(deltalake.DeltaTable(location)) == [1, 2, 3, 4, 5]
    assert_same(catalog, location, uri)
    assert find_foreign(catalog, "t", store) == ()


def test_overwrite_with_another_schema_and_checkpoint_is_adopted(
    catalog: Catalog, store: Store, location: str, uri: str
) -> None:
    wider = rows(7).append_column("more", pa.array([1.5]))
    deltalake.write_deltalake(
        location, wider, mode="overwrite", schema_mode="overwrite"
    )
    deltalake.DeltaTable(location).create_checkpoint()
    deltalake.DeltaTable(location).alter.set_table_properties(
        {"delta.appendOnly": "true"}, raise_if_not_exists=False
    )

    assert adopt(catalog, table="t", store=store) == (2, 3)

    assert_same(catalog, location, uri)
    table = catalog.table("t")
    assert "more" in table.schema_string
    assert table.configuration["delta.appendOnly"] == "true"
    dk.write_deltalake(uri, wider, mode="append")
    assert ids(deltalake.DeltaTable(location)) == [7, 7]


def test_everything_that_deltalake_does_is_adopted(
    catalog: Catalog, tmp_path: Path
) -> None:
    """A history's first version is ours, and all that came after is theirs."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    write_history(str(theirs))
    first = FileTxnLogReader(open_store(str(theirs))).commit(0)
    catalog.commit(Staged("t", first, location=open_store(str(ours)).url))
    publish(catalog, "t")
    entry = ours / commit_path(0)
    published = entry.read_bytes()
    shutil.copytree(theirs, ours, dirs_exist_ok=True)
    entry.write_bytes(published)

    assert adopt(catalog, table="t", store=open_store(str(ours))) == tuple(range(1, 10))

    assert_same(catalog, str(ours))


def test_hash_of_the_file_is_kept(catalog: Catalog) -> None:
    store = made_by_hand(catalog)
    data = write_entry(store, 1, add("a"))

    adopt(catalog, table="t", store=store)

    with catalog._backend.reading() as session:
        sql = "SELECT published_sha256 FROM dl_table_versions WHERE version = 1"
        assert session.query_sql(sql, {}) == [(hashlib.sha256(data).hexdigest(),)]


def test_nothing_is_adopted_from_a_feature_on_that_is_refused(catalog: Catalog) -> None:
    store = made_by_hand(catalog)
    set_diverged(catalog)
    write_entry(store, 1, add("fine"))
    write_entry(store, 2, protocol("adaptiveMetadata-preview"))
    write_entry(store, 3, add("after"))

    for _ in range(2):
        with pytest.raises(
            ProtocolError, match=r"version 2 .*adaptiveMetadata-preview"
        ):
            adopt(catalog, table="t", store=store)
        assert paths(catalog) == ["fine"]
        assert catalog._mirror_state("t")[:2] == (1, 1)
        assert state(catalog)[0] == "diverged"


def test_entry_that_is_no_commit_is_named(catalog: Catalog) -> None:
    store = made_by_hand(catalog)
    store.put_new(commit_path(1), b'{"add": 7}\n')

    (found,) = find_foreign(catalog, "t", store)
    assert found.operation is None
    with pytest.raises(CodecError, match=commit_path(1)):
        adopt(catalog, table="t", store=store)


def test_strange_commits_are_adopted_word_for_word(catalog: Catalog) -> None:
    store = made_by_hand(catalog, add("a"), add("b"))
    commits = [
        [add("c", extra={"new": {"deep": [1, None]}}), UnknownAction("novel", [1])],
        [remove(add("never")), remove(add("a"), extra={"why": "x"})],
        [CommitInfo({"timestamp": 1, "strange": {"readVersion": []}})],
        [],
        [metadata(schema(x="long", s="string", z="date"), extra={"k": None})],
    ]
    for version, actions in enumerate(commits, start=1):
        write_entry(store, version, *actions)

    assert adopt(catalog, table="t", store=store) == (1, 2, 3, 4, 5)

    log = catalog.log("t")
    for version, actions in enumerate(commits, start=1):
        assert same(log.commit(version), actions)
    assert {r.path for r in log.removes()} == {"never", "a"}
    check_integrity(catalog)


def test_nothing_to_adopt_ends_the_alarm(catalog: Catalog) -> None:
    store = made_by_hand(catalog)
    set_diverged(catalog)

    assert adopt(catalog, table="t", store=store) == ()
    assert state(catalog) == ("published", None)


def test_ratified_version_in_the_way_is_named_with_what_to_do(
    catalog: Catalog, location: str, store: Store
) -> None:
    write_theirs(location, 9)
    ratify_ours(catalog, "ours")

    with pytest.raises(MirrorError, match=r"version 2 is ratified .* discard"):
        adopt(catalog, table="t", store=store)

    assert catalog._mirror_state("t")[:2] == (1, 2)
    assert len(find_foreign(catalog, "t", store)) == 1


def test_adoption_and_our_append_at_once_leave_one_history(
    catalog: Catalog, location: str, store: Store
) -> None:
    with ThreadPoolExecutor(2) as pool:
        for turn in range(5):
            version = catalog.table("t").version + 1
            write_theirs(location, turn)
            adopting = pool.submit(adopt, catalog, table="t", store=store)
            ours = pool.submit(commit, catalog, add(f"ours-{turn}")).result()

            if isinstance(adopting.exception(), MirrorError):
                assert ours.version == version
                adopt(catalog, table="t", store=store, discard=True)
            else:
                assert adopting.result() == (version,)
                assert ours.version == version + 1
            publish(catalog, "t")
            assert_same(catalog, location)


# ---- discarded


def test_discarded_commits_make_room_for_ours(
    catalog: Catalog, location: str, store: Store, uri: str
) -> None:
    write_theirs(location, 8)
    write_theirs(location, 9, mode="overwrite")
    deltalake.DeltaTable(location).create_checkpoint()
    theirs = [store.get(commit_path(version)) for version in (2, 3)]
    theirs.insert(1, store.get(f"_delta_log/{3:020}.checkpoint.parquet"))
    data_files = {m.path for m in store.list() if not m.path.startswith("_delta_log")}
    stage_ours(catalog)
    set_diverged(catalog)

    copies = adopt(catalog, table="t", store=store, discard=True)

    assert [store.get(copy) for copy in copies] == theirs
    digests = [hashlib.sha256(data).hexdigest()[:16] for data in theirs]
    assert copies == (
        f"_delta_log/_discarded/{2:020}.{digests[0]}.json",
        f"_delta_log/_discarded/{3:020}.{digests[1]}.checkpoint.parquet",
        f"_delta_log/_discarded/{3:020}.{digests[2]}.json",
    )
    assert not store.exists(HINT)
    assert data_files < {m.path for m in store.list()}
    assert state(catalog) == ("pending", None)
    publish(catalog, "t")
    assert ids(deltalake.DeltaTable(location)) == [0, 1, 5]
    assert_same(catalog, location, uri)
    assert adopt(catalog, table="t", store=store, discard=True) == ()


def stage_ours(catalog: Catalog) -> None:
    """Ratify an append of row 5, and don't publish it."""
    data, read = rows(5), catalog.snapshot("t")
    write = {"data": data.to_reader(), "batch_schema": data.schema, "mode": "append"}
    operation = Operation("append", DeltaRs(lambda raw: raw.write(**write)))
    catalog.commit(*operation.stage(Target.at(read)).staged())


def test_discard_leaves_our_own_checkpoints_and_hint(catalog: Catalog) -> None:
    store = made_by_hand(catalog)
    ratify_ours(catalog, "a")
    store.put_new(commit_path(1), encode_commit(catalog.log("t").commit(1)))
    ours = {
        f"_delta_log/{0:020}.checkpoint.parquet": b"ours",
        f"_delta_log/{1:020}.crc": b"{}",
        HINT: b'{"version":0,"size":2}',
    }
    for path, data in ours.items():
        store.put(path, data)
    before = {m.path for m in store.list("_delta_log")}
    write_entry(store, 2, add("theirs"))
    store.put(f"_delta_log/{2:020}.crc", b"{}")
    store.put(f"_delta_log/{0:020}.{2:020}.compacted.json", b"")
    store.put(f"_delta_log/{2:020}.checkpoint.{1:010}.{1:010}.parquet", b"part")

    copies = adopt(catalog, table="t", store=store, discard=True)

    assert len(copies) == 4
    assert {m.path for m in store.list("_delta_log")} == before | {*copies}
    assert {path: store.get(path) for path in ours} == ours


def test_copy_is_verified_before_anything_goes(catalog: Catalog) -> None:
    store = made_by_hand(catalog)
    data = write_entry(store, 1, add("a"))
    (copy,) = adopt(catalog, table="t", store=store, discard=True)
    store.put_new(commit_path(1), data)
    store.put(copy, b"something else")

    with pytest.raises(MirrorError, match=r"differs from .*; nothing is deleted"):
        adopt(catalog, table="t", store=store, discard=True)

    assert store.get(commit_path(1)) == data


def test_discard_cut_short_at_any_request_is_finished_by_the_next(
    catalog: Catalog,
) -> None:
    store = made_by_hand(catalog)
    ratify_ours(catalog, "ours")
    breaks_at = 0
    while True:
        theirs = {write_entry(store, v, add(f"{v}-{breaks_at}")) for v in (1, 2, 3)}
        store.put(f"_delta_log/{2:020}.checkpoint.parquet", b"2")
        store.put(HINT, b'{"version":2}')
        try:
            adopt(catalog, table="t", store=Watched(store, breaks_at), discard=True)
            break
        except StorageError:
            left = FileTxnLogReader(store).versions()
            assert left == list(range(len(left)))
            # Nor does the hint point to what isn't there.
            assert not store.exists(HINT) or len(left) == 4
            adopt(catalog, table="t", store=store, discard=True)
        kept = {store.get(m.path) for m in store.list("_delta_log/_discarded")}
        assert theirs <= kept
        breaks_at += 1

    assert breaks_at > 15
    publish(catalog, "t")
    assert FileTxnLogReader(store).commit(1) == catalog.log("t").commit(1)


# ---- by URI


def test_uri_of_a_table_adopts_or_discards(
    catalog: Catalog, location: str, uri: str
) -> None:
    write_theirs(location, 2)
    assert adopt(uri) == (2,)

    write_theirs(location, 3)
    (copy,) = adopt(uri, discard=True)
    assert isinstance(copy, str)
    assert open_store(location).exists(copy)
    assert ids(deltalake.DeltaTable(location)) == ids(dk.DeltaTable(uri)) == [0, 1, 2]


def test_uri_without_a_table_is_refused(catalog_uri: str, uri: str) -> None:
    with pytest.raises(UriError, match="table"):
        adopt(catalog_uri)
    with pytest.raises(TableNotFoundError, match="nobody"):
        adopt(format_uri(parse_uri(catalog_uri).with_table("nobody")))
