"""Fixtures of several modules: writers that race, and a published table."""

from collections.abc import Iterator

import pytest

import delkalakedb as dk
from delkalakedb.storage import Store, open_store
from tests.support.mirror_workers import WRITERS
from tests.support.mirrors import copied, fill
from tests.support.processes import Crew


@pytest.fixture(scope="module")
def crew() -> Iterator[Crew]:
    """Eight processes, ready to write at the same moment."""
    crew = Crew(WRITERS)
    yield crew
    crew.close()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dk.Catalog]:
    """A catalog with the table of `fill`, which no test may change."""
    folder = tmp_path_factory.mktemp("verify")
    with dk.connect(f"deltasql://sqlite/{folder}/meta.db") as catalog:
        fill(catalog)
        yield catalog


@pytest.fixture
def store(published: dk.Catalog) -> Store:
    """A copy of the published table's store."""
    return copied(open_store(published.table("t").location))
