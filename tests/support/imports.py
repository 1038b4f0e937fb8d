"""What the tests of imports have in common."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import delkalakedb as dk
from delkalakedb.storage import Store, open_store
from delkalakedb.storage.log.file_log import FileTxnLogReader
from delkalakedb.storage.log.segment import list_log
from tests.support.logs import plain, view


def with_table(uri: str, name: str) -> str:
    """The URI of a table of a catalog."""
    return f"{uri}{'&' if '?' in uri else '?'}table={name}"


def assert_same_history(
    catalog: dk.Catalog, name: str, store: Store, first: int
) -> None:
    """Every version reads as the log replays to it, and every commit says the same."""
    ours, theirs = catalog.log(name), FileTxnLogReader(store)
    log = list_log(store)
    for version in range(first, log.latest + 1):
        assert view(ours, version) == view(theirs, version)
        if version in log.commits:
            assert told(ours.commit(version)) == told(theirs.commit(version))
    times = [ours.head(v).timestamp_ms for v in range(first, log.latest + 1)]
    assert times == [theirs.state(v).timestamp_ms for v in range(first, log.latest + 1)]


def told(actions: Iterable[Any]) -> list[str]:
    """What a commit says, in whatever order."""
    return sorted(json.dumps(plain(action), sort_keys=True) for action in actions)


def log_files(location: Path) -> dict[str, bytes]:
    """The log's files, byte for byte."""
    store = open_store(str(location))
    return {meta.path: store.get(meta.path) for meta in store.list("_delta_log")}
