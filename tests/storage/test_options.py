"""deltalake's storage options and environment reach the store, and stay unseen."""

import traceback
from datetime import timedelta

import pytest
from deltalake import DeltaTable

from delkalakedb.errors import StorageError
from delkalakedb.storage import is_secret, open_store
from delkalakedb.storage.store import Options, parse_options
from tests.support.servers.http_proxy import proxy

S3 = {
    "AWS_ACCESS_KEY_ID": "key-hidden",
    "aws_secret_access_key": "secret-hidden",
    "session_token": "token-hidden",
    "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
    "AWS_REGION": "eu-west-1",
    "AWS_ALLOW_HTTP": "true",
    "timeout": "30s",
    "aws_conditional_put": "etag",
    "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
    "AWS_S3_LOCKING_PROVIDER": "dynamodb",
    "of_another_tool": "x",
}


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch):
    for name in S3:
        monkeypatch.delenv(name.upper(), raising=False)


def test_s3_options_are_sorted_and_those_of_others_ignored():
    assert parse_options("s3", S3) == Options(
        config={
            "access_key_id": "key-hidden",
            "secret_access_key": "secret-hidden",
            "session_token": "token-hidden",
            "endpoint": "http://127.0.0.1:1",
            "region": "eu-west-1",
            "conditional_put": "etag",
        },
        client={"allow_http": "true", "timeout": "30s"},
        retry={},
    )


@pytest.mark.parametrize(
    "names",
    [
        ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID"),
        ("aws_endpoint_url", "aws_region", "aws_access_key_id"),
        ("endpoint_url", "region", "access_key_id"),
        ("aws_endpoint", "REGION", "ACCESS_KEY_ID"),
        ("AWS_ENDPOINT_URL_S3", "region", "access_key_id"),
    ],
)
def test_every_name_of_an_option_is_understood(names):
    options = parse_options("s3", dict(zip(names, "erk", strict=True)))
    assert options.config == {"endpoint": "e", "region": "r", "access_key_id": "k"}


def test_option_given_by_two_names_is_taken_once():
    given = {"AWS_REGION": "a", "region": "b", "aws_endpoint": "c", "endpoint_url": "d"}
    assert parse_options("s3", given).config == {"region": "b", "endpoint": "d"}


@pytest.mark.parametrize("scheme", ["az", "abfs", "abfss"])
def test_azure_options_are_understood(scheme):
    given = {
        "AZURE_STORAGE_ACCOUNT_NAME": "acc",
        "azure_storage_account_key": "hidden",
        "AZURE_CLIENT_ID": "id",
        "tenant_id": "tenant",
        "AZURE_ALLOW_HTTP": "true",
        "AWS_SECRET_ACCESS_KEY": "not for azure",
    }
    options = parse_options(scheme, given)
    assert options.config == {
        "account_name": "acc",
        "account_key": "hidden",
        "client_id": "id",
        "tenant_id": "tenant",
    }
    assert options.client == {"allow_http": "true"}


def test_google_options_are_understood():
    given = {"GOOGLE_SERVICE_ACCOUNT": "a.json", "google_service_account_key": "{}"}
    assert parse_options("gs", given).config == {
        "service_account": "a.json",
        "service_account_key": "{}",
    }


@pytest.mark.parametrize(
    "location", ["abfss://box@acc.dfs.core.windows.net/t", "az://box/t"]
)
def test_azure_location_opens_with_the_account_named_once_more(location):
    store = open_store(location, {"account_name": "acc", "container_name": "other"})
    assert store._store.config["container_name"] == "box"


def test_bucket_is_the_one_of_the_location():
    store = open_store("s3://bucket/t", {"AWS_BUCKET_NAME": "other"})
    assert store._store.config["bucket"] == "bucket"


