"""How many requests `put_new` takes, and that no server makes it overwrite."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from delkalakedb.errors import StorageError
from delkalakedb.storage import Store, open_store
from tests.support.servers.http_proxy import Answer, Proxy, pass_on, proxy
from tests.support.servers.stores import Place


@contextmanager
def watched(
    place: Place, answer: Answer = pass_on, **more: str
) -> Iterator[tuple[Store, Proxy]]:
    """A store on an endpoint that this process hasn't met, and what it is sent."""
    with proxy(place.storage_options["AWS_ENDPOINT_URL"], answer) as passed:
        options = place.storage_options | {"AWS_ENDPOINT_URL": passed.endpoint} | more
        yield open_store(place.location, options), passed


def sent(passed: Proxy) -> list[str]:
    methods, passed.requests[:] = passed.requests[:], []
    return methods


def check_looks_first(store: Store, passed: Proxy) -> None:
    assert store.put_new("b", b"first")
    assert sent(passed) == ["HEAD", "PUT"]
    assert not store.put_new("b", b"second")
    assert sent(passed) == ["HEAD"]
    assert store.get("b") == b"first"


def test_server_that_honours_the_header_takes_one_request(s3):
    with watched(s3) as (store, passed):
        assert store.put_new("a", b"first")
        assert sent(passed) == ["HEAD", "PUT", "PUT"]
        for number in range(3):
            assert store.put_new(f"b{number}", b"first")
            assert sent(passed) == ["PUT"]
        assert not store.put_new("a", b"second")
        assert sent(passed) == ["PUT"]
        assert store.get("a") == b"first"


def test_server_is_asked_once_for_all_its_tables(s3):
    with watched(s3) as (store, passed):
        store.put_new("a", b"")
        options = s3.storage_options | {"AWS_ENDPOINT_URL": passed.endpoint}
        other = open_store(f"{s3.location}/other", options)
        sent(passed)
        assert other.put_new("a", b"")
        assert sent(passed) == ["PUT"]


def test_server_that_ignores_the_header_is_looked_at_first(careless_s3):
    with watched(careless_s3) as (store, passed):
        assert store.put_new("a", b"first")
        assert sent(passed) == ["HEAD", "PUT", "PUT"]
        check_looks_first(store, passed)
        assert not store.put_new("a", b"second")
        assert store.get("a") == b"first"


def test_taken_path_teaches_nothing_and_is_kept(careless_s3):
    with watched(careless_s3) as (store, passed):
        store.put("a", b"first")
        sent(passed)
        for _ in range(2):
            assert not store.put_new("a", b"second")
            assert sent(passed) == ["HEAD"]
        assert store.get("a") == b"first"


def test_object_that_appears_after_the_look_is_kept(s3):
    def late(method: str, headers: dict[str, str]) -> None:
        if method == "PUT" and "if-none-match" in headers:
            rival.put("a", b"rival")

    rival = open_store(s3.location, s3.storage_options)
    with watched(s3, late) as (store, passed):
        assert not store.put_new("a", b"ours")
        assert sent(passed) == ["HEAD", "PUT"]
        assert store.get("a") == b"rival"


def test_server_without_the_header_is_looked_at_first(s3):
    def refuse(method: str, headers: dict[str, str]) -> tuple[int, bytes] | None:
        if "if-none-match" in headers:
            return 501, b"<Error><Code>NotImplemented</Code></Error>"
        return None

    with watched(s3, refuse, max_retries="0") as (store, passed):
        assert store.put_new("a", b"first")
        assert sent(passed) == ["HEAD", "PUT", "PUT"]
        check_looks_first(store, passed)


def test_header_that_the_options_forbid_is_not_sent(careless_s3):
    with watched(careless_s3, aws_conditional_put="disabled") as (store, passed):
        assert store.put_new("a", b"first")
        assert sent(passed) == ["HEAD", "PUT"]
        check_looks_first(store, passed)


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_failure_while_asking_leaves_the_question_open(s3, failing):
    def fail(method: str, headers: dict[str, str]) -> tuple[int, bytes] | None:
        return (500, b"") if len(passed.requests) == failing else None

    with watched(s3, fail, max_retries="0") as (store, passed):
        if failing < 3:
            with pytest.raises(StorageError, match="500"):
                store.put_new("a", b"first")
        else:
            assert store.put_new("a", b"first")
        assert store.exists("a") == (failing == 3)
        # Past the one that fails.
        passed.requests.extend([""] * 3)
        count = len(passed.requests)
        assert store.put_new("b", b"first")
        assert passed.requests[count:] == ["HEAD", "PUT", "PUT"]


@pytest.mark.parametrize("location", ["s3://bucket/t", "gs://bucket/t", "memory:///t"])
def test_amazon_and_the_others_are_trusted(location, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    assert open_store(location)._doubted is None
