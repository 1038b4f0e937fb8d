"""Verify: whatever is changed in the log, in the catalog or in the data is named."""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

import delkalakedb as dk
from delkalakedb.mirror.verify.verification import Report, verify_table
from delkalakedb.model.actions import CommitInfo, encode_commit
from delkalakedb.model.paths import LAST_CHECKPOINT, checksum_path, commit_path
from delkalakedb.storage import Store, open_store
from tests.support.actions import add, cdc
from tests.support.examples import examples
from tests.support.mirrors import CHECKPOINT_PATH, LAST, VECTOR_FILE, copied, file, fill


def replace(store: Store, path: str, old: bytes, new: bytes) -> None:
    data = store.get(path)
    assert old in data
    store.put(path, data.replace(old, new))


def cut(store: Store, path: str) -> None:
    store.put(path, store.get(path)[:-20])


def foreign(store: Store, version: int) -> None:
    """A commit that another writer appended."""
    store.put(commit_path(version), encode_commit([CommitInfo({}), add("theirs")]))


def change_rows(change: Callable[[list[Any]], list[Any]]) -> Callable[[Store], None]:
    """Write the checkpoint again with other rows."""

    def make(store: Store) -> None:
        table = pq.read_table(pa.BufferReader(store.get(CHECKPOINT_PATH)))
        rows = change(table.to_pylist())
        sink = pa.BufferOutputStream()
        pq.write_table(pa.Table.from_pylist(rows, table.schema), sink)
        store.put(CHECKPOINT_PATH, sink.getvalue().to_pybytes())

    return make


def with_field(kind: str, name: str, value: Any) -> Callable[[list[Any]], list[Any]]:
    """Another value in the first row of a kind."""

    def change(rows: list[Any]) -> list[Any]:
        next(row[kind] for row in rows if row[kind])[name] = value
        return rows

    return change


def without(kind: str) -> Callable[[list[Any]], list[Any]]:
    return lambda rows: [row for row in rows if not row[kind]]


