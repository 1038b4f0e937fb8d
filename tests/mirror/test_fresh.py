"""What is published from memory is what would be published from the database."""

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction

import delkalakedb as dk
from delkalakedb.catalog.commits import load_commits
from delkalakedb.catalog.fresh import keep_fresh, take_fresh
from delkalakedb.catalog.outbox import Outbox
from delkalakedb.mirror.checksum import checksum_path, version_checksum
from delkalakedb.model.codec import encode_commit
from delkalakedb.storage.segment import commit_path
from delkalakedb.uri import format_uri, parse_uri

DATA = pa.table({"id": [1, None, 3], "p": ["a b", "ü/%", None], "x": [0.1, None, 2.5]})
PROPERTIES = CommitProperties(
    custom_metadata={"why": "a test"}, app_transactions=[Transaction("app", 3)]
)
FED = {"delta.enableChangeDataFeed": "true"}


@pytest.fixture
def uri(catalog_uri: str) -> str:
    return format_uri(parse_uri(catalog_uri).with_table("t"))


def log_files(uri: str) -> tuple[dk.Catalog, Path]:
    table = dk.DeltaTable(uri)
    return dk.connect(uri), Path(table.table_uri.removeprefix("file://"))


@pytest.mark.parametrize("configuration", [{}, FED])
def test_published_bytes_are_those_of_the_database(
    uri: str, configuration: dict[str, str | None]
) -> None:
    for number in range(3):
        dk.write_deltalake(
            uri,
            DATA if number < 2 else DATA.append_column("new", pa.array([1, 2, 3])),
            mode="append",
            partition_by=["p"],
            configuration=configuration,
            schema_mode="merge" if number == 2 else None,
            commit_properties=PROPERTIES if number == 1 else None,
        )
    dk.DeltaTable(uri).delete("id = 3")
    dk.write_deltalake(uri, DATA, mode="append", schema_mode="merge")
    catalog, folder = log_files(uri)
    with catalog:
        commits = list(load_commits(catalog.backend, "t", -1, 4))
    assert [commit.head.version for commit in commits] == list(range(5))
    for version, commit in enumerate(commits):
        there = (folder / commit_path(version)).read_bytes()
        assert there == encode_commit(commit.actions)
        checksum = (folder / checksum_path(version)).read_bytes()
        assert checksum == version_checksum(commit.head, commit.transaction_id)


def test_nothing_is_kept_of_what_was_published(uri: str) -> None:
    dk.write_deltalake(uri, DATA)
    catalog, _ = log_files(uri)
    with catalog:
        mirror = Outbox(catalog.backend).load("t")
        assert take_fresh(catalog.backend, mirror, -1, 0) is None


def test_commit_of_a_table_that_had_the_same_id_is_left_alone(
    catalog: dk.Catalog, uri: str
) -> None:
    dk.write_deltalake(uri, DATA)
    (commit,) = load_commits(catalog.backend, "t", -1, 0)
    mirror = Outbox(catalog.backend).load("t")
    keep_fresh(catalog.backend, [commit])

    other = replace(mirror, location="file:///elsewhere")
    assert take_fresh(catalog.backend, other, -1, 0) is None
    keep_fresh(catalog.backend, [commit])
    assert take_fresh(catalog.backend, mirror, -1, 0) == [commit]
