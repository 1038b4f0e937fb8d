"""Tables with mapped columns, deletion vectors, or both."""

from pathlib import Path

import pyarrow as pa

import delkalakedb as dk
from delkalakedb import Catalog
from delkalakedb.settings.uri import format_uri, parse_uri
from tests.support.lakes import Lake

SCHEMA = pa.schema([("id", pa.int64()), ("City Name", pa.string())])
Rows = set[tuple[int, str]]
FIRST: Rows = {(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "b")}


def make(kind: str, catalog: Catalog, folder: Path) -> tuple[dk.DeltaTable, Rows]:
    """A table as Spark makes it, of two files, and its rows."""
    lake, mode = Lake(catalog, folder), kind.split(" ")[0]
    features, configuration = [], {}
    if mode in ("name", "id"):
        lake.map_columns(**{"id": "col-1", "City Name": "col-2"})
        features.append("columnMapping")
        configuration["delta.columnMapping.mode"] = mode
        configuration["delta.columnMapping.maxColumnId"] = "2"
    if "vectors" in kind:
        features.append("deletionVectors")
        configuration["delta.enableDeletionVectors"] = "true"
    partitions = ["City Name"] if "partitions" in kind else []
    lake.create(
        SCHEMA, partitions=partitions, features=features, configuration=configuration
    )
    files = [
        lake.file(
            {"id": ids, "City Name": [city] * len(ids)},
            **({"City Name": city} if partitions else {}),
        )
        for ids, city in (([1, 2, 3], "a"), ([4, 5], "b"))
    ]
    lake.commit(*files)
    rows = set(FIRST)
    if "vectors" in kind:
        lake.commit(*lake.without(files[0], 1))
        rows.remove((2, "a"))
    lake.publish()
    uri = parse_uri(format_uri(catalog.uri)).with_table(lake.name)
    return dk.DeltaTable(format_uri(uri)), rows
