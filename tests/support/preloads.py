"""Most of what the forked children of `processes` need, imported once by their server.

A child that is forked after the delta-rs engine was imported can't use delta-rs.
"""

import hypothesis  # noqa: F401
import pandas  # noqa: F401
import pytest  # noqa: F401

from delkalakedb.catalog.engine import (  # noqa: F401
    duckdb,
    postgres,
    postgres_bulk,
    sqlite,
)
from delkalakedb.model.predicate import sql  # noqa: F401
from tests.support import workers  # noqa: F401
