"""What delta-rs's own tests found: here each of them runs without a checkout of it."""

import subprocess
import sys
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest
from deltalake import CommitProperties, TableFeatures, Transaction

import delkalakedb as dk
from delkalakedb.errors import CommitFailedError
from delkalakedb.settings.uri import format_uri, parse_uri

ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def uri(catalog_uri: str) -> str:
    return format_uri(parse_uri(catalog_uri).with_table("t"))


def folder_of(uri: str) -> Path:
    return Path(dk.DeltaTable(uri).table_uri.removeprefix("file://"))


# ---- checkpoints


def checkpoints(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "_delta_log").glob("*.checkpoint.*"))


@pytest.mark.parametrize("interval", ["1", "3"])
def test_checkpoints_are_of_the_versions_that_deltalake_has(
    uri: str, tmp_path: Path, interval: str
) -> None:
    plain = tmp_path / "plain"
    for _ in range(4):
        for write, place in (
            (dk.write_deltalake, uri),
            (deltalake.write_deltalake, plain),
        ):
            properties = {"delta.checkpointInterval": interval}
            write(place, ROWS, mode="append", configuration=properties)
    dk.DeltaTable(uri).optimize.compact()
    deltalake.DeltaTable(plain).optimize.compact()
    dk.DeltaTable(uri).delete()
    deltalake.DeltaTable(plain).delete()

    assert checkpoints(folder_of(uri)) == checkpoints(plain) != []


# ---- features


def test_feature_brings_the_one_that_it_needs(uri: str) -> None:
    dk.write_deltalake(uri, ROWS)
    dk.DeltaTable(uri).alter.add_feature(
        TableFeatures.RowTracking, allow_protocol_versions_increase=True
    )
    dk.write_deltalake(uri, ROWS, mode="append")

    features = dk.DeltaTable(uri).protocol().writer_features or []
    assert {"rowTracking", "domainMetadata"} <= set(features)
    assert dk.DeltaTable(uri).to_pyarrow_table().num_rows == 4
    assert dk.verify(uri, deep=True).ok


# ---- application transactions


def append(table: dk.DeltaTable, app_id: str, version: int) -> None:
    properties = CommitProperties(app_transactions=[Transaction(app_id, version)])
    dk.write_deltalake(table, ROWS, mode="append", commit_properties=properties)


@pytest.mark.parametrize("version", [0, 1])
def test_transaction_that_a_rival_committed_meanwhile_fails(
    uri: str, version: int
) -> None:
    dk.write_deltalake(uri, ROWS)
    first, second = dk.DeltaTable(uri), dk.DeltaTable(uri)
    append(first, "app", version)

    with pytest.raises(
        CommitFailedError, match=rf"t: append on version 0: .* version {version} "
    ):
        append(second, "app", version)

    table = dk.DeltaTable(uri)
    assert table.version() == 1
    assert len(list(folder_of(uri).glob("*.parquet"))) == len(table.file_uris()) == 2


@pytest.mark.parametrize("version", [0, 1])
def test_transaction_that_the_handle_knows_is_skipped(uri: str, version: int) -> None:
    dk.write_deltalake(uri, ROWS)
    first, second = dk.DeltaTable(uri), dk.DeltaTable(uri)
    append(first, "app", version)
    second.update_incremental()
    append(second, "app", version)

    assert dk.DeltaTable(uri).version() == 1


def test_transaction_of_another_application_follows(uri: str) -> None:
    dk.write_deltalake(uri, ROWS)
    first, second = dk.DeltaTable(uri), dk.DeltaTable(uri)
    append(first, "one", 1)
    append(second, "two", 1)

    assert dk.DeltaTable(uri).version() == 2


# ---- supported versions


@pytest.mark.parametrize(
    "use", ["dk.DeltaTable(uri)", "dk.write_deltalake(uri, [])", "dk.transaction(uri)"]
)
def test_face_refuses_another_deltalake(tmp_path: Path, use: str) -> None:
    code = (
        "import deltalake\n"
        "deltalake.__version__ = '1.7.0'\n"
        "import delkalakedb as dk\n"
        "uri = 'deltasql://sqlite/meta.db?table=t'\n"
        f"{use}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )

    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1
    assert "deltalake 1.7.0 isn't supported; install deltalake 1.6.x" in last
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("size", ["0", "٥", "x"])
def test_target_size_that_is_none_is_that_of_delta_rs(uri: str, size: str) -> None:
    dk.write_deltalake(uri, ROWS, configuration={"delta.targetFileSize": size})
    dk.write_deltalake(uri, ROWS, mode="append")

    metrics = dk.DeltaTable(uri).optimize.compact()

    assert (metrics["numFilesAdded"], metrics["numFilesRemoved"]) == (1, 2)