def test_retries_are_understood():
    given = {
        "max_retries": "3",
        "retry_timeout": "5m",
        "backoff_config.init_backoff": "50ms",
        "backoff_config.max_backoff": "1.5 s",
        "backoff_config.base": "2.5",
    }
    options = parse_options("s3", given)
    assert options.retry == {
        "max_retries": 3,
        "retry_timeout": timedelta(minutes=5),
        "backoff": {
            "init_backoff": timedelta(milliseconds=50),
            "max_backoff": timedelta(seconds=1.5),
            "base": 2.5,
        },
    }
    assert options.config == {}
    store = open_store("s3://bucket/t", given)
    assert store._store.retry_config["max_retries"] == 3


@pytest.mark.parametrize(
    "option",
    [
        {"timeout": "soon"},
        {"retry_timeout": "soon"},
        {"max_retries": "many"},
        {"AWS_ALLOW_HTTP": "perhaps"},
        {"aws_conditional_put": "perhaps"},
    ],
)
def test_option_with_a_bad_value_is_a_storage_error(option):
    with pytest.raises(StorageError, match=r"soon|many|perhaps"):
        open_store("s3://bucket/t", option)


def test_options_win_over_the_environment(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "from-environment")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://environment")
    monkeypatch.setenv("AWS_TIMEOUT", "7s")
    monkeypatch.setenv("AZURE_CLIENT_ID", "not for s3")
    options = parse_options("s3", {"region": "given"})
    assert options.config == {"region": "given", "endpoint": "http://environment"}
    assert options.client == {"timeout": "7s"}


def test_environment_alone_is_enough(s3, monkeypatch):
    for name, value in s3.storage_options.items():
        monkeypatch.setenv(name, value)
    store = open_store(s3.location)
    assert store.put_new("a", b"x")
    assert not DeltaTable.is_deltatable(s3.location)
    assert store.get("a") == b"x"


def test_secrets_are_in_no_repr():
    options = parse_options("s3", S3)
    assert "hidden" not in repr(options)
    assert "hidden" not in repr(open_store("s3://bucket/t", S3))


def said(error: BaseException) -> str:
    """All that a traceback can show."""
    return "".join(traceback.format_exception(error)) + repr(error.__context__)


@pytest.mark.parametrize("name", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_wrong_credentials_are_refused_and_not_told(s3, name):
    options = s3.storage_options | {name: "wrong-and-hidden"}
    store = open_store(s3.location, options)
    for request in (
        lambda: store.put_new("a", b"x"),
        lambda: store.put("a", b"x"),
        lambda: store.get("a"),
        lambda: [*store.list()],
        lambda: store.delete_many(["a"]),
    ):
        with pytest.raises(StorageError, match=r"s3://lake/\w+: .*403") as caught:
            request()
        text = said(caught.value)
        for secret in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            assert options[secret] not in text


def test_key_that_a_server_repeats_is_masked(s3):
    answer = b"""<?xml version="1.0"?><Error><Code>InvalidAccessKeyId</Code>
    <AWSAccessKeyId>%s</AWSAccessKeyId></Error>"""
    options = s3.storage_options
    refusal = answer % options["AWS_ACCESS_KEY_ID"].encode()
    with proxy(options["AWS_ENDPOINT_URL"], lambda *_: (403, refusal)) as refusing:
        options = options | {"AWS_ENDPOINT_URL": refusing.endpoint}
        with pytest.raises(StorageError, match="403 Forbidden: Invalid") as caught:
            open_store(s3.location, options).put("a", b"x")
    assert "<AWSAccessKeyId>***<" in said(caught.value)
    assert options["AWS_ACCESS_KEY_ID"] not in said(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "secret"),
    [
        ("AWS_SECRET_ACCESS_KEY", "x", True),
        ("aws_access_key_id", "x", True),
        ("azure_storage_sas_token", "x", True),
        ("google_service_account_key", "{}", True),
        ("proxy_url", "http://user:pw@host:1", True),
        ("proxy_url", "http://host:1", False),
        ("aws_skip_signature", "true", False),
        ("aws_endpoint_url", "http://127.0.0.1:1", False),
        ("aws_web_identity_token_file", "/run/token", False),
    ],
)
def test_secrets_are_known_by_any_name(key, value, secret):
    assert is_secret(key, value) is secret
