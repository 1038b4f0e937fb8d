"""Which files vacuum may delete.

Of a file that a version names, the catalog knows when it was removed; of any other, the
store knows when it was written. Nothing goes that was needed, or written, within the
retention.
"""

import math
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.head import Head
from delkalakedb.catalog.reader import SqlTxnLogReader
from delkalakedb.catalog.upkeep import Upkeep
from delkalakedb.errors import DeltaError, VersionNotFoundError
from delkalakedb.mirror.datafiles import vector_path
from delkalakedb.model.actions import Add, DeletionVector, known
from delkalakedb.model.properties import parse_properties
from delkalakedb.storage import Store

__all__ = ["Retention", "Vacuum", "path_inside", "paths_of", "retention_of"]

_HOUR_MS = 3_600_000
# They hold what belongs to data files, and go with them.
_NOT_HIDDEN = ("_change_data", "_delta_index")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long removed files are kept, as asked for and as the table has it."""

    asked_ms: int
    default_ms: int


@dataclass(frozen=True, slots=True)
class Vacuum:
    """A vacuum of a table at its store.

    Args:
        catalog: the table's catalog.
        log: the table's log.
        store: its location.
        retention_ms: how long files are kept that nothing needs.
        full: files that no version names go as well.
        keep_versions: versions of which every file stays.
    """

    catalog: Catalog
    log: SqlTxnLogReader
    store: Store
    retention_ms: int
    full: bool
    keep_versions: Sequence[int]

    def plan(self) -> dict[str, int]:
        """The sizes, by path, of the files to delete."""
        upkeep = self._upkeep()
        plan = self._expired(upkeep)
        if self.full:
            plan |= self._orphans(upkeep, plan)
        return plan

    def still(self, plan: dict[str, int]) -> list[str]:
        """Those of a plan that nothing needs even now."""
        upkeep = self._upkeep()
        if not self.full:
            now = self._expired(upkeep)
            return [path for path in plan if path in now]
        needed = self._needed(upkeep)
        return [path for path in plan if path not in needed]

    def _upkeep(self) -> Upkeep:
        log, head = self.log, self.log.head()
        # Commits in quick succession are dated ahead of the clock.
        now_ms = max(int(time.time() * 1000), head.timestamp_ms)
        cutoff_ms = now_ms - self.retention_ms
        try:
            floor = log.version_at(cutoff_ms)
        except VersionNotFoundError:
            floor = head.first_version - 1
        return Upkeep(self.catalog.backend, head, floor, cutoff_ms)

    def _expired(self, upkeep: Upkeep) -> dict[str, int]:
        found = {
            inside: size
            for path, size in upkeep.expired().items()
            if (inside := path_inside(path)) is not None
        }
        found |= _expired_vectors(upkeep)
        kept, columns = self._kept(), upkeep.head.metadata.partition_columns
        return {
            path: size
            for path, size in found.items()
            if path not in kept and not _is_hidden(path, columns)
        }

    def _orphans(self, upkeep: Upkeep, plan: Collection[str]) -> dict[str, int]:
        needed, columns = self._needed(upkeep), upkeep.head.metadata.partition_columns
        others = tuple(self._others(upkeep.head.location))
        return {
            file.path: file.size_bytes
            for file in self.store.list()
            if file.last_modified_ms <= upkeep.cutoff_ms
            and file.path not in needed
            and file.path not in plan
            and not _is_hidden(file.path, columns)
            and not file.path.startswith(others)
        }

    def _others(self, location: str) -> Iterator[str]:
        """The folders below the location that other tables have."""
        above = f"{location}/"
        for table in self.catalog.tables():
            if table.location.startswith(above):
                yield f"{unquote(table.location.removeprefix(above))}/"

    def _needed(self, upkeep: Upkeep) -> set[str]:
        needed = {unquote(path) for path in upkeep.needed()}
        vectors = (vector for vector, live in upkeep.vectors() if live)
        return needed | self._kept() | {path for v in vectors for path in _vector(v)}

    def _kept(self) -> set[str]:
        return {
            path
            for version in self.keep_versions
            for add in self.log.adds(version)
            for path in paths_of(add)
        }


def retention_of(head: Head, hours: float | None, *, enforce: bool) -> Retention:
    """The retention of a vacuum; an error where it is too short and `enforce`."""
    default_ms = parse_properties(head.metadata).deleted_file_retention_ms
    asked_ms = default_ms if hours is None else _milliseconds(head.name, hours)
    if enforce and asked_ms < default_ms:
        raise DeltaError(
            f"{head.name}: Invalid retention period, minimum retention for vacuum is "
            f"configured to be greater than {default_ms / _HOUR_MS:g} hours, "
            f"got {asked_ms / _HOUR_MS:g} hours"
        )
    return Retention(asked_ms, default_ms)


def _milliseconds(name: str, hours: float) -> int:
    """Return hours in milliseconds, rounded up: more is kept, never less."""
    if not (math.isfinite(hours) and hours >= 0):
        raise DeltaError(f"{name}: a retention is 0 hours or more, not {hours}")
    return math.ceil(hours * _HOUR_MS)


def path_inside(path: str) -> str | None:
    """The literal path in the table's location; absolute ones lead out of it."""
    outside = urlsplit(path).scheme or path.startswith("/")
    return None if outside else unquote(path)


def paths_of(add: Add) -> Iterator[str]:
    """Where a file is in the store, and its deletion vector's; none lies outside."""
    if (path := path_inside(add.path)) is not None:
        yield path
    if (vector := known(add.deletion_vector)) is not None:
        yield from _vector(vector)


def _is_hidden(path: str, partition_columns: Sequence[str]) -> bool:
    """Whether a part of the path is hidden: Delta never takes that for data."""
    exempt = (*_NOT_HIDDEN, *(f"{column}=" for column in partition_columns))
    return any(
        part.startswith(("_", ".")) and not part.startswith(exempt)
        for part in path.split("/")
    )


def _expired_vectors(upkeep: Upkeep) -> dict[str, int]:
    """The files of deletion vectors none of which is needed; several share one."""
    sizes: dict[str, int] = {}
    needed: set[str] = set()
    for vector, live in upkeep.vectors():
        for path in _vector(vector):
            sizes[path] = sizes.get(path, 0) + vector.size_in_bytes
            needed.update([path] if live else [])
    return {path: size for path, size in sizes.items() if path not in needed}


def _vector(vector: DeletionVector) -> Iterator[str]:
    if vector.storage_type == "u":
        path = vector_path(vector.path_or_inline_dv)
        if path is not None:
            yield path
