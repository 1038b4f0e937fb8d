"""Fixtures of the asynchronous API's tests."""

from collections.abc import Iterator

import pytest

from delkalakedb.settings.uri import parse_uri
from tests.support.servers.postgres_proxy import Proxy


@pytest.fixture
def proxy(postgres_uri: str) -> Iterator[Proxy]:
    """A line to the server that the test can cut."""
    proxy = Proxy(parse_uri(postgres_uri).port or 0)
    yield proxy
    proxy.close()
