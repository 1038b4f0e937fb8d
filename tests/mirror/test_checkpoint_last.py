"""`_last_checkpoint` points to the newest checkpoint and says so verifiably."""

import json

import pytest

from delkalakedb.mirror.checkpoint.checkpoint import (
    Checkpoint,
    read_last_checkpoint,
    write_last_checkpoint,
)
from delkalakedb.model.actions import checksum
from delkalakedb.model.paths import LAST_CHECKPOINT
from delkalakedb.storage import Store, open_store


@pytest.fixture
def store(tmp_path) -> Store:
    return open_store(str(tmp_path))


def checkpoint(version: int, size: int = 5) -> Checkpoint:
    return Checkpoint(
        version=version, path="p", sidecars=(), size=size, num_adds=3, size_bytes=99
    )


def test_hint_has_the_protocols_fields_and_their_checksum(store: Store) -> None:
    write_last_checkpoint(store, checkpoint(10))
    hint = json.loads(store.get(LAST_CHECKPOINT))
    assert hint.pop("checksum") == checksum(hint)
    assert hint == {"version": 10, "size": 5, "sizeInBytes": 99, "numOfAddFiles": 3}


def test_hint_never_moves_backwards(store: Store) -> None:
    write_last_checkpoint(store, checkpoint(20))
    write_last_checkpoint(store, checkpoint(10))
    assert read_last_checkpoint(store) == 20
    write_last_checkpoint(store, checkpoint(20, size=6))
    assert json.loads(store.get(LAST_CHECKPOINT))["size"] == 6


def test_hint_of_another_writer_without_checksum_counts(store: Store) -> None:
    store.put(LAST_CHECKPOINT, b'{"version":20,"size":5,"size_in_bytes":1.5}')
    write_last_checkpoint(store, checkpoint(10))
    assert read_last_checkpoint(store) == 20


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"{",
        b"[20]",
        b"\xff\xfe",
        b'{"size":1}',
        b'{"version":"20"}',
        b'{"version":true}',
        b'{"version":1,"version":20}',
        b'{"version":20,"checksum":"0123"}',
        b'{"version":20,"tags":{"a":"\\ud800"}}',
    ],
)
def test_damaged_hint_is_replaced(store: Store, damaged: bytes) -> None:
    store.put(LAST_CHECKPOINT, damaged)
    assert read_last_checkpoint(store) is None
    write_last_checkpoint(store, checkpoint(10))
    assert read_last_checkpoint(store) == 10
