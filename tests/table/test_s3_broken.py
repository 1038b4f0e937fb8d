"""Conversions on a real S3 server, secrets, and uploads that break half-way."""

import io
import os
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import delkalakedb as dk
from delkalakedb.deltalake.registration import register, unregister
from delkalakedb.errors import DeltaError, StorageError, TableNotFoundError
from delkalakedb.storage import open_store
from tests.support.engines import shared
from tests.support.s3_tables import (
    ANY_AGE,
    DATA,
    S3Twins,
    everything,
    objects,
    placed,
    refusing,
    sqlite,
    texts,
    watched,
)
from tests.support.servers.stores import KEY, SECRET, Place


@pytest.fixture
def registered() -> Iterator[None]:
    register()
    yield
    unregister()


def put_parquet(place: Place, path: str, data: pa.Table, **options: Any) -> None:
    target = io.BytesIO()
    pq.write_table(data, target, **options)
    open_store(place.location, place.storage_options).put(path, target.getvalue())


@shared
def test_parquet_files_on_s3_become_a_table_where_they_are(
    registered: None, catalog_uri: str, s3: Place
) -> None:
    uri, options = placed(catalog_uri, s3), s3.storage_options
    ids = pa.table({"id": [*range(20_000)]})
    put_parquet(s3, "p=a/one.parquet", ids, row_group_size=100, write_page_index=True)
    put_parquet(s3, "p=b/two.parquet", ids.slice(5, 2))
    before = objects(s3)
    columns = deltalake.Schema.from_arrow(pa.schema([("p", pa.string())]))
    arguments = {"partition_by": columns, "partition_strategy": "hive"}

    with watched(s3) as (through, passed):
        deltalake.convert_to_deltalake(uri, storage_options=through, **arguments)
        sent = passed.requests[:]

    assert {path: objects(s3)[path] for path in before} == before
    assert passed.received_bytes < before["p=a/one.parquet"].size_bytes // 2, sent
    table = dk.DeltaTable(uri, storage_options=options)
    assert table.count() == table.to_pyarrow_table().num_rows == 20_002
    assert dk.verify(uri, deep=True, storage_options=options).ok
    local = pa.table(table.get_add_actions(flatten=True)).select(["path", "max.id"])
    assert texts(local) == texts(
        pa.table({"path": ["p=a/one.parquet", "p=b/two.parquet"], "max.id": [19999, 6]})
    )


@sqlite
def test_file_on_s3_that_is_no_parquet_is_named_and_stays(
    registered: None, catalog_uri: str, s3: Place
) -> None:
    store = open_store(s3.location, s3.storage_options)
    store.put("odd.parquet", b"no")
    uri = placed(catalog_uri, s3)

    with pytest.raises(DeltaError, match=r"t: convert.*arquet"):
        deltalake.convert_to_deltalake(uri, storage_options=s3.storage_options)

    assert store.get("odd.parquet") == b"no"
    with pytest.raises(TableNotFoundError):
        dk.DeltaTable(uri)


# ---- what goes wrong


@sqlite
def test_credentials_are_nowhere_to_be_read(
    catalog_uri: str, tmp_path: Path, s3: Place, capfd: pytest.CaptureFixture[str]
) -> None:
    uri, options = placed(catalog_uri, s3), s3.storage_options
    dk.write_deltalake(uri, DATA, storage_options=options)
    table = dk.DeltaTable(uri, storage_options=options)
    table.update({"id": "id + 1"})
    shown = [repr(table), str(table), repr(table.metadata()), repr(table.history())]
    wrong = options | {"AWS_SECRET_ACCESS_KEY": "another-secret", "max_retries": "0"}
    refused = dk.DeltaTable(uri, storage_options=wrong)
    calls: list[Callable[[], Any]] = [
        lambda: dk.write_deltalake(refused, DATA, mode="append"),
        lambda: refused.delete("id = 2"),
        lambda: refused.vacuum(full=True, **ANY_AGE),
        lambda: refused.repair(),
        lambda: refused.generate(),
        lambda: everything(refused.scan()),
        lambda: refused.to_pyarrow_table(),
        lambda: dk.verify(uri, storage_options=wrong),
    ]
    for call in calls:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            call()
        shown.append("".join(traceback.format_exception(caught.value)))

    stored = b"".join(path.read_bytes() for path in tmp_path.glob("meta.db*"))
    told = capfd.readouterr()
    text = "".join((*shown, told.out, told.err, stored.decode(errors="replace")))
    assert table.version() == dk.DeltaTable(uri).version()
    for secret in (KEY, SECRET, "another-secret"):
        assert secret not in text


@shared
def test_upload_that_breaks_half_way_leaves_files_for_vacuum_alone(
    catalog_uri: str, tmp_path: Path, s3: Place
) -> None:
    twins = S3Twins(catalog_uri, tmp_path, s3)
    twins.write(DATA, partition_by="city")
    before, folders = twins.paths(), workspaces()
    broken = refusing("PUT", "POST", "DELETE", after=2)
    with watched(s3, answer=broken) as (options, _):
        table = dk.DeltaTable(twins.uri, storage_options=options)
        for call in (
            lambda: dk.write_deltalake(table, DATA, mode="append"),
            lambda: table.update({"id": "id + 1"}),
        ):
            with pytest.raises(StorageError, match="AccessDenied"):
                call()

    twins.check()
    left = twins.paths() - before
    assert len(left) == 2
    assert workspaces() == folders
    assert set(twins.ours.vacuum(dry_run=False, full=True, **ANY_AGE)) == left
    assert twins.paths() == before


@pytest.fixture(autouse=True)
def own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests have workspaces, too."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))


def workspaces() -> set[Path]:
    return {*Path(tempfile.gettempdir()).glob("_delta_work*/*")}


@sqlite
def test_first_write_that_breaks_half_way_makes_no_table(
    catalog_uri: str, s3: Place
) -> None:
    uri = placed(catalog_uri, s3)
    with (
        watched(s3, answer=refusing("PUT", after=1)) as (options, _),
        pytest.raises(StorageError, match="AccessDenied"),
    ):
        dk.write_deltalake(uri, DATA, partition_by="city", storage_options=options)

    assert not dk.DeltaTable.is_deltatable(uri)
    assert objects(s3) == {}


@sqlite
def test_large_file_that_breaks_half_way_is_not_there(
    catalog_uri: str, s3: Place
) -> None:
    uri = placed(catalog_uri, s3)
    noise = pa.table({"x": [os.urandom(1 << 20) for _ in range(24)]})
    with (
        watched(s3, answer=refusing("PUT", after=2)) as (options, _),
        pytest.raises(StorageError, match="AccessDenied"),
    ):
        dk.write_deltalake(uri, noise, storage_options=options)
    assert objects(s3) == {}
    dk.write_deltalake(uri, noise, storage_options=s3.storage_options)
    mirror = deltalake.DeltaTable(s3.location, storage_options=s3.storage_options)
    assert mirror.to_pyarrow_table() == noise
