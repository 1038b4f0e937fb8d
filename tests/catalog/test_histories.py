"""Random histories: the catalog and a model in memory agree at every version."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from delkalakedb import Catalog
from delkalakedb.catalog.read.sql_log import SqlTxnLogReader
from delkalakedb.model.actions import UNSET, Action, CommitInfo, Remove, dv_id
from tests.support.examples import examples
from tests.support.histories import Model, Table, Writers, outcomes_of

checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


def undated(action: Action) -> Action:
    """The action without the time of an overwrite, which only the catalog knows."""
    if isinstance(action, Remove) and action.extended_file_metadata:
        return msgspec.structs.replace(action, deletion_timestamp=UNSET)
    return action


def check_commit(log: SqlTxnLogReader, version: int, expected: Any) -> None:
    info, *actions = log.commit(version)
    assert isinstance(info, CommitInfo)
    assert sorted(map(undated, actions), key=repr) == sorted(expected, key=repr)


def check_version(catalog: Catalog, name: str, version: int, table: Table) -> None:
    log, state = catalog.log(name), table.states[version]
    at = catalog.snapshot(name, version)
    adds = {(file.path, dv_id(file)): file for file in log.adds(version)}
    removes = {(r.path, dv_id(r)): undated(r) for r in log.removes(version)}
    assert (at.protocol, at.metadata) == (state.protocol, state.metadata)
    assert adds == state.adds
    assert removes == state.removes
    assert log.txns(version) == state.txns
    assert log.domains(version) == state.domains
    sizes = [file.size for file in state.adds.values()]
    assert (at.table.num_files, at.table.size_bytes) == (len(sizes), sum(sizes))
    check_commit(log, version, table.commits[version])


def run(catalog: Catalog, data: st.DataObject, steps: int) -> None:
    """Commit what the writers stage, to the catalog and to the model alike."""
    model = Model()
    writers = Writers(model, data.draw)
    first = [writers.create(), writers.create()]
    assert outcomes_of(catalog._try_commit(*first)) == model.ratify(*first)
    for _ in range(steps):
        staged = writers.transaction()
        assert outcomes_of(catalog._try_commit(*staged)) == model.ratify(*staged)
    for name, table in model.tables.items():
        assert catalog.table(name).version == table.version
        for version in range(table.version + 1):
            check_version(catalog, name, version, table)


@settings(max_examples=examples(15), suppress_health_check=checks)
@given(st.data())
def test_history_of_several_writers_is_what_the_model_says(
    catalog: Catalog, data: st.DataObject
) -> None:
    run(catalog, data, steps=8)


@pytest.mark.soak
@settings(max_examples=300, suppress_health_check=checks)
@given(st.data())
def test_long_history_of_several_writers_is_what_the_model_says(
    catalog: Catalog, data: st.DataObject
) -> None:
    run(catalog, data, steps=25)
