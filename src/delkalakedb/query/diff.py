"""Differences between two versions of a table."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from delkalakedb.catalog import Catalog, Files, Snapshot
from delkalakedb.model.actions import DeletionVector, decode_struct
from delkalakedb.model.schema.schema import Field
from delkalakedb.query.duck import Query, quoted, run_query, sealed_duckdb
from delkalakedb.query.sources import version_source

_COLUMNS = ("path", "size_bytes", "num_records", "deletion_vector")


@dataclass(frozen=True)
class Change:
    """One difference; `before` or `after` is None if a version lacks the thing."""

    kind: Literal["file", "rows", "row", "column", "property", "protocol"]
    name: str
    before: Any = None
    after: Any = None

    @property
    def change(self) -> Literal["added", "removed", "changed"]:
        """Whether the thing was added, removed or changed."""
        if self.before is None:
            return "added"
        return "removed" if self.after is None else "changed"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            "kind": self.kind,
            "change": self.change,
            "name": self.name,
            "before": self.before,
            "after": self.after,
        }


def compare_versions(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    """Yield the differences in protocol, properties, columns and files."""
    yield from _mappings("protocol", _protocol(before), _protocol(after))
    yield from _mappings("property", _properties(before), _properties(after))
    yield from _mappings("column", _columns(before), _columns(after))
    old, new = _files(before), _files(after)
    counts = [{"count": snapshot.num_records()} for snapshot in (before, after)]
    yield from _mappings("rows", *counts)
    yield from _mappings("file", old, new)


def changed_rows(
    catalog: Catalog, before: Snapshot, after: Snapshot
) -> Iterator[Change]:
    """Yield the rows that only one version has, in the columns that both have.

    Files that both versions have, with the same deletion vectors, aren't read, because
    their rows are equal.
    """
    old, new = _keys(_listed(before)), _keys(_listed(after))
    there = {field.name for field in after.table.schema.fields}
    names = [f.name for f in before.table.schema.fields if f.name in there]
    columns = ", ".join(map(quoted, names))
    sides = {
        "old": version_source(catalog, before, keep=lambda f: _without(f, new)),
        "new": version_source(catalog, after, keep=lambda f: _without(f, old)),
    }
    with sealed_duckdb() as connection:
        for name, source in sides.items():
            connection.register(name, source)
        for one, other in (("old", "new"), ("new", "old")):
            sql = (
                f"SELECT {columns} FROM {one} EXCEPT ALL SELECT {columns} FROM {other}"
            )
            with run_query(connection, Query(sql), sides.values()) as rows:
                for batch in rows.batches:
                    yield from (_row(one, row) for row in batch.to_pylist())


def _row(side: str, row: dict[str, Any]) -> Change:
    return Change("row", "", **{"before" if side == "old" else "after": row})


def _mappings(
    kind: Any, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Change]:
    for name in dict.fromkeys([*before, *after]):
        old, new = before.get(name), after.get(name)
        if old != new:
            yield Change(kind, name, old, new)


def _protocol(snapshot: Snapshot) -> dict[str, Any]:
    table = snapshot.table
    versions = {
        "minReaderVersion": table.min_reader_version,
        "minWriterVersion": table.min_writer_version,
    }
    features = dict.fromkeys((*table.reader_features, *table.writer_features), True)
    return {**versions, **features}


def _properties(snapshot: Snapshot) -> dict[str, Any]:
    table = snapshot.table
    named = {
        "description": table.description,
        "partition columns": list(table.partition_columns) or None,
    }
    return {**named, **table.configuration}


def _columns(snapshot: Snapshot) -> dict[str, Any]:
    return {field.name: _described(field) for field in snapshot.table.schema.fields}


def _described(field: Field) -> str:
    inner = ", ".join(f"{child.name}: {_described(child)}" for child in field.children)
    kind = f"{field.type}<{inner}>" if field.children else field.type
    return kind if field.nullable else f"{kind} NOT NULL"


def _files(snapshot: Snapshot) -> dict[str, Any]:
    """Return each file by its path, with its size, rows and deletion vector."""
    batches = snapshot.files(columns=_COLUMNS)
    return {row["path"]: _file(row) for batch in batches for row in batch.to_pylist()}


def _file(row: dict[str, Any]) -> dict[str, Any]:
    vector = row["deletion_vector"]
    file = {"size_bytes": row["size_bytes"], "num_records": row["num_records"]}
    if vector is None:
        return file
    decoded = decode_struct(vector, DeletionVector)
    return {**file, "deleted_rows": decoded.cardinality, "vector": vector}


def _listed(snapshot: Snapshot) -> pa.Table:
    return snapshot.files(columns=["path", "deletion_vector"]).read_all()


def _keys(files: pa.Table) -> pa.Array:
    """Return the path of each file together with its deletion vector."""
    vectors = files["deletion_vector"].fill_null("")
    return pc.binary_join_element_wise(files["path"], vectors, " ").combine_chunks()


def _without(files: Files, others: pa.Array) -> Files:
    there = pc.is_in(_keys(files.table), value_set=others)
    return Files(files.snapshot, files.table.filter(pc.invert(there)))
