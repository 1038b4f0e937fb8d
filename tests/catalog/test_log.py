"""The catalog and the log it publishes tell the same of every version."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from delkalakedb import Catalog
from delkalakedb.errors import VersionNotFoundError
from delkalakedb.mirror.publisher.publication import publish
from delkalakedb.model.actions import CommitInfo, UnknownAction
from delkalakedb.model.log import TxnLogReader
from delkalakedb.storage import open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader
from tests.support.actions import (
    DV,
    add,
    cdc,
    check_totals,
    commit,
    create,
    domain,
    metadata,
    protocol,
    remove,
    schema,
    stats,
    txn,
    vector,
)
from tests.support.examples import examples
from tests.support.histories import Model, Writers

FEATURES = ("deletionVectors", "domainMetadata", "appendOnly", "invariants")


def answers(log: TxnLogReader, version: int | None) -> dict[str, Any]:
    """All that a log says of a version."""
    return {
        "state": log.state(version),
        "adds": sorted(log.adds(version), key=repr),
        "removes": sorted(log.removes(version), key=repr),
        "txns": log.txns(version),
        "domains": log.domains(version),
    }


def check_published(catalog: Catalog, name: str) -> None:
    """Publish a table, and compare its log with the catalog's at every version."""
    publish(catalog, name)
    sql = catalog.log(name)
    log = FileTxnLogReader(open_store(catalog.table(name).location))
    latest = sql.latest_version()
    assert log.latest_version() == latest
    for version in range(latest + 1):
        assert answers(sql, version) == answers(log, version)
        assert sql.commit(version) == log.commit(version)
        timestamp_ms = sql.state(version).timestamp_ms
        assert sql.version_at(timestamp_ms) == log.version_at(timestamp_ms) == version
        check_totals(catalog, name, version)
    assert answers(sql, None) == answers(log, None)


def test_every_kind_of_commit_is_the_same_in_the_log(
    catalog: Catalog, tmp_path: Path
) -> None:
    a, b = add("a", size=1), add("b", stats=None, tags={"k": None}, extra={"new": [1]})
    marked = add("a", deletion_vector=vector("v"))
    meta = metadata(configuration={DV: "true"})
    location = str(tmp_path / "table")
    create(catalog, "t", a, b, meta=meta, features=FEATURES, location=location)
    commit(catalog, remove(a), marked, cdc("_change_data/c"), txn("app", 2))
    commit(catalog, add("b", stats=stats(2)), domain("d", "1"))
    commit(catalog, domain("d", "1", removed=True), txn("app", 1))
    commit(catalog, metadata(schema(x="long", y="date"), configuration={DV: "true"}))
    commit(catalog, add("c"), CommitInfo({"operation": "OVERWRITE"}), remove_all=True)
    commit(catalog, b, UnknownAction("novel", {"deep": [None, {"k": 1.5}]}))
    commit(catalog, protocol(*FEATURES, "v2Checkpoint"))
    commit(catalog)

    check_published(catalog, "t")


def test_in_commit_timestamps_are_the_same_in_the_log(
    catalog: Catalog, tmp_path: Path
) -> None:
    features = ("inCommitTimestamp", "rowTracking", "domainMetadata")
    create(catalog, "t", add("a"), features=features, location=str(tmp_path / "t"))
    commit(catalog, add("b"))
    meta = metadata(configuration={"delta.enableInCommitTimestamps": "true"})
    commit(catalog, meta, add("c"))
    commit(catalog, remove(add("a")))

    check_published(catalog, "t")


def test_version_that_does_not_exist_is_refused_by_both(
    catalog: Catalog, tmp_path: Path
) -> None:
    create(catalog, "t", add("a"), location=str(tmp_path / "t"))
    publish(catalog, "t")

    readers: list[TxnLogReader] = [
        catalog.log("t"),
        FileTxnLogReader(open_store(catalog.table("t").location)),
    ]
    for log in readers:
        for version in (1, -1):
            with pytest.raises(VersionNotFoundError):
                log.state(version)
        with pytest.raises(VersionNotFoundError):
            log.version_at(0)


@settings(
    max_examples=examples(5),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_random_history_is_the_same_in_the_log(
    catalog: Catalog, tmp_path: Path, data: st.DataObject
) -> None:
    model = Model()
    writers = Writers(model, data.draw, tmp_path)
    for first in (writers.create(), writers.create()):
        catalog.commit(first)
        model.ratify(first)
    for _ in range(8):
        staged = writers.transaction()
        catalog._try_commit(*staged)
        model.ratify(*staged)

    for name in model.tables:
        check_published(catalog, name)
