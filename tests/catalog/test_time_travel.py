"""A table as it was at a version or at a time."""

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from delkalakedb import Catalog
from delkalakedb.errors import DeltaError, TableNotFoundError, VersionNotFoundError
from tests.support.actions import add, commit, create, paths, remove
from tests.support.examples import examples

TIMES = [10_000, 20_000, 20_001, 35_000]


@pytest.fixture
def travelled(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """Four versions at `TIMES`, each with one file, named after it."""
    for version, now_ms in enumerate(TIMES):
        now = now_ms / 1000
        monkeypatch.setattr(
            "delkalakedb.catalog.commit.ratify.time.time", lambda at=now: at
        )
        if version == 0:
            create(catalog, "t", add("f0"))
        else:
            commit(catalog, add(f"f{version}"), remove(add(f"f{version - 1}")))
    return catalog


def at(catalog: Catalog, timestamp_ms: int) -> int:
    return catalog.snapshot("t", timestamp_ms=timestamp_ms).version


@pytest.mark.parametrize(
    ("timestamp_ms", "version"),
    [
        (10_000, 0),
        (19_999, 0),
        (20_000, 1),
        (20_001, 2),
        (34_999, 2),
        (35_000, 3),
        (2**53, 3),
    ],
)
def test_timestamp_gives_the_newest_version_that_is_not_newer(
    travelled: Catalog, timestamp_ms: int, version: int
) -> None:
    snapshot = travelled.snapshot("t", timestamp_ms=timestamp_ms)

    assert snapshot.version == version
    assert snapshot.files().read_all()["path"].to_pylist() == [f"f{version}"]
    assert travelled.log("t").version_at(timestamp_ms) == version


@pytest.mark.parametrize("timestamp_ms", [9_999, 0, -1])
def test_timestamp_before_the_first_commit_is_refused(
    travelled: Catalog, timestamp_ms: int
) -> None:
    with pytest.raises(VersionNotFoundError, match="the oldest is version 0"):
        at(travelled, timestamp_ms)


def test_timestamp_of_an_unknown_table_is_refused(catalog: Catalog) -> None:
    with pytest.raises(TableNotFoundError):
        catalog.snapshot("nope", timestamp_ms=1)


def test_every_version_has_its_own_files(travelled: Catalog) -> None:
    for version in range(4):
        assert paths(travelled, version=version) == [f"f{version}"]
        assert travelled.snapshot("t", version).table.timestamp_ms == TIMES[version]


def test_timestamps_of_two_tables_do_not_mix(travelled: Catalog) -> None:
    create(travelled, "u", add("g"))

    with pytest.raises(VersionNotFoundError):
        travelled.snapshot("u", timestamp_ms=20_000)
    assert at(travelled, 20_000) == 1


@settings(
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.integers(9_000, 40_000))
def test_any_timestamp_agrees_with_a_search_through_all(
    travelled: Catalog, timestamp_ms: int
) -> None:
    expected = max((v for v, t in enumerate(TIMES) if t <= timestamp_ms), default=None)

    if expected is None:
        with pytest.raises(VersionNotFoundError):
            at(travelled, timestamp_ms)
    else:
        assert at(travelled, timestamp_ms) == expected


@pytest.mark.parametrize("version", [2**63 - 1, 2**63, 2**80])
def test_version_beyond_all_numbers_is_not_there(
    travelled: Catalog, version: int
) -> None:
    with pytest.raises(VersionNotFoundError, match=f"no version {version}"):
        travelled.snapshot("t", version)
    assert len(travelled.snapshot("t").history(version)) == 4


def test_version_and_time_at_once_are_refused(catalog: Catalog) -> None:
    create(catalog, "t")

    with pytest.raises(DeltaError, match="a version or a timestamp, not both"):
        catalog.snapshot("t", 0, timestamp_ms=0)
