"""Looking after a catalog: stats, doctor, audit, upgrade."""

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb import doctor
from delkalakedb.catalog.admin.audit import Growth, by_day
from delkalakedb.catalog.engine import migrations
from delkalakedb.catalog.engine.backend import Run
from delkalakedb.catalog.engine.statements import load_migrations
from delkalakedb.settings.uri import parse_uri
from tests.support.cli import Cli
from tests.support.servers.stores import Place

DAY_MS = 86_400_000


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "day": ["mon"] * len(ids)})


def append(cli: Cli, *ids: int, name: str = "sales") -> None:
    dk.write_deltalake(cli.table(name), rows(*ids), mode="append")


def location(cli: Cli) -> Path:
    return Path(dk.DeltaTable(cli.table()).table_uri.removeprefix("file://"))


def change(cli: Cli, statement: str) -> None:
    with dk.connect(str(cli.uri)) as catalog, catalog._backend.writing() as session:
        session.script([statement])


# ---- stats


def test_stats_count_files_bytes_and_tombstones(deltasql: Cli) -> None:
    removed = deltasql.json("files", "sales", "--where", "id = 1")
    dk.DeltaTable(deltasql.table()).delete("id = 1")
    (table,) = deltasql.json("tables")

    (found,) = deltasql.json("stats", "sales")
    assert found["table"] == "sales"
    assert (found["version"], found["versions"], found["commits"]) == (2, 3, 3)
    for field in ("num_files", "size_bytes"):
        assert found[field] == table[field]
    assert found["small_files"] == found["num_files"] == 2
    assert found["small_bytes"] == found["grown_bytes"] == found["size_bytes"]
    assert found["tombstones"] == 1
    assert found["tombstone_bytes"] == removed[0]["size_bytes"]
    assert found["advice"] is None
    (none,) = deltasql.json("stats", "--small", "1")
    assert none["small_files"] == none["compactable_files"] == 0


def test_stats_advise_what_is_worth_while(deltasql: Cli) -> None:
    for number in range(10):
        append(deltasql, number)

    (found,) = deltasql.json("stats")
    assert (found["small_files"], found["compactable_files"]) == (13, 11)
    assert found["advice"] == "optimize"
    deltasql("optimize", "sales")
    (found,) = deltasql.json("stats")
    # The retention of the removed files has only begun.
    assert found["advice"] is None
    assert (found["tombstones"], found["expired_tombstones"]) == (11, 0)
    past = f"deletion_timestamp_ms - {8 * DAY_MS}"
    change(deltasql, f"UPDATE dl_files SET deletion_timestamp_ms = {past}")
    old = f"timestamp_ms = timestamp_ms - {8 * DAY_MS}"
    change(deltasql, f"UPDATE dl_table_versions SET {old}")
    change(deltasql, f"UPDATE dl_tables SET {old}")
    (found,) = deltasql.json("stats")
    assert (found["advice"], found["expired_tombstones"]) == ("vacuum", 11)
    deltasql("vacuum", "sales", "--yes")
    assert deltasql.json("stats")[0]["advice"] is None


def test_stats_advise_retention_of_expired_versions(deltasql: Cli) -> None:
    deltasql("checkpoint", "sales")
    assert deltasql.json("stats")[0]["advice"] is None
    past = f"timestamp_ms - {40 * DAY_MS}"
    change(deltasql, f"UPDATE dl_table_versions SET timestamp_ms = {past}")
    (found,) = deltasql.json("stats")
    assert (found["advice"], found["expired_versions"]) == ("retention", 1)

    assert deltasql.json("retention", "sales", "--yes")[0]["versions"] == 1
    assert deltasql.json("stats")[0]["advice"] is None


def test_restored_file_is_no_tombstone(on_sqlite: Cli) -> None:
    dk.DeltaTable(on_sqlite.table()).delete("id = 1")
    on_sqlite("restore", "sales", "--version", "1", "--yes")

    assert on_sqlite.json("stats")[0]["tombstones"] == 0