CHANGES: dict[str, tuple[Callable[[Store], None], str]] = {
    "byte of the latest commit": (
        lambda s: replace(s, commit_path(6), b'"size":106', b'"size":107'),
        "was changed since it was published",
    ),
    "latest commit missing": (lambda s: s.delete(commit_path(6)), "it is missing"),
    "latest commit torn": (lambda s: cut(s, commit_path(6)), "is not a Delta action"),
    "commit after the checkpoint missing": (
        lambda s: s.delete(commit_path(5)),
        "version 5 is missing",
    ),
    "foreign commit": (
        lambda s: foreign(s, 7),
        "was written by a writer that bypassed",
    ),
    "foreign commit after a gap": (
        lambda s: foreign(s, 9),
        "by a writer that bypassed",
    ),
    "torn foreign commit": (lambda s: s.put(commit_path(7), b"{"), "not a Delta"),
    "checkpoint of no version": (
        lambda s: s.put(f"_delta_log/{8:020}.checkpoint.parquet", b"x"),
        "the catalog has no such version",
    ),
    "file less in the checkpoint": (
        change_rows(
            lambda rows: [r for r in rows if (r["add"] or {}).get("size") != 100]
        ),
        "add part%200 is in SQL but not in _delta_log",
    ),
    "file twice in the checkpoint": (
        change_rows(lambda rows: rows + [row for row in rows if row["add"]]),
        "add part%200 is 2 times in _delta_log",
    ),
    "size in the checkpoint": (
        change_rows(with_field("add", "size", 5)),
        "size is 5, in SQL 10",
    ),
    "statistics in the checkpoint": (
        change_rows(with_field("add", "stats", "{}")),
        'stats is "{}", in SQL "{',
    ),
    "tombstone less in the checkpoint": (
        change_rows(without("remove")),
        "remove part%201 is in SQL but not in _delta_log",
    ),
    "txn in the checkpoint": (
        change_rows(without("txn")),
        "txn early is in SQL but not in _delta_log",
    ),
    "protocol in the checkpoint": (
        change_rows(with_field("protocol", "minWriterVersion", 8)),
        "protocol: minWriterVersion is 8, in SQL 7",
    ),
    "checkpoint torn": (lambda s: cut(s, CHECKPOINT_PATH), "isn't a valid checkpoint"),
    "all of it gone": (
        lambda s: [s.delete(m.path) for m in list(s.list())] and None,
        "there is no Delta log",
    ),
}
DEEP_CHANGES: dict[str, tuple[Callable[[Store], None], str]] = {
    "byte of an old commit": (
        lambda s: replace(s, commit_path(1), b'"size":101', b'"size":102'),
        f"{commit_path(1)}: add part%201: size is 102, in SQL 101",
    ),
    "commitInfo of an old commit": (
        lambda s: replace(s, commit_path(2), b'"txnId":"', b'"txnId":"x'),
        f"{commit_path(2)}: commitInfo: txnId is ",
    ),
    "line more in an old commit": (
        lambda s: s.put(
            commit_path(4), s.get(commit_path(4)) + encode_commit([cdc("q")])
        ),
        f"cdc q is in {commit_path(4)} but not in SQL",
    ),
    "line twice in an old commit": (
        lambda s: s.put(
            commit_path(0), s.get(commit_path(0)) + encode_commit([file(0)])
        ),
        f"add part%200 is 2 times in {commit_path(0)} and 1 times in SQL",
    ),
    "old commit missing": (
        lambda s: s.delete(commit_path(1)),
        f"{commit_path(1)}: it is missing",
    ),
    "first commit missing": (
        lambda s: s.delete(commit_path(0)),
        f"{commit_path(0)}: it is missing",
    ),
    "checksum of other totals": (
        lambda s: replace(s, checksum_path(2), b'"numFiles":2', b'"numFiles":3'),
        f"{checksum_path(2)}: numFiles is 3, in SQL 2",
    ),
    "checksum of other metadata": (
        lambda s: replace(s, checksum_path(6), b'"more"', b'"less"'),
        f"{checksum_path(6)}: metadata is ",
    ),
    "checksum torn": (lambda s: cut(s, checksum_path(4)), "Input data was truncated"),
    "metadata in the checkpoint": (
        change_rows(with_field("metaData", "id", "other")),
        'metaData: id is "other"',
    ),
    "checkpoint gone but pointed to": (
        lambda s: s.delete(CHECKPOINT_PATH),
        "it names version 3, which has no checkpoint",
    ),
    "pointer changed": (
        lambda s: replace(s, LAST_CHECKPOINT, b'"size":', b'"size":1'),
        f"{LAST_CHECKPOINT}: checksum is ",
    ),
    "pointer torn": (lambda s: s.put(LAST_CHECKPOINT, b"{"), "_last_checkpoint: "),
    "data file missing": (
        lambda s: s.delete("part 4"),
        "part 4 is live but isn't in the store",
    ),
    "data file of another size": (
        lambda s: s.put("part 6", b"x"),
        "part 6 has 1 bytes, in SQL 106 bytes",
    ),
    "deletion vector missing": (
        lambda s: s.delete(VECTOR_FILE),
        f"{VECTOR_FILE} is live but isn't in the store",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("deep", [False, True])
def test_change_of_what_readers_read_is_named(
    published: dk.Catalog, store: Store, change: str, deep: bool
) -> None:
    make, sentence = CHANGES[change]
    make(store)

    report = verify_table(published, "t", store, deep=deep)

    assert not report.ok
    assert sentence in str(report) or (deep and "is missing" in str(report))


@pytest.mark.parametrize("change", DEEP_CHANGES)
def test_change_of_history_or_data_is_named_by_a_deep_check(
    published: dk.Catalog, store: Store, change: str
) -> None:
    make, sentence = DEEP_CHANGES[change]
    make(store)

    report = verify_table(published, "t", store, deep=True)

    assert sentence in str(report)


@settings(max_examples=examples(120))
@given(st.data())
def test_any_byte_of_any_commit_is_named(
    published: dk.Catalog, data: st.DataObject
) -> None:
    store = copied(open_store(published.table("t").location))
    path = commit_path(data.draw(st.integers(0, LAST)))
    flip(store, path, data)

    report = verify_table(published, "t", store, deep=True)

    assert path in {difference.where for difference in report.differences}


@settings(max_examples=examples(300))
@given(st.data())
def test_no_byte_of_the_log_makes_a_check_fail(
    published: dk.Catalog, data: st.DataObject
) -> None:
    store = copied(open_store(published.table("t").location))
    paths = sorted(meta.path for meta in store.list("_delta_log"))
    flip(store, data.draw(st.sampled_from(paths)), data)

    for deep in (False, True):
        assert isinstance(verify_table(published, "t", store, deep=deep), Report)


def flip(store: Store, path: str, data: st.DataObject) -> None:
    """Change one byte of a file."""
    content = bytearray(store.get(path))
    at = data.draw(st.integers(0, len(content) - 1))
    content[at] ^= data.draw(st.integers(1, 255))
    store.put(path, bytes(content))


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("UPDATE dl_files SET size_bytes = 1 WHERE path = 'part%206'", "in SQL 1"),
        ("DELETE FROM dl_files WHERE path = 'part%204'", "but not in SQL"),
        ("UPDATE dl_tables SET protocol = replace(protocol, '7', '8')", "in SQL 8"),
        ("UPDATE dl_txns SET action = replace(action, '9', '8')", "txn other: version"),
        ("UPDATE dl_table_versions SET published_sha256 = 'x'", "was changed since"),
    ],
)
def test_change_in_the_catalog_is_named(
    tmp_path: Path, statement: str, sentence: str
) -> None:
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        store = fill(catalog)
    with sqlite3.connect(tmp_path / "meta.db") as database:
        database.execute(statement)
    database.close()

    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        assert sentence in str(verify_table(catalog, "t", store))
