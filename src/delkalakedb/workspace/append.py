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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import deltalake

from delkalakedb.errors import DeltaError
from delkalakedb.model.actions import Action, Add
from delkalakedb.model.codec import encode_commit
from delkalakedb.model.txnlog import State
from delkalakedb.storage import FileTxnLogReader, open_store

__all__ = ["stage_append"]


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
    with _workspace(root, state) as folder:
        deltalake.write_deltalake(folder, data, **options)
        log = FileTxnLogReader(open_store(str(folder)))
        version = state.version + 1 if state else 0
        actions = log.commit(version)
        for action in actions:
            if isinstance(action, Add):
                _move(folder, root, unquote(action.path))
    return actions


@contextmanager
def _workspace(root: Path, state: State | None) -> Iterator[Path]:
    folder = root / "_delta_work" / uuid.uuid4().hex
    (folder / "_delta_log").mkdir(parents=True)
    try:
        if state is not None:
            entry = folder / "_delta_log" / f"{state.version:020}.json"
            entry.write_bytes(encode_commit([state.protocol, state.metadata]))
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
