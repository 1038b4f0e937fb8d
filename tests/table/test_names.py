"""A URI is never taken for a table's name, and no table gets a name like a URI."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import (
    DeltaError,
    DeltalakeDBError,
    TableNotFoundError,
    TransactionError,
    UriError,
)
from delkalakedb.model.log import Staged
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.write.committer import commit
from tests.support.actions import create, metadata, protocol
from tests.support.cli import Cli

ROWS = pa.table({"x": [1]})
SECRET = "hunter2"
URIS = [
    f"deltasql://postgres/me:{SECRET}@elsewhere/db/public/t",
    f"DeltaSQL://pg/me:{SECRET}@elsewhere/db?table=t",
    f"deltasql:postgres/me:{SECRET}@elsewhere/db",
    f"postgresql://me:{SECRET}@elsewhere/db",
    f" s3://me:{SECRET}@bucket/t",
    f"file:/tmp/{SECRET}",
    f"jdbc:postgresql://elsewhere/db?password={SECRET}",
    f"deltasql://postgres/me:{SECRET}@elsewhere/\x1f",
]


def table(uri: str, name: str) -> str:
    return format_uri(parse_uri(uri).with_table(name))


def refused(call: Callable[[], Any], error: type[Exception] = DeltaError) -> None:
    with pytest.raises(error) as caught:
        call()
    assert SECRET not in f"{caught.value}{caught.value.__cause__}"


def test_uri_of_the_catalog_is_its_table_in_every_call_of_a_transaction(
    catalog_uri: str,
) -> None:
    dk.write_deltalake(table(catalog_uri, "a b"), ROWS)

    with dk.transaction(catalog_uri) as tx:
        a, new = table(catalog_uri, "a b"), table(catalog_uri, "new")
        tx.write(a, pa.table({"x": [2, 3]}), mode="append")
        tx.update(a, updates={"x": "x + 10"}, predicate="x = 2")
        tx.delete(a, "x = 3")
        tx.alter(a).set_table_description("it")
        merge = tx.merge(a, ROWS, "s.x = t.x", source_alias="s", target_alias="t")
        merge.when_matched_update({"x": "5"}).execute()
        tx.write(new, ROWS)
        tx.create_table(table(catalog_uri, "empty"), ROWS.schema)
        assert tx.table(a).version() == tx.table("a b").version() == 5

    with dk.connect(catalog_uri) as catalog:
        assert [t.name for t in catalog.tables()] == ["a b", "empty", "new"]
    rows = dk.DeltaTable(table(catalog_uri, "a b")).to_pyarrow_table()
    assert sorted(rows["x"].to_pylist()) == [5, 12]


def test_uri_of_the_catalog_may_be_written_in_another_way(tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db"
    (tmp_path / "link").symlink_to(tmp_path)

    with dk.transaction(f"{uri}?pool_size=2") as tx:
        tx.write(f"{uri}?table=a", ROWS)
        tx.write(f"deltasql://sqlite/{tmp_path}/link/meta.db?table=a", ROWS, "append")
        tx.write(f"{uri}?table=b&location={tmp_path}/elsewhere", ROWS)

    assert dk.DeltaTable(f"{uri}?table=a").version() == 1
    assert Path(dk.DeltaTable(f"{uri}?table=b").table_uri[7:]).name == "elsewhere"


def test_uri_of_the_catalog_may_have_other_credentials(
    postgres_uri: str, tmp_path: Path
) -> None:
    uri = replace(parse_uri(postgres_uri), user="other", password=SECRET, table="t")
    alias = format_uri(uri).replace("/postgres/", "/pg/", 1)

    with dk.transaction(postgres_uri) as tx:
        tx.create_table(alias, ROWS.schema, location=str(tmp_path / "t"))

    with dk.connect(postgres_uri) as catalog:
        assert [t.name for t in catalog.tables()] == ["t"]


def test_uri_of_another_catalog_is_refused(catalog_uri: str, tmp_path: Path) -> None:
    other = f"deltasql://sqlite/{tmp_path}/other.db"
    dk.write_deltalake(f"{other}?table=t", ROWS)
    with dk.connect(catalog_uri) as catalog:
        catalog.init()

    with dk.transaction(catalog_uri) as tx:
        for uri in (f"{other}?table=t", URIS[0], URIS[1]):
            for call in (tx.table, tx.delete, tx.alter):
                refused(partial(call, uri), TransactionError)
            refused(partial(tx.write, uri, ROWS), TransactionError)
        refused(lambda: tx.write(catalog_uri, ROWS), UriError)

    with dk.connect(catalog_uri) as catalog:
        assert catalog.tables() == []


def test_no_call_makes_a_table_with_a_name_like_a_uri(
    catalog_uri: str, tmp_path: Path
) -> None:
    plain, there = str(tmp_path / "plain"), f"{tmp_path}/place"
    deltalake.write_deltalake(plain, ROWS)
    schema = deltalake.Schema.from_arrow(ROWS.schema)
    with dk.connect(catalog_uri) as catalog:
        create(catalog, "t")
        before = set(tmp_path.rglob("*.parquet"))
        for name in URIS:
            uri = table(catalog_uri, name)
            staged = Staged(name, (protocol(), metadata()), location=there)
            for call in (
                partial(catalog.create_table, name, ROWS.schema),
                partial(catalog.create_table, name, ROWS.schema, location=there),
                partial(catalog.rename_table, "t", name),
                partial(catalog.commit, staged),
                partial(commit, catalog, staged),
                partial(dk.write_deltalake, uri, ROWS),
                partial(dk.DeltaTable.create, uri, schema),
                partial(dk.import_table, plain, uri),
                partial(dk.follow, plain, uri),
            ):
                refused(call)
            for read in (catalog.table, catalog.drop_table, catalog._mirror_state):
                refused(partial(read, name), TableNotFoundError)
            with dk.transaction(catalog) as tx:
                for change in (
                    partial(tx.write, name, ROWS, location=there),
                    partial(tx.create_table, name, ROWS.schema),
                    partial(tx.delete, name),
                ):
                    refused(change, DeltalakeDBError)
        assert [t.name for t in catalog.tables()] == ["t"]
    assert set(tmp_path.rglob("*.parquet")) == before
    assert not any(SECRET in str(path) for path in tmp_path.rglob("*"))


def test_name_with_a_colon_is_no_uri(catalog_uri: str) -> None:
    names = ["a:b", "a/b", "sales: 2026", "C:", "x//y"]
    for name in names:
        dk.write_deltalake(table(catalog_uri, name), ROWS)
    with dk.connect(catalog_uri) as catalog:
        assert {t.name for t in catalog.tables()} == set(names)


@pytest.mark.parametrize("uri", URIS)
def test_commands_do_not_show_a_uri_given_as_a_name(
    catalog_uri: str, tmp_path: Path, uri: str
) -> None:
    deltalake.write_deltalake(str(tmp_path / "plain"), ROWS)
    cli = Cli(catalog_uri)

    for command in (
        ["import", str(tmp_path / "plain"), "--name", uri],
        ["convert", str(tmp_path / "plain"), "--name", uri],
        ["create", uri, "--schema", "x long"],
        ["describe", uri],
    ):
        done = cli.invoke(*command)
        assert done.exit_code
        assert SECRET not in done.output


@pytest.mark.parametrize("output", ["text", "json", "csv"])
def test_table_that_an_older_version_called_by_a_uri_is_shown_without_its_password(
    tmp_path: Path, output: str
) -> None:
    catalog_uri = f"deltasql://sqlite/{tmp_path}/meta.db"
    dk.write_deltalake(table(catalog_uri, "t"), ROWS)
    dk.close()
    with closing(sqlite3.connect(tmp_path / "meta.db")) as database, database:
        database.execute("UPDATE dl_tables SET name = ?", (URIS[0],))
    cli = Cli(catalog_uri)

    for command in (["tables"], ["verify"], ["mirror", "status"], ["stats"]):
        done = cli.invoke("--output", output, *command)
        assert "elsewhere" in done.output
        assert SECRET not in done.output
