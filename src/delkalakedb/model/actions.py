"""Delta actions as frozen structs, and their JSON in a log entry.

Nothing that was read is lost when it is written again: an absent field is `UNSET`, a
field with `null` is `None`, and unknown fields are kept in `extra`. The order of the
fields is their order on disk.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, Union
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from delkalakedb.errors import CodecError

T = TypeVar("T")
# Absent | null | value.
Maybe = Union[T, UnsetType, None]  # noqa: UP007
Strings = dict[str, str | None]
EXTRA = "$extra"
# The schema in memory of a `metaData` without `schemaString`: it has no columns. It
# starts with a space, which no writer does, so that no schema on disk equals it.
NO_SCHEMA = ' {"type":"struct","fields":[]}'


class _Action(
    msgspec.Struct,
    frozen=True,
    # Actions hold plain values, so the garbage collector has no cycles to find.
    gc=False,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename="camel",
):
    """The base of all actions: camelCase names on disk, `extra` for other fields."""

    extra: dict[str, Any] = msgspec.field(default_factory=dict, name=EXTRA)


class DeletionVector(_Action, frozen=True, kw_only=True):
    """The deleted rows of a file, or where they are listed."""

    storage_type: str
    path_or_inline_dv: str
    offset: Maybe[int] = UNSET
    size_in_bytes: int
    cardinality: int
    max_row_index: Maybe[int] = UNSET

    @property
    def unique_id(self) -> str:
        """The id that identifies a logical file together with the file's path."""
        base = f"{self.storage_type}{self.path_or_inline_dv}"
        return base if self.offset in (None, UNSET) else f"{base}@{self.offset}"


class Add(_Action, frozen=True, kw_only=True):
    """A data file that a version adds to the table."""

    path: str
    partition_values: Strings
    size: int
    modification_time: int
    data_change: bool
    stats: Maybe[str] = UNSET
    tags: Maybe[Strings] = UNSET
    deletion_vector: Maybe[DeletionVector] = UNSET
    base_row_id: Maybe[int] = UNSET
    default_row_commit_version: Maybe[int] = UNSET
    clustering_provider: Maybe[str] = UNSET


class Remove(_Action, frozen=True, kw_only=True):
    """A tombstone: a data file that a version removes from the table."""

    path: str
    data_change: bool
    deletion_timestamp: Maybe[int] = UNSET
    extended_file_metadata: Maybe[bool] = UNSET
    partition_values: Maybe[Strings] = UNSET
    size: Maybe[int] = UNSET
    stats: Maybe[str] = UNSET
    tags: Maybe[Strings] = UNSET
    deletion_vector: Maybe[DeletionVector] = UNSET
    base_row_id: Maybe[int] = UNSET
    default_row_commit_version: Maybe[int] = UNSET


class Cdc(_Action, frozen=True, kw_only=True):
    """A change data file, which CDF readers read instead of its version's adds."""

    path: str
    size: int
    partition_values: Strings
    data_change: bool
    tags: Maybe[Strings] = UNSET


class Format(_Action, frozen=True, kw_only=True):
    """The storage format of the data files."""

    provider: str
    options: Maybe[Strings] = UNSET


class Metadata(_Action, frozen=True, kw_only=True):
    """The table's schema, partitioning and properties (`metaData`)."""

    id: str
    name: Maybe[str] = UNSET
    description: Maybe[str] = UNSET
    format: Format
    schema_string: str = NO_SCHEMA
    partition_columns: list[str]
    created_time: Maybe[int] = UNSET
    configuration: Maybe[Strings] = UNSET


class Protocol(_Action, frozen=True, kw_only=True):
    """The versions and features that readers and writers of the table must support."""

    min_reader_version: int
    min_writer_version: int
    reader_features: Maybe[list[str]] = UNSET
    writer_features: Maybe[list[str]] = UNSET


class Txn(_Action, frozen=True, kw_only=True):
    """The last version that an application wrote, for idempotent writes."""

    app_id: str
    version: int
    last_updated: Maybe[int] = UNSET


class DomainMetadata(_Action, frozen=True, kw_only=True):
    """The configuration of a named domain; `removed` marks a tombstone."""

    domain: str
    configuration: str
    removed: bool


class CheckpointMetadata(_Action, frozen=True, kw_only=True):
    """The version of a V2 checkpoint."""

    version: int
    tags: Maybe[Strings] = UNSET


class Sidecar(_Action, frozen=True, kw_only=True):
    """A file with the file actions of a V2 checkpoint."""

    path: str
    size_in_bytes: int
    modification_time: int
    tags: Maybe[Strings] = UNSET


class CommitInfo(msgspec.Struct, frozen=True, gc=False):
    """The provenance of a commit: free JSON, kept as it was read."""

    fields: dict[str, Any]


class UnknownAction(msgspec.Struct, frozen=True):
    """An action of an unknown kind."""

    kind: str
    body: Any


Action = (
    Add
    | Remove
    | Cdc
    | Metadata
    | Protocol
    | Txn
    | DomainMetadata
    | CommitInfo
    | CheckpointMetadata
    | Sidecar
    | UnknownAction
)


def known(value: Maybe[T]) -> T | None:
    """Return the value; None if it is absent or null."""
    return None if value is UNSET else value


