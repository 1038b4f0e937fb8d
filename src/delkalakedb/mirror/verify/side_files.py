"""Checks of `.crc`, `_last_checkpoint` and data files against the catalog."""

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from typing import Any

import msgspec

from delkalakedb.catalog.read import Head, SqlTxnLogReader
from delkalakedb.mirror.verify.comparison import (
    Body,
    Difference,
    broken,
    compare_fields,
    plain,
)
from delkalakedb.model.actions import Action, Add, action_to_dict, checksum
from delkalakedb.model.paths import (
    LAST_CHECKPOINT,
    checksum_path,
    key_inside,
    log_paths,
)
from delkalakedb.storage import ObjectNotFoundError, Store
from delkalakedb.storage.log import list_log

_decoder = msgspec.json.Decoder(dict[str, Any])
_encode = msgspec.json.Encoder(order="sorted").encode


def check_checksum(
    data: bytes, sql: SqlTxnLogReader, head: Head, transaction_id: str
) -> Iterator[Difference]:
    """Yield the differences between a version's `.crc` and the catalog."""
    version, path = head.version, checksum_path(head.version)
    try:
        given = _decoder.decode(data)
    except ValueError as error:
        yield broken(version, path, error)
        return
    optional = _optional(sql, head) | {"txnId": lambda: transaction_id}
    expected = _required(head)
    expected |= {name: load() for name, load in optional.items() if name in given}
    found = {name: _ordered(given[name]) for name in expected if name in given}
    yield from compare_fields(version, path, plain(expected), plain(found))


def check_last_checkpoint(
    store: Store, sql: SqlTxnLogReader, published: int
) -> Iterator[Difference]:
    """Yield the differences between `_last_checkpoint` and the checkpoint it names."""
    try:
        given = _decoder.decode(store.get(LAST_CHECKPOINT))
    except ObjectNotFoundError:
        return
    except ValueError as error:
        yield broken(published, LAST_CHECKPOINT, error)
        return
    version = given.get("version")
    # Listed now, because it may name a checkpoint that is newer than an earlier
    # listing.
    if version not in list_log(store).checkpoints:
        why = f"it names version {version}, which has no checkpoint"
        yield broken(published, LAST_CHECKPOINT, why)
        return
    expected = {
        "numOfAddFiles": sql.head(version).num_files,
        "checksum": checksum(given),
    }
    expected = {name: value for name, value in expected.items() if name in given}
    found = {name: given[name] for name in expected}
    yield from compare_fields(version, LAST_CHECKPOINT, expected, found)


def _required(head: Head) -> Body:
    return {
        "tableSizeBytes": head.size_bytes,
        "numFiles": head.num_files,
        "numMetadata": 1,
        "numProtocol": 1,
        "metadata": _body(head.metadata),
        "protocol": _body(head.protocol),
    }


def _optional(sql: SqlTxnLogReader, head: Head) -> dict[str, Callable[[], Any]]:
    """Return the fields that only some writers put into a `.crc`, each as a query."""
    return {
        "inCommitTimestampOpt": lambda: head.timestamp_ms,
        "setTransactions": lambda: _bodies(sql.txns(head.version).values()),
        "domainMetadata": lambda: _bodies(sql.domains_at(head).values()),
    }


def _bodies(actions: Iterable[Action]) -> Any:
    return _ordered([*map(_body, actions)])


def _body(action: Action) -> Body:
    body: Body
    (body,) = action_to_dict(action).values()
    return body


def _ordered(value: Any) -> Any:
    """Return a list of actions sorted, and any other value unchanged."""
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return sorted(map(plain, value), key=_encode)
    return value


def absent_files(
    adds: Callable[[], Iterable[Add]], store: Store
) -> Iterator[tuple[str, int | None]]:
    """Yield the path and the size of each live file that isn't there in its size.

    The size is None for a deletion vector's file, which may have any size.
    """
    wanted = {_hash(*file) for add in adds() for file in _files(add, store.url)}
    for meta in store.list() if wanted else ():
        wanted.discard(_hash(meta.path, None))
        wanted.discard(_hash(meta.path, meta.size_bytes))
    if wanted:
        files = (file for add in adds() for file in _files(add, store.url))
        for path, size in files:
            if _hash(path, size) in wanted and not _is_linked(store, path, size):
                yield path, size


def _is_linked(store: Store, path: str, size: int | None) -> bool:
    """Return whether a file is there, although the store hasn't listed it."""
    found = store.head_linked(path)
    return found is not None and size in (None, found.size_bytes)


def _files(add: Add, location: str) -> Iterator[tuple[str, int | None]]:
    file, *vector = log_paths(add)
    for path, size in [(file, add.size), *((path, None) for path in vector)]:
        # A file outside the location isn't in the listing.
        if (key := key_inside(path, location)) is not None:
            yield key, size


def _hash(path: str, size: int | None) -> bytes:
    return blake2b(
        f"{size} {path}".encode(errors="surrogateescape"), digest_size=8
    ).digest()
