"""Readers that were not written here read our checkpoints, and delta-rs's are alike."""

import shutil
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from delkalakedb import Catalog
from delkalakedb.mirror.checkpoint.checkpoint import version_checksum
from delkalakedb.model.paths import checksum_path
from delkalakedb.storage import open_store
from tests.support.actions import add, create, metadata, txn
from tests.support.checkpoints import (
    STRUCT,
    TEXTLESS,
    V2,
    read_kind,
    take_in,
    write_alone,
)

FORMS = [{}, STRUCT, STRUCT | TEXTLESS]
# Long before any file was removed: every tombstone is kept.
EARLY_MS = 0


def sample(part: str | None, number: int) -> pa.Table:
    """Rows of most types, in partitions by text, date and time."""
    moment = datetime(2024, 1, number, 3, 4, 5, 678_901, tzinfo=UTC)
    columns = {
        "i": [number, None],
        "f": [1.5, float(number)],
        "s": ["ü", "b" * number],
        "d": [date(2024, 1, number)] * 2,
        "ts": pa.array([moment] * 2, pa.timestamp("us", "UTC")),
        "b": [True, False],
        "dec": [Decimal("1.23"), Decimal(number)],
        "st": [{"x": 1, "y": "q"}, {"x": number, "y": None}],
        "arr": [[1], [2]],
        "bin": [b"x", b"y"],
        "small": pa.array([1, number], pa.int8()),
        "p": pa.array([part] * 2, pa.string()),
        "q": pa.array([date(2024, 2, number)] * 2),
        "r": pa.array([moment, None], pa.timestamp("us", "UTC")),
    }
    return pa.table(columns)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A table by delta-rs with partition values of all sorts, some files removed."""
    folder = tmp_path / "plain"
    applied = CommitProperties(app_transactions=[Transaction("app", 7, 1)])
    for number, part in enumerate(["k", None, "", "l m%/ü=&", "gone"], start=1):
        write_deltalake(
            folder,
            sample(part, number),
            mode="append",
            partition_by=["p", "q", "r"],
            commit_properties=applied,
        )
    DeltaTable(folder).delete("p = 'gone'")
    return folder


def ask(folder: Path, configuration: dict[str, str]) -> None:
    if configuration:
        DeltaTable(folder).alter.set_table_properties(configuration)


def checkpointed(catalog: Catalog, plain: Path, folder: Path) -> str:
    """The same table with our checkpoint as its log; its path."""
    take_in(catalog, plain)
    shutil.copytree(plain, folder, ignore=shutil.ignore_patterns("_delta_log"))
    return write_alone(catalog, folder, now_ms=EARLY_MS).path


def rows(table: Any) -> list[str]:
    return sorted(str(row) for row in table.to_pylist())


# ---- reading


@pytest.mark.parametrize("form", FORMS, ids=["text", "both", "struct"])
def test_other_readers_find_the_table_behind_our_checkpoint(
    catalog: Catalog, plain: Path, tmp_path: Path, form: dict[str, str]
) -> None:
    ask(plain, form)
    folder = tmp_path / "ours"
    checkpointed(catalog, plain, folder)
    DeltaTable(plain).create_checkpoint()
    ours, theirs = DeltaTable(folder), DeltaTable(plain)
    assert ours.version() == theirs.version()
    assert ours.schema() == theirs.schema()
    assert ours.metadata().configuration == theirs.metadata().configuration
    assert ours.transaction_version("app") == 7
    actions = [pa.table(t.get_add_actions()).sort_by("path") for t in (ours, theirs)]
    assert actions[0].to_pylist() == actions[1].to_pylist()
    assert rows(ours.to_pyarrow_table()) == rows(theirs.to_pyarrow_table())
    found = pl.scan_delta(str(folder)).filter(pl.col("i") > 1).collect()
    expected = pl.scan_delta(str(plain)).filter(pl.col("i") > 1).collect()
    assert sorted(map(str, found.rows())) == sorted(map(str, expected.rows()))


def test_delta_rs_reads_our_sidecars(catalog: Catalog, tmp_path: Path) -> None:
    asked = metadata(configuration=V2 | STRUCT, partitions=["s"])
    files = [add(f"f{n}", partition={"s": "a" if n else None}) for n in range(3)]
    features = ["v2Checkpoint"]
    create(catalog, "t", *files, txn("app", 4), meta=asked, features=features)
    folder = tmp_path / "ours"
    assert write_alone(catalog, folder).sidecars
    table = DeltaTable(folder)
    found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert {f["path"]: f["partition.s"] for f in found} == {
        "f0": None,
        "f1": "a",
        "f2": "a",
    }
    assert table.transaction_version("app") == 4


def test_delta_rs_goes_on_from_our_checkpoint(
    catalog: Catalog, plain: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "ours"
    checkpointed(catalog, plain, folder)
    head = catalog.log("t").head()
    open_store(str(folder)).put(
        checksum_path(head.version), version_checksum(head, "id")
    )
    write_deltalake(folder, sample("new", 9), mode="append")
    table = DeltaTable(folder)
    assert table.version() == head.version + 1
    table.create_checkpoint()
    assert len(table.file_uris()) == head.num_files + 2


# ---- alike


def known_columns(kind: pa.DataType, prefix: str = "") -> dict[str, pa.DataType]:
    """The types of a struct's leaves by path, without names inside maps and lists."""
    if not pa.types.is_struct(kind):
        return {prefix: pa.string() if pa.types.is_nested(kind) else kind}
    return {
        path: leaf
        for field in kind
        for path, leaf in known_columns(field.type, f"{prefix}.{field.name}").items()
    }


@pytest.mark.parametrize("form", FORMS, ids=["text", "both", "struct"])
def test_checkpoint_equals_that_of_delta_rs(
    catalog: Catalog, plain: Path, tmp_path: Path, form: dict[str, str]
) -> None:
    ask(plain, form)
    folder = tmp_path / "ours"
    path = checkpointed(catalog, plain, folder)
    DeltaTable(plain).create_checkpoint()
    ours, theirs = (pq.read_schema(f / path) for f in (folder, plain))
    absent = {".remove.stats", ".remove.tags"}
    extra = {".add.deletionVector.maxRowIndex", ".remove.deletionVector.maxRowIndex"}
    mine, other = (known_columns(pa.struct(list(s))) for s in (ours, theirs))
    sidecars = {name for name in other if name.startswith(".sidecar")}
    assert mine.keys() - extra == other.keys() - absent - sidecars
    assert all(mine[name] == other[name] for name in mine.keys() & other)
    for kind in ("add", "remove", "metaData", "protocol", "txn"):
        assert comparable(folder, path, kind) == comparable(plain, path, kind)


def comparable(folder: Path, path: str, kind: str) -> list[str]:
    """The actions of a kind, whatever the order of rows, fields and map entries."""
    return sorted(str(ordered(row)) for row in read_kind(folder, path, kind))


def ordered(value: Any) -> Any:
    """The value without nulls; delta-rs types an empty partition value as text."""
    if isinstance(value, dict):
        kept = {name: ordered(v) for name, v in sorted(value.items())}
        return {name: v for name, v in kept.items() if v not in (None, "")}
    return sorted(value, key=str) if isinstance(value, list) else value
