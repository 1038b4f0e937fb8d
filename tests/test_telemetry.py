"""Logging: one structured event per commit, redacted, silent by default."""

import ast
import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import delkalakedb
from delkalakedb.settings.redaction import redact, redact_secrets
from delkalakedb.telemetry import JsonFormatter, log_commit, log_event

COMMIT = {
    "table": "orders",
    "version": 7,
    "operation": "WRITE",
    "adds": 3,
    "removes": 1,
    "bytes_added": 4096,
    "bytes_removed": 512,
    "table_id": 5,
    "db_user": None,
    "os_user": "etl",
    "host": "h1",
    "duration_ms": 12.5,
    "transaction_id": "0c9f",
}
SECRET = "hunter2-Zq"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("delkalakedb")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)


def test_commit_gives_one_structured_record(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "delkalakedb"):
        log_commit(**COMMIT)

    (record,) = caplog.records
    assert (record.name, record.levelname) == ("delkalakedb.commit", "INFO")
    assert record.getMessage() == "orders: version 7, WRITE, +3 -1 files in 12 ms"
    expected = {**COMMIT, "event": "commit"}
    assert {n: getattr(record, f"delta_{n}") for n in expected} == expected


def test_json_formatter_writes_the_values_as_one_line(lines: io.StringIO) -> None:
    log_commit(**COMMIT)

    (line,) = lines.getvalue().splitlines()
    written = json.loads(line)
    assert written["logger"] == "delkalakedb.commit"
    assert written["time"].endswith("+00:00")
    assert {n: written[n] for n in COMMIT} == COMMIT


def test_event_hides_credentials(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("delkalakedb.mirror")
    uri = f"deltasql://postgres/me:{SECRET}@h/db"
    with caplog.at_level(logging.WARNING, "delkalakedb"):
        log_event(logger, logging.WARNING, f"lost {uri}", catalog=uri, lag=3)

    (record,) = caplog.records
    assert SECRET not in str(vars(record))
    assert vars(record)["delta_catalog"] == "deltasql://postgres/me:***@h/db"
    assert vars(record)["delta_lag"] == 3


def test_json_formatter_hides_credentials_of_any_record(lines: io.StringIO) -> None:
    try:
        raise RuntimeError(f"connecting to postgresql://me:{SECRET}@h/db")
    except RuntimeError:
        logging.getLogger("delkalakedb.x").exception("password=%s", SECRET)

    written = json.loads(lines.getvalue())
    assert SECRET not in lines.getvalue()
    assert written["message"] == "password=***"
    assert (
        "RuntimeError: connecting to postgresql://me:***@h/db" in written["exception"]
    )


def test_unconfigured_application_sees_nothing() -> None:
    code = (
        "import logging, delkalakedb.telemetry as t\n"
        "t.log_event(logging.getLogger('delkalakedb.x'), logging.ERROR, 'bad')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )

    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize(
    "text",
    [
        f"deltasql://postgres/me:{SECRET}@h:5432/db/s/t",
        f"DeltaSQL://postgres/me@corp:{SECRET}@h/db",
        f"see postgresql://me:{SECRET}@h/db?sslmode=require for more",
        f"s3://key:{SECRET}@bucket/path",
        f"host=h password={SECRET} dbname=d",
        f"password='it\\'s {SECRET}' dbname=d",
        f'{{"password": "a\\"{SECRET}", "user": "me"}}',
        f"?sslpassword={SECRET}&sslmode=require",
        f"aws_secret_access_key = {SECRET}",
        f"https://a.blob/c?sv=1&sig={SECRET}&se=2",
        f"s3://key:9/{SECRET}@bucket/path",
        f"http://me:{SECRET}@proxy:3128/",
        f"token:{SECRET} x",
        f"{{'api_key': '{SECRET}'}}",
        f"X-Amz-Security-Token: {SECRET}",
        f"Authorization: Bearer {SECRET}",
        *(
            f"{name}={SECRET}"
            for name in (
                "AWS_ACCESS_KEY_ID",
                "access_key",
                "api_key",
                "azure_storage_sas_key",
                "credential",
                "master_key",
                "sse_customer_key_base64",
            )
        ),
    ],
)
def test_redaction_hides_the_secret_only(text: str) -> None:
    shown = redact(text)

    assert SECRET not in shown
    assert "***" in shown
    assert redact(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "deltasql://postgres/host:5432/db/public/t",
        "deltasql://postgres/me@host:5432/db",
        "deltasql://sqlite//data/meta.db?table=t",
        "deltasql://duckdb/:memory:?table=t",
        "s3://bucket/day=2026-01-01/mail=a@b.c/part-0.parquet",
        "abfss://container@account.dfs.core.windows.net/t",
        "http://localhost:9000/bucket/a@b",
        "orders: version 7, WRITE, +3 -1 files",
        "token: the catalog has no such table",
        "api_token: version 3 is committed but not published yet",
        "file:///lake/api_token: [Errno 17] File exists",
        "add //etc/passwd: it isn't a file",
        "column password: string",
        "api_key: 'x' isn't a column",
        "the scheme must be deltasql, as in deltasql://postgres/user:password@host:5432"
        "/database/schema/table or deltasql://sqlite/file.db?table=name",
        "deltasql://postgres/[[user[:password]@]host[:port]/]database[/schema[/table]]",
    ],
)
def test_redaction_leaves_other_text_alone(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("secret", ["test", "password", "5432", "a-b-c", "x"])
def test_secret_that_may_be_a_word_masks_nothing(secret: str) -> None:
    text = "the latest test of table x-a-b-c at localhost:5432 needs a password"

    assert redact_secrets(text, [secret]) == text


def test_known_secret_is_masked_whole_and_only_whole() -> None:
    text = (
        "k3y-12 <K>k3y-12</K> k3y-123 (xk3y-12) ?c=a%2Fb%2Bc%3D1&d=xAKIA0123456789ABCDy"
    )

    shown = redact_secrets(text, ["k3y-12", "a/b+c=1", "AKIA0123456789ABCD", ""])

    assert shown == "*** <K>***</K> k3y-123 (xk3y-12) ?c=***&d=x***y"


def test_no_text_of_the_package_is_masked() -> None:
    for path in Path(delkalakedb.__file__).parent.rglob("*.py"):
        if path.name == "redaction.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert redact(node.value) == node.value, path


@given(st.text())
def test_redaction_takes_any_text_and_settles(text: str) -> None:
    assert redact(redact(text)) == redact(text)