def test_growth_is_told_by_commit_and_by_day(deltasql: Cli) -> None:
    sizes = deltasql.json("history", "sales")[::-1]
    change(
        deltasql,
        "UPDATE dl_table_versions SET timestamp_ms = timestamp_ms - "
        f"{3 * DAY_MS} WHERE version = 0",
    )

    commits = deltasql.json("stats", "sales", "--by", "commit")
    assert [c["added_bytes"] for c in commits] == [c["added_bytes"] for c in sizes]
    assert [c["num_files"] for c in commits] == [2, 3]
    days = deltasql.json("stats", "sales", "--by", "day")
    assert [d["commits"] for d in days] == [1, 1]
    assert {d["timestamp_ms"] % DAY_MS for d in days} == {0}
    assert days[-1]["size_bytes"] == deltasql.json("tables")[0]["size_bytes"]
    assert len(deltasql.json("stats", "sales", "--by", "day", "--since", "1d")) == 1


def test_growth_of_a_day_is_that_of_its_commits() -> None:
    def commit(version: int, day: float) -> Growth:
        return Growth(version, int(day * DAY_MS), "WRITE", 1, 0, 10, 2, version, 8)

    first, second = by_day([commit(1, 1.1), commit(2, 1.9), commit(3, 2.0)])

    assert (first.version, first.commits, first.added_bytes) == (2, 2, 20)
    assert (first.timestamp_ms, second.timestamp_ms) == (DAY_MS, 2 * DAY_MS)
    assert (second.removed_bytes, second.num_files) == (2, 3)


def test_stats_of_an_unknown_table_fail(on_sqlite: Cli) -> None:
    on_sqlite("stats", "nope", code=5)
    on_sqlite("stats", "nope", "--by", "day", code=5)
    assert "--by needs a TABLE" in on_sqlite("stats", "--by", "day", code=2).stderr


# ---- audit


def test_audit_lists_all_tables_newest_first(deltasql: Cli) -> None:
    append(deltasql, 1, name="other")
    with dk.transaction(deltasql.uri) as tx:
        tx.write("sales", rows(5), mode="append")
        tx.write("other", rows(6), mode="append")

    found = deltasql.json("audit")
    times = [c["timestamp_ms"] for c in found]
    assert times == sorted(times, reverse=True)
    assert {(c["table"], c["version"]) for c in found} == {
        ("sales", 0),
        ("sales", 1),
        ("sales", 2),
        ("other", 0),
        ("other", 1),
    }
    together = [c for c in found if c["transaction_tables"] == 2]
    assert {c["table"] for c in together} == {"sales", "other"}
    (transaction,) = {c["transaction_id"] for c in together}
    assert deltasql.json("audit", "--transaction", transaction) == together
    assert deltasql.json("audit", "--table", "other") == [
        c for c in found if c["table"] == "other"
    ]


def test_audit_is_filtered(deltasql: Cli) -> None:
    dk.DeltaTable(deltasql.table()).delete("id = 1")
    newest, *_ = found = deltasql.json("audit")

    assert deltasql.json("audit", "--operation", "DELETE") == [newest]
    assert deltasql.json("audit", "--limit", "1") == [newest]
    assert deltasql.json("audit", "--actor", newest["host"]) == found
    assert deltasql.json("audit", "--actor", "nobody") == []
    assert deltasql.json("audit", "--until", "2020-01-01") == []
    assert deltasql.json("audit", "--since", "2020-01-01") == found


# ---- upgrade


def test_upgrade_of_a_current_catalog_does_nothing(deltasql: Cli) -> None:
    found = deltasql.json("upgrade")

    assert found["current"] == found["latest"]
    assert not found["upgraded"]


