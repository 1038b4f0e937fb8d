"""A cluster of two workers: right rows whatever tasks do, and no secret anywhere."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.settings.uri import parse_uri
from delkalakedb.storage import open_store
from tests.support.processes import program
from tests.support.servers.spark_cluster import standalone_cluster
from tests.support.servers.stores import SECRET, Place

EVERYTHING = list(range(4000))
_LEFT = [*sorted([*range(100)] * 2), *range(4000, 4100)]
MERGED = {"deleted": 3900, "inserted": 100, "found": _LEFT[:200], "all": _LEFT}


@pytest.fixture
def role() -> Iterator[str]:
    """A role of the database's; its name backwards is its password."""
    name = f"role{uuid4().hex}"
    url = os.environ["DELKALAKEDB_TEST_PG_URL"]
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD '{name[::-1]}'")
        yield name
        admin.execute(f"DROP ROLE {name}")


def run_driver(given: dict[str, Any], **environment: str) -> Any:
    ran = subprocess.run(
        program("cluster_driver"),
        env=os.environ | environment | {"PYSPARK_PYTHON": sys.executable},
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert ran.returncode == 0, ran.stderr[-6000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.soak
def test_tasks_that_die_or_dawdle_cost_no_row_and_secrets_stay_with_the_driver(
    role: str, postgres_uri: str, tmp_path: Path, s3: Place
) -> None:
    password, was = role[::-1], parse_uri(postgres_uri)
    uri = postgres_uri.replace(f"{was.user}:{was.password}@", f"{role}:{password}@")
    uri += f"?data_path={tmp_path}/tables"
    variables = {f"S3_{k}": v for k, v in s3.storage_options.items()}
    seen = tmp_path / "seen"
    seen.mkdir()

    with standalone_cluster(seen) as cluster:
        given = {
            "master": cluster.master,
            "folder": str(tmp_path),
            "uri": uri,
            "s3": s3.storage_options,
            "s3_location": s3.location,
        }
        found = run_driver(given, CATALOG_PASSWORD=password, **variables)

    copies = ("source", "s3_source", "by_batch", "by_sink")
    assert found == {
        "executors": 2,
        "opened": ["ConfigError"],
        "disk": MERGED,
        "s3": MERGED,
        **dict.fromkeys(copies, EVERYTHING),
    }
    check_unseen(seen, password, SECRET)
    for name, options in (("disk", None), ("source", None), ("s3", s3.storage_options)):
        check_vacuumed(dk.DeltaTable(f"{uri}&table={name}", storage_options=options))


def check_unseen(seen: Path, *secrets: str) -> None:
    """That nothing which Spark wrote down or shows has them."""
    texts = {path.name: path.read_text() for path in seen.rglob("*") if path.is_file()}
    logs = [text for name, text in texts.items() if name.startswith("events_")]
    assert logs
    for text in (*logs, texts["plans"], texts["page-1"]):
        assert "delkalakedb-lists" in text
    for secret in secrets:
        assert [name for name, text in texts.items() if secret in text] == []


def check_vacuumed(table: dk.DeltaTable) -> None:
    """That vacuum removes whatever attempts left that came to nothing."""
    table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    store = open_store(table.table_uri, table._storage_options)
    paths = {file.path for file in store.list() if file.path[0] != "_"}
    assert paths == set(pa.table(table.get_add_actions())["path"].to_pylist())
