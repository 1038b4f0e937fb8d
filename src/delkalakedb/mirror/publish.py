"""Publish: copy ratified commits to `_delta_log`, in version order.

A file that is already there is ours if it carries our transaction id, and then the
version is published; anything else is a foreign commit and is never overwritten.
"""

import hashlib

from delkalakedb.catalog import Catalog
from delkalakedb.errors import CodecError, MirrorError
from delkalakedb.model.actions import CommitInfo
from delkalakedb.model.codec import decode_commit, encode_commit
from delkalakedb.storage import Store, open_store

__all__ = ["log_path", "publish"]


def log_path(version: int) -> str:
    """The path of a version's log entry."""
    return f"_delta_log/{version:020}.json"


def publish(
    catalog: Catalog, name: str, storage_options: dict[str, str] | None = None
) -> int:
    """Publish every ratified version that isn't in the log yet; the newest published.

    Killed at any point, the next call goes on where this one stopped: the same version
    gives the same bytes.
    """
    published, current, location = catalog.mirror_state(name)
    store = open_store(location, storage_options)
    for version in range(published + 1, current + 1):
        _publish_version(catalog, store, name, version)
    return current


def _publish_version(catalog: Catalog, store: Store, name: str, version: int) -> None:
    actions = catalog.log(name).commit(version)
    data = encode_commit(actions)
    path = log_path(version)
    if not store.put_new(path, data):
        there = store.get(path)
        if there != data and _transaction_id(there) != _transaction_id(data):
            raise MirrorError(
                f"{name}: {path} was written by someone else; it is left as it is and "
                "publishing stops here"
            )
        data = there
    timestamp_ms = catalog.snapshot(name, version).table.timestamp_ms
    store.set_modified(path, timestamp_ms)
    catalog.mark_published(name, version, hashlib.sha256(data).hexdigest())


def _transaction_id(data: bytes) -> str | None:
    try:
        first = next(decode_commit(data), None)
    except CodecError:
        return None
    return first.fields.get("txnId") if isinstance(first, CommitInfo) else None
