"""Retention: expired versions go, and what is kept stays as it was."""

import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.catalog.commit.outcome import Committed, Conflicted, Skipped
from delkalakedb.catalog.read.retention import Expired, expire_versions
from delkalakedb.errors import (
    CommitFailedError,
    TableNotFoundError,
    VersionNotFoundError,
)
from delkalakedb.model.actions import known
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.rules.conflicts import Rule
from tests.support.actions import (
    add,
    attempt,
    cdc,
    commit,
    create,
    domain,
    metadata,
    mirrored,
    paths,
    protocol,
    remove,
    schema,
    stats,
    txn,
)
from tests.support.processes import CHILDREN
from tests.support.workers import expire_and_die

DAY_MS = 86_400_000
TOMBSTONES = "delta.deletedFileRetentionDuration"
# Long after every commit of a test that doesn't set the clock.
LATER_MS = 100_000 * DAY_MS
COUNTED = (
    "dl_table_versions",
    "dl_metadata",
    "dl_protocols",
    "dl_txns",
    "dl_domains",
    "dl_cdc_files",
    "dl_files",
    "dl_number_stats",
    "dl_text_stats",
)


def days(
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    count: int = 10,
    **configuration: str,
) -> None:
    """A version a day, each with a file in the place of the one before, published."""
    for day in range(count):
        monkeypatch.setattr("time.time", lambda at=day: at * DAY_MS / 1000)
        given = metadata(schema(x="long", s="string"), configuration=configuration)
        bounds = stats(1, x=(day, day, 0), s=("a", "b", 0))
        file = add(f"f{day}", stats=bounds)
        if day == 0:
            create(catalog, "t", file, meta=given)
        else:
            gone = remove(add(f"f{day - 1}"), deletion_timestamp=day * DAY_MS)
            commit(catalog, gone, file)
    mirrored(catalog, count - 1, count - 1)


def expire(catalog: Catalog, day: float, **options: Any) -> Expired:
    return expire_versions(catalog._backend, "t", now_ms=int(day * DAY_MS), **options)


def counts(catalog: Catalog) -> dict[str, int]:
    with catalog._backend.reading() as session:
        return {
            name: session.query_sql(f"SELECT count(*) FROM {name}", {})[0][0]
            for name in COUNTED
        }


