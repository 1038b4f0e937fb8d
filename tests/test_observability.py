"""Metrics and spans as OpenTelemetry gets them, Prometheus, events, reconcilers."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client.parser import text_string_to_metric_families

import delkalakedb as dk
from delkalakedb import doctor
from delkalakedb.catalog.admin import load_events
from delkalakedb.catalog.commit import load_reconcilers
from delkalakedb.errors import ProtocolError
from delkalakedb.mirror.publisher import absence
from delkalakedb.settings import load_settings, parse_uri
from delkalakedb.telemetry import MEASURES
from tests.support import catalogs
from tests.support.actions import commit, create, protocol
from tests.support.imports import with_table
from tests.support.servers.ports import free_ports

DOCS = Path(__file__).parents[1] / "docs"
PROMETHEUS = shutil.which("prometheus")
# The suffix that Prometheus gives a metric, by its unit.
_UNITS = {"s": "_seconds"}

MEASURING = """
import json, sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

reader, spans = InMemoryMetricReader(), InMemorySpanExporter()
metrics.set_meter_provider(MeterProvider(metric_readers=[reader]))
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)

import pyarrow as pa
import delkalakedb as dk

uri = sys.argv[1]
dk.write_deltalake(uri, pa.table({"x": [1, 2]}))
dk.write_deltalake(uri, pa.table({"x": [3, 4]}), mode="append")
stale, table = dk.DeltaTable(uri), dk.DeltaTable(uri)
table.delete("x = 3")
stale.update({"x": "x + 1"}, predicate="x = 4")
list(table.file_uris(file_pruning_predicate="x > 100"))
table.create_checkpoint()
try:
    dk.DeltaTable(uri, version=99)
except dk.errors.DeltaError:
    pass

points = {}
for resource in reader.get_metrics_data().resource_metrics:
    for scope in resource.scope_metrics:
        for metric in scope.metrics:
            points[metric.name] = [
                [dict(p.attributes), getattr(p, "value", getattr(p, "count", None))]
                for p in metric.data.data_points
            ]
