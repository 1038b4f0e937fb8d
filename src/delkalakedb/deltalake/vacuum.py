"""Vacuum: which files may be deleted.

The catalog knows when a file that a version names was removed, and the store knows when
any other file was written. A file stays if it was needed, or written, within the
retention. Files are compared by their resolved paths. Files outside of the table's
location, and behind symbolic links, are never deleted.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from urllib.parse import unquote

from delkalakedb.catalog import Catalog
from delkalakedb.catalog.read import Head, SqlTxnLogReader, Upkeep
from delkalakedb.clock import now_ms
from delkalakedb.errors import DeltaError, VersionNotFoundError
from delkalakedb.model.actions import Metadata
from delkalakedb.model.paths import (
    LOG,
    Inside,
    Outside,
    key_inside,
    log_paths,
    resolve_path,
)
from delkalakedb.model.schema.properties import parse_properties
from delkalakedb.model.schema.schema import parse_schema
from delkalakedb.model.vectors import vector_paths
from delkalakedb.storage import ObjectMeta, Store, delete_counted, real_location
from delkalakedb.telemetry import log_event

_log = logging.getLogger("delkalakedb.vacuum")
_HOUR_MS = 3_600_000
# They hold files that belong to data files, and are deleted with them.
_NOT_HIDDEN = ("_change_data", "_delta_index")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long removed files are kept: as asked for, and as the table has it."""

    asked_ms: int
    default_ms: int


@dataclass(frozen=True, slots=True)
class Vacuum:
    """A vacuum of a table at its store.

    Args:
        catalog: the table's catalog.
        log: the table's log.
        store: the store at the table's location.
        retention_ms: how long unneeded files are kept, in milliseconds.
        full: also delete files that no version names.
        keep_versions: versions of which every file stays.
        inventory: the files at the location, instead of a listing of the store.
    """

    catalog: Catalog
    log: SqlTxnLogReader
    store: Store
    retention_ms: int
    full: bool
    keep_versions: Sequence[int]
    inventory: Sequence[ObjectMeta] | None = None

    def plan(self) -> dict[str, int]:
        """Return the sizes, by path below the location, of the files to delete."""
        upkeep = self._upkeep()
        found = self._expired(upkeep)
        if self.full:
            found = {**found, **self._listed(upkeep), **found}
        return self._unneeded(upkeep, found)

    def still(self, plan: dict[str, int]) -> list[str]:
        """Return the paths of a plan that are unneeded even now."""
        return list(self._unneeded(self._upkeep(), plan))

    def delete(self, plan: dict[str, int]) -> list[str]:
        """Delete the files of a plan that are unneeded even now; return their paths."""
        doomed = self.still(plan)
        what = f"vacuum {self.log.head().name}"
        left = {*delete_counted(self.store, doomed, what)}
        if left:
            self._tell(
                f"{len(left)} expired files, such as {min(left)}, stay, because only a "
                "symbolic link leads there"
            )
        return [path for path in doomed if path not in left]

    def _upkeep(self) -> Upkeep:
        log, head = self.log, self.log.head()
        # Commits in quick succession have timestamps ahead of the clock.
        latest_ms = max(now_ms(), head.timestamp_ms)
        cutoff_ms = latest_ms - self.retention_ms
        try:
            floor = log.version_at(cutoff_ms)
        except VersionNotFoundError:
            floor = head.first_version - 1
        return Upkeep(self.catalog._backend, head, floor, cutoff_ms)

    def _expired(self, upkeep: Upkeep) -> dict[str, int]:
        """Return the sizes of files whose tombstones have expired, by path."""
        found: dict[str, int] = {}
        strays = []
        may_delete = self._filter(upkeep)
        for path, size_bytes in chain(upkeep.expired().items(), _vectors(upkeep)):
            key = key_inside(path, upkeep.head.location)
            if key is None:
                strays.append(path)
            elif may_delete(key):
                found[key] = found.get(key, 0) + size_bytes
        if strays:
            self._tell(
                f"{len(strays)} tombstones, such as {strays[0]}, name nothing below "
                f"{upkeep.head.location}; nothing outside of it is ever deleted"
            )
        return found

    def _listed(self, upkeep: Upkeep) -> dict[str, int]:
        """Return the files in the store that are old enough to be deleted."""
        may_delete, files = self._filter(upkeep), self.inventory
        if files is None:
            files = list(self.store.list_own())
        # A folder with a log is another Delta table.
        logs = {file.path.partition(f"/{LOG}/") for file in files}
        others = tuple(f"{folder}/" for folder, log, _ in logs if log)
        return {
            file.path: file.size_bytes
            for file in files
            if file.last_modified_ms <= upkeep.cutoff_ms
            and not file.is_link
            and not file.path.startswith(others)
            and may_delete(file.path)
        }

    def _filter(self, upkeep: Upkeep) -> Callable[[str], bool]:
        """Return a test for paths that may be data of this table."""
        above = real_location(upkeep.head.location)
        locations = (real_location(table.location) for table in self.catalog.tables())
        inside = (key_inside(location, above) for location in locations)
        others = tuple(f"{key}/" for key in inside if key is not None)
        columns = _folder_names(upkeep.head.metadata)
        return lambda path: (
            not path.startswith(others) and not _is_hidden(path, columns)
        )

    def _unneeded(self, upkeep: Upkeep, found: dict[str, int]) -> dict[str, int]:
        """Return the files that no kept version needs, however the log spells paths."""
        if not found:
            return {}
        needed, outside = set[str](), set[str]()
        for place in self._needed(upkeep):
            if isinstance(place, Outside):
                outside.add(_name(unquote(place.url)))
            elif place.path in found:
                needed.add(place.path)
        paths = (p.path for p in self._needed(upkeep) if isinstance(p, Inside))
        needed.update(self.store.behind_links(paths))
        # The location may have another URL, by a link or a server's alias. Then a file
        # that seems to lie outside is one of these.
        return {
            path: size_bytes
            for path, size_bytes in found.items()
            if path not in needed and _name(path) not in outside
        }

    def _needed(self, upkeep: Upkeep) -> Iterator[Inside | Outside]:
        location = upkeep.head.location
        for path in upkeep.needed():
            yield resolve_path(path, location)
        for vector, live in upkeep.vectors():
            if live:
                for path in vector_paths(vector):
                    yield resolve_path(path, location)
        for version in self.keep_versions:
            for add in self.log.adds(version):
                for path in log_paths(add):
                    yield resolve_path(path, location)

    def _tell(self, message: str) -> None:
        name = self.log.head().name
        message = f"{name}: vacuum: {message}"
        log_event(_log, logging.WARNING, message, event="vacuum", table=name)