def test_versions_past_the_log_retention_go(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(catalog, monkeypatch)

    expired = expire(catalog, 36.5)

    assert expired == Expired("t", floor=6, versions=6, files=5, stats=12)
    assert [c.version for c in catalog.snapshot("t").history()] == [9, 8, 7, 6]
    assert [paths(catalog, version=v) for v in range(6, 10)] == [
        [f"f{v}"] for v in range(6, 10)
    ]
    assert counts(catalog) == {
        "dl_table_versions": 4,
        "dl_metadata": 1,
        "dl_protocols": 1,
        "dl_txns": 0,
        "dl_domains": 0,
        "dl_cdc_files": 0,
        "dl_files": 5,
        "dl_number_stats": 4,
        "dl_text_stats": 4,
    }


def test_expired_versions_are_not_found(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(catalog, monkeypatch)
    expire(catalog, 36)

    with pytest.raises(VersionNotFoundError, match="holds 6 to 9"):
        catalog.snapshot("t", 5)
    with pytest.raises(VersionNotFoundError, match="holds 6 to 9"):
        catalog.log("t").commit(5)
    with pytest.raises(VersionNotFoundError, match="the oldest is version 6"):
        catalog.snapshot("t", timestamp_ms=6 * DAY_MS - 1)
    assert catalog.snapshot("t", timestamp_ms=6 * DAY_MS).version == 6


def test_expiring_again_drops_nothing(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(catalog, monkeypatch)
    expire(catalog, 36)
    before = counts(catalog)

    assert expire(catalog, 36.9) == Expired("t", 6, 0, 0, 0)
    assert expire(catalog, 20) == Expired("t", 6, 0, 0, 0)
    assert counts(catalog) == before


def test_dry_run_says_what_would_go_and_drops_nothing(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(catalog, monkeypatch)
    before = counts(catalog)

    expired = expire(catalog, 36, dry_run=True)

    assert counts(catalog) == before
    assert paths(catalog, version=0) == ["f0"]
    assert expired == expire(catalog, 36)


def test_more_can_be_kept_than_the_log_retention_promises_but_not_less(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(catalog, monkeypatch)

    for options, floor in (
        ({}, 8),
        ({"before_version": 3}, 3),
        ({"before_version": 9}, 8),
        ({"before_version": -5}, 0),
        ({"older_than_ms": 35 * DAY_MS}, 3),
        ({"older_than_ms": 0}, 8),
        ({"older_than_ms": 1000 * DAY_MS}, 0),
        ({"older_than_ms": 33 * DAY_MS, "before_version": 4}, 4),
    ):
        assert expire(catalog, 38.5, dry_run=True, **options).floor == floor, options


def test_floor_stays_below_what_the_mirror_needs(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(catalog, monkeypatch)

    for published, checkpoint, floor in (
        (9, 9, 9),
        (7, 9, 7),
        (9, 4, 4),
        (9, -1, 0),
        (-1, -1, 0),
        (4, 3, 3),
    ):
        mirrored(catalog, published, checkpoint)
        assert expire(catalog, 1000, dry_run=True).floor == floor


def test_table_whose_log_is_kept_for_ever_keeps_its_versions(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(catalog, monkeypatch, **{"delta.enableExpiredLogCleanup": "false"})

    assert expire(catalog, 1000, before_version=5) == Expired("t", 0, 0, 0, 0)


def test_tombstones_stay_until_they_expire(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(catalog, monkeypatch, **{TOMBSTONES: "interval 32 days"})

    expire(catalog, 36.5)
    kept = {r.path for r in catalog.log("t").removes(6)}
    assert kept == {"f4", "f5"}
    assert counts(catalog)["dl_number_stats"] == 4

    assert expire(catalog, 37.4, before_version=6) == Expired("t", 6, 0, 1, 0)
    assert {r.path for r in catalog.log("t").removes(6)} == {"f5"}


def test_tombstone_of_a_file_that_came_back_goes(catalog: Catalog) -> None:
    create(catalog, "t", add("a"))
    commit(catalog, remove(add("a"), deletion_timestamp=LATER_MS))
    commit(catalog, add("a"))
    commit(catalog, remove(add("a"), deletion_timestamp=5))
    commit(catalog, add("b"))
    mirrored(catalog, 4, 4)

    expire_versions(catalog._backend, "t", now_ms=LATER_MS)

    assert list(catalog.log("t").removes(4)) == []


def test_newest_state_at_the_floor_stays(catalog: Catalog) -> None:
    features = ["domainMetadata", "appendOnly"]
    create(catalog, "t", txn("a", 1), domain("d", "1"), features=features)
    commit(catalog, metadata(description="one"), protocol(*features, "invariants"))
    commit(catalog, txn("a", 2), domain("d", "2"), txn("b", 1), cdc("c2"))
    commit(catalog, metadata(description="three"), domain("e", "1"))
    commit(catalog, txn("a", 9), domain("d", "4", removed=True), cdc("c4"))
    mirrored(catalog, 4, 4)

    expire_versions(catalog._backend, "t", now_ms=LATER_MS, before_version=3)

    at = catalog.snapshot("t", 3)
    assert (at.metadata.description, at.txn_version("a"), at.txn_version("b")) == (
        "three",
        2,
        1,
    )
    assert "invariants" in (known(at.protocol.writer_features) or ())
    assert {n: d.configuration for n, d in at.domains().items()} == {"d": "2", "e": "1"}
    assert set(catalog.snapshot("t").domains()) == {"e"}
    found = counts(catalog)
    assert (found["dl_metadata"], found["dl_protocols"]) == (1, 1)
    assert (found["dl_txns"], found["dl_domains"], found["dl_cdc_files"]) == (3, 3, 1)


def test_other_tables_keep_their_rows(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(catalog, "u", add("f", stats=stats(1, x=(1, 1, 0))))
    commit(catalog, remove(add("f")), table="u")
    days(catalog, monkeypatch)

    expire(catalog, 1000)

    assert paths(catalog, "u", 0) == ["f"]
    assert catalog.snapshot("u", 0).files("x = 1").read_all().num_rows == 1


def test_unknown_table_is_refused(catalog: Catalog) -> None:
    with pytest.raises(TableNotFoundError, match="nowhere"):
        catalog.expire("nowhere")


def test_catalog_expires_by_the_clock(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(catalog, monkeypatch)
    monkeypatch.setattr("time.time", lambda: 38 * DAY_MS / 1000)

    assert catalog.expire("t", timedelta(days=35), dry_run=True).floor == 3
    assert catalog.expire("t", before_version=2).floor == 2
    assert catalog.expire("t").floor == 8


# ---- those who still hold an old version


def test_snapshot_that_expired_while_it_was_held_is_refused(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(catalog, monkeypatch)
    old, kept = catalog.snapshot("t", 3), catalog.snapshot("t", 8)
    expire(catalog, 38)

    for where in (None, "x >= 0"):
        with pytest.raises(VersionNotFoundError, match="version 3 has expired"):
            old.files(where).read_all()
        assert kept.files(where).read_all()["path"].to_pylist() == ["f8"]


def test_commit_that_read_an_expired_version_is_refused(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(catalog, monkeypatch)
    expire(catalog, 36)

    for version in (-1, 0, 5):
        read = partial(Reads, version=version)
        for staged in (
            Staged("t", [add("n")], read(whole_table=True)),
            Staged("t", [add("n"), txn("a", 1)], read(app_ids=frozenset({"a"}))),
            Staged("t", [remove(add("f9"))], read(paths=frozenset({"f9"}))),
            Staged("t", [metadata(description="new")], read()),
            Staged("t", [add("n")], read(), remove_all=True),
        ):
            outcome = catalog._try_commit(staged)
            assert isinstance(outcome, Conflicted), staged
            assert (outcome.rule, outcome.winner_version) == (Rule.READ_EXPIRED, 9)
    with pytest.raises(CommitFailedError, match="the catalog has versions 6 to 9"):
        catalog.commit(staged)


def test_append_follows_whatever_version_it_read(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(catalog, monkeypatch)
    expire(catalog, 36)

    for version in (-1, 0, 5, 6):
        outcome = attempt(catalog, add(f"new {version}"), version=version)
        assert isinstance(outcome, Committed)


def test_commit_that_read_the_floor_is_checked_as_ever(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    days(catalog, monkeypatch)
    expire(catalog, 36)

    outcome = attempt(catalog, add("n"), version=6, whole_table=True)

    assert isinstance(outcome, Conflicted)
    assert (outcome.rule, outcome.winner_version) == (Rule.CONCURRENT_APPEND, 7)


def test_application_is_still_known_after_its_commit_expired(
    catalog: Catalog,
) -> None:
    create(catalog, "t")
    for n in range(4):
        commit(catalog, txn("app", n))
    mirrored(catalog, 4, 4)
    expire_versions(catalog._backend, "t", now_ms=LATER_MS)

    replays = {
        n: attempt(catalog, txn("app", n), app_ids=frozenset({"app"})) for n in (1, 3)
    }

    assert replays == {n: Skipped("t", 4, "app") for n in (1, 3)}


def test_commits_go_on_while_versions_expire(catalog: Catalog) -> None:
    create(catalog, "t", add("first"))
    with ThreadPoolExecutor(3) as threads:
        writers = [threads.submit(replace_files, catalog, n) for n in range(2)]
        while not all(writer.done() for writer in writers):
            newest = catalog.table("t").version
            mirrored(catalog, newest, newest)
            floor = expire_versions(catalog._backend, "t", now_ms=LATER_MS).floor
            assert floor >= newest
    assert sum(writer.result() for writer in writers) == 30
    newest = catalog.table("t").version
    assert newest == 30
    mirrored(catalog, newest, newest)
    expire_versions(catalog._backend, "t", now_ms=LATER_MS)
    assert paths(catalog) == ["0-14", "1-14", "first"]
    # The last commit's remove is still there to be published.
    assert counts(catalog)["dl_files"] == 4


def replace_files(catalog: Catalog, run: int) -> int:
    """Commit 15 times, each time a file in the place of the one before."""
    for n in range(15):
        gone = [remove(add(f"{run}-{n - 1}"))] if n else []
        while isinstance(attempt(catalog, *gone, add(f"{run}-{n}")), Conflicted):
            pass
    return 15


# ---- crashes


@pytest.fixture
def long_uri(catalog_uri: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A catalog that no process has open, with a table that has expired versions."""
    with dk.connect(catalog_uri) as catalog, monkeypatch.context() as clock:
        days(catalog, clock)
    return catalog_uri


@pytest.mark.parametrize(
    ("moment", "floor"),
    [
        ("write 3", 0),
        ("write 9", 0),
        ("all written", 0),
        ("committed", 9),
    ],
)
def test_expiry_that_is_killed_dropped_all_or_nothing(
    long_uri: str, moment: str, floor: int
) -> None:
    child = CHILDREN.Process(target=expire_and_die, args=(long_uri, moment))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL

    with dk.connect(long_uri) as catalog:
        assert [c.version for c in catalog.snapshot("t").history()] == [
            *range(9, floor - 1, -1)
        ]
        for version in range(floor, 10):
            assert paths(catalog, version=version) == [f"f{version}"]
        assert catalog.expire("t") == (
            Expired("t", 9, 9, 8, 18) if floor == 0 else Expired("t", 9, 0, 0, 0)
        )
