"""Backups of the catalog, and coming back from them."""

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.catalog.admin.backup import back_up
from delkalakedb.catalog.engine import migrations
from delkalakedb.catalog.engine.statements import load_migrations
from delkalakedb.settings.uri import parse_uri
from tests.support.cli import Cli

# Each engine makes its backups in a way of its own.
pytestmark = pytest.mark.every_engine
PASSWORD = "s3cret"


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "day": ["mon"] * len(ids)})


def append(cli: Cli, *ids: int, name: str = "sales") -> None:
    dk.write_deltalake(cli.table(name), rows(*ids), mode="append")


def ids(cli: Cli, name: str = "sales", version: int | None = None) -> list[int]:
    table = dk.DeltaTable(cli.table(name), version=version)
    return sorted(table.to_pyarrow_table()["id"].to_pylist())


def destroy(cli: Cli) -> None:
    """Lose the database, as a disk would."""
    uri = parse_uri(str(cli.uri))
    if uri.engine == "sqlite":
        for suffix in ("", "-wal", "-shm"):
            Path(f"{uri.database}{suffix}").unlink(missing_ok=True)
        return
    # Emptied, because only this process, which has it open, could delete it.
    with dk.connect(str(cli.uri)) as catalog, catalog._backend.writing() as session:
        latest = migrations.latest_schema_version(uri.engine)
        tables = migrations.catalog_tables(uri.engine, latest)
        session.script([f"DROP TABLE {table}" for table in reversed(tables)])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "backup of the catalog"


def test_backup_is_one_file_that_says_what_is_in_it(deltasql: Cli, file: Path) -> None:
    done = deltasql.json("backup", str(file))

    assert (done["file"], done["tables"]) == (str(file), 1)
    assert done["size_bytes"] == file.stat().st_size > 0
    assert [p for p in file.parent.iterdir() if p.name.startswith((".", "-"))] == []
    assert "exists" in deltasql("backup", str(file), code=5).stderr


def test_restored_catalog_is_what_it_was(deltasql: Cli, file: Path) -> None:
    dk.DeltaTable(deltasql.table()).delete("id = 1")
    before = [deltasql.json(c, "sales") for c in ("history", "files")]
    deltasql("backup", str(file))
    destroy(deltasql)

    (table,) = deltasql.json("restore-catalog", str(file))
    assert (table["version"], table["newer"], table["found"]) == (2, 0, None)
    assert [deltasql.json(c, "sales") for c in ("history", "files")] == before
    deltasql("verify", "--deep")
    append(deltasql, 9)
    assert ids(deltasql) == [2, 3, 9]
    assert ids(deltasql, version=1) == [1, 2, 3]


def test_commits_since_an_old_backup_come_back(deltasql: Cli, file: Path) -> None:
    deltasql("backup", str(file))
    append(deltasql, 4)
    append(deltasql, 5)
    dk.DeltaTable(deltasql.table()).delete("id = 1")
    made = deltasql.json("history", "sales")
    with dk.transaction(deltasql.uri) as tx:
        tx.write("sales", rows(6), mode="append")
        tx.write("late", rows(1), mode="error")

    refused = deltasql("restore-catalog", str(file), code=2)
    assert "Replace the catalog with its 2 tables?" in refused.stderr
    result = deltasql("restore-catalog", str(file), "--yes", code=1)
    assert "mirror adopt --all" in result.stderr
    assert ids(deltasql) == [1, 2, 3]
    deltasql("verify", code=1)

    adopted = deltasql.json("mirror", "adopt", "--all", "--yes")
    assert [c["version"] for c in adopted] == [2, 3, 4, 5]
    deltasql("verify", "--deep", "--all")
    assert ids(deltasql) == [2, 3, 4, 5, 6]
    again = deltasql.json("history", "sales")[1:]
    same = ("version", "operation", "transaction_id", "commit_info")
    assert [[c[k] for k in same] for c in again] == [[c[k] for k in same] for c in made]
    append(deltasql, 7)
    assert ids(deltasql) == [2, 3, 4, 5, 6, 7]


