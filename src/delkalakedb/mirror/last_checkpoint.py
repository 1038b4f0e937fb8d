"""`_last_checkpoint`: where readers begin to look."""

import json
from typing import Any

from delkalakedb.mirror.checkpoint import Checkpoint
from delkalakedb.model.canonical import checksum
from delkalakedb.storage import ObjectNotFoundError, Store

__all__ = ["LAST_CHECKPOINT", "read_last_checkpoint", "write_last_checkpoint"]

LAST_CHECKPOINT = "_delta_log/_last_checkpoint"


def write_last_checkpoint(store: Store, checkpoint: Checkpoint) -> None:
    """Point readers to a checkpoint, unless they are pointed to a newer one."""
    there = read_last_checkpoint(store)
    if there is not None and there > checkpoint.version:
        return
    hint: dict[str, Any] = {
        "version": checkpoint.version,
        "size": checkpoint.size,
        "sizeInBytes": checkpoint.size_bytes,
        "numOfAddFiles": checkpoint.num_adds,
    }
    hint["checksum"] = checksum(hint)
    store.put(LAST_CHECKPOINT, json.dumps(hint, separators=(",", ":")).encode())


def read_last_checkpoint(store: Store) -> int | None:
    """The version that readers are pointed to; None where that can't be told."""
    try:
        hint = json.loads(store.get(LAST_CHECKPOINT), object_pairs_hook=_unique)
        version = hint["version"]
        intact = hint.get("checksum", given := checksum(hint)) == given
    except (ObjectNotFoundError, ValueError, TypeError, KeyError):
        return None
    return version if intact and type(version) is int else None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key is there twice")
    return found
