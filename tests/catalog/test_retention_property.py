"""Any history: whatever expires, what is kept stays as it was."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from delkalakedb import Catalog
from delkalakedb.catalog.commit.outcome import Conflicted
from delkalakedb.catalog.read.retention import expire_versions
from delkalakedb.errors import VersionNotFoundError
from delkalakedb.model.actions import Metadata, known
from delkalakedb.model.log import Staged
from delkalakedb.model.rules.conflicts import Rule
from tests.support.actions import mirrored
from tests.support.examples import examples
from tests.support.histories import Model, Writers, outcomes_of

DAY_MS = 86_400_000
TOMBSTONES = "delta.deletedFileRetentionDuration"
# Long after every commit of a test.
LATER_MS = 100_000 * DAY_MS
checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def view(catalog: Catalog, name: str, version: int, tombstones_ms: int) -> Any:
    """All that the catalog says of a version, in a form that compares."""
    log, at = catalog.log(name), catalog.snapshot(name, version)
    unexpired = [
        r for r in log.removes(version) if (r.deletion_timestamp or 0) > tombstones_ms
    ]
    (commit,) = at.history(1)
    return (
        at.table,
        at.protocol,
        at.metadata,
        _sorted(log.adds(version)),
        _sorted(unexpired),
        log.txns(version),
        log.domains(version),
        log.commit(version),
        commit,
        [
            _sorted(at.files(where).read_all()["path"].to_pylist())
            for where in ("x < 4", "x = 5", "x IS NULL")
        ],
    )


def _sorted(items: Any) -> list[Any]:
    return sorted(items, key=repr)


def kept_for(staged: Staged, interval: str) -> Staged:
    """The creation of a table that keeps its tombstones for an interval."""
    actions = [
        msgspec.structs.replace(
            action,
            configuration={**(known(action.configuration) or {}), TOMBSTONES: interval},
        )
        if isinstance(action, Metadata)
        else action
        for action in staged.actions
    ]
    return Staged(staged.table, actions, location=staged.location)


def go_on(catalog: Catalog, model: Model, staged: Sequence[Staged]) -> None:
    """Commit, as the model says or, if it read what has expired, not at all."""
    floors = {name: catalog.log(name).head().first_version for name in model.tables}
    outcome = catalog._try_commit(*staged)
    if isinstance(outcome, Conflicted) and outcome.rule == Rule.READ_EXPIRED:
        assert any(c.reads.version < floors[c.table] for c in staged)
        return
    found, expected = outcomes_of(outcome), model.ratify(*staged)
    if found[0][0] != "committed":
        # Which version is named may depend on what has expired.
        found, expected = ([(o[0], 0, o[2]) for o in os] for os in (found, expected))
    assert found == expected


def expiries(
    catalog: Catalog, model: Model, data: st.DataObject
) -> Iterator[tuple[str, int]]:
    for name, table in model.tables.items():
        newest = table.version
        mirrored(catalog, newest, data.draw(st.integers(-1, newest)))
        before = data.draw(st.integers(0, newest))
        options = {"before_version": before, "now_ms": LATER_MS}
        yield name, expire_versions(catalog._backend, name, **options).floor


@settings(max_examples=examples(4), suppress_health_check=checks)
@given(st.data())
def test_kept_versions_of_any_history_are_as_they_were(
    catalog: Catalog, data: st.DataObject
) -> None:
    model = Model()
    writers = Writers(model, data.draw)
    keep = data.draw(st.sampled_from(["interval 1 day", "interval 30000 weeks"]))
    tombstones_ms = LATER_MS - (1 if keep == "interval 1 day" else 210_000) * DAY_MS
    for _ in range(2):
        go_on(catalog, model, [kept_for(writers.create(), keep)])
    for _ in range(2):
        for _ in range(4):
            go_on(catalog, model, writers.transaction())
        oldest = {n: catalog.log(n).head().first_version for n in model.tables}
        before = {
            (name, v): view(catalog, name, v, tombstones_ms)
            for name, table in model.tables.items()
            for v in range(oldest[name], table.version + 1)
        }
        for name, floor in expiries(catalog, model, data):
            for v in range(floor, model.tables[name].version + 1):
                assert view(catalog, name, v, tombstones_ms) == before[name, v]
            for v in range(floor):
                with pytest.raises(VersionNotFoundError):
                    catalog.snapshot(name, v)
