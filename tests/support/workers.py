"""What the tests' child processes do to a catalog."""

import os
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.catalog.commit.outcome import Committed, Conflicted, Skipped
from delkalakedb.catalog.engine.backend import Params, Row, Session, Write
from delkalakedb.doctor import examine
from delkalakedb.errors import CatalogNotFoundError, TableNotFoundError
from delkalakedb.model.log import Reads, Staged
from delkalakedb.settings import load_settings, parse_uri
from tests.support.actions import add, commit, create, remove, txn

PAIR = ("left", "right")
_NOBODY = 65534
_SETTINGS = load_settings(sql={"schema": "error"})


def count_tables(uri: str, _: int) -> int:
    """Make a catalog, or find it, and say how many tables it has."""
    with dk.connect(uri) as catalog:
        catalog.init()
        return len(catalog.tables())


def write_without_rights(uri: str, told: Connection) -> None:
    """Read and write as a user who may write nowhere.

    Send the tables that are seen, the kind and text of a write's error, and the checks
    of the doctor that fail.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        # Whatever must be imported is, while it still may be read.
        dk.connect(f"deltasql://sqlite/{folder}/meta.db") as catalog,
    ):
        create(catalog)
    if os.getuid() == 0:
        os.setgid(_NOBODY)
        os.setuid(_NOBODY)
    seen: list[str] = []
    failed = [c.check for c in examine(parse_uri(uri), _SETTINGS) if c.state == "fail"]
    try:
        with dk.connect(uri) as catalog:
            with suppress(CatalogNotFoundError):
                seen = [table.name for table in catalog.tables()]
            create(catalog, "new")
    except Exception as error:
        told.send((seen, type(error).__name__, str(error), failed))
    else:
        told.send((seen, "no error", "", failed))


def append(uri: str, count: int, i: int) -> dict[int, str]:
    """Append so many files to table t; the path that each version brought."""
    with dk.connect(uri) as catalog:
        names = [f"{i}-{n}" for n in range(count)]
        return {commit(catalog, add(name)).version: name for name in names}


def create_table(uri: str, i: int) -> None:
    """Create a table of its own."""
    with dk.connect(uri) as catalog:
        create(catalog, f"t{i}", add("f"))


def compact(
    uri: str, files: Sequence[str], i: int
) -> tuple[Committed | Skipped, ...] | Conflicted:
    """Put one file in the place of several, as version 0 has them."""
    with dk.connect(uri) as catalog:
        removes = [remove(add(name), data_change=False) for name in files]
        actions = [*removes, add(f"compacted-{i}", data_change=False)]
        reads = Reads(version=0, paths=frozenset(files))
        return catalog._try_commit(Staged("t", actions, reads))


def append_to_both(uri: str, count: int, i: int) -> int:
    """Append to two tables in transactions that name them in an order of its own."""
    tables = PAIR if i % 2 else PAIR[::-1]
    with dk.connect(uri) as catalog:
        for n in range(count):
            catalog.commit(*(Staged(t, [add(f"{i}-{n}")], Reads(0)) for t in tables))
    return count


def replace_file(
    catalog: Catalog, tables: Sequence[str], run: str, n: int
) -> tuple[Committed | Skipped, ...]:
    """The n-th commit of a run: its one file takes the place of the one before."""
    old = [remove(add(f"{run}-{n - 1}"))] if n else []
    actions = [*old, add(f"{run}-{n}"), txn(run, n)]
    versions = [catalog.table(table).version for table in tables]
    return catalog.commit(
        *(
            Staged(table, actions, Reads(version))
            for table, version in zip(tables, versions, strict=True)
        )
    )


def commit_forever(
    uri: str, tables: Sequence[str], run: str, acknowledge: Connection
) -> None:
    """Commit until killed, and tell the number of each commit that was made."""
    with dk.connect(uri) as catalog:
        for n in range(1_000_000):
            replace_file(catalog, tables, run, n)
            acknowledge.send(n)


def commit_and_die(uri: str, tables: Sequence[str], run: str, moment: str) -> None:
    """Make the first commit of a run, and die by SIGKILL at a moment of it."""
    with dk.connect(uri) as catalog:
        doom(catalog, moment)
        replace_file(catalog, tables, run, 0)


def expire_and_die(uri: str, moment: str) -> None:
    """Expire versions of table t, and die by SIGKILL at a moment of it."""
    with dk.connect(uri) as catalog:
        doom(catalog, moment)
        catalog.expire("t")


def doom(catalog: Catalog, moment: str) -> None:
    """Have the next transaction die by SIGKILL at a moment of it."""
    writing = catalog._backend.writing

    @contextmanager
    def doomed() -> Iterator[Session]:
        with writing() as session:
            yield _DoomedSession(session, moment)
            _die_if(moment == "all written")
        _die_if(moment == "committed")

    catalog._backend.writing = doomed  # type: ignore[method-assign]


class _DoomedSession(Session):
    """Carries out writes one by one, and dies at one of them."""

    def __init__(self, session: Session, moment: str) -> None:
        self.engine = session.engine  # type: ignore[misc]
        self.statements = session.statements
        self.made = {}
        self._session = session
        self._moment = moment
        self._written = 0

    def query(self, name: str, params: Params) -> list[Row]:
        return self._session.query(name, params)

    def query_sql(self, sql: str, params: Params) -> list[Row]:
        return self._session.query_sql(sql, params)

    def query_many(self, queries: Sequence[tuple[str, Params]]) -> list[list[Row]]:
        rows = self._session.query_many(queries)
        _die_if(self._moment == "locked")
        return rows

    def apply(self, writes: Sequence[Write]) -> None:
        for write in writes:
            _die_if(self._moment == f"write {self._written}")
            self._session.apply([write])
            # A query sends what a session has held back.
            self._session.query_sql("SELECT 1", {})
            self._written += 1

    def script(self, statements: Any) -> None:
        self._session.script(statements)


def _die_if(now: bool) -> None:
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


def append_until_gone(uri: str, told: Callable[[], object] = lambda: None) -> int:
    """Append files to table t until it has no such name; how many were."""
    count = 0
    with dk.connect(uri) as catalog:
        while True:
            try:
                commit(catalog, add(f"{os.getpid()}-{count}"))
            except TableNotFoundError:
                return count
            count += 1
            told()
