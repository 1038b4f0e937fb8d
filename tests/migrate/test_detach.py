"""Tables that leave the catalog go on as plain Delta tables."""

from pathlib import Path

import deltalake
import pytest

import delkalakedb as dk
from delkalakedb.catalog.load.staged_table import forget_table
from delkalakedb.errors import MirrorError, TableNotFoundError
from delkalakedb.storage import open_store
from tests.support.imports import with_table
from tests.support.logs import rows

TABLES = (
    "dl_tables",
    "dl_table_versions",
    "dl_metadata",
    "dl_protocols",
    "dl_txns",
    "dl_files",
    "dl_mirrors",
)


@pytest.fixture
def uri(catalog_uri: str) -> str:
    return with_table(catalog_uri, "t")


def count(catalog: dk.Catalog) -> dict[str, int]:
    stats = ("dl_number_stats", "dl_text_stats")
    with catalog._backend.reading() as session:
        return {
            name: session.query_sql(f"SELECT count(*) FROM {name}", {})[0][0]
            for name in (*TABLES, *stats)
        }


def test_detached_table_is_a_plain_one_with_a_checkpoint(
    uri: str, catalog: dk.Catalog
) -> None:
    other = uri.replace("table=t", "table=other")
    dk.write_deltalake(other, rows(0))
    before = count(catalog)
    dk.write_deltalake(uri, rows(0))
    dk.write_deltalake(uri, rows(4), mode="append")
    dk.DeltaTable(uri).delete("id = 1")
    expected = dk.DeltaTable(uri).to_pyarrow_table().sort_by("id")

    done = dk.detach(uri, deep=True)

    assert (done.table, done.version, done.report.ok) == ("t", 2, True)
    plain = deltalake.DeltaTable(done.location)
    assert plain.to_pyarrow_table().sort_by("id") == expected
    assert [h["operation"] for h in plain.history()] == ["DELETE", "WRITE", "WRITE"]
    store = open_store(done.location)
    assert store.exists("_delta_log/00000000000000000002.checkpoint.parquet")
    assert b'"version":2' in store.get("_delta_log/_last_checkpoint").replace(b" ", b"")
    assert [table.name for table in catalog.tables()] == ["other"]
    assert count(catalog) == before
    with pytest.raises(TableNotFoundError):
        dk.detach(uri)


def test_table_goes_out_and_comes_back(uri: str) -> None:
    dk.write_deltalake(uri, rows(0))
    location = dk.detach(uri).location
    deltalake.write_deltalake(location, rows(4), mode="append")

    done = dk.import_table(location, uri, deep=True)

    assert (done.first_version, done.version, done.ok) == (0, 1, True)
    dk.write_deltalake(uri, rows(8), mode="append")
    assert deltalake.DeltaTable(location).to_pyarrow_table().num_rows == 12
    assert dk.DeltaTable(uri).to_pyarrow_table().num_rows == 12


def test_versions_that_wait_are_published_first(
    uri: str, catalog: dk.Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_MIRROR__MODE", "external")
    dk.write_deltalake(uri, rows(0))
    location = catalog.table("t").location
    assert catalog._mirror_state("t")[0] == -1

    assert dk.detach(uri).version == 0
    assert deltalake.DeltaTable(location).version() == 0


def test_log_that_disagrees_keeps_the_table_in_the_catalog(
    uri: str, catalog: dk.Catalog
) -> None:
    dk.write_deltalake(uri, rows(0))
    path = Path(dk.DeltaTable(uri).table_uri.removeprefix("file://"))
    commit = path / "_delta_log" / f"{0:020}.json"
    commit.write_bytes(commit.read_bytes().replace(b"WRITE", b"WROTE"))

    with pytest.raises(MirrorError, match=r"(?s)isn't detached.*was changed"):
        dk.detach(uri)

    assert [table.name for table in catalog.tables()] == ["t"]


def test_fenced_table_loses_its_fence(uri: str, catalog: dk.Catalog) -> None:
    dk.write_deltalake(uri, rows(0))
    dk.mirror.fence(uri)
    dk.write_deltalake(uri, rows(4), mode="append")

    done = dk.detach(uri, deep=True)

    assert (done.version, done.report.ok) == (3, True)
    assert catalog.tables() == []
    deltalake.write_deltalake(done.location, rows(8), mode="append")
    plain = deltalake.DeltaTable(done.location)
    assert plain.to_pyarrow_table().num_rows == 12
    assert plain.history()[1]["operation"] == "DROP FEATURE"
    assert not {"catalogManaged", "inCommitTimestamp", "vacuumProtocolCheck"} & {
        *(plain.protocol().writer_features or ()),
        *(plain.protocol().reader_features or ()),
    }
    assert not any("InCommitTimestamp" in key for key in plain.metadata().configuration)


def test_fenced_table_that_cannot_be_detached_stays_fenced(uri: str) -> None:
    dk.write_deltalake(uri, rows(0))
    path = Path(dk.DeltaTable(uri).table_uri.removeprefix("file://"))
    dk.mirror.fence(uri)
    commit = path / "_delta_log" / f"{0:020}.json"
    commit.write_bytes(commit.read_bytes().replace(b"WRITE", b"WROTE"))

    with pytest.raises(MirrorError, match="isn't detached"):
        dk.detach(uri, deep=True)

    assert "catalogManaged" in (dk.DeltaTable(uri).protocol().writer_features or ())


def test_table_that_moved_on_is_not_forgotten(uri: str, catalog: dk.Catalog) -> None:
    dk.write_deltalake(uri, rows(0))
    dk.write_deltalake(uri, rows(4), mode="append")

    assert not forget_table(catalog, "t", 0, what="detach")
    assert catalog.table("t").version == 1
