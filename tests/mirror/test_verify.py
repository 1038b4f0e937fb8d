"""Verify: a mirror as it was published has no difference, and reports read well."""

import dataclasses
import json
import sys
import time
import tracemalloc
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import delkalakedb as dk
from delkalakedb.errors import StorageError, TableNotFoundError
from delkalakedb.mirror.checkpoint.checkpoint import (
    write_checkpoint,
    write_last_checkpoint,
)
from delkalakedb.mirror.publisher.publication import publish
from delkalakedb.mirror.verify.comparison import as_written, compare
from delkalakedb.mirror.verify.verification import Report, verify, verify_table
from delkalakedb.model.actions import Add, encode_commit
from delkalakedb.model.paths import checksum_path, commit_path
from delkalakedb.storage import ObjectMeta, Store, open_store
from delkalakedb.storage.log.lookahead import read_ahead
from delkalakedb.storage.log.segment import LogFiles
from tests.support.actions import add, commit, create, creation, metadata
from tests.support.faults import Answer, FaultStore
from tests.support.mirrors import CHECKPOINT, CHECKPOINT_PATH, LAST, file, fill

# The function hides the module of that name.
verifying = sys.modules["delkalakedb.mirror.verify.verification"]


# ---- agreement


@pytest.mark.parametrize("deep", [False, True])
def test_mirror_as_it_was_published_has_no_difference(
    published: dk.Catalog, store: Store, deep: bool
) -> None:
    report = verify_table(published, "t", store, deep=deep)

    assert report == Report("t", LAST, LAST, LAST + 1 if deep else 1)
    assert report.ok


def test_mirror_has_no_difference_on_any_engine(catalog: dk.Catalog) -> None:
    store = fill(catalog)

    assert verify_table(catalog, "t", store).ok
    report = verify_table(catalog, "t", store, deep=True)
    assert report.ok, str(report)


def test_checkpoint_that_is_made_meanwhile_is_no_difference(
    catalog: dk.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = fill(catalog)
    listed = verifying.list_log

    def list_first(given: Store) -> LogFiles:
        files = listed(given)
        monkeypatch.undo()
        checkpoint = write_checkpoint(catalog, "t", LAST, store, 0)
        write_last_checkpoint(store, checkpoint)
        return files

    monkeypatch.setattr(verifying, "list_log", list_first)

    report = verify_table(catalog, "t", store, deep=True)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.checkpoint.writeStatsAsStruct": "true"},
        {
            "delta.checkpoint.writeStatsAsStruct": "true",
            "delta.checkpoint.writeStatsAsJson": "false",
        },
        {"delta.checkpoint.writeStatsAsJson": "false"},
        {"delta.deletedFileRetentionDuration": "interval 0 days"},
        {"delta.setTransactionRetentionDuration": "interval 0 days"},
    ],
    ids=lambda properties: " ".join(p.split(".")[-1] for p in properties),
)
@pytest.mark.parametrize("deep", [False, True])
def test_checkpoint_that_keeps_less_has_no_difference(
    tmp_path: Path, properties: dict[str, str], deep: bool
) -> None:
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        store = fill(catalog, **properties)
        report = verify_table(catalog, "t", store, deep=deep)

    assert report.ok, str(report)


def test_log_that_begins_at_a_checkpoint_has_no_difference(
    published: dk.Catalog, store: Store
) -> None:
    for version in range(CHECKPOINT):
        store.delete(commit_path(version))
        store.delete(checksum_path(version))

    report = verify_table(published, "t", store, deep=True)

    assert report == Report("t", LAST, LAST, LAST - CHECKPOINT + 1)


def test_mirror_that_lags_has_no_difference(catalog: dk.Catalog) -> None:
    store = fill(catalog)
    commit(catalog, file(7))

    report = verify_table(catalog, "t", store, deep=True)

    assert report == Report("t", LAST + 1, LAST, LAST + 1)


@pytest.mark.parametrize("deep", [False, True])
def test_commit_that_is_published_but_not_marked_has_no_difference(
    catalog: dk.Catalog, deep: bool
) -> None:
    store = fill(catalog)
    commit(catalog, file(7))
    store.put(commit_path(7), encode_commit(catalog.log("t").commit(7)))

    report = verify_table(catalog, "t", store, deep=deep)

    assert (report.ok, report.published_version) == (True, LAST)


@pytest.mark.parametrize("deep", [False, True])
def test_table_that_was_never_published_has_no_difference(
    catalog: dk.Catalog, deep: bool
) -> None:
    location = f"memory:///{uuid.uuid4().hex}"
    catalog.commit(creation("t", location=location))

    report = verify_table(catalog, "t", open_store(location), deep=deep)

    assert report == Report("t", 0, -1, 0)


def test_store_that_is_out_of_reach_is_an_error(
    published: dk.Catalog, store: Store
) -> None:
    with pytest.raises(StorageError, match="injected"):
        verify_table(published, "t", FaultStore(store, 0, refused=1.0))


def test_table_that_is_not_in_the_catalog_is_an_error(
    published: dk.Catalog, store: Store
) -> None:
    with pytest.raises(TableNotFoundError):
        verify_table(published, "nowhere", store)


# ---- requests


