"""A handle loads nothing before it is asked, and nothing that wasn't asked for."""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.catalog.engine.backend import Params, Row, Session, Write
from delkalakedb.catalog.engine.cache import LISTS
from delkalakedb.catalog.read import version_files as listing
from delkalakedb.catalog.read.action_rows import FILES_SCHEMA
from delkalakedb.errors import DeltaError
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.actions import add, commit, create, remove


class Heard:
    """The statements that a backend was given, in order."""

    def __init__(self, catalog: dk.Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements: list[str] = []
        backend = catalog._backend
        reading, batches = backend.reading, backend.batches

        @contextmanager
        def heard_reading() -> Iterator[Session]:
            with reading() as session:
                yield _HeardSession(session, self.statements)

        def heard_batches(sql: str, params: Params, schema: Any) -> Any:
            self.statements.append(sql)
            return batches(sql, params, schema)

        monkeypatch.setattr(backend, "reading", heard_reading)
        monkeypatch.setattr(backend, "batches", heard_batches)

    def since(self) -> list[str]:
        """The statements since it was last asked."""
        heard, self.statements[:] = list(self.statements), []
        return heard


class _HeardSession(Session):
    def __init__(self, session: Session, statements: list[str]) -> None:
        self.statements = session.statements
        self._session = session
        self._statements = statements

    def query(self, name: str, params: Params) -> list[Row]:
        self._statements.append(name)
        return self._session.query(name, params)

    def query_sql(self, sql: str, params: Params) -> list[Row]:
        self._statements.append(sql)
        return self._session.query_sql(sql, params)

    def apply(self, writes: Sequence[Write]) -> None:
        self._session.apply(writes)

    def script(self, statements: Any) -> None:
        self._session.script(statements)


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    LISTS._reset()


@pytest.fixture
def uri(catalog: dk.Catalog, catalog_uri: str) -> str:
    """A table of three files, opened once so that the catalog is."""
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    create(catalog, "t", *(add(f"f{i}") for i in range(3)))
    dk.DeltaTable(uri)
    return uri


@pytest.fixture
def heard(catalog: dk.Catalog, uri: str, monkeypatch: pytest.MonkeyPatch) -> Heard:
    """What is asked of the database once the table is there."""
    return Heard(catalog, monkeypatch)


def columns(statement: str) -> set[str]:
    """The columns of files that a statement names before its first FROM."""
    head = statement[: statement.index("FROM")]
    return set(re.findall(r"\w+", head)) & set(FILES_SCHEMA.names)


def test_opening_loads_nothing_but_the_head(
    heard: Heard, uri: str, engine: str
) -> None:
    table = dk.DeltaTable(uri)
    table.version(), table.schema(), table.metadata(), table.protocol()
    assert table.table_uri

    # DuckDB's head is in memory: no other process can have moved it.
    assert heard.since() == ([] if engine == "duckdb" else ["load_head"])


def test_opening_an_old_version_loads_its_head(
    heard: Heard, catalog: dk.Catalog, uri: str
) -> None:
    commit(catalog, add("f3"))
    heard.since()

    dk.DeltaTable(uri, 0)

    assert heard.since() == ["load_head"]


def test_files_and_history_are_loaded_when_asked_for(heard: Heard, uri: str) -> None:
    table = dk.DeltaTable(uri)
    heard.since()

    assert len(table.file_uris()) == 3
    (files,) = heard.since()
    table.history()
    assert heard.since() == ["load_history"]
    assert columns(files) == {"path", "added_version", "file_id"}


@pytest.mark.parametrize(
    ("ask", "asked"),
    [
        (lambda t: t.file_uris(), {"path", "added_version"}),
        (lambda t: t.partitions(), {"partition_values", "added_version"}),
        (lambda t: t.count(), {"num_records"}),
    ],
    ids=["file_uris", "partitions", "count"],
)
def test_only_the_columns_that_are_needed_are_loaded(
    heard: Heard, uri: str, ask: Any, asked: set[str]
) -> None:
    table = dk.DeltaTable(uri)
    heard.since()

    ask(table)

    (files,) = heard.since()
    assert columns(files) == asked | {"file_id"}


def test_second_handle_on_a_version_loads_no_files(heard: Heard, uri: str) -> None:
    first = dk.DeltaTable(uri).get_add_actions()
    heard.since()

    table = dk.DeltaTable(uri)
    assert pa.table(table.get_add_actions()) == pa.table(first)
    assert len(table.file_uris()) == table.count() == 3

    assert set(heard.since()) <= {"load_head"}


def test_update_loads_the_head_and_then_only_what_changed(
    heard: Heard,
    catalog: dk.Catalog,
    uri: str,
    engine: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "_WORTH_COMPARING", 0)
    table = dk.DeltaTable(uri)
    before = set(table.file_uris())
    commit(catalog, remove(add("f1")))
    commit(catalog, add("f3"))
    heard.since()

    table.update_incremental()
    # Where only this process writes, it is the one that the commit made.
    assert heard.since() == ([] if engine == "duckdb" else ["load_head"])
    after = set(table.file_uris())

    assert {uri.rsplit("/")[-1] for uri in after - before} == {"f3"}
    assert {uri.rsplit("/")[-1] for uri in before - after} == {"f1"}
    since, *others = heard.since()
    assert "added_version >" in since
    assert others == ["load_files_gone", "load_version_time"]


def test_files_of_a_snapshot_come_with_the_columns_asked_for(
    catalog: dk.Catalog, uri: str
) -> None:
    snapshot = catalog.snapshot("t")

    found = snapshot.files(columns=["size_bytes", "path"]).read_all()
    assert found.column_names == ["size_bytes", "path"]
    planned = snapshot.files("x > 3", columns=["path"]).read_all()
    assert planned.column_names == ["path"]
    assert sorted(planned["path"].to_pylist()) == ["f0", "f1", "f2"]


def test_column_that_files_do_not_have_is_refused(
    catalog: dk.Catalog, uri: str
) -> None:
    with pytest.raises(DeltaError, match="no column 1; --, colour; they have path"):
        catalog.snapshot("t").files(columns=["path", "colour", "1; --"])


def test_columns_of_a_transactions_own_files_come_as_asked(
    catalog: dk.Catalog, uri: str
) -> None:
    with dk.transaction(catalog) as tx:
        tx.write("own", pa.table({"x": [1, 2]}))
        tx.write("own", pa.table({"x": [3]}), mode="append")
        table = tx.table("own")
        assert (table.count(), len(table.file_uris())) == (3, 2)
        assert dk.cache_info().entries == 0


def test_import_loads_neither_datasets_nor_pandas() -> None:
    code = (
        "import sys, delkalakedb as dk; dk.DeltaTable, dk.write_deltalake\n"
        "print({'pandas', 'pyarrow.dataset'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "set()"
