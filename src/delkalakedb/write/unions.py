"""Unions of deletion vectors that need files, made before a commit is tried again.

The transaction that commits reads no file. If it can't tell whether two commits delete
different rows, it returns a conflict with the vectors to look at. Here they are read
and united, without a lock, for the next attempt, which compares the vectors' ids.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from delkalakedb.catalog.commit import Unread
from delkalakedb.errors import StorageError
from delkalakedb.model.actions import Action, Add, DeletionVector, Remove, known
from delkalakedb.model.log import Staged
from delkalakedb.model.rules.row_changes import united, vector_id
from delkalakedb.model.vectors import InlineBounds, vector_paths
from delkalakedb.storage import canonical_location
from delkalakedb.write.engines import read_vector
from delkalakedb.write.files import table_files

if TYPE_CHECKING:
    from pyroaring import BitMap64

_log = logging.getLogger("delkalakedb.unions")


@dataclass
class Unions:
    """The unions of one commit's vectors with other commits', and their files.

    Args:
        bounds: how large inline vectors may be.
        storage_options: the options of the tables' object store.
    """

    bounds: InlineBounds
    storage_options: Mapping[str, str] | None
    # By location: files that this commit's vectors were put into.
    _files: dict[str, set[str]] = field(default_factory=dict)

    def united(self, unread: Unread) -> Staged | None:
        """Return the commit with its vectors united; None if it conflicts."""
        staged, location = unread.staged, canonical_location(unread.location)
        options = self.storage_options or {}

        def read(vector: DeletionVector) -> "BitMap64":
            return read_vector(vector, location, options)

        try:
            union = united(staged, unread.marks, self.bounds, uuid4(), read)
            if union.kept != unread.marks.keys():
                return None
            table_files(unread.location, self.storage_options).put(union.file)
        except (OSError, StorageError) as error:
            # The file may be gone with a newer version, on which to start again.
            _log.info("%s: vectors can't be united: %s", staged.table, error)
            return None
        # The union replaces vectors of the commit, whose file no version may name then.
        removes = [a for a in staged.actions if isinstance(a, Remove)]
        new = _files(staged.actions) - _files(removes)
        self._files.setdefault(unread.location, set()).update(union.file, new)
        seen = {path: vector_id(mark.now) for path, mark in unread.marks.items()}
        reads = replace(staged.reads, vectors={**staged.reads.vectors, **seen})
        return replace(union.staged, reads=reads)

    def discard(self, made: Iterable[Staged] = ()) -> None:
        """Delete the files of vectors that no commit in `made` names."""
        named = {path for staged in made for path in _files(staged.actions)}
        for location, paths in self._files.items():
            try:
                files = table_files(location, self.storage_options)
                files.discard(paths - named)
            except (OSError, StorageError) as error:
                _log.warning("files without a version stay: %s", error)


def _files(actions: Iterable[Action]) -> set[str]:
    """Return the files of the vectors that actions name."""
    vectors = (
        known(action.deletion_vector)
        for action in actions
        if isinstance(action, Add | Remove)
    )
    return {path for vector in vectors if vector for path in vector_paths(vector)}
