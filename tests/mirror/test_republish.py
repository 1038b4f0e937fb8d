"""Republishing: what a store has lost of a log is written again, the same bytes."""

import shutil
import signal
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.catalog.catalog import Catalog
from delkalakedb.catalog.commit.outbox import Outbox
from delkalakedb.errors import DivergedError, MirrorError, VersionNotFoundError
from delkalakedb.mirror.publisher.republication import Republished, find_loss, republish
from delkalakedb.mirror.verify.verification import verify_table
from delkalakedb.model.paths import LOG, commit_path
from delkalakedb.storage import Store
from tests.support.actions import creation, metadata
from tests.support.mirror_workers import (
    brief,
    check_mirror,
    create_lake,
    grow,
    republish_killed,
)
from tests.support.processes import CHILDREN

LAST, CHECKPOINT = 7, 5
CHECKPOINT_PATH = f"{LOG}/{CHECKPOINT:020}.checkpoint.parquet"
HINT = f"{LOG}/_last_checkpoint"
FOREIGN = b'{"commitInfo":{"operation":"WRITE"}}\n'


@pytest.fixture
def lake(catalog: Catalog, tmp_path: Path) -> Store:
    """A table of eight versions with checkpoints of 2 and 5, all of it published."""
    store = create_lake(catalog, str(tmp_path / "t"))
    for n in range(LAST):
        grow(catalog, "w", n)
    return store


def read_log(store: Store) -> dict[str, bytes]:
    return {meta.path: store.get(meta.path) for meta in store.list(LOG)}


def test_lost_entries_are_written_again_with_the_same_bytes(
    catalog: Catalog, lake: Store
) -> None:
    before = read_log(lake)
    for version in (0, 3, 4, 7):
        lake.delete(commit_path(version))

    done = republish(catalog, table="t", store=lake)

    assert done == Republished("t", (0, 3, 4, 7))
    assert read_log(lake) == before
    check_mirror(catalog)
    assert republish(catalog, table="t", store=lake) == Republished("t")


def test_log_that_is_lost_as_a_whole_is_written_again(
    catalog: Catalog, lake: Store, tmp_path: Path
) -> None:
    before = read_log(lake)
    shutil.rmtree(tmp_path / "t" / LOG)

    done = republish(catalog, table="t", store=lake)

    every = tuple(range(LAST + 1))
    assert done == Republished("t", every, (), (CHECKPOINT,), CHECKPOINT)
    after = read_log(lake)
    entries = {path for path in before if path.endswith((".json", ".crc"))}
    assert {path: after[path] for path in entries} == {p: before[p] for p in entries}
    check_mirror(catalog, checkpoint=CHECKPOINT)
    grow(catalog, "w", LAST)
    check_mirror(catalog)


def test_lost_checkpoint_is_made_again(catalog: Catalog, lake: Store) -> None:
    lake.delete(CHECKPOINT_PATH)

    done = republish(catalog, table="t", store=lake)

    assert done.checkpoints == (CHECKPOINT,)
    check_mirror(catalog, checkpoint=CHECKPOINT)


def test_lost_hint_names_the_checkpoint_that_is_there(
    catalog: Catalog, lake: Store
) -> None:
    before = read_log(lake)
    lake.delete(HINT)

    assert republish(catalog, table="t", store=lake).last_checkpoint == CHECKPOINT
    assert read_log(lake) == before


def test_entries_from_a_version_on_need_a_checkpoint_to_begin_with(
    catalog: Catalog, lake: Store, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path / "t" / LOG)

    done = republish(catalog, table="t", store=lake, from_version=6)

    assert (done.versions, done.checkpoints) == ((6, 7), (5, 6))
    assert deltalake.DeltaTable(lake.url).version() == LAST
    assert verify_table(catalog, "t", lake, deep=True).ok


@pytest.mark.parametrize("version", [-1, LAST + 1])
def test_version_that_was_never_published_is_refused(
    catalog: Catalog, lake: Store, version: int
) -> None:
    with pytest.raises(VersionNotFoundError, match="versions 0 to 7"):
        republish(catalog, version, table="t", store=lake)


def test_entry_of_someone_else_is_never_replaced(catalog: Catalog, lake: Store) -> None:
    """A writer that asked nobody went on where the log seemed to end."""
    for version in (6, 7):
        lake.delete(commit_path(version))
    lake.put(commit_path(6), FOREIGN)
    before = read_log(lake)

    with pytest.raises(DivergedError, match="Move it out of the log"):
        republish(catalog, table="t", store=lake)
    assert read_log(lake) == before