def test_table_made_since_the_backup_is_imported_again(
    on_sqlite: Cli, file: Path
) -> None:
    on_sqlite("backup", str(file))
    append(on_sqlite, 1, name="late")
    location = dk.DeltaTable(on_sqlite.table("late")).table_uri
    on_sqlite("restore-catalog", str(file), "--yes")

    assert [t["name"] for t in on_sqlite.json("tables")] == ["sales"]
    assert dk.import_table(location, on_sqlite.table("late")).ok
    assert ids(on_sqlite, "late") == [1]


def test_lost_catalog_is_rebuilt_from_the_logs_alone(deltasql: Cli) -> None:
    append(deltasql, 1, name="other")
    dk.DeltaTable(deltasql.table()).delete("id = 2")
    deltasql("checkpoint", "sales")
    append(deltasql, 5)
    history = deltasql.json("history", "sales")
    root = deltasql.json("tables")[0]["location"].rpartition("/")[0]
    destroy(deltasql)

    deltasql("import", root, "--recursive", "--deep")
    assert [t["name"] for t in deltasql.json("tables")] == ["other", "sales"]
    deltasql("verify", "--deep", "--all")
    assert ids(deltasql) == [1, 3, 5]
    assert [ids(deltasql, version=v) for v in (0, 1, 2)] == [[1, 2], [1, 2, 3], [1, 3]]
    again = deltasql.json("history", "sales")
    same = ("version", "operation", "transaction_id", "commit_info")
    assert [[c[k] for k in same] for c in again] == [
        [c[k] for k in same] for c in history
    ]


def test_lease_of_when_it_was_made_holds_up_nobody(deltasql: Cli, file: Path) -> None:
    until_ms = 2**50
    with (
        dk.connect(str(deltasql.uri)) as catalog,
        catalog._backend.writing() as session,
    ):
        held = f"lease_owner = 'host', lease_until_ms = {until_ms}"
        session.script([f"UPDATE dl_mirrors SET {held}"])
    deltasql("backup", str(file))
    deltasql("restore-catalog", str(file), "--yes")

    append(deltasql, 4)
    assert deltasql.json("mirror", "status")[0]["state"] == "published"


def test_dry_run_checks_and_changes_nothing(deltasql: Cli, file: Path) -> None:
    deltasql("backup", str(file))
    append(deltasql, 4)

    (would,) = deltasql.json("restore-catalog", str(file), "--dry-run")
    assert would == {"table": "sales", "version": 1, "before": 2}
    assert ids(deltasql) == [1, 2, 3, 4]
    deltasql("verify", "--deep")


@pytest.mark.parametrize("damage", ["nothing in it", "cut", "flipped"])
def test_damaged_backup_leaves_the_catalog_as_it_is(
    deltasql: Cli, file: Path, damage: str
) -> None:
    deltasql("backup", str(file))
    data = bytearray(file.read_bytes())
    middle = len(data) // 2
    if damage == "flipped":
        step = 1 if len(data) < 100_000 else 4096
        for place in range(middle, len(data), step):
            data[place] ^= 0xFF
    else:
        del data[0 if damage == "nothing in it" else middle :]
    file.write_bytes(data)

    result = deltasql("restore-catalog", str(file), "--yes", code=5)
    assert f"{file} can't be restored: " in result.stderr
    assert ids(deltasql) == [1, 2, 3]
    deltasql("verify", "--deep")
    append(deltasql, 4)


@pytest.mark.parametrize("engine", ["sqlite", "duckdb"], indirect=True)
def test_failed_restore_creates_no_database(
    deltasql: Cli, engine: str, file: Path, tmp_path: Path
) -> None:
    deltasql("backup", str(file))
    (tmp_path / "damaged").write_bytes(file.read_bytes()[:5000])
    folder = tmp_path / "new"
    folder.mkdir()
    elsewhere = Cli(f"deltasql://{engine}/{folder}/meta.db")

    elsewhere("restore-catalog", str(tmp_path / "damaged"), code=5)
    elsewhere("restore-catalog", str(file), "--dry-run")
    assert list(folder.iterdir()) == []
    elsewhere("restore-catalog", str(file))
    assert [path.name for path in folder.iterdir()] == ["meta.db"]
    assert ids(elsewhere) == [1, 2, 3]


