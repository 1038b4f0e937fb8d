"""Custom metadata of a commit never replaces what the commit says of itself."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties

import delkalakedb as dk
from delkalakedb.errors import CommitPropertiesError
from delkalakedb.settings.uri import format_uri, parse_uri

ROWS = pa.table({"id": [1, 2]})
RESERVED: dict[str, Any] = {
    "engineInfo": "mine",
    "inCommitTimestamp": 5,
    "isBlindAppend": True,
    "isolationLevel": "Serializable",
    "operation": "WRITE",
    "operationMetrics": {"n": 1},
    "operationParameters": {"n": 1},
    "participants": [],
    "readVersion": 0,
    "timestamp": 5,
    "txnId": "mine",
}
OF_THE_CATALOG = ("inCommitTimestamp", "isBlindAppend", "participants", "txnId")
Call = Callable[[dk.DeltaTable, CommitProperties], Any]
UPKEEP: dict[str, Call] = {
    "restore": lambda t, p: t.restore(0, commit_properties=p),
    "repair": lambda t, p: t.repair(commit_properties=p),
    "repair dry": lambda t, p: t.repair(dry_run=True, commit_properties=p),
    "vacuum": lambda t, p: t.vacuum(dry_run=False, commit_properties=p),
}
BY_DELTA_RS: dict[str, Call] = {
    "append": lambda t, p: deltalake.write_deltalake(
        t, ROWS, mode="append", commit_properties=p
    ),
    "delete": lambda t, p: t.delete("id = 1", commit_properties=p),
    "update": lambda t, p: t.update({"id": "3"}, commit_properties=p),
    "merge": lambda t, p: (
        t.merge(ROWS, "s.id = t.id", "s", "t", commit_properties=p)
        .when_matched_delete()
        .execute()
    ),
    "compact": lambda t, p: t.optimize.compact(commit_properties=p),
    "alter": lambda t, p: t.alter.set_table_name("n", commit_properties=p),
}


def make(catalog_uri: str) -> str:
    """Make a table of two versions."""
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    for _ in range(2):
        dk.write_deltalake(uri, ROWS, mode="append")
    return uri


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """A table in SQLite: which keys are reserved doesn't depend on the engine."""
    return make(f"deltasql://sqlite/{tmp_path}/meta.db")


def test_reserved_key_is_refused_where_the_catalog_writes_the_commit(
    catalog_uri: str,
) -> None:
    uri = make(catalog_uri)
    for call in UPKEEP.values():
        for key, value in RESERVED.items():
            with pytest.raises(CommitPropertiesError, match=f"'{key}'"):
                call(dk.DeltaTable(uri), CommitProperties({"why": "so", key: value}))
    assert dk.DeltaTable(uri).version() == 1


def test_metadata_that_deltalake_refuses_is_refused(uri: str) -> None:
    plain = deltalake.DeltaTable(dk.DeltaTable(uri).table_uri)
    odd: Any = [[("a", 1)], {1: "a"}, {"a": math.nan}, {"a": object()}, {"userId": 1}]
    for given in odd:
        for table in (plain, dk.DeltaTable(uri)):
            for call in (UPKEEP["restore"], BY_DELTA_RS["append"]):
                with pytest.raises(ValueError, match=r"ies\.custom_metadata"):
                    call(table, CommitProperties(given))


def test_key_of_the_catalog_is_refused_in_every_call_and_transaction(
    uri: str,
) -> None:
    new = format_uri(parse_uri(uri).with_table("new"))
    schema = deltalake.Schema.from_arrow(ROWS.schema)
    for key in OF_THE_CATALOG:
        given = CommitProperties({key: RESERVED[key]})
        for call in BY_DELTA_RS.values():
            with pytest.raises(CommitPropertiesError, match=key):
                call(dk.DeltaTable(uri), given)
        with pytest.raises(CommitPropertiesError, match=key):
            dk.write_deltalake(new, ROWS, commit_properties=given)
        with pytest.raises(CommitPropertiesError, match=key):
            dk.DeltaTable.create(new, schema, commit_properties=given)
        with dk.transaction(parse_uri(uri).catalog) as tx:
            with pytest.raises(CommitPropertiesError, match=key):
                tx.delete("t", "id = 1", commit_properties=given)
            with pytest.raises(CommitPropertiesError, match=key):
                tx.write("new", ROWS, commit_properties=given)
    assert dk.DeltaTable(uri).version() == 1
    assert not dk.DeltaTable.is_deltatable(new)


def test_what_deltalake_takes_is_taken_and_says_the_same(
    uri: str, tmp_path: Path
) -> None:
    plain = str(tmp_path / "plain")
    for _ in range(2):
        deltalake.write_deltalake(plain, ROWS, mode="append")
    free = {"userName": "u", "userId": "i", "userMetadata": "m", "clientVersion": "c"}
    free |= {"nested": {"a": [1, None, True]}, "tags": "x"}
    merged = {"operationParameters": {"mine": 7}, "readVersion": 15}
    calls = [(call, {**free, **merged}) for call in BY_DELTA_RS.values()]
    for call, given in [*calls, (UPKEEP["restore"], free)]:
        said = []
        for table in (dk.DeltaTable(uri), deltalake.DeltaTable(plain)):
            call(table, CommitProperties(given))
            info = table.history(1)[0]
            said.append({key: info[key] for key in given})
        assert said[0] == said[1]
