"""daft, run by the Python of its own environment, on a table that isn't there yet.

Prints what it read after each step as one line of JSON.
"""

import json
import sys
from typing import Any

import daft
import pyarrow as pa

import delkalakedb as dk
from delkalakedb.settings.uri import format_uri, parse_uri


def read(uri: str, **options: Any) -> dict[str, Any]:
    return daft.read_deltalake(uri, **options).sort("id").to_pydict()


def vectored(uri: str) -> str:
    """A table of which a deletion vector deletes a row."""
    uri = format_uri(parse_uri(uri).with_table("vectored"))
    on = {"delta.enableDeletionVectors": "true"}
    dk.write_deltalake(uri, pa.table({"id": range(50)}), configuration=on)
    dk.DeltaTable(uri).delete("id = 3")
    return uri


def main(uri: str) -> None:
    dk.register()
    told = {}
    frame = daft.from_pydict({"id": [1, 2], "p": ["x y%/ü", "b"]})

    frame.write_deltalake(uri)
    told["written by string"] = read(uri)
    frame.write_deltalake(uri, mode="append")
    told["appended by string"] = read(uri)
    more = daft.from_pydict({"id": [3], "p": ["c"]})
    more.write_deltalake(dk.DeltaTable(uri), mode="append")
    told["appended by handle"] = read(uri)
    more.write_deltalake(dk.DeltaTable(uri), mode="overwrite")
    told["overwritten by handle"] = read(uri)
    dk.write_deltalake(uri, pa.table({"id": [4], "p": ["d"]}), mode="append")
    told["appended by deltalake"] = read(uri)
    told["version 1"] = read(uri, version=1)
    filtered = daft.read_deltalake(uri).where(daft.col("id") == 4).select("p")
    told["filtered"] = filtered.to_pydict()
    try:
        read(vectored(uri))
    except NotImplementedError as error:
        told["deletion vectors"] = "not yet supported" in str(error)
    print(json.dumps(told))


if __name__ == "__main__":
    main(sys.argv[1])
