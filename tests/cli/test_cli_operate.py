"""The daily work: verify, optimize, vacuum, checkpoint, restore, retention."""

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from tests.support.cli import Cli


def location(cli: Cli, name: str = "sales") -> Path:
    return Path(dk.DeltaTable(cli.table(name)).table_uri.removeprefix("file://"))


def ids(cli: Cli, name: str = "sales") -> list[int]:
    return sorted(dk.DeltaTable(cli.table(name)).to_pyarrow_table()["id"].to_pylist())


def append(cli: Cli, *values: int, name: str = "sales", day: str = "mon") -> None:
    rows = pa.table({"id": list(values), "day": [day] * len(values)})
    dk.write_deltalake(cli.table(name), rows, mode="append")


def entry(cli: Cli, version: int) -> Path:
    return location(cli) / "_delta_log" / f"{version:020}.json"


# ---- verify


def test_verify_finds_nothing_in_a_whole_log(deltasql: Cli) -> None:
    (report,) = deltasql.json("verify", "--deep", "--all")

    assert (report["table"], report["ok"], report["versions_checked"]) == (
        "sales",
        True,
        2,
    )
    assert deltasql.json("verify")[0]["ok"]


def test_verify_names_differences_and_exits_with_one(deltasql: Cli) -> None:
    entry(deltasql, 1).write_text("{}")

    (report,) = deltasql.json("verify", "sales", code=1)
    assert not report["ok"]
    assert report["differences"][0]["where"].endswith("1.json")
    assert "was changed since it was published" in deltasql("verify", code=1).stdout


def test_verify_of_a_missing_data_file_takes_deep(on_sqlite: Cli) -> None:
    next(location(on_sqlite).glob("day=*/*.parquet")).unlink()

    on_sqlite("verify")
    assert "isn't in the store" in on_sqlite("verify", "--deep", code=1).stdout


# ---- optimize


def test_optimize_makes_one_file_of_a_partition(deltasql: Cli) -> None:
    append(deltasql, 4)
    append(deltasql, 5, day="tue")
    append(deltasql, 6)

    (done,) = deltasql.json("optimize", "sales", "--where", "day = 'mon'")
    assert (done["num_removed_files"], done["num_added_files"]) == (3, 1)
    assert len(deltasql.json("files", "sales", "--where", "day = 'mon'")) == 1
    assert len(deltasql.json("files", "sales", "--where", "day = 'tue'")) == 2
    assert ids(deltasql) == [1, 2, 3, 4, 5, 6]
    assert deltasql.json("verify", "--deep")[0]["ok"]


def test_optimize_takes_columns_to_cluster_by(on_sqlite: Cli) -> None:
    append(on_sqlite, 9, 4)
    on_sqlite("optimize", "--all", "--z-order", "id", "--target-size", "1000000")

    assert on_sqlite.json("history", "sales")[0]["operation"] == "OPTIMIZE"
    assert ids(on_sqlite) == [1, 2, 3, 4, 9]


def test_dry_run_of_optimize_counts_what_it_would_rewrite(deltasql: Cli) -> None:
    for number in range(4, 9):
        append(deltasql, number, day="tue" if number % 2 else "mon")
    words = ["optimize", "sales", "--target-size", "1000"]

    (would,) = deltasql.json(*words, "--dry-run")
    said = deltasql(*words, "--dry-run").stdout
    assert deltasql.json("describe", "sales")["version"] == 6
    (done,) = deltasql.json(*words)

    counts = ("num_removed_files", "num_added_files")
    assert [would[name] for name in counts] == [done[name] for name in counts]
    assert would["dry_run"]
    assert said.startswith(f"Would rewrite {done['num_removed_files']} files of sales")


@pytest.mark.parametrize("where", ["id = 1", "day = 'mon' OR day = 'tue'"])
def test_optimize_chooses_whole_partitions(on_sqlite: Cli, where: str) -> None:
    result = on_sqlite("optimize", "sales", "--where", where, code=2)

    assert "joined by AND; they are day" in result.stderr