def test_backup_with_rows_that_contradict_each_other_is_refused(
    deltasql: Cli, file: Path
) -> None:
    uri = str(deltasql.uri)
    with dk.connect(uri) as catalog, catalog._backend.writing() as session:
        session.script(["UPDATE dl_tables SET num_files = num_files + 1"])
    deltasql("backup", str(file))
    with dk.connect(uri) as catalog, catalog._backend.writing() as session:
        session.script(["UPDATE dl_tables SET num_files = num_files - 1"])

    result = deltasql("restore-catalog", str(file), "--yes", code=5)
    assert "the backup is damaged: sales" in result.stderr
    append(deltasql, 4)
    assert ids(deltasql) == [1, 2, 3, 4]


def test_older_backup_is_restored_and_then_upgraded(
    deltasql: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deltasql("backup", str(file))
    engine = parse_uri(str(deltasql.uri)).engine
    newer = {**load_migrations(engine), 99: "CREATE TABLE dl_novelties (x BIGINT);"}
    if engine == "sqlite":
        newer[99] = "CREATE TABLE dl_novelties (x INTEGER) STRICT;"
    monkeypatch.setattr(migrations, "load_migrations", lambda engine: newer)
    dk.connect(str(deltasql.uri)).close()

    result = deltasql("restore-catalog", str(file), "--yes")
    assert "run deltasql upgrade" in result.stderr
    dk.connect(str(deltasql.uri)).close()
    assert deltasql.json("verify", "--deep")[0]["ok"]
    assert ids(deltasql) == [1, 2, 3]


def test_newer_backup_is_refused(
    deltasql: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = parse_uri(str(deltasql.uri)).engine
    newer = {**load_migrations(engine), 99: "CREATE INDEX novelty ON dl_txns (app_id);"}
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "load_migrations", lambda engine: newer)
        with dk.connect(str(deltasql.uri)) as catalog:
            back_up(catalog.uri, catalog.settings, file)

    result = deltasql("restore-catalog", str(file), "--yes", code=5)
    assert "schema version 99" in result.stderr
    assert "upgrade delkalakedb" in result.stderr


def test_newer_catalog_is_not_replaced(deltasql: Cli, file: Path) -> None:
    deltasql("backup", str(file))
    with (
        dk.connect(str(deltasql.uri)) as catalog,
        catalog._backend.writing() as session,
    ):
        session.script(["UPDATE dl_schema_versions SET version = version + 1000"])

    result = deltasql("restore-catalog", str(file), "--yes", code=5)
    assert "the existing catalog has schema version 100" in result.stderr


def test_all_tables_go_back_to_a_backup_if_later_commits_are_discarded(
    deltasql: Cli, file: Path
) -> None:
    deltasql("backup", str(file))
    append(deltasql, 4)
    dk.DeltaTable(deltasql.table()).delete("id = 1")
    deltasql("restore-catalog", str(file), "--yes", code=1)

    deltasql("mirror", "adopt", "--all", "--discard", "--yes")
    deltasql("verify", "--deep")
    assert ids(deltasql) == [1, 2, 3]
    location = dk.DeltaTable(deltasql.table()).table_uri
    assert deltalake.DeltaTable(location).version() == 1


def test_checkpoint_makes_a_torn_log_readable_again(on_sqlite: Cli) -> None:
    location = dk.DeltaTable(on_sqlite.table()).table_uri
    Path(location.removeprefix("file://"), f"_delta_log/{0:020}.json").unlink()

    def rows_in_log() -> int:
        return deltalake.DeltaTable(location).to_pyarrow_table().num_rows

    assert rows_in_log() < 3
    on_sqlite("checkpoint", "sales")
    assert rows_in_log() == 3


@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
def test_backup_while_others_write_is_of_one_state(deltasql: Cli, file: Path) -> None:
    stop = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        number = 100
        try:
            while not stop.is_set():
                append(deltasql, number := number + 1)
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(3):
            deltasql("backup", f"{file}.{number}")
    finally:
        stop.set()
        writer.join()
    assert failed == []
    written = ids(deltasql)

    for number in range(3):
        words = ["restore-catalog", f"{file}.{number}", "--dry-run"]
        assert deltasql.json(*words)[0]["version"] >= 1
    deltasql("restore-catalog", f"{file}.0", "--yes", code=1)
    deltasql("mirror", "adopt", "--all", "--yes")
    deltasql("verify", "--deep")
    assert ids(deltasql) == written


def test_killed_backup_leaves_no_file_of_that_name(on_sqlite: Cli, file: Path) -> None:
    code = (
        "import os, sys; from delkalakedb.catalog.admin import backup as backups\n"
        "backups.sync_path = lambda path: os._exit(9)\n"
        "from delkalakedb.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "backup", str(file)]
    env = os.environ | {"DELTASQL_CATALOG": str(on_sqlite.uri)}
    assert subprocess.run(command, env=env, check=False).returncode == 9

    assert not file.exists()
    on_sqlite("backup", str(file))


@pytest.mark.parametrize("engine", ["sqlite", "postgres"], indirect=True)
def test_killed_restore_leaves_the_catalog_as_it_was(deltasql: Cli, file: Path) -> None:
    deltasql("backup", str(file))
    append(deltasql, 4)
    code = (
        "import os; from delkalakedb.catalog.admin import backup as backups\n"
        "room = backups._make_room\n"
        "backups._make_room = lambda *given: [*room(*given)[:4], os._exit(9)]\n"
        "from delkalakedb.cli import main; main()"
    )
    command = [sys.executable, "-c", code, "restore-catalog", str(file), "--yes"]
    env = os.environ | {"DELTASQL_CATALOG": str(deltasql.uri)}
    assert subprocess.run(command, env=env, check=False).returncode == 9

    assert ids(deltasql) == [1, 2, 3, 4]
    deltasql("verify", "--deep")


def test_sqlite_backup_is_a_database_without_a_log_beside_it(
    on_sqlite: Cli, file: Path
) -> None:
    on_sqlite("backup", str(file))
    file.chmod(0o400)

    with sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True) as found:
        assert found.execute("SELECT name FROM dl_tables").fetchall() == [("sales",)]
        assert found.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    found.close()


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_postgres_backup_goes_into_another_schema(deltasql: Cli, file: Path) -> None:
    deltasql("backup", str(file))
    elsewhere = Cli(str(deltasql.uri).replace("/public", "/other%20place"))

    (table,) = elsewhere.json("restore-catalog", str(file))
    assert (table["table"], table["newer"]) == ("sales", 0)
    assert elsewhere.json("history", "sales") == deltasql.json("history", "sales")


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_password_is_on_no_command_line(
    deltasql: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.which("pg_dump")
    fake = tmp_path / "bin" / "pg_dump"
    fake.parent.mkdir()
    fake.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/seen\nexec {real} "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")

    deltasql("backup", str(file))
    seen = (tmp_path / "seen").read_text()
    assert "dl_files" in seen
    assert PASSWORD not in seen


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_missing_program_is_named_with_its_remedy(
    deltasql: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from delkalakedb.catalog.engine import postgres_dump

    monkeypatch.setattr(postgres_dump, "_PLACES", ())
    monkeypatch.setenv("PATH", "/nowhere")

    result = deltasql("backup", str(file), code=5)
    assert "apt-get install postgresql-client" in result.stderr
    assert list(file.parent.glob("*backup*")) == []


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_failed_dump_says_why_without_the_password(
    deltasql: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bin" / "pg_dump"
    fake.parent.mkdir()
    fake.write_text("#!/bin/sh\necho 'error: server version 99' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")

    result = deltasql("backup", str(file), code=5)
    assert "pg_dump failed: error: server version 99" in result.stderr
    assert PASSWORD not in result.output
    assert not file.exists()