@pytest.mark.every_engine
def test_upgrade_shows_asks_and_migrates(
    deltasql: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = parse_uri(str(deltasql.uri)).engine
    latest = migrations.latest_schema_version(engine)
    newer = {**load_migrations(engine), 99: "CREATE INDEX novelty ON dl_txns (app_id);"}
    monkeypatch.setattr(migrations, "load_migrations", lambda engine: newer)
    would = {"current": latest, "latest": 99, "upgraded": False}

    deltasql("tables", code=5)
    assert deltasql.json("upgrade", "--dry-run") == would
    refused = deltasql("upgrade", code=2)
    assert f"from schema version {latest} to 99" in refused.stderr
    assert "deltasql backup FILE" in refused.stderr
    deltasql("backup", str(tmp_path / "before"))
    schema = next(c for c in deltasql.json("doctor", code=1) if c["check"] == "schema")
    assert (schema["state"], schema["advice"]) == ("warn", "deltasql upgrade")

    assert deltasql.json("upgrade", "--yes") == {**would, "upgraded": True}
    assert [t["name"] for t in deltasql.json("tables")] == ["sales"]


def test_upgrade_refuses_what_is_newer_or_absent(
    on_sqlite: Cli, tmp_path: Path
) -> None:
    (tmp_path / "empty.db").touch()
    nothing = Cli(f"deltasql://sqlite/{tmp_path}/empty.db")
    assert "there is no catalog" in nothing("upgrade", code=5).stderr
    Cli(f"deltasql://sqlite/{tmp_path}/none.db")("upgrade", code=3)

    change(on_sqlite, "UPDATE dl_schema_versions SET version = version + 1000")
    assert "upgrade delkalakedb" in on_sqlite("upgrade", code=5).stderr


# ---- doctor


def problems(cli: Cli, code: int = 1) -> dict[str, dict[str, str]]:
    found = cli.json("doctor", code=code)
    return {c["check"]: c for c in found if c["state"] != "ok"}


def test_doctor_finds_nothing_wrong_and_leaves_nothing(deltasql: Cli) -> None:
    before = sorted(location(deltasql).rglob("*"))
    found = deltasql.json("doctor")

    assert {c["state"] for c in found} == {"ok"}
    assert [c["check"] for c in found] == [
        "connection",
        "schema",
        "insert",
        "create",
        "database clock",
        "mirror",
        "lease",
        "files",
        "location",
        "log",
        "store clock",
        "conditional put",
        "workspaces",
    ]
    assert sorted(location(deltasql).rglob("*")) == before
    deltasql("verify", "--deep")


def test_doctor_names_a_server_that_is_away() -> None:
    uri = "deltasql://postgres/me:hunter2-Zq@127.0.0.1:1/db"
    result = Cli(uri)("doctor", code=3)

    assert "fail" in result.stdout
    assert "check the URI, the server" in result.stdout
    assert "hunter2-Zq" not in result.output


def test_doctor_names_an_absent_catalog(tmp_path: Path) -> None:
    (tmp_path / "empty.db").touch()
    found = problems(Cli(f"deltasql://sqlite/{tmp_path}/empty.db"))

    assert found["schema"]["detail"] == "there is no catalog"


def test_doctor_names_a_duckdb_file_held_by_another_process(tmp_path: Path) -> None:
    file = tmp_path / "meta.duckdb"
    code = (
        "import sys, delkalakedb as dk; dk.connect(sys.argv[1]).init(); "
        "print('open', flush=True); sys.stdin.read()"
    )
    uri = f"deltasql://duckdb/{file}"
    with subprocess.Popen(
        [sys.executable, "-c", code, uri],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        found = problems(Cli(uri), code=3)["connection"]
        other.communicate()

    assert "another process has this DuckDB file open" in found["detail"]
    assert "end the process" in found["advice"]


def test_doctor_names_a_mirror_that_stands_still(deltasql: Cli) -> None:
    import deltalake

    deltalake.write_deltalake(str(location(deltasql)), rows(7), mode="append")
    append(deltasql, 8)

    found = problems(deltasql)["mirror"]
    assert found["state"] == "fail"
    assert found["advice"] == "deltasql mirror adopt sales --dry-run"


def test_doctor_names_a_lease_that_was_never_given_back(deltasql: Cli) -> None:
    change(
        deltasql,
        "UPDATE dl_mirrors SET lease_owner = 'host/1/a', "
        f"lease_until_ms = {int(time.time() * 1000) - 1000}",
    )

    assert "host/1/a" in problems(deltasql)["lease"]["detail"]
    append(deltasql, 4)
    deltasql("doctor")


def test_doctor_names_a_log_that_has_lost_its_newest_version(deltasql: Cli) -> None:
    log = location(deltasql) / "_delta_log"
    newest = max(log.glob("*.json"))
    before = newest.read_bytes()
    newest.unlink()

    found = problems(deltasql)["log"]
    assert (found["state"], newest.name in found["detail"]) == ("fail", True)
    assert found["advice"] == "deltasql mirror republish sales"
    (done,) = [deltasql.json("mirror", "republish", "sales")]
    assert done["versions"] == [int(newest.stem)]
    assert newest.read_bytes() == before
    deltasql("doctor")


def test_doctor_names_tables_with_small_files(on_sqlite: Cli) -> None:
    for number in range(10):
        append(on_sqlite, number)

    assert problems(on_sqlite)["files"]["advice"] == "deltasql optimize sales"


def test_doctor_names_a_location_that_is_gone(on_sqlite: Cli) -> None:
    location(on_sqlite).rename(location(on_sqlite).with_name("elsewhere"))

    found = problems(on_sqlite)["location"]
    assert found["state"] == "fail"
    assert "_delta_log is missing" in found["detail"]
    assert not location(on_sqlite).exists()


def test_doctor_names_workspaces_of_the_dead_only(on_sqlite: Cli) -> None:
    work = location(on_sqlite) / "_delta_work"
    for name in ("dead", "alive"):
        (work / name).mkdir(parents=True)
    held = os.open(work / "alive", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)

    found = problems(on_sqlite)["workspaces"]
    assert f"{work}: 1 folders" in found["detail"]
    assert (work / "dead").exists()
    os.close(held)


def test_doctor_names_a_clock_that_is_off(
    on_sqlite: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_SKEW_MS", -1)

    found = problems(on_sqlite)
    assert {"database clock", "store clock"} <= found.keys()
    assert "NTP" in found["database clock"]["advice"]


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_doctor_tells_what_a_role_may_do(deltasql: Cli) -> None:
    uri = parse_uri(str(deltasql.uri))
    server = f"postgresql://{uri.user}:{uri.password}@{uri.host}:{uri.port}"
    reader = f"r{uri.database}"
    with psycopg.connect(f"{server}/{uri.database}", autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {reader} LOGIN PASSWORD 'pw'".encode())
        admin.execute(
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {reader}".encode()
        )
        admin.execute(b"REVOKE CREATE ON SCHEMA public FROM PUBLIC")
        weak = Cli(
            str(deltasql.uri).replace(f"{uri.user}:{uri.password}", f"{reader}:pw")
        )
        found = {check["check"]: check for check in weak.json("doctor")}
        admin.execute(f"DROP OWNED BY {reader}".encode())
        admin.execute(f"DROP ROLE {reader}".encode())

    assert {check["state"] for check in found.values()} == {"ok"}
    assert found["insert"]["detail"] == "this role only reads"
    assert "this role can't create tables" in found["create"]["detail"]


def test_doctor_names_a_store_that_overwrites(
    on_sqlite: Cli, careless_s3: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in careless_s3.storage_options.items():
        monkeypatch.setenv(name, value)
    uri = f"{on_sqlite.table('far')}&location={careless_s3.location}"
    dk.write_deltalake(uri, rows(1), storage_options=careless_s3.storage_options)

    found = problems(on_sqlite)
    assert set(found) == {"conditional put"}
    assert "far" in found["conditional put"]["detail"]


def test_tried_writes_are_undone(on_sqlite: Cli) -> None:
    with dk.connect(str(on_sqlite.uri)) as catalog:
        doctor._try(catalog._backend, Run("create_probe", {}))
        doctor._try(catalog._backend, Run("create_probe", {}))
