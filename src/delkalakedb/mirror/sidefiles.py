"""The log's files that only speed readers up: `.crc` and `_last_checkpoint`."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from delkalakedb.catalog.head import Head
from delkalakedb.catalog.reader import SqlTxnLogReader
from delkalakedb.mirror.checksum import checksum_path
from delkalakedb.mirror.compare import broken, compare_fields
from delkalakedb.mirror.forms import Body, plain
from delkalakedb.mirror.last_checkpoint import LAST_CHECKPOINT
from delkalakedb.mirror.report import Difference
from delkalakedb.model.actions import Action
from delkalakedb.model.canonical import checksum
from delkalakedb.model.codec import action_to_dict
from delkalakedb.storage import ObjectNotFoundError, Store
from delkalakedb.storage.segment import list_log

__all__ = ["check_checksum", "check_last_checkpoint"]

_decoder = msgspec.json.Decoder(dict[str, Any])
_encode = msgspec.json.Encoder(order="sorted").encode


def check_checksum(
    data: bytes, sql: SqlTxnLogReader, head: Head, transaction_id: str
) -> Iterator[Difference]:
    """Whether a version's `.crc` sums up what the catalog has."""
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
    """Whether `_last_checkpoint`, if there is one, tells of a checkpoint as it is."""
    try:
        given = _decoder.decode(store.get(LAST_CHECKPOINT))
    except ObjectNotFoundError:
        return
    except ValueError as error:
        yield broken(published, LAST_CHECKPOINT, error)
        return
    version = given.get("version")
    # Listed after it was read: it may be newer than whatever was listed before.
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
    """What only some writers put into a `.crc`, and costs a query."""
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
    """A list of actions in one order, whatever it was; anything else as it is."""
    if isinstance(value, list) and all(isinstance(item, dict) for item in value):
        return sorted(map(plain, value), key=_encode)
    return value
