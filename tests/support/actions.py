"""Small actions, and tables made of them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from delkalakedb import Catalog
from delkalakedb.catalog.commit.outcome import Committed, Conflicted, Skipped
from delkalakedb.model.actions import (
    Action,
    Add,
    Cdc,
    DeletionVector,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    Remove,
    Txn,
    dv_id,
)
from delkalakedb.model.log import Reads, Staged
from delkalakedb.model.rules.features import FEATURES

DV = "delta.enableDeletionVectors"


def schema(**columns: Any) -> str:
    """A `schemaString` of nullable columns, by name and type."""
    fields = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}}
        for name, kind in columns.items()
    ]
    return json.dumps({"type": "struct", "fields": fields})


def metadata(
    columns: str | None = None, *, partitions: Sequence[str] = (), **fields: Any
) -> Metadata:
    """A metaData action; `configuration` and the rest as fields."""
    given = {
        "id": "00000000-0000-0000-0000-000000000001",
        "configuration": {},
        **fields,
    }
    return Metadata(
        format=Format(provider="parquet", options={}),
        schema_string=columns or schema(x="long", s="string"),
        partition_columns=list(partitions),
        **given,
    )


def protocol(*features: str) -> Protocol:
    """Protocol (1, 2), or the one with feature lists that features need."""
    if not features:
        return Protocol(min_reader_version=1, min_writer_version=2)
    readers = [f for f in features if f in FEATURES and FEATURES[f].reader]
    lists: dict[str, Any] = {"writer_features": list(features)}
    if readers:
        lists["reader_features"] = readers
    return Protocol(
        min_reader_version=3 if readers else 1, min_writer_version=7, **lists
    )


def stats(rows: int = 1, **columns: tuple[Any, Any, int]) -> str:
    """Statistics of a file, with (min, max, nulls) of each column."""
    return json.dumps(
        {
            "numRecords": rows,
            "minValues": {name: lo for name, (lo, _, _) in columns.items()},
            "maxValues": {name: hi for name, (_, hi, _) in columns.items()},
            "nullCount": {name: nulls for name, (_, _, nulls) in columns.items()},
        }
    )


def add(path: str, *, partition: Mapping[str, str | None] = {}, **fields: Any) -> Add:
    """An add of 100 bytes and one row."""
    given = {"size": 100, "stats": stats(), "data_change": True, **fields}
    return Add(
        path=path, partition_values=dict(partition), modification_time=1, **given
    )


def remove(file: Add, **fields: Any) -> Remove:
    """The remove of an add, with its deletion vector."""
    given = {"data_change": True, "deletion_timestamp": 2, **fields}
    return Remove(path=file.path, deletion_vector=file.deletion_vector, **given)


def vector(name: str) -> DeletionVector:
    """A deletion vector in a file of its own."""
    return DeletionVector(
        storage_type="u", path_or_inline_dv=name, size_in_bytes=36, cardinality=1
    )


def cdc(path: str) -> Cdc:
    """A change data file."""
    return Cdc(path=path, size=10, partition_values={}, data_change=False)


def txn(app_id: str, version: int) -> Txn:
    """An application's transaction."""
    return Txn(app_id=app_id, version=version, last_updated=3)


def domain(
    name: str, configuration: str = "{}", removed: bool = False
) -> DomainMetadata:
    """A domain, or its tombstone."""
    return DomainMetadata(domain=name, configuration=configuration, removed=removed)


def creation(
    name: str = "t",
    *actions: Action,
    meta: Metadata | None = None,
    features: Sequence[str] = (),
    location: str | None = None,
) -> Staged:
    """The first commit of a table."""
    first = (protocol(*features), meta or metadata())
    return Staged(name, (*first, *actions), location=location or f"/nowhere/{name}")


def create(
    catalog: Catalog, name: str = "t", *actions: Action, **options: Any
) -> Committed:
    """Create a table; what `creation` takes."""
    return only(catalog.commit(creation(name, *actions, **options)))


def staged(
    catalog: Catalog,
    *actions: Action,
    table: str = "t",
    version: int | None = None,
    remove_all: bool = False,
    **reads: Any,
) -> Staged:
    """A commit that read the latest version, or an older one."""
    read = catalog.table(table).version if version is None else version
    return Staged(table, actions, Reads(version=read, **reads), remove_all)


def commit(catalog: Catalog, *actions: Action, **options: Any) -> Committed:
    """Ratify one commit that must succeed; what `staged` takes."""
    return only(catalog.commit(staged(catalog, *actions, **options)))


def attempt(
    catalog: Catalog, *actions: Action, **options: Any
) -> Committed | Skipped | Conflicted:
    """Ratify one commit, whatever becomes of it; what `staged` takes."""
    outcome = catalog._try_commit(staged(catalog, *actions, **options))
    return outcome if isinstance(outcome, Conflicted) else outcome[0]


def only(outcomes: Sequence[Committed | Skipped]) -> Committed:
    """The one commit there was."""
    (outcome,) = outcomes
    assert isinstance(outcome, Committed)
    return outcome


def live(
    catalog: Catalog, table: str = "t", version: int | None = None
) -> dict[tuple[str, str], Add]:
    """The live files by path and deletion vector id."""
    adds = list(catalog.log(table).adds(version))
    found = {(file.path, dv_id(file)): file for file in adds}
    assert len(found) == len(adds)
    return found


def paths(catalog: Catalog, table: str = "t", version: int | None = None) -> list[str]:
    """The paths of the live files, sorted."""
    return sorted(path for path, _ in live(catalog, table, version))


def check_totals(
    catalog: Catalog, table: str = "t", version: int | None = None
) -> None:
    """Check a version's running totals against the sums over its files."""
    at = catalog.snapshot(table, version).table
    files = live(catalog, table, version).values()
    assert (at.num_files, at.size_bytes) == (len(files), sum(f.size for f in files))


def mirrored(catalog: Catalog, published: int, checkpoint: int) -> None:
    """Say how far the mirrors have come."""
    with catalog._backend.writing() as session:
        session.script(
            [
                f"UPDATE dl_mirrors SET published_version = {published}, "
                f"checkpoint_version = {checkpoint}"
            ]
        )
