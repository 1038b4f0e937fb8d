"""Verify: a mirror as it was published has no difference, and reports read well."""

import dataclasses
import json
import sys
import tracemalloc
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from actions import (
    add,
    commit,
    creation,
)
from faults import FaultStore
from mirrored import (
    CHECKPOINT,
    LAST,
    copied,
    file,
    fill,
)

import delkalakedb as dk
from delkalakedb.errors import StorageError, TableNotFoundError
from delkalakedb.mirror.checkpoint import write_checkpoint
from delkalakedb.mirror.checksum import checksum_path
from delkalakedb.mirror.compare import compare
from delkalakedb.mirror.forms import as_written
from delkalakedb.mirror.last_checkpoint import write_last_checkpoint
from delkalakedb.mirror.publish import publish
from delkalakedb.mirror.verify import Report, verify, verify_uri
from delkalakedb.model.actions import Add
from delkalakedb.model.codec import encode_commit
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.segment import LogFiles, commit_path

# The function hides the module of that name.
verifying = sys.modules["delkalakedb.mirror.verify"]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dk.Catalog]:
    """A catalog with the table, which no test may change."""
    folder = tmp_path_factory.mktemp("verify")
    with dk.connect(f"deltasql://sqlite/{folder}/meta.db") as catalog:
        fill(catalog)
        yield catalog


@pytest.fixture
def store(published: dk.Catalog) -> Store:
    return copied(open_store(published.table("t").location))


# ---- agreement


@pytest.mark.parametrize("deep", [False, True])
def test_mirror_as_it_was_published_has_no_difference(
    published: dk.Catalog, store: Store, deep: bool
) -> None:
    report = verify(published, "t", store, deep=deep)

    assert report == Report("t", LAST, LAST, LAST + 1 if deep else 1)
    assert report.ok


def test_mirror_has_no_difference_on_any_engine(catalog: dk.Catalog) -> None:
    store = fill(catalog)

    assert verify(catalog, "t", store).ok
    report = verify(catalog, "t", store, deep=True)
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

    report = verify(catalog, "t", store, deep=True)
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
        report = verify(catalog, "t", store, deep=deep)

    assert report.ok, str(report)


def test_log_that_begins_at_a_checkpoint_has_no_difference(
    published: dk.Catalog, store: Store
) -> None:
    for version in range(CHECKPOINT):
        store.delete(commit_path(version))
        store.delete(checksum_path(version))

    report = verify(published, "t", store, deep=True)

    assert report == Report("t", LAST, LAST, LAST - CHECKPOINT + 1)


def test_mirror_that_lags_has_no_difference(catalog: dk.Catalog) -> None:
    store = fill(catalog)
    commit(catalog, file(7))

    report = verify(catalog, "t", store, deep=True)

    assert report == Report("t", LAST + 1, LAST, LAST + 1)


@pytest.mark.parametrize("deep", [False, True])
def test_commit_that_is_published_but_not_marked_has_no_difference(
    catalog: dk.Catalog, deep: bool
) -> None:
    store = fill(catalog)
    commit(catalog, file(7))
    store.put(commit_path(7), encode_commit(catalog.log("t").commit(7)))

    report = verify(catalog, "t", store, deep=deep)

    assert (report.ok, report.published_version) == (True, LAST)


@pytest.mark.parametrize("deep", [False, True])
def test_table_that_was_never_published_has_no_difference(
    catalog: dk.Catalog, deep: bool
) -> None:
    location = f"memory:///{uuid.uuid4().hex}"
    catalog.commit(creation("t", location=location))

    report = verify(catalog, "t", open_store(location), deep=deep)

    assert report == Report("t", 0, -1, 0)


def test_store_that_is_out_of_reach_is_an_error(
    published: dk.Catalog, store: Store
) -> None:
    with pytest.raises(StorageError, match="injected"):
        verify(published, "t", FaultStore(store, 0, refused=1.0))


def test_table_that_is_not_in_the_catalog_is_an_error(
    published: dk.Catalog, store: Store
) -> None:
    with pytest.raises(TableNotFoundError):
        verify(published, "nowhere", store)


# ---- reports


def test_differences_past_the_limit_are_counted_no_further(
    published: dk.Catalog, store: Store
) -> None:
    for version in range(1, LAST + 1):
        store.delete(commit_path(version))

    report = verify(published, "t", store, deep=True, limit=2)

    assert (len(report.differences), report.complete) == (2, False)
    assert str(report).endswith("\n  ... and more")


def test_report_says_what_differs_in_text_and_in_json(
    published: dk.Catalog, store: Store
) -> None:
    store.delete("part 0")

    report = verify(published, "t", store, deep=True)

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

    assert verify_uri(f"{catalog_uri}{mark}table=b", deep=True) == Report("b", 0, 0, 1)
    assert verify_uri(catalog_uri) == [Report("a", 0, -1, 0), Report("b", 0, 0, 1)]


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