def test_entry_that_appears_meanwhile_is_never_replaced(
    catalog: Catalog, lake: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.delete(commit_path(7))
    put_new = type(lake).put_new

    def late(store: Store, path: str, data: bytes, **options: bool) -> bool:
        store.put(path, FOREIGN)
        return put_new(store, path, data, **options)

    monkeypatch.setattr(type(lake), "put_new", late)
    with pytest.raises(
        DivergedError, match="a writer that bypassed the catalog wrote it"
    ):
        republish(catalog, table="t", store=lake)
    assert lake.get(commit_path(7)) == FOREIGN


def test_entries_that_others_wrote_come_back_with_their_bytes(
    catalog_uri: str, tmp_path: Path
) -> None:
    location = str(tmp_path / "theirs")
    for number in range(3):
        data = pa.table({"x": [number]})
        deltalake.write_deltalake(location, data, mode="append")
    uri = f"{catalog_uri}{'&' if '?' in catalog_uri else '?'}table=theirs"
    dk.import_table(location, uri)
    before = {path: path.read_bytes() for path in Path(location, LOG).glob("*.json")}
    for path in before:
        path.unlink()

    assert dk.mirror.republish(uri).versions == (0, 1, 2)
    assert {path: path.read_bytes() for path in before} == before


def test_entry_whose_bytes_are_not_known_is_written_only_when_asked(
    catalog: Catalog, lake: Store
) -> None:
    """Another writer may have written the same actions in another form."""
    with catalog._backend.writing() as session:
        sql = "UPDATE dl_table_versions SET published_sha256 = 'x' WHERE version = 6"
        session.script([sql])
    for version in (4, 6):
        lake.delete(commit_path(version))

    with pytest.raises(MirrorError, match="--rewrite"):
        republish(catalog, table="t", store=lake)
    assert not lake.exists(commit_path(6))
    done = republish(catalog, table="t", store=lake, rewrite=True)

    assert (done.versions, done.rewritten) == ((6,), (6,))
    check_mirror(catalog)


def test_checkpoint_of_sidecars_is_made_again(
    catalog: Catalog, catalog_uri: str, tmp_path: Path
) -> None:
    location = str(tmp_path / "v2")
    asked = {"delta.checkpointPolicy": "v2", "delta.checkpointInterval": "2"}
    meta = metadata(configuration=asked)
    features = ("v2Checkpoint",)
    catalog.commit(creation("v2", meta=meta, features=features, location=location))
    for n in range(3):
        grow(catalog, "w", n, "v2")
    uri = f"{catalog_uri}{'&' if '?' in catalog_uri else '?'}table=v2"
    hint = Path(location, HINT).read_bytes()
    Path(location, HINT).unlink()

    assert dk.mirror.republish(uri).last_checkpoint == 3
    assert Path(location, HINT).read_bytes() == hint
    for path in Path(location, LOG).glob("*.checkpoint.*"):
        path.unlink()
    assert dk.mirror.republish(uri).checkpoints == (3,)
    assert dk.verify(uri, deep=True).ok


def test_republishing_that_was_killed_is_finished_by_the_next(
    catalog_uri: str, tmp_path: Path
) -> None:
    with brief(catalog_uri) as catalog:
        store = create_lake(catalog, str(tmp_path / "t"))
        for n in range(LAST):
            grow(catalog, "w", n)
    before = read_log(store)
    shutil.rmtree(tmp_path / "t" / LOG)
    for step in (
        ("after put_new crc", 1),
        ("after link json", 3),
        ("before put_file parquet", 1),
        ("before put _last_checkpoint", 1),
    ):
        child = CHILDREN.Process(target=republish_killed, args=(catalog_uri, step))
        child.start()
        child.join()
        assert child.exitcode == -signal.SIGKILL

    with dk.connect(catalog_uri) as catalog:
        republish(catalog, table="t", store=store)
        lost = before.keys() - read_log(store).keys()
        assert lost == {f"{LOG}/{2:020}.checkpoint.parquet"}
        check_mirror(catalog, checkpoint=CHECKPOINT)


def test_cheap_look_finds_what_is_gone_of_the_newest(
    catalog: Catalog, lake: Store
) -> None:
    mirror = Outbox(catalog._backend).load("t")
    assert find_loss(catalog, mirror, lake) is None
    entry = lake.get(CHECKPOINT_PATH)
    lake.delete(CHECKPOINT_PATH)
    assert "checkpoint of version 5" in str(find_loss(catalog, mirror, lake))
    lake.put(CHECKPOINT_PATH, entry)
    lake.delete(commit_path(LAST))
    assert commit_path(LAST) in str(find_loss(catalog, mirror, lake))
