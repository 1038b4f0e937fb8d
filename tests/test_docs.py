"""The documentation is true: its examples run and its tables match the code."""

import inspect
import logging
import re
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import duckdb
import psycopg
import pytest
from click.testing import CliRunner

import delkalakedb as dk
from delkalakedb import errors
from delkalakedb.cli.commands.root import cli
from delkalakedb.model.actions import Add, Format, Metadata, Protocol, Remove
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.rules.features import FEATURES
from delkalakedb.settings.uri import Uri, parse_uri
from delkalakedb.telemetry import log_commit
from tests.support.pages import DOCS, PAGES, SPARK_PAGES, Block, blocks

DAY_MS = 24 * 60 * 60 * 1000


def names(page: Path) -> list[str]:
    """The first cells of a page's tables, where they are one `name`."""
    return re.findall(r"^\| `(\w+)` \|", page.read_text("utf-8"), re.M)


# ---- examples


@pytest.fixture
def database_variables(postgres_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = parse_uri(postgres_uri)
    monkeypatch.setenv("DB_USER", uri.user or "")
    monkeypatch.setenv("DB_PASS", uri.password or "")
    monkeypatch.setenv("DB_HOST", uri.host or "")
    monkeypatch.setenv("DB_PORT", str(uri.port))
    monkeypatch.setenv("DB_NAME", uri.database)


@pytest.fixture
def quiet_again() -> Iterator[None]:
    """Undo what a page does to the loggers."""
    loggers = [logging.getLogger(n) for n in ("delkalakedb", "delkalakedb.commit")]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


@pytest.mark.usefixtures("database_variables", "quiet_again")
@pytest.mark.parametrize(
    "page", [p for p in PAGES if p not in SPARK_PAGES], ids=lambda page: page.name
)
def test_examples_of_the_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    for block in blocks(page):
        if block.language == "python":
            # Blank lines first, so that a traceback names the page's own line.
            code = compile("\n" * block.line + block.text, str(page), "exec")
            exec(code, namespace)
        elif block.language == "console":
            for words in commands(block, monkeypatch):
                result = CliRunner().invoke(cli, words)
                assert result.exit_code == 0, (words, result.output)


def commands(block: Block, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    for line in block.text.splitlines():
        words = shlex.split(line.removeprefix("$ "))
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            monkeypatch.setenv(name, value)
        elif words[0] == "deltasql":
            yield words[1:]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        if "://" in path:
            continue
        linked = page.parent / path if path else page
        assert linked.is_file(), target
        assert not anchor or anchor in anchors(linked), target


def anchors(page: Path) -> list[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.M)
    return [re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles]


def test_index_lists_every_page() -> None:
    listed = re.findall(r"^\| \[([\w-]+\.md)\]", (DOCS / "index.md").read_text(), re.M)

    assert sorted([*listed, "index.md"]) == sorted(p.name for p in DOCS.glob("*.md"))


# ---- the catalog's schema

SCHEMA_PAGE = DOCS / "catalog-schema.md"
COLUMNS = {
    "sqlite": (
        "SELECT m.name, c.name FROM sqlite_master m "
        "JOIN pragma_table_info(m.name) c WHERE m.type = 'table'"
    ),
    "duckdb": "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal",
    "postgres": (
        "SELECT table_name, column_name FROM information_schema.columns "
        "WHERE table_schema = 'public'"
    ),
}


def ask(uri: Uri, sql: str) -> list[tuple[object, ...]]:
    """The rows of a query as any client of the database gets them."""
    if uri.engine == "sqlite":
        with sqlite3.connect(uri.database) as database:
            found = database.execute(sql).fetchall()
        database.close()
        return found
    if uri.engine == "duckdb":
        with duckdb.connect(uri.database) as file:
            return file.execute(sql).fetchall()
    authority = f"{uri.user}:{uri.password}@{uri.host}:{uri.port}"
    with psycopg.connect(f"postgresql://{authority}/{uri.database}") as server:
        server.execute("SET search_path TO public")
        return server.execute(sql.encode()).fetchall()


def documented_columns() -> set[tuple[str, str]]:
    sections = re.split(r"^### (dl_\w+)$", SCHEMA_PAGE.read_text("utf-8"), flags=re.M)
    return {
        (table, column)
        for table, text in zip(sections[1::2], sections[2::2], strict=True)
        for column in re.findall(r"^\| `(\w+)` \| \S", text, re.M)
    }


def test_documented_columns_are_those_of_a_fresh_catalog(new_catalog_uri: str) -> None:
    with dk.connect(new_catalog_uri) as catalog:
        catalog.init()

    found = ask(parse_uri(new_catalog_uri), COLUMNS[parse_uri(new_catalog_uri).engine])
    assert {(str(t), str(c)) for t, c in found} == documented_columns()


def audited(catalog: dk.Catalog) -> None:
    """Eight versions of `sales`, two of `orders`, none of them published."""
    schema = (
        '{"type":"struct","fields":'
        '[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
    )

    def create(name: str) -> Staged:
        metadata = Metadata(
            id=name,
            format=Format(provider="parquet", options={}),
            schema_string=schema,
            partition_columns=[],
        )
        first = [Protocol(min_reader_version=1, min_writer_version=2), metadata]
        return Staged(name, first, location=f"file:///lake/{name}")

    def append(name: str, version: int) -> Staged:
        add = Add(
            path=f"{version}.parquet",
            partition_values={},
            size=100 * version,
            modification_time=DAY_MS,
            data_change=True,
        )
        return Staged(name, [add], Reads(version=version - 1))

    catalog.commit(create("sales"), create("orders"))
    for version in range(1, 7):
        catalog.commit(append("sales", version))
    remove = Remove(path="1.parquet", data_change=True, deletion_timestamp=DAY_MS)
    both = Staged("sales", [remove], Reads(version=6)), append("orders", 1)
    catalog.commit(*both)


def queries() -> list[str]:
    return [b.text for b in blocks(SCHEMA_PAGE) if b.language == "sql"]


def test_documented_queries_find_something_on_every_engine(catalog_uri: str) -> None:
    with dk.connect(catalog_uri) as catalog:
        audited(catalog)

    uri = parse_uri(catalog_uri)
    answers = [ask(uri, query) for query in queries()]

    assert len(answers) == 9
    files, changes, together, biggest, removed, lag, growth, small, dead = answers
    assert sorted(files) == [(f"{i}.parquet", 100 * i) for i in range(2, 7)]
    assert len(changes) == 10
    assert [row[1:] for row in together] == [(2, "orders", "sales")] * 2
    assert biggest[0][:2] == ("sales", 6)
    assert [(row[0], *map(int, row[2:])) for row in removed] == [("WRITE", 1, 1, 100)]
    assert [row[:2] for row in lag] == [("sales", 8), ("orders", 2)]
    assert {row[0] for row in growth} == {"sales", "orders"}
    assert sum(int(row[3]) for row in growth) == 2100
    assert [row[:2] for row in small] == [("sales", 5), ("orders", 1)]
    assert [tuple(row) for row in dead] == [("sales", 1, 100, DAY_MS)]


# ---- errors and events


def test_documented_errors_are_those_that_exist() -> None:
    assert sorted(names(DOCS / "errors.md")) == errors.__all__


def test_documented_error_tree_is_that_of_the_classes() -> None:
    (tree,) = (b for b in blocks(DOCS / "errors.md") if b.language == "text")
    parents = ["Exception"]
    for line in tree.text.splitlines():
        lead, name = re.match(r"([^A-Z]*)(\w+)", line).groups()  # type: ignore[union-attr]
        depth = len(lead) // 4
        parents[depth + 1 :] = [name]
        assert getattr(errors, name).__bases__[0].__name__ == parents[depth], name
    assert len(tree.text.splitlines()) == len(errors.__all__)
    assert tree.text in inspect.cleandoc(errors.__doc__ or "").replace("\n    ", "\n")


def test_documented_read_only_features_are_those_of_the_table_of_features() -> None:
    page = (DOCS / "compatibility.md").read_text()
    section = page.partition("## Table features\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", section, re.MULTILINE)
    read_only = {name for row in rows for name in re.findall(r"`(.*?)`", row)}
    assert read_only == {f.name for f in FEATURES.values() if f.read and not f.write}


def test_documented_event_attributes_are_those_of_a_commit() -> None:
    attributes = names(DOCS / "logging.md")

    assert attributes == ["event", *inspect.signature(log_commit).parameters]
