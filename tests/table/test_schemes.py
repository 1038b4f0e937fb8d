"""A scheme that nobody knows is refused, and the error names those there are."""

from collections.abc import Callable
from typing import Any

import deltalake
import pyarrow as pa
import pytest

import delkalakedb as dk
from delkalakedb.errors import UriError

ROWS = pa.table({"x": [1]})
SCHEMA = deltalake.Schema.from_arrow(ROWS.schema)
SECRET = "hunter2"
URIS = [
    "foo://x/y",
    "foo:bar",
    f"postgresql://me:{SECRET}@h/db/t",
    "deltasq://sqlite/x.db",
    f"deltasql:/postgres/me:{SECRET}@h/db",
]


def refused(call: Callable[[], Any], scheme: str) -> None:
    with pytest.raises(UriError, match=f"unsupported scheme '{scheme}'") as caught:
        call()
    named = str(caught.value).split(" schemes ")[1].split(", ")
    assert {"deltasql", "file", "s3", "az", "gs"} <= set(named)
    assert SECRET not in f"{caught.value}{caught.value.__cause__}"


@pytest.mark.parametrize("uri", URIS)
def test_unsupported_scheme_is_refused_with_the_supported_ones(uri: str) -> None:
    scheme = uri.partition(":")[0]
    refused(lambda: dk.DeltaTable(uri), scheme)
    refused(lambda: dk.write_deltalake(uri, ROWS), scheme)
    refused(lambda: dk.DeltaTable.create(uri, SCHEMA), scheme)
    assert not dk.DeltaTable.is_deltatable(uri)


def test_table_that_is_not_there_is_still_not_found(tmp_path: Any) -> None:
    with pytest.raises(deltalake.exceptions.TableNotFoundError):
        dk.DeltaTable(str(tmp_path))