def dv_id(action: Add | Remove) -> str:
    """Return the unique id of the action's deletion vector, or an empty string."""
    vector = known(action.deletion_vector)
    return vector.unique_id if vector is not None else ""


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
NAMES = {cls: name for name, cls in KINDS.items()}
"""The names of actions in the log."""
FILELESS = frozenset(NAMES[kind] for kind in (Protocol, Metadata, Txn, DomainMetadata))
"""The names of the actions that make up a version's state, without file actions."""
_NESTED: dict[str, type[_Action]] = {
    "deletionVector": DeletionVector,
    "format": Format,
}


def _line_of(name: str, kind: type[_Action]) -> type[msgspec.Struct]:
    """Return the type of a line that holds one action of a kind."""
    body = ("body", kind, msgspec.field(name=name))
    return msgspec.defstruct(
        f"_{name}", [body], frozen=True, forbid_unknown_fields=True
    )


_LINES = {name.encode(): _line_of(name, kind) for name, kind in KINDS.items()}
_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (*_LINES.values(), *_NESTED.values(), *KINDS.values())
}
_EXTRA_KEY = EXTRA.encode()
# Values that mean the same as an absent field, but must be written again.
_AS_ABSENT = (("schemaString", None),)
# Endless nesting raises RecursionError, broken UTF-8 in a string UnicodeError.
_BROKEN = (msgspec.DecodeError, UnicodeError, RecursionError)
_any = msgspec.json.Decoder()
_encoder = msgspec.json.Encoder()


def decode_commit(data: bytes) -> Iterator[Action]:
    """Yield the actions of one log entry, in the order of its lines."""
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
    """Return a log entry: one line for each action."""
    return b"".join(_encode_line(action) + b"\n" for action in actions)


def decode_struct(data: bytes | str, kind: type[_S]) -> _S:
    """Decode the body of an action of a kind."""
    raw = data.encode() if isinstance(data, str) else data
    try:
        return _decode_fast(raw, kind) or _convert(_any.decode(raw), kind)
    except _BROKEN as error:
        raise CodecError(f"not a {kind.__name__}: {error}") from error


def encode_struct(action: _Action) -> bytes:
    """Encode the body of an action, without the name of its kind."""
    return _encoder.encode(_body(action))


def action_from_dict(line: dict[str, Any]) -> Action:
    """Return the action of a line that was decoded to a dictionary."""
    try:
        if len(actions := _from_dict(line)) != 1:
            raise msgspec.ValidationError("expected an object with one action")
    except _BROKEN as error:
        raise CodecError(f"not a Delta action: {error}") from error
    return actions[0]


def action_to_dict(action: Action) -> dict[str, Any]:
    """Return an action's line as a dictionary."""
    if isinstance(action, CommitInfo):
        return {"commitInfo": action.fields}
    if isinstance(action, UnknownAction):
        return {action.kind: action.body}
    return {NAMES[type(action)]: msgspec.to_builtins(_body(action))}


def _decode_line(line: bytes) -> Sequence[Action]:
    kind = _LINES.get(line[2 : line.find(b'"', 2)])
    decoded: Any = kind and _decode_fast(line, kind)
    return (decoded.body,) if decoded else _from_dict(_any.decode(line))


def _decode_fast(data: bytes, kind: type[_T]) -> _T | None:
    """Return the typed value, or None if the data has anything that isn't typed."""
    # A key that is spelled like the one of `extra` would be decoded as `extra`.
    if _EXTRA_KEY in data or b"\\u" in data:
        return None
    try:
        return _decoders[kind].decode(data)  # type: ignore[no-any-return]
    except msgspec.ValidationError:
        return None


def _from_dict(line: Any) -> list[Action]:
    """Return the known action of a line, if there is one, and then unknown ones."""
    if not isinstance(line, dict):
        raise msgspec.ValidationError("expected an object with an action")
    named = {kind for kind in line if kind in KINDS or kind == "commitInfo"}
    # Readers with a column for each kind read a null as no action.
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
    """Return the struct itself, or a dictionary if it has unknown fields."""
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
    return _encoder.encode({NAMES[type(action)]: _body(action)})


def canonical_form(document: Mapping[str, Any]) -> str:
    """Return each leaf as `path=value`, sorted by path, without `checksum` itself."""
    kept = {name: value for name, value in document.items() if name != "checksum"}
    # Paths are ASCII here, so their order is that of their bytes.
    return ",".join(f"{path}={leaf}" for path, leaf in sorted(_leaves(kept)))


def transaction_id_of(commit: bytes) -> str | None:
    """Return the transaction id in the commitInfo that a commit begins with."""
    info = next(decode_commit(commit), None)
    return info.fields.get("txnId") if isinstance(info, CommitInfo) else None


def sha256_of(data: bytes) -> str:
    """Return the SHA-256 of a log file, in hexadecimal."""
    # Imported here, because opening a table hashes nothing and OpenSSL takes 3 ms.
    from hashlib import sha256

    return sha256(data).hexdigest()


def checksum(document: Mapping[str, Any]) -> str:
    """Return the MD5 of the canonical form, in hexadecimal."""
    from hashlib import md5

    form = canonical_form(document).encode()
    return md5(form, usedforsecurity=False).hexdigest()


def _leaves(value: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(value, dict | list):
        yield "", _scalar(value)
        return
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, child in items:
        for path, leaf in _leaves(child):
            yield f"{_scalar(name)}+{path}" if path else _scalar(name), leaf


def _scalar(value: Any) -> str:
    # `quote` keeps exactly the characters that the protocol calls unreserved.
    return f'"{quote(value, safe="")}"' if isinstance(value, str) else json.dumps(value)
