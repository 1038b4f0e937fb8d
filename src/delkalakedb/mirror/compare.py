"""Two streams of actions compared in any order, neither of them kept.

Each stream is reduced to sums of hashes in buckets, which don't depend on order. Only
buckets whose sums differ are read again, a few at a time, to name what differs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from hashlib import blake2b
from typing import Any
from zlib import crc32

import msgspec

from delkalakedb.errors import DeltaError
from delkalakedb.mirror.forms import Body, Form
from delkalakedb.mirror.report import Difference
from delkalakedb.model.actions import Action
from delkalakedb.model.codec import action_to_dict

__all__ = ["UNREADABLE", "Source", "broken", "compare", "compare_fields"]

Source = Callable[[], Iterable[Action]]
# What reading a broken or missing file raises, from us or from Arrow.
UNREADABLE = (DeltaError, OSError, ValueError)

_BUCKETS = 4096
_BUCKETS_READ = 16
_SHOWN = 200
_IDENTITY = {"txn": "appId", "domainMetadata": "domain", "cdc": "path"}
_encode = msgspec.json.Encoder(order="sorted").encode
_Bodies = dict[str, list[Body]]


class _BrokenLogError(Exception):
    """The log can't be read; the cause says why."""


def compare(
    version: int, where: str, sql: Source, log: Source, form: Form
) -> Iterator[Difference]:
    """The differences between the actions of the catalog and those of the log.

    Both sides are read once, and once more for every few differences.
    """
    try:
        ours, theirs = _sums(sql(), form), _sums(_guarded(log), form)
        if ours == theirs:
            return
        differing = [n for n in range(_BUCKETS) if ours[n] != theirs[n]]
        for start in range(0, len(differing), _BUCKETS_READ):
            some = frozenset(differing[start : start + _BUCKETS_READ])
            both = _read(sql(), form, some), _read(_guarded(log), form, some)
            yield from _mismatches(version, where, *both)
    except _BrokenLogError as error:
        yield broken(version, where, error.__cause__)


def compare_fields(
    version: int, where: str, sql: Body, log: Body, action: str | None = None
) -> Iterator[Difference]:
    """A difference for each field that the two sides don't have alike."""
    for name in sorted(sql.keys() | log.keys()):
        ours, theirs = _shown(sql, name), _shown(log, name)
        if _encoded(sql, name) != _encoded(log, name):
            what = f"{action}: {name}" if action else name
            message = (
                f"{where}: {what} is {theirs or 'absent'}, in SQL {ours or 'absent'}"
            )
            yield Difference(version, where, what, ours, theirs, message)


def broken(version: int, where: str, why: object) -> Difference:
    """The difference of a file that is missing or can't be read."""
    return Difference(version, where, None, None, None, f"{where}: {why}")


def _guarded(log: Source) -> Iterator[Action]:
    """The log's actions, its errors told from those of the catalog."""
    try:
        yield from log()
    except UNREADABLE as error:
        raise _BrokenLogError from error


def _formed(actions: Iterable[Action], form: Form) -> Iterator[tuple[int, str, Body]]:
    for action in actions:
        ((kind, body),) = action_to_dict(action).items()
        if not isinstance(body, dict):
            body = {"value": body}
        key = _key(kind, body)
        yield crc32(key.encode()) % _BUCKETS, key, form(kind, body)


def _key(kind: str, body: Body) -> str:
    if kind in ("add", "remove"):
        vector = body.get("deletionVector")
        mark = f" (deletion vector {vector['pathOrInlineDv']})" if vector else ""
        return f"{kind} {body['path']}{mark}"
    return f"{kind} {body[_IDENTITY[kind]]}" if kind in _IDENTITY else kind


def _sums(actions: Iterable[Action], form: Form) -> list[int]:
    sums = [0] * _BUCKETS
    for bucket, key, body in _formed(actions, form):
        digest = blake2b(_encode([key, body]), digest_size=16).digest()
        sums[bucket] += int.from_bytes(digest, "big")
    return sums


def _read(actions: Iterable[Action], form: Form, buckets: Set[int]) -> _Bodies:
    found: _Bodies = defaultdict(list)
    for bucket, key, body in _formed(actions, form):
        if bucket in buckets:
            found[key].append(body)
    return found


def _mismatches(
    version: int, where: str, ours: _Bodies, theirs: _Bodies
) -> Iterator[Difference]:
    for key in sorted(ours.keys() | theirs.keys()):
        sql, log = ours.get(key, []), theirs.get(key, [])
        if len(sql) == len(log) == 1:
            yield from compare_fields(version, where, sql[0], log[0], key)
        elif sorted(map(_encode, sql)) != sorted(map(_encode, log)):
            yield _counted(version, where, key, sql, log)


def _counted(
    version: int, where: str, key: str, sql: list[Body], log: list[Body]
) -> Difference:
    how = f"{len(log)} times in {where} and {len(sql)} times in SQL"
    if not log:
        how = f"in SQL but not in {where}"
    elif not sql:
        how = f"in {where} but not in SQL"
    ours, theirs = (_text(bodies) if bodies else None for bodies in (sql, log))
    return Difference(version, where, key, ours, theirs, f"{key} is {how}")


def _encoded(body: Body, name: str) -> bytes:
    return _encode(body[name]) if name in body else b""


def _shown(body: Body, name: str) -> str | None:
    return _text(body[name]) if name in body else None


def _text(value: Any) -> str:
    text = _encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
