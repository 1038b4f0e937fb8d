"""An operation that fails says what failed, and leaves everything as it was."""

import errno
import os
import random
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import delkalakedb as dk
from delkalakedb.errors import (
    CommitFailedError,
    DeltaError,
    ProtocolError,
    SchemaMismatchError,
    StorageError,
    UnknownColumnError,
)
from delkalakedb.settings.uri import format_uri, parse_uri
from delkalakedb.write.engines.deltars.process import explained
from tests.support.operations import folder_of

NOBODY = 65534


@pytest.fixture
def table(catalog_uri: str) -> dk.DeltaTable:
    """A table of two files with a constraint, on each engine in turn."""
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    dk.write_deltalake(uri, pa.table({"id": [1, 2], "s": ["a", "b"]}))
    dk.write_deltalake(uri, pa.table({"id": [3], "s": ["c"]}), mode="append")
    table = dk.DeltaTable(uri)
    table.alter.add_constraint({"small": "id < 100"})
    return table


def merge(table: DeltaTable, on: str) -> None:
    source = pa.table({"id": [1, 1], "s": ["x", "y"]})
    merger = table.merge(source, on, source_alias="s", target_alias="t")
    merger.when_matched_update_all().execute()


def append(table: DeltaTable, **columns: list[Any]) -> None:
    write_deltalake(table, pa.table(columns), mode="append")


def without_files(run: Callable[[DeltaTable], Any]) -> Callable[[DeltaTable], Any]:
    def run_without(table: DeltaTable) -> None:
        for uri in table.file_uris():
            os.rename(uri, f"{uri}.away")
        try:
            run(table)
        finally:
            for uri in table.file_uris():
                os.rename(f"{uri}.away", uri)

    return run_without


Case = tuple[Callable[[DeltaTable], Any], type[Exception], str]
CASES: dict[str, Case] = {
    "no SQL": (lambda t: t.delete("id ==== 3"), DeltaError, "delete"),
    "no column": (lambda t: t.delete("nope = 3"), DeltaError, "delete"),
    "no function": (lambda t: t.update({"id": "f(1)"}), DeltaError, "update"),
    "no cast": (lambda t: t.update({"id": "'x'"}), DeltaError, "update"),
    "no such key": (lambda t: merge(t, "s.no = t.id"), DeltaError, "merge"),
    "two matches": (lambda t: merge(t, "s.id = t.id"), DeltaError, "merge"),
    "other types": (
        lambda t: append(t, id=[{"a": 1}], s=["x"]),
        SchemaMismatchError,
        "append",
    ),
    "other columns": (lambda t: append(t, x=[1]), SchemaMismatchError, "append"),
    "constraint": (lambda t: append(t, id=[500], s=["x"]), DeltaError, "append"),
    "constraint of an update": (
        lambda t: t.update({"id": "id + 500"}),
        DeltaError,
        "update",
    ),
    "constraint that fails": (
        lambda t: t.alter.add_constraint({"c": "id > 1"}),
        DeltaError,
        "add_constraints",
    ),
    "files are gone": (
        without_files(lambda t: t.delete("id = 1")),
        DeltaError,
        "delete",
    ),
    "files to compact are gone": (
        without_files(lambda t: t.optimize.compact()),
        DeltaError,
        "compact",
    ),
}


def everything(table: DeltaTable) -> set[Path]:
    return {path for path in folder_of(table).rglob("*") if path.is_file()}


@contextmanager
def untouched(table: dk.DeltaTable) -> Iterator[None]:
    """The table's versions, rows and files, and its workspaces, stay as they are."""
    before, rows = everything(table), table.to_pyarrow_table().sort_by("id")
    yield
    assert table.version() == 2
    table.update_incremental()
    assert table.version() == 2
    assert table.to_pyarrow_table().sort_by("id") == rows
    assert everything(table) == before
    assert not list((folder_of(table) / "_delta_work").iterdir())


@pytest.mark.parametrize("case", CASES)
def test_failure_names_table_operation_and_version(
    case: str, table: dk.DeltaTable
) -> None:
    run, kind, operation = CASES[case]
    with untouched(table), pytest.raises(kind) as raised:
        run(table)
    assert str(raised.value).startswith(f"t: {operation} on version 2: ")
    assert "_delta_work" not in str(raised.value)
    assert isinstance(raised.value.__cause__, deltalake.exceptions.DeltaError)
    assert isinstance(raised.value, deltalake.exceptions.DeltaError)


@pytest.mark.parametrize(
    ("operation", "run"),
    [
        ("z_order", lambda t: t.optimize.z_order(["no"])),
        ("update", lambda t: t.update({"no": "1"})),
    ],
)
def test_unknown_column_is_refused_before_delta_rs_begins(
    operation: str, run: Callable[[dk.DeltaTable], Any], table: dk.DeltaTable
) -> None:
    with untouched(table), pytest.raises(UnknownColumnError) as raised:
        run(table)
    assert str(raised.value).startswith(f"t: {operation} on version 2: no column no;")
    assert isinstance(raised.value, deltalake.exceptions.DeltaError)


