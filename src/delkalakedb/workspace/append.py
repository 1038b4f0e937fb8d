"""Append: delta-rs writes new files into an empty workspace.

The workspace is a folder beside the data, `_delta_work/<id>`, that starts with a log
entry of the read version's protocol and metadata. delta-rs commits there; what it
committed is read back, its files are moved to where the table keeps them, and the
actions are handed on to be ratified. Until then the table knows nothing of the files:
a crash leaves files that no version names.
"""

import os
import shutil
import uuid
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import deltalake
import msgspec

from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import Action, Add, Metadata, Protocol, known
from delkalakedb.model.codec import encode_commit
from delkalakedb.model.fencing import FENCE_PROPERTY
from delkalakedb.model.txnlog import State
from delkalakedb.storage import FileTxnLogReader, open_store

__all__ = ["stage_append"]

# Features that delta-rs refuses, and that ask nothing of the files it writes: what they
# demand of a commit is done when it is ratified.
_AT_RATIFY = frozenset(
    {
        "catalogManaged",
        "clustering",
        "domainMetadata",
        "inCommitTimestamp",
        "rowTracking",
        "vacuumProtocolCheck",
    }
)


def stage_append(
    location: str, state: State | None, data: Any, **options: Any
) -> tuple[Action, ...]:
    """The actions of an append of `data`, its files in place under `location`.

    Args:
        location: the table's location, a `file://` URL.
        state: the table as it was read; None for a table that isn't there yet.
        data: anything that `deltalake.write_deltalake` takes.
        options: its other arguments.
    """
    root = _local_path(location)
    asked = _take_fence(options)
    with _workspace(root, state) as folder:
        deltalake.write_deltalake(folder, data, **options)
        log = FileTxnLogReader(open_store(str(folder)))
        version = state.version + 1 if state else 0
        actions = log.commit(version)
        for action in actions:
            if isinstance(action, Add):
                _move(folder, root, unquote(action.path))
    return tuple(_completed(action, state, asked) for action in actions)


def _take_fence(options: dict[str, Any]) -> dict[str, str | None]:
    """The property that asks for the fence, which delta-rs doesn't know."""
    configuration = dict(options.get("configuration") or {})
    if FENCE_PROPERTY not in configuration:
        return {}
    asked = {FENCE_PROPERTY: configuration.pop(FENCE_PROPERTY)}
    options["configuration"] = configuration
    return asked


def _completed(
    action: Action, state: State | None, asked: dict[str, str | None]
) -> Action:
    """The action with what was kept from delta-rs."""
    if isinstance(action, Metadata) and asked:
        configuration = {**(known(action.configuration) or {}), **asked}
        return msgspec.structs.replace(action, configuration=configuration)
    if isinstance(action, Protocol) and state:
        return _with_features(action, state.protocol, _AT_RATIFY)
    return action


def _without_features(protocol: Protocol, names: Set[str]) -> Protocol:
    def others(listed: Any) -> Any:
        return listed and [name for name in listed if name not in names]

    return msgspec.structs.replace(
        protocol,
        reader_features=others(protocol.reader_features),
        writer_features=others(protocol.writer_features),
    )


def _with_features(protocol: Protocol, source: Protocol, names: Set[str]) -> Protocol:
    def joined(listed: Any, more: Any) -> Any:
        missing = [n for n in known(more) or () if n in names]
        return [*(known(listed) or ()), *missing] if missing else listed

    return msgspec.structs.replace(
        protocol,
        reader_features=joined(protocol.reader_features, source.reader_features),
        writer_features=joined(protocol.writer_features, source.writer_features),
    )


@contextmanager
def _workspace(root: Path, state: State | None) -> Iterator[Path]:
    folder = root / "_delta_work" / uuid.uuid4().hex
    (folder / "_delta_log").mkdir(parents=True)
    try:
        if state is not None:
            entry = folder / "_delta_log" / f"{state.version:020}.json"
            protocol = _without_features(state.protocol, _AT_RATIFY)
            entry.write_bytes(encode_commit([protocol, state.metadata]))
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(folder: Path, root: Path, path: str) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    os.rename(folder / path, target)


def _local_path(location: str) -> Path:
    parts = urlsplit(location)
    if parts.scheme != "file":
        raise DeltaError(f"{location}: only local tables can be written so far")
    return Path(unquote(parts.path))
