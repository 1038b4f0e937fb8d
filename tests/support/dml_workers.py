"""Processes that do something to a table of `operations` and are killed at it."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import delkalakedb as dk
from delkalakedb.catalog import catalog as opened
from delkalakedb.catalog.commit.ratify import SqlTxnLogWriter, Transaction
from delkalakedb.settings.uri import Uri, parse_uri
from delkalakedb.write.engines.deltars import workspace as runner
from delkalakedb.write.files import _LocalFiles
from tests.support.mirror_workers import LEASE_S, Steps
from tests.support.operations import begun, data, write_and_delete

# In the order in which they come.
IN_WORKSPACE = [
    "before bring",
    "after bring",
    "before _commits",
    "before rename",
    "after rename",
    "before rmtree",
    "after rmtree",
]
IN_PLACE = ["before put", "after put"]
RATIFYING = ["before _attempt", "after _lock", "after _write"]
RATIFIED = [
    "after _attempt",
    "before put_new json",
    "before link json",
    "after link json",
    "after put_new json",
    "after set_modified json",
    "after put_new crc",
    "before mark_published",
    "after mark_published",
]


# Settings by which few rows are marked as deleted, in files of deletion vectors.
MARKING = {
    "DELKALAKEDB_VECTORS__MODE": "always",
    "DELKALAKEDB_VECTORS__INLINE_BYTES": "0",
}


# The steps of a delete that is united with another one, each with the number of times
# that it comes before.
UNITING = [("before put", 1), ("after put", 1), ("after _lock", 1), ("after _write", 0)]


class DmlSteps(Steps):
    """Counts what happens before publishing, too."""

    def __init__(self, step: str, times: int = 1) -> None:
        super().__init__((step, times), signal.SIGKILL)
        self._wrap(_LocalFiles, "bring")
        self._wrap(_LocalFiles, "put")
        self._wrap(runner, "_commits")
        self._wrap(os, "rename")
        self._wrap(shutil, "rmtree")
        self._wrap(SqlTxnLogWriter, "_attempt")
        self._wrap(Transaction, "_lock")
        self._wrap(Transaction, "_write")


def run_until_killed(
    ready: Connection, uri: str, name: str, step: str | None, settings: dict[str, str]
) -> None:
    """Run an operation, and die at one of its steps or when the test kills it."""
    os.environ.update({**settings, "DELKALAKEDB_MIRROR__LEASE": str(LEASE_S)})
    if name == "transaction":
        _prepare(step, ready)
        transact(uri)
    else:
        with begun(uri, name) as run:
            _prepare(step, ready)
            run()
    if step is None:
        signal.pause()


def unite_until_killed(ready: Connection, uri: str, step: str, earlier: int) -> None:
    """Delete rows of one file on two handles, and die while the deletes are united."""
    os.environ.update(MARKING)
    stale = dk.DeltaTable(uri)
    dk.DeltaTable(uri).delete("id = 2")
    DmlSteps(step, earlier + 1)
    ready.send(None)
    stale.delete("id = 0")


def transact(uri: str) -> None:
    """Change a table and create one beside it, both or neither."""
    parsed = parse_uri(uri)
    name = parsed.table or ""
    with dk.transaction(parsed.catalog) as tx:
        write_and_delete(tx, name)
        tx.write(beside(parsed).table or "", data([(0, 0)]), partition_by="part")


def beside(uri: Uri) -> Uri:
    """The table that a transaction creates."""
    return uri.with_table(f"{uri.table}-too")


@contextmanager
def visiting(uri: str) -> Iterator[None]:
    """Use a catalog for a while: DuckDB serves one process after the other."""
    catalog = opened.open_catalog(parse_uri(uri))
    try:
        yield
    finally:
        catalog.close()
        opened._opened.clear()


def _prepare(step: str | None, ready: Connection) -> None:
    if step is not None:
        DmlSteps(step)
    ready.send(None)
