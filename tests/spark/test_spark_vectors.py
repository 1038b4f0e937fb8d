"""Delta Spark reads the deletion vectors that we write, and we read its own."""

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.model.actions import Add, decode_commit, known
from tests.support import delta_spark
from tests.support.processes import program

# A driver of its own.
pytestmark = pytest.mark.soak

ROWS = 70_000  # more than a bitmap's container has
ON = {"delta.enableDeletionVectors": "true"}


class Driver:
    """Delta Spark in a process of its own."""

    def __init__(self, jars: list[Path]) -> None:
        command = program("delta_worker", ",".join(map(str, jars)))
        self._process = subprocess.Popen(
            command,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, statement: str) -> list[list[Any]]:
        """The rows that a statement gives."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(statement)}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"Delta Spark ended at: {statement}"
        return list(json.loads(answer))

    def rows(self, folder: Path, version: int) -> list[list[Any]]:
        """The rows of a version of a table."""
        table = f"delta.`{folder}` VERSION AS OF {version}"
        return self.ask(f"SELECT id, v FROM {table} ORDER BY id")

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    try:
        jars = delta_spark.find_jars(tmp_path_factory.mktemp("jars"))
    except delta_spark.UnavailableError as error:
        pytest.skip(str(error))
    driver = Driver(jars)
    yield driver
    driver.close()


def ours(uri: str, version: int | None = None) -> list[list[Any]]:
    """The rows of a version as pyarrow finds them, by our decoder."""
    table = dk.DeltaTable(uri, version).to_pyarrow_table(columns=["id", "v"])
    return [list(row.values()) for row in table.sort_by("id").to_pylist()]


def folder_of(uri: str) -> Path:
    return Path(dk.DeltaTable(uri).table_uri.removeprefix("file://"))


def vectors_in(folder: Path) -> set[str]:
    """The storage types of the deletion vectors in a log."""
    return {
        vector.storage_type
        for entry in (folder / "_delta_log").glob("*.json")
        for action in decode_commit(entry.read_bytes())
        if isinstance(action, Add)
        and (vector := known(action.deletion_vector)) is not None
    }


def change(uri: str, seed: int) -> None:
    """Delete, update and merge rows: a few, runs of them, and many scattered ones."""
    chance = random.Random(seed)

    def some(count: int) -> list[int]:
        return sorted(chance.sample(range(ROWS + 2000), count))

    def listed(count: int) -> str:
        return f"id IN ({', '.join(map(str, some(count)))})"

    low = chance.randrange(ROWS)
    dk.DeltaTable(uri).delete(listed(3))
    dk.DeltaTable(uri).delete(f"id >= {low} AND id < {low + 9_000}")
    dk.DeltaTable(uri).delete(f"v = {chance.randrange(11)}")
    dk.DeltaTable(uri).update({"v": "v + 100"}, predicate=listed(50))
    source = pa.table({"id": some(40), "v": [7] * 40})
    (
        dk.DeltaTable(uri)
        .merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        .when_matched_update_all(predicate="s.id % 3 <> 0")
        .when_matched_delete()
        .when_not_matched_insert_all()
        .execute()
    )


def check_versions(driver: Driver, uri: str) -> None:
    table = dk.DeltaTable(uri)
    for version in range(table.version() + 1):
        found = ours(uri, version)
        assert driver.rows(folder_of(uri), version) == found, version
    assert table.count() == len(found)
    scanned = pa.table(table.scan()).select(["id", "v"]).to_pylist()
    assert sorted(list(row.values()) for row in scanned) == found
    assert dk.verify(uri, deep=True).ok


@pytest.mark.parametrize("inline_bytes", ["0", "4096", "1000000"])
def test_both_read_what_the_other_deleted(
    driver: Driver, tmp_path: Path, inline_bytes: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DELKALAKEDB_VECTORS__INLINE_BYTES", inline_bytes)
    monkeypatch.setenv("DELKALAKEDB_VECTORS__MAX_SHARE", "0.5")
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    for ids in (range(ROWS), range(ROWS, ROWS + 1000)):
        rows = pa.table({"id": ids, "v": [i * 7919 % 11 for i in ids]})
        dk.write_deltalake(uri, rows, mode="append", configuration=ON)
    change(uri, 1)
    check_versions(driver, uri)
    expected = {"0": {"u"}, "4096": {"i", "u"}, "1000000": {"i"}}[inline_bytes]
    assert vectors_in(folder_of(uri)) == expected

    # Delta Spark deletes more of the files' rows, and we more than Delta Spark.
    copied = tmp_path / "copied"
    shutil.copytree(folder_of(uri), copied)
    driver.ask(f"DELETE FROM delta.`{copied}` WHERE id % 1000 = 3")
    driver.ask(f"UPDATE delta.`{copied}` SET v = -1 WHERE id % 5000 = 4")
    again = f"deltasql://sqlite/{tmp_path}/again.db?table=t"
    assert dk.import_table(str(copied), again).ok
    change(again, 2)
    check_versions(driver, again)


def test_vectors_of_delta_spark_are_read_and_grow(
    driver: Driver, tmp_path: Path
) -> None:
    folder = tmp_path / "sparks"
    rows = f"SELECT id, id * 7919 % 11 AS v FROM range(0, {ROWS}, 1, 1)"
    made = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')"
    driver.ask(f"CREATE TABLE delta.`{folder}` USING delta {made} AS {rows}")
    for where in ("id % 97 = 5", "id BETWEEN 60000 AND 67000", "v = 3"):
        driver.ask(f"DELETE FROM delta.`{folder}` WHERE {where}")
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    assert dk.import_table(str(folder), uri).ok
    check_versions(driver, uri)
    change(uri, 3)
    check_versions(driver, uri)
    assert vectors_in(folder)
