"""Plain folders of Parquet files become tables of a catalog."""

import json
from collections.abc import Mapping
from dataclasses import replace

import deltalake

from delkalakedb.errors import DeltaError
from delkalakedb.model.tables import Table
from delkalakedb.storage import canonical_location, open_store
from delkalakedb.storage.segment import LOG
from delkalakedb.table.create import convert_to_deltalake, parse_new_schema
from delkalakedb.table.opened import open_catalog
from delkalakedb.uri import format_uri, parse_uri, require_table

__all__ = ["convert_folder"]


def convert_folder(
    location: str,
    uri: str,
    *,
    partition_by: Mapping[str, str] | None = None,
    storage_options: Mapping[str, str] | None = None,
) -> Table:
    """Make a table of the Parquet files at a location; they stay where they are.

    Args:
        location: the folder.
        uri: the URI that it will have, with the table's name.
        partition_by: the columns that folders such as `day=2026-01-01` stand for, in
            their order, and their Delta types.
        storage_options: of the object store, as deltalake takes them.
    """
    parsed, place = parse_uri(uri), canonical_location(location)
    if next(open_store(place, storage_options).list(LOG), None) is not None:
        raise DeltaError(f"{place}: it is a Delta table already; import it")
    placed = replace(parsed, options=(*parsed.options, ("location", place)))
    convert_to_deltalake(
        uri=format_uri(placed),
        configuration=None,
        storage_options=dict(storage_options) if storage_options else None,
        post_commithook_properties=None,
        partition_schema=_schema(partition_by) if partition_by else None,
        partition_strategy="hive" if partition_by else None,
        name=None,
        description=None,
        collect_stats=True,
        commit_properties=None,
    )
    return open_catalog(parsed).table(require_table(parsed))


def _schema(columns: Mapping[str, str]) -> deltalake.Schema:
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in columns.items()
    ]
    return parse_new_schema(json.dumps({"type": "struct", "fields": fields}))
