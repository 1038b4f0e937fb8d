"""Log entries to actions and back.

Decoding takes the typed fast path and falls back to plain dictionaries for a line
with a field or an action that this version doesn't know. An unknown action may stand
in the line of a known one: both are kept, and written as a line each. Encoding is
deterministic: equal actions give equal bytes.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from delkalakedb.errors import CodecError
from delkalakedb.model.actions import (
    EXTRA,
    Action,
    Add,
    Cdc,
    CheckpointMetadata,
    CommitInfo,
    DeletionVector,
    DomainMetadata,
    Format,
    Metadata,
    Protocol,
    Remove,
    Sidecar,
    Txn,
    UnknownAction,
    _Action,
)

__all__ = [
    "action_from_dict",
    "action_to_dict",
    "decode_commit",
    "decode_struct",
    "encode_commit",
    "encode_struct",
]

_S = TypeVar("_S", bound=_Action)
_T = TypeVar("_T")

KINDS: dict[str, type[_Action]] = {
    "protocol": Protocol,
    "metaData": Metadata,
    "txn": Txn,
    "domainMetadata": DomainMetadata,
    "checkpointMetadata": CheckpointMetadata,
    "sidecar": Sidecar,
    "remove": Remove,
    "add": Add,
    "cdc": Cdc,
}
_NAMES = {cls: name for name, cls in KINDS.items()}
_NESTED: dict[str, type[_Action]] = {
    "deletionVector": DeletionVector,
    "format": Format,
}


def _line_of(name: str, kind: type[_Action]) -> type[msgspec.Struct]:
    """A line with one action of a kind and nothing else."""
    body = ("body", kind, msgspec.field(name=name))
    return msgspec.defstruct(
        f"_{name}", [body], frozen=True, forbid_unknown_fields=True
    )


_LINES = {name.encode(): _line_of(name, kind) for name, kind in KINDS.items()}
_TYPED: tuple[type[Any], ...] = (
    *_LINES.values(),
    DeletionVector,
    Format,
    *KINDS.values(),
)
_decoders = {kind: msgspec.json.Decoder(kind) for kind in _TYPED}
_EXTRA_KEY = EXTRA.encode()
# Values that mean as much as no field at all, but have to come back.
_AS_ABSENT = (("schemaString", None),)
# Nesting without end is a RecursionError, broken UTF-8 in a string a Unicode one.
_BROKEN = (msgspec.DecodeError, UnicodeError, RecursionError)
_any = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def decode_commit(data: bytes) -> Iterator[Action]:
    """The actions of one log entry, in the order of its lines."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                actions = _decode_line(line)
            except _BROKEN as error:
                raise CodecError(
                    f"line {number} is not a Delta action: {error}"
                ) from error
            yield from actions


def encode_commit(actions: Iterable[Action]) -> bytes:
    """One line per action, each ended by a newline."""
    return b"".join(_encode_line(action) + b"\n" for action in actions)


def decode_struct(data: bytes | str, kind: type[_S]) -> _S:
    """One action's body, without its kind."""
    raw = data.encode() if isinstance(data, str) else data
    try:
        return _decode_fast(raw, kind) or _convert(_any.decode(raw), kind)
    except _BROKEN as error:
        raise CodecError(f"not a {kind.__name__}: {error}") from error


def encode_struct(action: _Action) -> bytes:
    """One action's body, without its kind."""
    return _encoder.encode(_body(action))


def action_from_dict(line: dict[str, Any]) -> Action:
    """An action from the dictionary that its line holds."""
    try:
        if len(actions := _from_dict(line)) != 1:
            raise msgspec.ValidationError("expected an object with one action")
    except _BROKEN as error:
        raise CodecError(f"not a Delta action: {error}") from error
    return actions[0]


def action_to_dict(action: Action) -> dict[str, Any]:
    """The dictionary that an action's line holds."""
    if isinstance(action, CommitInfo):
        return {"commitInfo": action.fields}
    if isinstance(action, UnknownAction):
        return {action.kind: action.body}
    return {_NAMES[type(action)]: msgspec.to_builtins(_body(action))}


def _decode_line(line: bytes) -> Sequence[Action]:
    kind = _LINES.get(line[2 : line.find(b'"', 2)])
    decoded: Any = kind and _decode_fast(line, kind)
    return (decoded.body,) if decoded else _from_dict(_any.decode(line))


def _decode_fast(data: bytes, kind: type[_T]) -> _T | None:
    """The typed value, or None where there is anything that the types don't know."""
    # A key spelled like the one of `extra` would be taken for it.
    if _EXTRA_KEY in data or b"\\u" in data:
        return None
    try:
        return _decoders[kind].decode(data)  # type: ignore[no-any-return]
    except msgspec.ValidationError:
        return None


def _from_dict(line: Any) -> list[Action]:
    """The known action of a line, if there is one, and then the unknown ones."""
    if not isinstance(line, dict):
        raise msgspec.ValidationError("expected an object with an action")
    named = {kind for kind in line if kind in KINDS or kind == "commitInfo"}
    # Readers that have a column for each kind take a null for no action.
    given = [kind for kind in line if kind in named and line[kind] is not None]
    if len(given) > 1:
        raise msgspec.ValidationError(f"expected one action, got {', '.join(given)}")
    actions = [_known(kind, line[kind]) for kind in given]
    actions += [UnknownAction(kind, line[kind]) for kind in line if kind not in named]
    if not actions:
        raise msgspec.ValidationError("expected an object with an action")
    return actions


def _known(kind: str, body: Any) -> Action:
    if kind == "commitInfo" and isinstance(body, dict):
        return CommitInfo(body)
    if kind in KINDS:
        return _convert(body, KINDS[kind])  # type: ignore[return-value]
    return UnknownAction(kind, body)


def _convert(body: Any, kind: type[_S]) -> _S:
    if not isinstance(body, dict):
        raise msgspec.ValidationError(f"expected an object, got {body!r}")
    fields = kind.__struct_encode_fields__
    given: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in body.items():
        if name not in fields or name == EXTRA or (name, value) in _AS_ABSENT:
            extra[name] = value
        elif name in _NESTED and isinstance(value, dict):
            given[name] = _convert(value, _NESTED[name])
        else:
            given[name] = value
    if extra:
        given[EXTRA] = extra
    return msgspec.convert(given, kind)


def _body(action: _Action) -> Any:
    """The struct itself, or a dictionary where there are fields to merge in."""
    nested = [
        (name, value)
        for name in ("deletion_vector", "format")
        if isinstance(value := getattr(action, name, None), _Action) and value.extra
    ]
    if not action.extra and not nested:
        return action
    body = msgspec.to_builtins(action)
    body.pop(EXTRA, None)
    for name, value in nested:
        body["deletionVector" if name == "deletion_vector" else name] = _body(value)
    return {**body, **action.extra}


def _encode_line(action: Action) -> bytes:
    if isinstance(action, CommitInfo | UnknownAction):
        return _encoder.encode(action_to_dict(action))
    return _encoder.encode({_NAMES[type(action)]: _body(action)})