found = [
    [s.name, dict(s.attributes), s.status.status_code.name, s.status.description]
    for s in spans.get_finished_spans()
]
print(json.dumps({"metrics": points, "spans": found}))
"""


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def total(points: list[list[Any]], **wanted: str) -> float:
    return sum(
        value for attributes, value in points if wanted.items() <= attributes.items()
    )


def test_program_with_a_provider_gets_metrics_and_spans(
    new_catalog_uri: str, engine: str
) -> None:
    found = json.loads(run_python(MEASURING, with_table(new_catalog_uri, "t")))

    metrics, spans = found["metrics"], found["spans"]
    assert total(metrics["deltasql.commit.versions"], engine=engine) == 4
    commits = metrics["deltasql.commit.duration"]
    assert total(commits, engine=engine, outcome="committed") == 4
    assert total(commits, outcome="conflict") == 1
    assert total(metrics["deltasql.commit.conflicts"], engine=engine) == 1
    assert total(metrics["deltasql.commit.retries"], operation="update") == 1
    assert total(metrics["deltasql.publish.duration"], outcome="ok") == 4
    assert total(metrics["deltasql.stage.duration"], operation="delete") == 1
    assert total(metrics["deltasql.open.duration"], outcome="VersionNotFoundError") == 1
    planned = metrics["deltasql.plan.files"]
    assert total(planned, state="considered") > total(planned, state="kept")
    assert metrics["deltasql.plan.duration"]
    assert total(metrics["deltasql.checkpoint.duration"], outcome="ok") >= 0
    assert total(metrics["db.client.operation.duration"]) > 10
    assert metrics["db.client.connection.wait_time"]
    known = {measure.name: set(measure.attributes) for measure in MEASURES}
    assert metrics.keys() <= known.keys()
    for name, points in metrics.items():
        for attributes, _ in points:
            assert attributes.keys() <= known[name], name

    named = {name for name, *_ in spans}
    steps = {"open", "plan", "stage", "commit", "publish", "checkpoint"}
    assert {f"deltasql.{step}" for step in steps} <= named
    lost = "VersionNotFoundError"
    (failed,) = [s for s in spans if s[1].get("deltasql.outcome") == lost]
    assert failed[2] == "ERROR"
    assert "there is no version 99" in failed[3]
    assert "Traceback" not in failed[3]


def test_program_without_opentelemetry_never_imports_it(tmp_path: Path) -> None:
    code = (
        "import sys, pyarrow as pa, delkalakedb as dk\n"
        "dk.write_deltalake(sys.argv[1], pa.table({'x': [1]}))\n"
        "print([n for n in sys.modules if n.startswith('opentelemetry')])"
    )

    said = run_python(code, f"deltasql://sqlite/{tmp_path}/meta.db?table=t")

    assert said.strip() == "[]"


def test_debug_log_has_durations_and_statements_without_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "delkalakedb")
    uri = f"deltasql://sqlite/{tmp_path}/meta.db?table=t"
    dk.write_deltalake(uri, pa.table({"x": ["s3cret-value"]}))

    steps = {r.delta_step for r in caplog.records if r.name == "delkalakedb.duration"}  # type: ignore[attr-defined]
    assert {"deltasql.stage", "deltasql.commit", "deltasql.publish"} <= steps
    statements = [r for r in caplog.records if r.name == "delkalakedb.sql"]
    assert any("take_lease" in str(vars(record)) for record in statements)
    assert not any("s3cret-value" in str(vars(record)) for record in caplog.records)
    (commit,) = [r for r in caplog.records if r.name == "delkalakedb.commit"]
    assert vars(commit)["delta_table_id"] == 1
    assert vars(commit)["delta_bytes_removed"] == 0
    assert vars(commit)["delta_host"]


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as got:
            return got.status, got.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextmanager
def reconciler(catalog: str, *, kill: bool = False) -> Iterator[int]:
    """Run `deltasql mirror run`; yield the port of its metrics."""
    (port,) = free_ports(1)
    code = "from delkalakedb.cli import main; main()"
    command = [sys.executable, "-c", code, "--catalog", catalog, "mirror", "run"]
    process = subprocess.Popen(
        [*command, "--metrics-port", str(port)], stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: answers(port), process)
        yield port
    finally:
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == (-signal.SIGKILL if kill else 0)


def answers(port: int) -> bool:
    try:
        return get(port, "/readyz")[0] == 200
    except OSError:
        return False


def wait_until(true: Any, process: Any = None) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert process is None or process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(params=["sqlite", "postgres"])
def shared(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """The URI of a catalog that several processes may open, with a table."""
    with catalogs.copied_uri(request.param, tmp_path) as uri:
        monkeypatch.setenv("DELKALAKEDB_MIRROR__MODE", "external")
        dk.write_deltalake(with_table(uri, "t"), pa.table({"x": [1]}))
        yield uri


def test_reconciler_serves_prometheus_and_is_on_the_list(shared: str) -> None:
    with dk.connect(shared) as catalog:
        assert "none was seen" in str(absence(catalog))
        with reconciler(shared) as port:
            wait_until(lambda: catalog._mirror_state("t")[0] == 0)
            wait_until(lambda: "deltasql_publish" in get(port, "/metrics")[1])
            families = {
                family.name: family
                for family in text_string_to_metric_families(get(port, "/metrics")[1])
            }
            lag = families["deltasql_mirror_lag_versions"].samples
            assert [one.labels["table"] for one in lag] == ["t"]
            assert families["deltasql_table_files"].samples[0].value == 1
            assert get(port, "/healthz") == (200, "ok\n")
            assert get(port, "/elsewhere")[0] == 404
            (seen,) = load_reconcilers(catalog._backend)
            assert seen.runs
            assert seen.process_id != os.getpid()
            assert absence(catalog) is None
        assert load_reconcilers(catalog._backend) == []

        with reconciler(shared, kill=True):
            pass
        (seen,) = load_reconcilers(catalog._backend)
        assert seen.host


def test_doctor_and_status_say_that_no_reconciler_runs(shared: str) -> None:
    uri = parse_uri(shared)
    checks = {one.check: one for one in doctor.examine(uri, load_settings(uri=uri))}

    assert checks["reconciler"].state == "warn"
    assert "mirror.mode is external" in checks["reconciler"].detail


def test_ready_says_why_not(tmp_path: Path) -> None:
    with dk.connect(f"deltasql://sqlite/{tmp_path}/meta.db") as catalog:
        catalog.init()
        broken = dk.mirror.Reconciler(catalog)
        assert broken.trouble() == "the catalog hasn't been read yet"
        broken._passed = time.monotonic() - 100
        assert broken.trouble() == "the catalog was read 100 s ago"


def prometheus_names() -> set[str]:
    """Return every name under which Prometheus has one of the metrics."""
    names = set()
    for measure in MEASURES:
        name = measure.name.replace(".", "_")
        if not name.endswith(_UNITS.get(measure.unit, "-")):
            name += _UNITS.get(measure.unit, "")
        kinds = {
            "histogram": [f"{name}_{part}" for part in ("bucket", "sum", "count")],
            "counter": [f"{name}_total"],
            "gauge": [name],
        }
        names |= {name, *kinds[measure.kind]}
    return names


def expressions() -> list[str]:
    board = json.loads((DOCS / "observability" / "grafana.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_dashboard_and_alerts_name_metrics_that_exist() -> None:
    alerts = (DOCS / "observability" / "alerts.yaml").read_text()
    page = (DOCS / "observability.md").read_text()
    texts = " ".join([alerts, *expressions()])
    used = set(re.findall(r"\b(?:deltasql|db_client)_\w+", texts))

    assert used
    assert used <= prometheus_names()
    assert set(re.findall(r"`((?:deltasql|db_client)_\w+)", page)) <= prometheus_names()
    for measure in MEASURES:
        (row,) = re.findall(rf"^\| `{re.escape(measure.name)}` \| (.*?) \|", page, re.M)
        assert re.findall(r"`(.*?)`", row) == list(measure.attributes), measure.name


@pytest.mark.skipif(PROMETHEUS is None, reason="needs Debian's package prometheus")
def test_prometheus_takes_the_metrics_rules_and_queries(
    tmp_path: Path, shared: str
) -> None:
    (port,) = free_ports(1)
    with reconciler(shared) as ours:
        config = tmp_path / "prometheus.yml"
        config.write_text(
            "global: {scrape_interval: 1s}\n"
            f"rule_files: [{DOCS}/observability/alerts.yaml]\n"
            "scrape_configs:\n"
            "  - job_name: delkalakedb\n"
            f"    static_configs: [{{targets: ['127.0.0.1:{ours}']}}]\n"
        )
        process = subprocess.Popen(
            [
                str(PROMETHEUS),
                f"--config.file={config}",
                f"--storage.tsdb.path={tmp_path}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: ready(port), process)

            def ask(query: str) -> Any:
                text = query.replace("$__rate_interval", "1m")
                asked = urllib.parse.urlencode({"query": text})
                status, body = get(port, f"/api/v1/query?{asked}")
                assert status == 200, body
                return json.loads(body)["data"]["result"]

            wait_until(lambda: ask("deltasql_mirror_lag_seconds"))
            for query in expressions():
                ask(query)
            rules = json.loads(get(port, "/api/v1/rules")[1])["data"]["groups"]
            assert {rule["health"] for group in rules for rule in group["rules"]} <= {
                "ok",
                "unknown",
            }
        finally:
            process.kill()
            process.wait()


def ready(port: int) -> bool:
    try:
        return get(port, "/-/ready")[0] == 200
    except OSError:
        return False


def test_events_tell_what_was_done_and_by_whom(catalog: dk.Catalog) -> None:
    create(catalog)
    catalog.rename_table("t", "u")
    with pytest.raises(ProtocolError):
        commit(catalog, protocol("unheard-of"), table="u")
    catalog.drop_table("u", force=True)

    found = load_events(catalog._backend)
    events = [one.event for one in reversed(found)]
    assert events[0] == "create"
    assert events[-3:] == ["rename", "commit refused", "drop"]
    assert all(one.host and one.client for one in found)
    (rename,) = [one for one in found if one.event == "rename"]
    assert (rename.table, rename.detail) == ("u", "from t")
    assert [one.event for one in load_events(catalog._backend, "u", limit=1)] == [
        "drop"
    ]
    if catalog.uri.engine == "postgres":
        assert rename.client_address == "127.0.0.1"
        assert rename.db_user