def test_optimize_purges_deleted_rows(on_sqlite: Cli) -> None:
    append(on_sqlite, *range(10, 40))
    table = dk.DeltaTable(on_sqlite.table())
    table.alter.set_table_properties({"delta.enableDeletionVectors": "true"})
    table.delete("id = 12")
    before = ids(on_sqlite)

    ask = ["optimize", "sales", "--purge", "--where", "day = 'mon'"]
    (kept,) = on_sqlite.json(*ask, "--dead-share", "0.5")
    assert kept["num_removed_files"] == 0
    (done,) = on_sqlite.json(*ask)
    assert (done["num_removed_files"], done["num_added_files"]) == (1, 1)
    assert done["metrics"]["numDeletionVectorRowsRemoved"] == 1
    assert ids(on_sqlite) == before
    for wrong in (["--dead-share", "0.5"], ["--purge", "--z-order", "id"]):
        assert "--purge" in on_sqlite("optimize", "sales", *wrong, code=2).stderr


# ---- vacuum


def test_vacuum_deletes_what_a_dry_run_counted(deltasql: Cli) -> None:
    append(deltasql, 4)
    deltasql("optimize", "sales")
    asked = ["vacuum", "sales", "--retention", "0h", "--force"]

    (plan,) = deltasql.json(*asked, "--dry-run")
    sizes = {p: (location(deltasql) / p).stat().st_size for p in plan["paths"]}
    assert plan["paths"] == sizes
    assert (plan["num_files"], plan["size_bytes"]) == (2, sum(sizes.values()))
    assert not plan["deleted"]

    (done,) = deltasql.json(*asked, "--yes")
    assert done == {**plan, "deleted": True}
    assert not any((location(deltasql) / path).exists() for path in sizes)
    assert ids(deltasql) == [1, 2, 3, 4]


def test_vacuum_asks_before_it_deletes(on_sqlite: Cli) -> None:
    append(on_sqlite, 4)
    on_sqlite("optimize", "sales")
    words = ["vacuum", "sales", "--retention", "0h", "--force"]

    assert "Add --yes" in on_sqlite(*words, code=2).stderr
    assert on_sqlite.json(*words, "--dry-run")[0]["num_files"] == 2


@pytest.mark.parametrize(("answer", "code", "left"), [("n", 1, 5), ("y", 0, 3)])
def test_answer_on_a_terminal_decides(
    on_sqlite: Cli, answer: str, code: int, left: int
) -> None:
    append(on_sqlite, 4)
    on_sqlite("optimize", "sales")
    words = ["vacuum", "sales", "--retention", "0h", "--force"]
    program = "from delkalakedb.cli import main; main()"
    ours, theirs = pty.openpty()
    done = subprocess.Popen(
        [sys.executable, "-c", program, *words],
        env=os.environ | {"DELTASQL_CATALOG": str(on_sqlite.uri)},
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    os.write(ours, f"{answer}\n".encode())
    _, said = done.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)

    assert done.returncode == code, said
    assert b"Delete 2 files with" in said
    assert len(list(location(on_sqlite).glob("day=*/*.parquet"))) == left


def test_vacuum_refuses_a_short_retention(on_sqlite: Cli) -> None:
    words = ["vacuum", "sales", "--yes"]

    assert "minimum retention" in on_sqlite(*words, "--retention", "1h", code=5).stderr
    assert (
        "got 1.5 hours; --force allows it"
        in on_sqlite(*words, "--retention", "90m", code=5).stderr
    )


def test_retention_of_a_vacuum_may_be_a_fraction_of_hours(on_sqlite: Cli) -> None:
    orphan = location(on_sqlite) / "orphan.parquet"
    orphan.write_bytes(b"x")
    os.utime(orphan, (time.time() - 50 * 60,) * 2)
    words = ["vacuum", "sales", "--full", "--force", "--dry-run", "--retention"]

    assert on_sqlite.json(*words, "0.9h")[0]["paths"] == {}
    assert on_sqlite.json(*words, "48m")[0]["paths"] == {"orphan.parquet": 1}


def test_vacuum_without_anything_to_delete_commits_nothing(on_sqlite: Cli) -> None:
    on_sqlite("vacuum", "--all")

    assert on_sqlite.json("tables")[0]["version"] == 1


def test_full_vacuum_deletes_what_no_version_names(on_sqlite: Cli) -> None:
    orphan = location(on_sqlite) / "orphan.parquet"
    orphan.write_bytes(b"x" * 7)
    words = ["vacuum", "sales", "--full", "--retention", "0h", "--force", "--yes"]

    assert on_sqlite.json(*words)[0]["paths"] == {"orphan.parquet": 7}
    assert not orphan.exists()


# ---- checkpoint, restore, retention


