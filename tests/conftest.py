"""Fixtures for every test: one Postgres server per run, one catalog per test."""

import os
import resource
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings

import delkalakedb as dk
import stores
from postgres import Server

ENGINES = ("sqlite", "duckdb", "postgres")
_URL = "DELKALAKEDB_TEST_PG_URL"
_OPEN_FILES = 16_384

settings.register_profile("ci", deadline=None, print_blob=True)
settings.load_profile("ci")


def pytest_configure(config: pytest.Config) -> None:
    """Start Postgres once, before the workers that share it."""
    _allow_open_files()
    if hasattr(config, "workerinput"):
        return
    stores.prepare(config)
    if os.environ.get(_URL):
        return
    server = Server("fsync=off", "max_connections=200")
    server.start()
    os.environ[_URL] = server.dsn("postgres")
    config.add_cleanup(server.stop)
    config.add_cleanup(lambda: os.environ.pop(_URL))


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    """Each database engine in turn."""
    return str(request.param)


@pytest.fixture
def postgres_uri() -> Iterator[str]:
    """The URI of a catalog in a Postgres database of the test's own."""
    name = f"t{uuid.uuid4().hex}"
    with psycopg.connect(os.environ[_URL], autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}")
        # Every statement has to name its schema: a pooler's session may have any path.
        admin.execute(f"ALTER DATABASE {name} SET search_path TO ''")
        authority = _authority(admin)
        yield f"deltasql://postgres/{authority}/{name}/public"
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def catalog_uri(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """The URI of an empty catalog, on each engine in turn."""
    if engine == "postgres":
        uri = request.getfixturevalue("postgres_uri")
        return f"{uri}?data_path={tmp_path}/tables"
    suffix = {"sqlite": "db", "duckdb": "duckdb"}[engine]
    return f"deltasql://{engine}/{tmp_path}/meta.{suffix}"


@pytest.fixture
def catalog(catalog_uri: str) -> Iterator[dk.Catalog]:
    """An empty catalog, on each engine in turn."""
    with dk.connect(catalog_uri) as catalog:
        catalog.init()
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


def _authority(connection: "psycopg.Connection[tuple[object, ...]]") -> str:
    info = connection.info
    return f"{info.user}:{info.password}@{info.host}:{info.port}"
