"""For a first write that wasn't the first: its rows, to be written once more."""

from collections.abc import Iterator
from contextlib import contextmanager

import deltalake
from arro3.core import RecordBatchReader

from delkalakedb.model.codec import encode_commit
from delkalakedb.storage.segment import commit_path
from delkalakedb.workspace import Captured
from delkalakedb.workspace.folder import private_folder

__all__ = ["read_back"]


@contextmanager
def read_back(made: Captured[None]) -> Iterator[RecordBatchReader]:
    """The rows of a new table that nobody knows of; their source may be read up."""
    (actions,) = made.commits
    with private_folder(made.files.ensure_work()) as folder:
        entry = folder / commit_path(0)
        entry.parent.mkdir()
        entry.write_bytes(encode_commit(actions))
        made.files.bring({path: path for path in made.new_paths}, folder)
        yield deltalake.DeltaTable(folder).scan()