class SlowStore(FaultStore):
    """A store whose every answer takes a while; counts what it is asked."""

    def __init__(self, store: Store, delay_s: float = 0.02) -> None:
        super().__init__(store, 0)
        self._wait_s = delay_s
        self._now = 0
        self.asked: Counter[str] = Counter()
        self.at_once = 0

    def _ask(self, path: str, request: Callable[[], Answer]) -> Answer:
        with self._lock:
            self.asked[path] += 1
            self._now += 1
            self.at_once = max(self.at_once, self._now)
        time.sleep(self._wait_s)
        try:
            return request()
        finally:
            with self._lock:
                self._now -= 1


def test_deep_check_reads_each_entry_once_and_many_at_a_time(
    catalog: dk.Catalog,
) -> None:
    store, versions = SlowStore(fill(catalog)), 40
    for number in range(LAST + 1, versions):
        commit(catalog, file(number))
        store.store.put(f"part {number}", bytes(100 + number))
    publish(catalog, "t")

    report = verify_table(catalog, "t", store, deep=True)

    assert report == Report("t", versions - 1, versions - 1, versions)
    for path in (commit_path, checksum_path):
        assert {store.asked[path(version)] for version in range(versions)} == {1}
    assert 8 < store.at_once <= 32


@pytest.mark.parametrize("policy", ["classic", "v2"])
def test_deep_check_reads_each_checkpoint_once_and_many_at_a_time(
    catalog: dk.Catalog, policy: str
) -> None:
    each = {"delta.checkpointInterval": "1", "delta.checkpointPolicy": policy}
    features = ["v2Checkpoint"] if policy == "v2" else []
    store = SlowStore(open_store(f"memory:///{uuid.uuid4().hex}"))
    create(
        catalog,
        meta=metadata(configuration=each),
        features=features,
        location=store.store.url,
    )
    versions = 20
    for number in range(1, versions):
        commit(catalog, file(number))
        store.store.put(f"part {number}", bytes(100 + number))
        publish(catalog, "t")

    report = verify_table(catalog, "t", store, deep=True)

    assert report.ok, str(report)
    asked = {p: n for p, n in store.asked.items() if "checkpoint." in p}
    newest = max(asked)
    del asked[newest]
    assert len(asked) >= versions - 3
    assert set(asked.values()) == {1}
    assert 8 < store.at_once <= 32


def test_deep_check_reads_once_what_only_the_replay_needs(
    catalog: dk.Catalog,
) -> None:
    """Versions that the catalog has expired are still in the log's tail."""
    store = SlowStore(fill(catalog), delay_s=0)
    store.store.delete(CHECKPOINT_PATH)
    store.store.delete("_delta_log/_last_checkpoint")
    with catalog._backend.writing() as session:
        session.script(["UPDATE dl_tables SET first_version = 2"])

    report = verify_table(catalog, "t", store, deep=True)

    assert {store.asked[commit_path(version)] for version in range(LAST + 1)} == {1}
    assert report == Report("t", LAST, LAST, LAST - 1)


def test_read_ahead_holds_no_more_than_a_few_large_objects() -> None:
    store = SlowStore(open_store(f"memory:///{uuid.uuid4().hex}"), delay_s=0)
    store.store.put("x", b"x")
    large = [ObjectMeta("x", 16_000_000, 0)] * 100

    with closing(read_ahead(store, large)) as found:
        assert next(found).result() == b"x"
        time.sleep(0.05)
        assert store.asked["x"] <= 4
    assert store.asked["x"] <= 4


# ---- reports


def test_differences_past_the_limit_are_counted_no_further(
    published: dk.Catalog, store: Store
) -> None:
    for version in range(1, LAST + 1):
        store.delete(commit_path(version))

    report = verify_table(published, "t", store, deep=True, limit=2)

    assert (len(report.differences), report.complete) == (2, False)
    assert str(report).endswith("\n  ... and more")


def test_report_says_what_differs_in_text_and_in_json(
    published: dk.Catalog, store: Store
) -> None:
    store.delete("part 0")

    report = verify_table(published, "t", store, deep=True)

    assert str(report) == (
        "t: 1 difference (ratified 6, published 6, versions checked: 7)\n"
        "  version 6: part 0 is live but isn't in the store"
    )
    values = json.loads(json.dumps(report.to_dict()))
    assert values.pop("ok") is False
    (difference,) = report.differences
    assert values.pop("differences") == [dataclasses.asdict(difference)]
    assert values == {
        "table": "t",
        "ratified_version": 6,
        "published_version": 6,
        "versions_checked": 7,
        "complete": True,
    }


def test_uri_of_a_table_gives_its_report_and_of_a_catalog_one_for_each(
    catalog_uri: str, tmp_path: Path
) -> None:
    with dk.connect(catalog_uri) as catalog:
        for name in ("a", "b"):
            catalog.commit(creation(name, location=f"{tmp_path}/{name}"))
        publish(catalog, "b")
    mark = "&" if "?" in catalog_uri else "?"

    assert verify(f"{catalog_uri}{mark}table=b", deep=True) == Report("b", 0, 0, 1)
    assert verify(catalog_uri) == [Report("a", 0, -1, 0), Report("b", 0, 0, 1)]


def test_comparison_keeps_neither_side() -> None:
    def actions(count: int, odd: int) -> Iterator[Add]:
        for number in range(count):
            yield add(f"f{number}", size=1 if number == odd else 2)

    tracemalloc.start()
    found = list(
        compare(
            0,
            "_delta_log",
            lambda: actions(5_000, -1),
            lambda: actions(5_000, 3_000),
            as_written,
        )
    )
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert [d.what for d in found] == ["add f3000: size"]
    assert peak_bytes < 1_500_000
