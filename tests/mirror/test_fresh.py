"""What is published from memory is what would be published from the database."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction

import delkalakedb as dk
from delkalakedb.catalog.commit.outcome import Committed
from delkalakedb.catalog.read.action_rows import load_commits
from delkalakedb.mirror.checkpoint.checkpoint import version_checksum
from delkalakedb.mirror.publisher.publication import publish_table, stores_with
from delkalakedb.model.actions import encode_commit
from delkalakedb.model.paths import checksum_path, commit_path
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.storage import open_store
from delkalakedb.write import committer as commits
from tests.support.actions import add, creation, staged, txn

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
        loaded = list(load_commits(catalog._backend, "t", -1, 4))
    assert [commit.head.version for commit in loaded] == list(range(5))
    for version, commit in enumerate(loaded):
        there = (folder / commit_path(version)).read_bytes()
        assert there == encode_commit(commit.actions)
        checksum = (folder / checksum_path(version)).read_bytes()
        assert checksum == version_checksum(commit.head, commit.transaction_id)


@pytest.fixture
def table(catalog: dk.Catalog, tmp_path: Path) -> dk.Catalog:
    """A catalog with a table `t`, published up to version 0."""
    commits.commit(catalog, creation(location=str(tmp_path / "t")))
    return catalog


def entry(catalog: dk.Catalog, version: int) -> bytes:
    return open_store(catalog.table("t").location).get(commit_path(version))


def check_entries(catalog: dk.Catalog) -> None:
    """The log has what the database has."""
    published, ratified, _ = catalog._mirror_state("t")
    assert published == ratified
    for commit in load_commits(catalog._backend, "t", -1, published):
        assert entry(catalog, commit.head.version) == encode_commit(commit.actions)


def test_actions_are_published_in_the_order_of_the_database(table: dk.Catalog) -> None:
    actions = (add("z"), txn("b", 1), add("a"), txn("a", 1), txn("\u00e9", 1))
    commits.commit(table, staged(table, *actions))

    check_entries(table)


@pytest.mark.parametrize("files", [1, 150])
def test_append_is_published_without_being_loaded(
    table: dk.Catalog, files: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        # The package has a function of this name.
        module = import_module("delkalakedb.mirror.publisher.publication")
        patch.setattr(module, "load_commits", None)
        append = staged(table, *(add(f"f{n}") for n in range(files)))
        commits.commit(table, append)

    check_entries(table)


def test_append_is_published_after_what_others_left(table: dk.Catalog) -> None:
    table.commit(staged(table, add("theirs")))
    commits.commit(table, staged(table, add("ours")))

    check_entries(table)
    assert b"theirs" in entry(table, 1)
    assert b"ours" in entry(table, 2)


def test_returned_commits_carry_neither_actions_nor_lease(table: dk.Catalog) -> None:
    published = commits.commit(table, staged(table, add("a")))
    ratified = table.commit(staged(table, add("b")))

    assert isinstance(published, tuple)
    for made in (*published, *ratified):
        assert isinstance(made, Committed)
        assert (made.ratified, made.lease) == (None, None)


def test_commit_of_a_table_that_has_moved_since_is_loaded(
    table: dk.Catalog,
) -> None:
    outcome = table._try_commit(staged(table, add("a")))
    assert isinstance(outcome, tuple)
    (made,) = outcome
    assert isinstance(made, Committed)
    assert made.ratified is not None
    head = made.ratified.head
    elsewhere = msgspec.structs.replace(head, location="file:///elsewhere")
    stale = replace(made.ratified, head=elsewhere, actions=made.ratified.actions[:1])

    stores = stores_with()
    publish_table(table, "t", stores, 1, commits=[replace(made, ratified=stale)])

    check_entries(table)
