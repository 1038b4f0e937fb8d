"""Tables of the catalog made of real data files, whose rows are known."""

import json
import struct
import time
import uuid
from base64 import b85encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any
from urllib.parse import quote, unquote
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import Schema

from delkalakedb import Catalog
from delkalakedb.mirror.checkpoint.checkpoint import (
    write_checkpoint,
    write_last_checkpoint,
)
from delkalakedb.mirror.publisher.publication import publish
from delkalakedb.model.actions import Action, Add, DeletionVector, Metadata, dv_id
from delkalakedb.model.log import Reads, Staged
from delkalakedb.storage import open_store
from tests.support.actions import metadata, protocol, remove, stats

_Z85 = f"{digits}{ascii_lowercase}{ascii_uppercase}.-:+=^!/*?&<>()[]{{}}@%$#"
_B85 = f"{digits}{ascii_uppercase}{ascii_lowercase}!#$%&()*+-;<=>?@^_`{{|}}~"
_DV_MAGIC = 1681511377
_NO_RUN_CONTAINERS = 12346


class Lake:
    """A table, with the rows of each of its files and the schema of each version."""

    def __init__(self, catalog: Catalog, folder: Path) -> None:
        self.catalog = catalog
        self.name = f"t{uuid.uuid4().hex}"
        self.location = str(folder / "a table")
        self._schemas: dict[int, pa.Schema] = {}
        self._rows: dict[tuple[str, str], pa.Table] = {}
        self._described: dict[str, dict[str, Any]] = {}

    def create(
        self,
        schema: pa.Schema,
        *actions: Action,
        partitions: Sequence[str] = (),
        features: Sequence[str] = (),
        configuration: Mapping[str, str] | None = None,
    ) -> None:
        """Make the table; version 0."""
        self._schemas[0] = schema
        meta = self.metadata(partitions=partitions, configuration=configuration or {})
        first = (protocol(*features), meta, *actions)
        self.catalog.commit(Staged(self.name, first, location=self.location))

    def commit(self, *actions: Action, remove_all: bool = False) -> None:
        """The next version."""
        reads = Reads(version=self.version, whole_table=remove_all)
        self.catalog.commit(Staged(self.name, actions, reads, remove_all))

    def widen(self, schema: pa.Schema, *actions: Action) -> None:
        """The next version, with another schema."""
        self._schemas[self.version + 1] = schema
        now = self.catalog.log(self.name).state().metadata
        meta = self.metadata(
            partitions=now.partition_columns, configuration=now.configuration
        )
        self.commit(meta, *actions)

    def describe(self, column: str, **fields: Any) -> None:
        """Give a column metadata, by names without their `delta.`."""
        given = {f"delta.{name}": value for name, value in fields.items()}
        self._described[column] = given

    def map_columns(self, **physical: str) -> None:
        """Give columns other names in files."""
        for number, (column, name) in enumerate(physical.items(), start=1):
            names = {"columnMapping.id": number, "columnMapping.physicalName": name}
            self.describe(column, **names)

    def metadata(self, **fields: Any) -> Metadata:
        """The metaData action of the newest schema."""
        arrow = self._schemas[max(self._schemas)]
        schema = json.loads(Schema.from_arrow(arrow).to_json())
        for field in schema["fields"]:
            field["metadata"] = self._described.get(field["name"], {})
        return metadata(json.dumps(schema), **fields)

    def physical(self, column: str) -> str:
        """The column's name in files."""
        described = self._described.get(column, {})
        return str(described.get("delta.columnMapping.physicalName", column))

    def file(
        self,
        rows: Mapping[str, Sequence[Any]],
        path: str | None = None,
        **partition: str | None,
    ) -> Add:
        """Write a file of these rows, which belong to a partition."""
        schema = self._schemas[max(self._schemas)]
        table = pa.table(dict(rows), pa.schema([schema.field(name) for name in rows]))
        path = path or f"part-{uuid.uuid4().hex}.parquet"
        target = Path(self.location) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        data = table.drop_columns(list(partition))
        names = [self.physical(name) for name in data.column_names]
        pq.write_table(data.rename_columns(names), target)
        add = Add(
            path=quote(path),
            partition_values={self.physical(n): partition[n] for n in partition},
            size=target.stat().st_size,
            modification_time=time.time_ns() // 1_000_000,
            data_change=True,
            stats=stats(len(table)),
        )
        self._rows[add.path, ""] = table
        return add

    def without(self, file: Add, *rows: int) -> tuple[Action, Action]:
        """Take rows out of a file by a deletion vector."""
        identity = uuid.uuid4()
        data = _bitmap(rows)
        size, check = struct.pack(">i", len(data)), struct.pack(">I", crc32(data))
        target = Path(self.location) / f"deletion_vector_{identity}.bin"
        target.write_bytes(b"\1" + size + data + check)
        vector = DeletionVector(
            storage_type="u",
            path_or_inline_dv=_z85(identity.bytes),
            offset=1,
            size_in_bytes=len(data),
            cardinality=len(rows),
        )
        marked = msgspec.structs.replace(file, deletion_vector=vector)
        kept = [i not in rows for i in range(len(self._rows[file.path, ""]))]
        self._rows[file.path, dv_id(marked)] = self._rows[file.path, ""].filter(kept)
        return remove(file), marked

    def publish(self, *checkpoints: int) -> None:
        """Publish every version, and checkpoints of some."""
        publish(self.catalog, self.name)
        store = open_store(self.location)
        for version in checkpoints:
            now_ms = time.time_ns() // 1_000_000
            made = write_checkpoint(self.catalog, self.name, version, store, now_ms)
            write_last_checkpoint(store, made)

    @property
    def version(self) -> int:
        """The newest version."""
        return self.catalog.table(self.name).version

    def schema(self, version: int) -> pa.Schema:
        """The schema of a version."""
        return self._schemas[max(v for v in self._schemas if v <= version)]

    def files(self, version: int) -> list[str]:
        """The files that SQL has for a version, below the table's folder."""
        found = self.catalog.snapshot(self.name, version).files().read_all()
        return [unquote(path) for path in found["path"].to_pylist()]

    def rows(self, version: int) -> pa.Table:
        """The rows of the files that SQL has for a version."""
        schema = self.schema(version)
        adds = self.catalog.log(self.name).adds(version)
        found = [self._rows[add.path, dv_id(add)] for add in adds]
        # Older files lack the columns that came later, or have narrower ones.
        table = pa.concat_tables(
            [schema.empty_table(), *found], promote_options="permissive"
        )
        return table.select(schema.names)


def _bitmap(rows: Sequence[int]) -> bytes:
    """A Roaring bitmap of a few small numbers, as deletion vectors hold it."""
    container = struct.pack(f"<{len(rows)}H", *sorted(rows))
    header = struct.pack("<IIHHI", _NO_RUN_CONTAINERS, 1, 0, len(rows) - 1, 16)
    return struct.pack("<IQI", _DV_MAGIC, 1, 0) + header + container


def _z85(data: bytes) -> str:
    return b85encode(data).decode().translate(str.maketrans(_B85, _Z85))