def test_full_disk_fails_the_operation_and_leaves_nothing(
    table: dk.DeltaTable, capfd: pytest.CaptureFixture[str]
) -> None:
    """Files that may not grow stand for a disk that is full."""
    noise = random.Random(0).randbytes(1 << 22).hex()
    texts = [noise[at : at + 1024] for at in range(0, len(noise), 1024)]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with untouched(table):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
        try:
            with pytest.raises(DeltaError, match=r"^t: append on version 2: .*large"):
                append(table, id=[7] * len(texts), s=texts)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    # delta-rs says more about it, on its own.
    capfd.readouterr()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that anybody may read, which pytest's own aren't."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_folder_without_permission_fails_the_operation(open_folder: Path) -> None:
    uri = f"deltasql://sqlite/{open_folder}/meta.db?table=t"
    dk.write_deltalake(uri, pa.table({"id": [1]}))
    table = dk.DeltaTable(uri)
    before = everything(table)
    os.seteuid(NOBODY)
    try:
        with pytest.raises(DeltaError, match=r"^t: append on version 0: .*Perm") as no:
            append(table, id=[2])
    finally:
        os.seteuid(0)
    assert isinstance(no.value.__cause__, PermissionError)
    assert everything(table) == before
    assert dk.DeltaTable(uri).version() == 0


def test_move_that_fails_halfway_takes_back_what_it_moved(tmp_path: Path) -> None:
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    dk.write_deltalake(uri, pa.table({"p": ["a"], "n": [1]}), partition_by="p")
    table = dk.DeltaTable(uri)
    # Where a partition's folder should be, there is a file.
    (folder_of(table) / "p=z").touch()
    before = everything(table)
    with pytest.raises(DeltaError, match=r"^t: append on version 0: ") as raised:
        append(table, p=["m", "z"], n=[1, 2])
    assert isinstance(raised.value.__cause__, OSError)
    assert everything(table) == before


def test_refused_feature_names_table_operation_and_version(
    table: dk.DeltaTable,
) -> None:
    table.alter.set_table_properties({"delta.appendOnly": "true"})
    for run in (
        lambda: table.delete("id = 1"),
        lambda: write_deltalake(table, table.to_pyarrow_table(), mode="overwrite"),
    ):
        with pytest.raises(CommitFailedError, match=r"^t: \w+ on version 3: .*append"):
            run()
    append(table, id=[4], s=["d"])
    with pytest.raises(ProtocolError, match=r"^t: .*append-only"):
        table.restore(3)
    table.update_incremental()
    assert table.version() == 4


def test_scans_name_table_and_version(table: dk.DeltaTable) -> None:
    for run in (
        lambda: table.scan(columns=["nope"]),
        lambda: table.scan(predicate="nope = 1"),
    ):
        with pytest.raises(DeltaError, match=r"^t: scan of version 2: .*nope"):
            run()
    with pytest.raises(DeltaError, match=r"^t: load_cdf of version 2: ") as raised:
        table.load_cdf()
    assert isinstance(raised.value.__cause__, deltalake.exceptions.DeltaError)


def test_errors_of_the_data_say_what_they_stopped(table: dk.DeltaTable) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        raise ArithmeticError("no more")
        yield

    schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
    with untouched(table), pytest.raises(DeltaError, match=r"^t: append .*no more"):
        write_deltalake(
            table, pa.RecordBatchReader.from_batches(schema, batches()), mode="append"
        )


@pytest.mark.parametrize("kind", [StorageError, DeltaError, OSError])
def test_credentials_and_private_folders_are_taken_out(kind: type[Exception]) -> None:
    text = "s3://u:pa55@host/x?sig=5ecret&a=1 in /work/a b/{0}/f and work/a%20b/{0}/f"
    private, hidden = Path("/work/a b"), "0" * 32
    with (
        pytest.raises((DeltaError, StorageError)) as raised,
        explained("t: append on version 1", private, "s3://bucket/t"),
    ):
        raise kind(text.format(hidden))
    said = str(raised.value)
    assert said.endswith("in s3://bucket/t/f and s3://bucket/t/f")
    assert "pa55" not in said
    assert "5ecret" not in said


def test_source_of_a_merge_that_fails_names_the_merge(table: dk.DeltaTable) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": [1], "s": ["x"]})
        raise ValueError("the source broke")

    schema = pa.schema([("id", pa.int64()), ("s", pa.string())])
    source = pa.RecordBatchReader.from_batches(schema, batches())
    merger = table.merge(source, "s.id = t.id", source_alias="s", target_alias="t")

    with pytest.raises(DeltaError, match=r"t: merge on version 2: .*the source broke"):
        merger.when_matched_update_all().execute()


def test_mistake_in_rust_is_an_error_like_others(tmp_path: Path) -> None:
    """deltalake lets what isn't an `Exception` through."""
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t&location={tmp_path}/a%5Eb"

    with pytest.raises(DeltaError, match="t: write: Invalid object store url"):
        dk.write_deltalake(uri, pa.table({"id": [1]}))


def test_restore_that_lost_says_what_it_was_and_of_which_version(
    table: dk.DeltaTable, catalog_uri: str
) -> None:
    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    dk.DeltaTable(uri).delete("id = 1")

    with pytest.raises(CommitFailedError, match=r"t: restore on version 2: .*DELETE"):
        table.restore(0)


def test_partition_on_another_disk_is_written(
    catalog_uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(*paths: Any) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    uri = format_uri(parse_uri(catalog_uri).with_table("t"))
    dk.write_deltalake(uri, pa.table({"id": [1], "p": ["a"]}), partition_by="p")
    monkeypatch.setattr("delkalakedb.write.files.os.rename", rename)

    dk.DeltaTable(uri).update({"id": "id + 1"})

    assert dk.DeltaTable(uri).to_pyarrow_table()["id"].to_pylist() == [2]