def retention_of(head: Head, hours: float | None, *, enforce: bool) -> Retention:
    """Return the retention of a vacuum; with `enforce`, raise if it is too short."""
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
    """Return hours in milliseconds, rounded up so that no file is deleted too early."""
    if not (math.isfinite(hours) and hours >= 0):
        raise DeltaError(f"{name}: a retention is 0 hours or more, not {hours}")
    return math.ceil(hours * _HOUR_MS)


def _folder_names(metadata: Metadata) -> frozenset[str]:
    """Return the names of partition columns, as folders have them before the `=`."""
    schema = parse_schema(metadata.schema_string)
    columns = {*metadata.partition_columns}
    physical = {f.physical_name for f in schema.fields if f.name in columns}
    return frozenset(name.rpartition("/")[2] for name in columns | physical)


def _is_hidden(path: str, partition_columns: Set[str]) -> bool:
    """Return whether a part of the path is hidden, which Delta never takes for data."""
    return any(
        part.startswith(("_", "."))
        and not part.startswith(_NOT_HIDDEN)
        and not _is_partition(part, partition_columns)
        for part in path.split("/")
    )


def _is_partition(folder: str, columns: Set[str]) -> bool:
    # Some writers escape the columns' names, and a name may contain `=`.
    return any(
        name.startswith(f"{column}=")
        for name in (folder, unquote(folder))
        for column in columns
    )


def _vectors(upkeep: Upkeep) -> Iterator[tuple[str, int]]:
    """Yield the paths and sizes of the files of expired deletion vectors."""
    for vector, live in upkeep.vectors():
        if not live:
            for path in vector_paths(vector):
                yield path, vector.size_in_bytes


def _name(path: str) -> str:
    return path.rpartition("/")[2]
