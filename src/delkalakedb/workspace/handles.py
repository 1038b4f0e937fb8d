"""delta-rs's handles, kept for the next append to the same table.

Opening one takes a quarter of a small append. A handle remembers the files that were
appended with it and becomes slower with each, so it serves a few times only.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake

from delkalakedb.model.actions import Action, Add, CommitInfo

__all__ = ["Handle", "keep_handle", "open_handle", "take_handle"]

_MOST_HANDLES, _MOST_USES = 16, 8

# The folder that workspaces are in, the log's entry, and the process: one that was
# forked must not use its parent's.
_Key = tuple[Path, bytes, int]
_kept: OrderedDict[_Key, "Handle"] = OrderedDict()
_lock = threading.Lock()


@dataclass(slots=True)
class Handle:
    """A handle on a workspace that may be gone by now: made anew, it serves again."""

    name: str
    version: int
    raw: Any = None
    uses: int = 0


def take_handle(work: Path, entry: bytes) -> Handle | None:
    """A handle for a log with this entry alone; nobody else has it from here on."""
    with _lock:
        return _kept.pop((work, entry, os.getpid()), None)


def open_handle(folder: Path, version: int) -> Handle:
    """A new one."""
    return Handle(folder.name, version, deltalake.DeltaTable(folder)._table)


def keep_handle(
    work: Path, entry: bytes, handle: Handle, commits: Sequence[Sequence[Action]]
) -> None:
    """Keep a handle that made these commits, if it knows no more than files of them."""
    handle.version += len(commits)
    handle.uses += 1
    plain = all(isinstance(a, Add | CommitInfo) for c in commits for a in c)
    if not plain or handle.uses >= _MOST_USES:
        return
    with _lock:
        _kept[work, entry, os.getpid()] = handle
        if len(_kept) > _MOST_HANDLES:
            _kept.popitem(last=False)
