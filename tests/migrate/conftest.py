"""Fixtures of imports: where the log is, and the table that it becomes."""

from pathlib import Path

import pytest

from tests.support.imports import with_table


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """The location of the table to import."""
    return tmp_path / "a table"


@pytest.fixture
def uri(catalog_uri: str) -> str:
    """The URI of the imported table."""
    return with_table(catalog_uri, "t")
