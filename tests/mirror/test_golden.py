"""The golden rule: the catalog's snapshot is what `_delta_log` replays to."""

import time
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from delkalakedb import Catalog
from delkalakedb.mirror.checkpoint.checkpoint import write_checkpoint
from delkalakedb.mirror.publisher.publication import publish
from delkalakedb.mirror.verify.verification import verify_table
from delkalakedb.model.actions import Action, Add, Remove, dv_id
from delkalakedb.model.log import TxnLogReader
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader
from tests.support.histories import Model, Writers

NOW_MS = time.time_ns() // 1_000_000
checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def keyed(actions: Any) -> dict[tuple[str, str], Action]:
    """File actions by path and deletion vector, each of them once."""
    found: list[Add | Remove] = list(actions)
    by_key: dict[tuple[str, str], Action] = {(a.path, dv_id(a)): a for a in found}
    assert len(by_key) == len(found)
    return by_key


def view(log: TxnLogReader, version: int) -> tuple[Any, ...]:
    """All that a log says of a version, and of the commit that made it."""
    state = log.state(version)
    return (
        state.protocol,
        state.metadata,
        keyed(log.adds(version)),
        keyed(log.removes(version)),
        log.txns(version),
        log.domains(version),
        log.commit(version),
    )


def run(catalog: Catalog, data: st.DataObject, steps: int) -> None:
    """Publish a random history, and compare every version of every table."""
    model = Model()
    writers = Writers(model, data.draw, folder=f"memory:///{uuid.uuid4().hex}")
    staged = [writers.create(), writers.create()]
    for _ in range(steps):
        catalog._try_commit(*staged)
        model.ratify(*staged)
        for name in model.tables:
            if data.draw(st.booleans()):
                publish(catalog, name)
        staged = writers.transaction()
    for name in model.tables:
        publish(catalog, name)
        version = data.draw(st.integers(0, catalog.table(name).version))
        check_table(catalog, name, checkpoint=version)


def check_table(catalog: Catalog, name: str, checkpoint: int) -> None:
    version = catalog.table(name).version
    store = open_store(catalog.table(name).location)
    ours, theirs = catalog.log(name), FileTxnLogReader(store)
    assert theirs.latest_version() == version
    for at in range(version + 1):
        assert view(theirs, at) == view(ours, at)
    for add in ours.adds():
        store.put(add.path, bytes(add.size))
    check_verified(catalog, name, store, deep=True)
    write_checkpoint(catalog, name, checkpoint, store, NOW_MS)
    check_verified(catalog, name, store, deep=False)
    check_verified(catalog, name, store, deep=True)


def check_verified(catalog: Catalog, name: str, store: Store, *, deep: bool) -> None:
    report = verify_table(catalog, name, store, deep=deep)
    assert report.ok, str(report)
    assert report.published_version == report.ratified_version
    assert report.versions_checked == (report.ratified_version + 1 if deep else 1)


@settings(max_examples=6, suppress_health_check=checks)
@given(st.data())
def test_snapshot_of_the_catalog_is_the_replay_of_the_log(
    catalog: Catalog, data: st.DataObject
) -> None:
    run(catalog, data, steps=8)


@pytest.mark.soak
@settings(max_examples=300, suppress_health_check=checks)
@given(st.data())
def test_snapshot_of_a_long_history_is_the_replay_of_the_log(
    catalog: Catalog, data: st.DataObject
) -> None:
    run(catalog, data, steps=25)
