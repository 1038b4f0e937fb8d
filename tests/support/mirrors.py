"""A table with one of everything, published, and copies of its store to change."""

import time
import uuid
from typing import Any

import msgspec

import delkalakedb as dk
from delkalakedb.mirror.checkpoint.checkpoint import (
    version_checksum,
    write_checkpoint,
    write_last_checkpoint,
)
from delkalakedb.mirror.publisher.publication import publish
from delkalakedb.model.actions import Add
from delkalakedb.model.paths import checksum_path
from delkalakedb.storage import Store, open_store
from tests.support.actions import (
    DV,
    add,
    cdc,
    commit,
    creation,
    domain,
    metadata,
    remove,
    schema,
    stats,
    txn,
    vector,
)

LAST = 6
CHECKPOINT = 3
CHECKPOINT_PATH = f"_delta_log/{CHECKPOINT:020}.checkpoint.parquet"
FEATURES = ("deletionVectors", "domainMetadata", "appendOnly", "invariants")
VECTOR = "ab^-aqEH.-t@S}K{vb[*k^"
VECTOR_FILE = "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"
COLUMNS = schema(x="long", s="string", t="timestamp", d="decimal(10,2)", f="double")


def file(number: int, **fields: Any) -> Add:
    text = stats(
        3,
        x=(number, number + 5, 0),
        s=("a", "b", 1),
        t=("2026-01-01T00:00:00.123Z", "2026-01-02T00:00:00.456Z", 0),
        d=(1.5, 2.25, 0),
        f=(0.1, 1e300, 0),
    )
    return add(f"part%20{number}", size=100 + number, stats=text, **fields)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def fill(catalog: dk.Catalog, **configuration: str) -> Store:
    """A table with one of everything in seven versions, published and checkpointed."""
    location = f"memory:///{uuid.uuid4().hex}"
    meta = metadata(COLUMNS, configuration={DV: "true", **configuration})
    first = creation("t", file(0), meta=meta, features=FEATURES, location=location)
    catalog.commit(first)
    commit(catalog, file(1), file(2), txn("app", 1), txn("early", 1), domain("d"))
    commit(catalog, remove(file(1), deletion_timestamp=now_ms()), cdc("c"))
    marked = msgspec.structs.replace(vector(VECTOR), offset=4)
    commit(catalog, remove(file(2)), file(2, deletion_vector=marked))
    commit(catalog, file(4, tags={"k": "v"}), txn("app", 2), txn("other", 9))
    commit(catalog, msgspec.structs.replace(meta, description="more"))
    commit(catalog, file(6), domain("d", removed=True))
    publish(catalog, "t")
    store = open_store(location)
    write_checkpointed(catalog, store)
    for number in (0, 2, 4, 6):
        store.put(f"part {number}", bytes(100 + number))
    store.put(VECTOR_FILE, b"x")
    return store


def write_checkpointed(catalog: dk.Catalog, store: Store) -> None:
    checkpoint = write_checkpoint(catalog, "t", CHECKPOINT, store, now_ms())
    write_last_checkpoint(store, checkpoint)
    for version in range(LAST + 1):
        head = catalog.log("t").head(version)
        store.put(checksum_path(version), version_checksum(head, None))


def copied(source: Store) -> Store:
    """The same objects in a store of the test's own."""
    target = open_store(f"memory:///{uuid.uuid4().hex}")
    for meta in source.list():
        target.put(meta.path, source.get(meta.path))
    return target
