import shutil
import uuid

import pytest

from delkalakedb.storage import open_store
from tests.support.logs import write_history


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    location = str(tmp_path_factory.mktemp("history"))
    write_history(location)
    return location


@pytest.fixture
def location(history, tmp_path):
    """The same table in a folder of its own."""
    return shutil.copytree(history, str(tmp_path / "table"))


@pytest.fixture
def copy(history):
    """The same log in a store of its own."""
    source, target = open_store(history), open_store(f"memory:///{uuid.uuid4().hex}")
    for meta in source.list("_delta_log"):
        target.put(meta.path, source.get(meta.path))
    return target