def test_checkpoint_is_written_for_each_table(deltasql: Cli) -> None:
    append(deltasql, 1, name="other")

    done = deltasql.json("checkpoint", "--all")
    assert done == [
        {"table": "other", "checkpoint_version": 0},
        {"table": "sales", "checkpoint_version": 1},
    ]
    found = location(deltasql) / "_delta_log" / f"{1:020}.checkpoint.parquet"
    assert found.exists()
    deltasql("verify", "--deep", "--all")


def test_table_that_fails_keeps_no_other_from_being_done(deltasql: Cli) -> None:
    for name in ("first", "other"):
        append(deltasql, 1, name=name)
    hold = "UPDATE dl_tables SET hold = 'moved' WHERE name = 'first'"
    with (
        dk.connect(str(deltasql.uri)) as catalog,
        catalog._backend.writing() as session,
    ):
        session.script([hold])
    for number in (2, 3):
        append(deltasql, number, name="other")

    result = deltasql("optimize", "--all", "--output", "json", code=5)

    done = [one["table"] for one in json.loads(result.stdout)]
    assert done == ["other", "sales"]
    assert (
        "first: nothing was written, because the table is read-only here (moved"
        in result.stderr
    )


def test_question_is_not_lost_when_another_table_fails(on_sqlite: Cli) -> None:
    append(on_sqlite, 7)
    on_sqlite("optimize", "sales")
    words = ("vacuum", "sales", "nobody", "--retention", "0h", "--force")

    assert "Add --yes" in on_sqlite(*words, code=2).stderr
    refused = on_sqlite(*words, "--yes", code=5)
    assert "nobody" in refused.stderr
    assert refused.stdout.startswith("Deleted 2 files of sales (")


@pytest.mark.parametrize("words", [[], ["sales", "--all"]])
def test_tables_are_named_or_all(on_sqlite: Cli, words: list[str]) -> None:
    assert "give either TABLES or --all" in on_sqlite("vacuum", *words, code=2).stderr


def test_restore_goes_back_to_a_version(deltasql: Cli) -> None:
    would = deltasql.json("restore", "sales", "--version", "0", "--dry-run")
    assert (would["num_removed_files"], would["num_restored_files"]) == (1, 0)
    assert ids(deltasql) == [1, 2, 3]

    done = deltasql.json("restore", "sales", "--version", "0", "--yes")
    assert done == {**would, "version": 2}
    assert ids(deltasql) == [1, 2]
    assert deltalake.DeltaTable(str(location(deltasql))).version() == 2


def test_restore_goes_back_to_a_time(on_sqlite: Cli) -> None:
    first = on_sqlite.json("history", "sales")[1]["timestamp_ms"]
    at = pa.scalar(first, pa.timestamp("ms")).as_py().isoformat()

    done = on_sqlite.json("restore", "sales", "--timestamp", at, "--yes")
    assert (done["target_version"], done["version"]) == (0, 2)


def test_restore_asks_and_needs_a_target(on_sqlite: Cli) -> None:
    on_sqlite("restore", "sales", code=2)
    on_sqlite("restore", "sales", "--version", "0", code=2)

    assert ids(on_sqlite) == [1, 2, 3]


def test_retention_drops_versions_that_expired(deltasql: Cli) -> None:
    assert deltasql.json("retention", "sales")[0]["versions"] == 0
    forget = {"delta.logRetentionDuration": "interval 0 seconds"}
    dk.DeltaTable(deltasql.table()).alter.set_table_properties(forget)
    append(deltasql, 4)
    _age(deltasql)
    deltasql("checkpoint", "sales")

    (would,) = deltasql.json("retention", "sales", "--dry-run")
    assert would["versions"] == would["floor"] == 3
    assert "Add --yes" in deltasql("retention", "sales", code=2).stderr
    assert deltasql.json("retention", "sales", "--keep", "90d")[0]["versions"] == 0
    assert deltasql.json("retention", "sales", "--yes") == [would]
    assert len(deltasql.json("history", "sales")) == 1
    assert ids(deltasql) == [1, 2, 3, 4]


def _age(cli: Cli) -> None:
    """Date all versions two days back: retention counts from midnight."""
    assert cli.uri is not None
    with dk.connect(cli.uri) as catalog, catalog._backend.writing() as session:
        old = "timestamp_ms = timestamp_ms - 172800000"
        session.script(
            [f"UPDATE dl_table_versions SET {old}", f"UPDATE dl_tables SET {old}"]
        )
