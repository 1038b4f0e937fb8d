"""Fixtures for every test: one Postgres server per run, one catalog per test."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

import delkalakedb as dk
from tests.support import catalogs, engines, ids, run
from tests.support.examples import register_profiles
from tests.support.servers import stores
from tests.support.servers.postgres import Server

_OPEN_FILES = 16_384

register_profiles()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add this suite's options."""
    engines.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Start Postgres once, before the workers that share it."""
    _allow_open_files()
    if hasattr(config, "workerinput"):
        return
    run.begin(config)
    config.add_cleanup(stores.stop_all)
    if os.environ.get(catalogs.URL):
        return
    server = Server("fsync=off", "max_connections=200")
    server.start()
    os.environ[catalogs.URL] = server.dsn("postgres")
    config.add_cleanup(server.stop)
    config.add_cleanup(lambda: os.environ.pop(catalogs.URL))


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Keep the engines whose turn it is."""
    ids.check_lengths(items)
    engines.rotate(config, items)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Give long values short ids."""
    return ids.shorten(val)


@pytest.fixture(params=engines.ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Each database engine in turn."""
    return str(request.param)


@pytest.fixture
def postgres_uri() -> Iterator[str]:
    """The URI of a catalog that isn't there yet, in a new Postgres database."""
    with catalogs.database() as uri:
        yield uri


@pytest.fixture
def new_catalog_uri(engine: str, tmp_path: Path) -> Iterator[str]:
    """The URI of a catalog that isn't there yet, on each engine in turn."""
    with catalogs.new_uri(engine, tmp_path) as uri:
        yield uri


@pytest.fixture
def catalog_uri(engine: str, tmp_path: Path) -> Iterator[str]:
    """The URI of an empty catalog, on each engine in turn."""
    with catalogs.copied_uri(engine, tmp_path) as uri:
        yield uri


@pytest.fixture
def catalog(catalog_uri: str) -> Iterator[dk.Catalog]:
    """An empty catalog, on each engine in turn."""
    with dk.connect(catalog_uri) as catalog:
        yield catalog


@pytest.fixture
def s3() -> stores.Place:
    """A place of the test's own on a real S3 server."""
    return stores.fresh_place("s3")


@pytest.fixture
def careless_s3() -> stores.Place:
    """A place of the test's own on an S3 server that ignores `If-None-Match`."""
    return stores.fresh_place("careless")


def _allow_open_files() -> None:
    """A catalog that a URI named stays open, and here each test has its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
